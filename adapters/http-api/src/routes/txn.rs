//! Transactions: <https://developer.hashicorp.com/consul/api-docs/txn>.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde_json::{Value, json};
use starling_catalog::{
    Command, CoordinationCommand, CoordinationRefusal, KvOperation, KvWrite, Operation, OperationAnswer, Refusal,
    Snapshot, TXN_OPERATIONS_MAX, transaction_answers,
};
use starling_model::{KvKey, KvValue, Record, Revision, Uuid, Versioned};

use super::kv;
use crate::answer::{Answer, forms};
use crate::call::{Call, log_notices};
use crate::error::ApiError;
use crate::parse::{Context, FieldError, Fields, parse_json, parse_operation};
use crate::ports::{CommitFailure, Committed, MeshFacts};
use crate::router::{Api, Outcome};

pub(super) async fn run(api: Arc<Api>, call: Call) -> Outcome {
    let operations = {
        let context = Call::context(&api.catalog.authority());
        let operations = operations_of(&context, parse_json(&call.body)?)?;
        log_notices(&context);
        operations
    };
    let command = command_of(&operations);
    match api.transact(&call, command).await {
        Ok(Committed { revision, decided_on }) => {
            let answers = transaction_answers(&decided_on, &operations, revision).unwrap_or_default();
            let facts = api.catalog.authority();
            let results: Vec<Value> = answers.iter().map(|answer| form(answer, &decided_on, &facts)).collect();
            Ok(Answer::json(json!({"Results": results, "Errors": null})).written_at(revision))
        }
        Err(CommitFailure::Refused(Refusal::Coordination(CoordinationRefusal::Operations(failures)))) => {
            Ok(failed(failures.iter().map(|(place, failure)| (*place, failure.to_string()))))
        }
        Err(CommitFailure::Refused(Refusal::Transaction(failures))) => {
            Ok(failed(failures.iter().map(|(place, failure)| (*place, failure.to_string()))))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// One on entries alone removes trees of any size.
fn command_of(operations: &[Operation]) -> Command {
    let on_entries = operations.iter().map(|operation| match operation {
        Operation::Kv(operation) => Some(operation.clone()),
        Operation::Node(_) | Operation::Instance(_) | Operation::Check(_) => None,
    });
    match on_entries.collect::<Option<Vec<_>>>() {
        Some(on_entries) => Command::Coordination(CoordinationCommand::Kv(on_entries)),
        None => Command::Transaction(operations.to_vec()),
    }
}

fn failed(failures: impl Iterator<Item = (usize, String)>) -> Answer {
    let errors: Vec<Value> = failures.map(|(place, what)| json!({"OpIndex": place, "What": what})).collect();
    Answer::json(json!({"Results": null, "Errors": errors})).status(StatusCode::CONFLICT)
}

fn form(answer: &OperationAnswer, snapshot: &Snapshot, facts: &MeshFacts) -> Value {
    let record = match answer {
        OperationAnswer::Kv(answer) => return json!({"KV": kv::form(&answer.entry, answer.with_value)}),
        OperationAnswer::Record(record) => record,
    };
    let (created, modified) = (record.created, record.modified);
    if let Record::Node(node) = &record.value {
        json!({"Node": forms::node(&Versioned { value: node.clone(), created, modified }, facts)})
    } else if let Record::Instance(instance) = &record.value {
        json!({"Service": forms::node_service(&Versioned { value: instance.clone(), created, modified }, snapshot)})
    } else if let Record::Check(check) = &record.value {
        let mut form = forms::check(check, created, modified);
        if check.service.is_none() {
            // Here, unlike in lists, Consul writes null for the tags of no service.
            form["ServiceTags"] = Value::Null;
        }
        json!({"Check": form})
    } else {
        json!({})
    }
}

fn operations_of(context: &Context, body: Value) -> Result<Vec<Operation>, ApiError> {
    let Value::Array(operations) = body else {
        return Err(ApiError::bad_request("body: must be a list of operations"));
    };
    if operations.len() > TXN_OPERATIONS_MAX {
        let text = format!("Transaction contains too many operations ({} > {TXN_OPERATIONS_MAX})", operations.len());
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    let now_ms = super::now_ms();
    let read = |(place, value): (usize, Value)| -> Result<Operation, FieldError> {
        let mut fields = Fields::of(context, &format!("[{place}]"), value)?;
        fields.unsupported("Session")?;
        let mut found = None;
        for kind in ["KV", "Node", "Service", "Check"] {
            let Some(own) = fields.object(kind)? else { continue };
            if let Some((other, _)) = found.replace((kind, own)) {
                return Err(fields.error(kind, format!("contradicts {other}: an operation is on one of them")));
            }
        }
        fields.finish()?;
        match found {
            Some(("KV", own)) => operation_of(own, now_ms).map(Operation::Kv),
            Some((kind, own)) => parse_operation(own, kind),
            None => Err(FieldError::new(format!("[{place}]"), "has none of KV, Node, Service and Check")),
        }
    };
    Ok(operations.into_iter().enumerate().map(read).collect::<Result<_, _>>()?)
}

fn operation_of(mut fields: Fields<'_>, now_ms: u64) -> Result<KvOperation, FieldError> {
    let verb = fields.required_text("Verb")?;
    let text = fields.text("Key")?.unwrap_or_default();
    let value = fields.text("Value")?.unwrap_or_default();
    let value = STANDARD.decode(value).map_err(|error| fields.error("Value", error))?;
    let value = KvValue::new(&value).map_err(|error| fields.error("Value", error))?;
    let (flags, index) = (fields.whole_number("Flags")?, Revision(fields.whole_number("Index")?));
    let session = fields.text("Session")?;
    let session: Option<Uuid> = session
        .map(|text| text.to_ascii_lowercase().parse().map_err(|_| fields.error("Session", "is no UUID")))
        .transpose()?;
    fields.tenancy()?;
    let key = |fields: &Fields<'_>| KvKey::new(&text).map_err(|error| fields.error("Key", error));
    let write = |fields: &Fields<'_>| Ok::<_, FieldError>(KvWrite { key: key(fields)?, value, flags });
    let operation = match verb.as_str() {
        "set" => KvOperation::Set(write(&fields)?),
        "cas" => KvOperation::Cas(write(&fields)?, index),
        "lock" => KvOperation::Lock { write: write(&fields)?, session, now_ms },
        "unlock" => KvOperation::Unlock(write(&fields)?, session),
        "get" => KvOperation::Get(key(&fields)?),
        "get-or-empty" => KvOperation::GetOrEmpty(key(&fields)?),
        "get-tree" => KvOperation::GetTree(text),
        "check-index" => KvOperation::CheckIndex(key(&fields)?, index),
        "check-session" => KvOperation::CheckSession(key(&fields)?, session),
        "check-not-exists" => KvOperation::CheckNotExists(key(&fields)?),
        "delete" => KvOperation::Delete(key(&fields)?),
        "delete-cas" => KvOperation::DeleteCas(key(&fields)?, index),
        "delete-tree" => KvOperation::DeleteTree(text),
        other => return Err(fields.error("Verb", format!("unknown verb {other:?}"))),
    };
    fields.finish()?;
    Ok(operation)
}
