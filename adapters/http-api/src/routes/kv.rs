//! The key-value store: <https://developer.hashicorp.com/consul/api-docs/kv>.

use std::sync::Arc;

use serde_json::{Value, json};
use starling_catalog::{Command, CoordinationCommand, CoordinationRefusal, KvOperation, KvWrite, Refusal, Subject};
use starling_model::coordination::folder_of;
use starling_model::{KvEntry, KvKey, KvValue, Resource, Uuid, Versioned};

use crate::answer::Answer;
use crate::blocking::view;
use crate::call::Call;
use crate::error::ApiError;
use crate::ports::CommitFailure;
use crate::router::{Api, Outcome};

fn key_of(call: &Call) -> Result<KvKey, ApiError> {
    KvKey::new(call.param("key")).map_err(|error| ApiError::bad_request(format!("Invalid key: {error}")))
}

/// The session in a parameter. One that can be none is refused as one that is not there, in Consul's words.
fn session_of(call: &Call, name: &str) -> Result<Option<Uuid>, ApiError> {
    let Some(text) = call.query.get(name) else { return Ok(None) };
    let session =
        text.to_ascii_lowercase().parse().map_err(|_| ApiError::bad_request(format!("invalid session {text:?}")))?;
    Ok(Some(session))
}

pub(super) async fn read(api: Arc<Api>, mut call: Call) -> Outcome {
    if call.query.has("keys") {
        return keys(api, call).await;
    }
    if call.query.has("recurse") {
        return list(api, call).await;
    }
    let key = key_of(&call)?;
    let view = view(&api, &mut call, &[Subject::Kv(key.clone())]).await?;
    let Some(entry) = view.snapshot.kv(&key) else { return Err(ApiError::not_found("").at(view.index)) };
    let answer = if call.query.has("raw") {
        Answer::octets(entry.value.value.as_bytes().to_vec())
    } else {
        Answer::json(json!([form(entry, true)]))
    };
    Ok(answer.read_at(view.index))
}

async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let prefix = call.param("key").to_owned();
    let prefix = prefix.as_str();
    let view = view(&api, &mut call, &[folder_subject(prefix)]).await?;
    let readable = |entry: &&Arc<Versioned<KvEntry>>| call.bearer().reads(Resource::Key, entry.value.key.as_str());
    let entries: Vec<Value> = view.snapshot.kv_under(prefix).filter(readable).map(|entry| form(entry, true)).collect();
    let is_narrowed = !view.snapshot.kv_under(prefix).all(|entry| readable(&entry));
    found(entries, view.index).map(|answer| answer.narrowed_if(is_narrowed))
}

/// Keys alone; with a separator, up to the first one behind the prefix.
async fn keys(api: Arc<Api>, mut call: Call) -> Outcome {
    let prefix = call.param("key").to_owned();
    let prefix = prefix.as_str();
    let view = view(&api, &mut call, &[folder_subject(prefix)]).await?;
    let separator = call.query.text("separator");
    let mut keys: Vec<&str> = Vec::new();
    let mut is_narrowed = false;
    for entry in view.snapshot.kv_under(prefix) {
        let key = entry.value.key.as_str();
        if !call.bearer().reads(Resource::Key, key) {
            is_narrowed = true;
            continue;
        }
        let end =
            separator.and_then(|separator| Some(key[prefix.len()..].find(separator)? + prefix.len() + separator.len()));
        let shown = end.map_or(key, |end| &key[..end]);
        // They come in order.
        if keys.last() != Some(&shown) {
            keys.push(shown);
        }
    }
    found(keys.into_iter().map(Value::from).collect(), view.index).map(|answer| answer.narrowed_if(is_narrowed))
}

fn folder_subject(prefix: &str) -> Subject {
    Subject::KvFolder(folder_of(prefix).to_owned())
}

fn found(values: Vec<Value>, index: starling_model::Revision) -> Outcome {
    if values.is_empty() {
        return Err(ApiError::not_found("").at(index));
    }
    Ok(Answer::json(Value::Array(values)).read_at(index))
}

/// An entry as clients read it.
pub(super) fn form(entry: &Versioned<KvEntry>, with_value: bool) -> Value {
    let KvEntry { key, value, flags, lock_index, session } = &entry.value;
    let value = (with_value && !value.as_bytes().is_empty()).then(|| value.to_base64());
    let mut form = json!({
        "LockIndex": lock_index,
        "Key": key.as_str(),
        "Flags": flags,
        "Value": value,
        "CreateIndex": entry.created.0,
        "ModifyIndex": entry.modified.0,
    });
    if let Some(session) = session {
        form["Session"] = json!(session.to_string());
    }
    form
}

pub(super) async fn write(api: Arc<Api>, call: Call) -> Outcome {
    let key = key_of(&call)?;
    let flags = match call.query.text("flags") {
        Some(text) => text.parse().map_err(|_| ApiError::bad_request(format!("Invalid flags: {text:?}")))?,
        None => 0,
    };
    let value = KvValue::new(&call.body).map_err(|error| ApiError::bad_request(error.to_string()))?;
    let write = KvWrite { key, value, flags };
    let (cas, acquire, release) = (call.query.cas()?, session_of(&call, "acquire")?, session_of(&call, "release")?);
    let operation = match (cas, acquire, release) {
        (None, None, None) => KvOperation::Set(write),
        (Some(index), None, None) => KvOperation::Cas(write, index),
        (None, Some(session), None) => KvOperation::Lock { write, session: Some(session), now_ms: super::now_ms() },
        (None, None, Some(session)) => KvOperation::Unlock(write, Some(session)),
        (_, _, _) => return Err(ApiError::bad_request("Conflicting flags: give one of cas, acquire and release")),
    };
    commit(&api, &call, operation).await
}

pub(super) async fn delete(api: Arc<Api>, call: Call) -> Outcome {
    let cas = call.query.cas()?;
    let operation = match (call.query.has("recurse"), cas) {
        (true, Some(_)) => return Err(ApiError::bad_request("Conflicting flags: give one of recurse and cas")),
        (true, None) => KvOperation::DeleteTree(call.param("key").to_owned()),
        (false, Some(index)) => KvOperation::DeleteCas(key_of(&call)?, index),
        (false, None) => KvOperation::Delete(key_of(&call)?),
    };
    commit(&api, &call, operation).await
}

/// Answers whether the condition of the operation held.
async fn commit(api: &Api, call: &Call, operation: KvOperation) -> Outcome {
    let command = Command::Coordination(CoordinationCommand::Kv(vec![operation]));
    match api.commit(call, command).await {
        Ok(revision) => Ok(Answer::json(json!(true)).written_at(revision)),
        Err(CommitFailure::Refused(Refusal::Coordination(CoordinationRefusal::Operations(failures)))) => {
            match failures.first() {
                Some((_, failure)) if !failure.is_condition() => Err(ApiError::bad_request(failure.to_string())),
                _ => Ok(Answer::json(json!(false))),
            }
        }
        Err(failure) => Err(failure.into()),
    }
}
