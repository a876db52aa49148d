//! Transactions: <https://developer.hashicorp.com/consul/api-docs/txn>.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use serde_json::{Value, json};
use starling_catalog::{
    Command, CoordinationCommand, CoordinationRefusal, KvOperation, KvWrite, Refusal, TXN_OPERATIONS_MAX, kv_answers,
};
use starling_model::{KvKey, KvValue, Revision, Uuid};

use super::kv;
use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::parse::{Context, FieldError, Fields, parse_json};
use crate::ports::{CommitFailure, Committed};
use crate::router::{Api, Outcome};

pub(super) async fn run(api: Arc<Api>, call: Call) -> Outcome {
    let operations = {
        let context = Call::context(&api.catalog.authority());
        operations_of(&context, parse_json(&call.body)?)?
    };
    let command = Command::Coordination(CoordinationCommand::Kv(operations.clone()));
    match api.transact(&call, command).await {
        Ok(Committed { revision, decided_on }) => {
            let answers = kv_answers(&decided_on, &operations, revision).unwrap_or_default();
            let results: Vec<Value> =
                answers.iter().map(|answer| json!({"KV": kv::form(&answer.entry, answer.with_value)})).collect();
            Ok(Answer::json(json!({"Results": results, "Errors": null})).written_at(revision))
        }
        Err(CommitFailure::Refused(Refusal::Coordination(CoordinationRefusal::Operations(failures)))) => {
            let body = json!({"Results": null, "Errors": kv::failures_form(&failures)});
            Ok(Answer::json(body).status(StatusCode::CONFLICT))
        }
        Err(failure) => Err(failure.into()),
    }
}

fn operations_of(context: &Context, body: Value) -> Result<Vec<KvOperation>, ApiError> {
    let Value::Array(operations) = body else {
        return Err(ApiError::bad_request("body: must be a list of operations"));
    };
    if operations.len() > TXN_OPERATIONS_MAX {
        let text = format!("Transaction contains too many operations ({} > {TXN_OPERATIONS_MAX})", operations.len());
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    let now_ms = super::now_ms();
    let read = |(place, value): (usize, Value)| -> Result<KvOperation, FieldError> {
        let mut fields = Fields::of(context, &format!("[{place}]"), value)?;
        for other in ["Node", "Service", "Check", "Session"] {
            fields.unsupported(other)?;
        }
        let kv = fields.object("KV")?;
        fields.finish()?;
        operation_of(kv.ok_or_else(|| FieldError::new(format!("[{place}]"), "has no KV"))?, now_ms)
    };
    Ok(operations.into_iter().enumerate().map(read).collect::<Result<_, _>>()?)
}

fn operation_of(mut fields: Fields<'_>, now_ms: u64) -> Result<KvOperation, FieldError> {
    let verb = fields.required_text("Verb")?;
    let text = fields.text("Key")?.unwrap_or_default();
    let value = fields.text("Value")?.unwrap_or_default();
    let value = STANDARD.decode(value).map_err(|error| fields.error("Value", error))?;
    let value = KvValue::new(&value).map_err(|error| fields.error("Value", error))?;
    let (flags, index) = (whole_number(&mut fields, "Flags")?, Revision(whole_number(&mut fields, "Index")?));
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

/// A number from 0 to 2^64 - 1, which are more than a signed one holds.
fn whole_number(fields: &mut Fields<'_>, name: &str) -> Result<u64, FieldError> {
    let Some(field) = fields.take(name) else { return Ok(0) };
    field.value.as_u64().ok_or_else(|| FieldError::new(&field.path, "must be a whole number, not below 0"))
}
