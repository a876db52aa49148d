//! User events: <https://developer.hashicorp.com/consul/api-docs/event>.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use starling_model::{Revision, Uuid};

use crate::answer::Answer;
use crate::blocking::jittered;
use crate::call::Call;
use crate::error::ApiError;
use crate::router::{Api, Outcome};
use crate::volatile::{EVENTS_MAX, Event};

/// Bytes in the name of an event.
const NAME_BYTES_MAX: usize = 128;

pub(super) async fn fire(api: Arc<Api>, call: Call) -> Outcome {
    let name = call.param("name").to_owned();
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(ApiError::bad_request(format!("name: has 1 to {NAME_BYTES_MAX} bytes")));
    }
    let expression = |parameter: &str| -> Result<String, ApiError> {
        let text = call.query.text(parameter).unwrap_or_default();
        match starling_traffic::check_regex(text) {
            Err(error) if !text.is_empty() => Err(ApiError::bad_request(format!("{parameter}: {error}"))),
            Ok(()) | Err(_) => Ok(text.to_owned()),
        }
    };
    let (node, service, tag) = (expression("node")?, expression("service")?, expression("tag")?);
    if !tag.is_empty() && service.is_empty() {
        return Err(ApiError::bad_request("tag: needs service: a tag is one of a service"));
    }
    let id = Uuid::from_random(fastrand::u128(..));
    let event = Event { id, name, payload: call.body.to_vec(), node, service, tag, time: 0 };
    let event = api.events.add(event, super::now_ms());
    Ok(Answer::json(form(&event)))
}

fn form(event: &Event) -> Value {
    let payload = if event.payload.is_empty() { Value::Null } else { STANDARD.encode(&event.payload).into() };
    json!({
        "ID": event.id.to_string(),
        "Name": event.name,
        "Payload": payload,
        "NodeFilter": event.node,
        "ServiceFilter": event.service,
        "TagFilter": event.tag,
        "Version": 1,
        "LTime": event.time,
    })
}

/// Those of this server, and of the others unless `local`; a reader that waits is woken by those of this one.
pub(super) async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let name = call.query.text("name").map(str::to_owned);
    let own = || {
        let fits = |event: &Event| name.as_ref().is_none_or(|name| event.name == *name);
        api.events.all().into_iter().filter(fits).collect::<Vec<_>>()
    };
    if let Some(asked) = call.query.index()? {
        let deadline = tokio::time::Instant::now() + jittered(call.query.wait()?);
        let mut following = api.events.follow();
        while index_of(own().last().map(|event| event.id)) == asked {
            let next = tokio::time::timeout_at(deadline, following.changed());
            if !matches!(call.wait_for(&api, next).await?, Some(Ok(Ok(())))) {
                break;
            }
        }
    }
    let mut events: Vec<Value> = own().iter().map(form).collect();
    let last = own().last().map(|event| event.id);
    if !call.query.has("local") {
        for theirs in api.catalog.others_say("/v1/event/list?local").await.answers {
            let fits = |event: &Value| name.as_ref().is_none_or(|name| event["Name"] == name.as_str());
            events.extend(theirs.as_array().into_iter().flatten().filter(|event| fits(event)).cloned());
        }
        events.sort_by_key(|event| event["LTime"].as_u64());
        events.drain(..events.len().saturating_sub(EVENTS_MAX));
    }
    Ok(Answer::json(events.into()).read_at(index_of(last)))
}

/// Consul's index of a list that ends with this event: both halves of its identifier, one upon the other.
fn index_of(last: Option<Uuid>) -> Revision {
    let digits: String = last.map(|id| id.to_string().replace('-', "")).unwrap_or_default();
    let half = |at: usize| digits.get(at..at + 16).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
    Revision((half(0) ^ half(16)).max(1))
}
