//! Sessions: <https://developer.hashicorp.com/consul/api-docs/session>.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use starling_catalog::{Command, CoordinationCommand, CoordinationRefusal, Refusal, Subject};
use starling_model::{CheckId, LIVENESS_CHECK, NodeName, Session, SessionBehavior, Uuid, Versioned};

use crate::answer::Answer;
use crate::blocking::view;
use crate::call::Call;
use crate::error::ApiError;
use crate::parse::{FieldError, Fields, parse_duration};
use crate::ports::CommitFailure;
use crate::relay::ASKING_NODE;
use crate::router::{Api, Outcome};

/// For how long nobody may lock what an ended session had, unless it says otherwise, and at most; Consul's.
const LOCK_DELAY_DEFAULT: Duration = Duration::from_secs(15);
const LOCK_DELAY_MAX: Duration = Duration::from_secs(60);

/// A lock delay that is a number below this is in seconds, else in nanoseconds; Consul's.
const LOCK_DELAY_SECONDS_BELOW: i64 = 1_000;

/// Within which time a session may have to be renewed; Consul's.
const TTL_MIN: Duration = Duration::from_secs(10);
const TTL_MAX: Duration = Duration::from_secs(86_400);

pub(super) async fn create(api: Arc<Api>, call: Call) -> Outcome {
    let facts = api.catalog.authority();
    // An agent passes this on to a server, and is what its programs mean by "here".
    let asking = call.headers.get(ASKING_NODE).and_then(|node| node.to_str().ok()).and_then(|node| node.parse().ok());
    let here = asking.unwrap_or_else(|| facts.node_name.clone());
    let id = Uuid::from_random(fastrand::u128(..));
    let liveness: CheckId = LIVENESS_CHECK.parse().expect("invariant: the name of a check");
    // The node of a server's own agent lives as long as the server, so nobody writes that it does.
    let is_beside = |node: &NodeName| *node == facts.node_name && api.is_server() && api.agent().is_ok();
    let usual_checks = |node: &NodeName| {
        let has_none = is_beside(node) && api.catalog.snapshot().check(node, &liveness).is_none();
        if has_none { Vec::new() } else { vec![liveness.clone()] }
    };
    let session = if call.body.is_empty() {
        session_of(id, here, &usual_checks, None)?
    } else {
        let context = Call::context(&facts);
        session_of(id, here, &usual_checks, Some(call.fields(&context)?))?
    };
    let command = CoordinationCommand::CreateSession { session, now_ms: super::now_ms() };
    let revision = api.commit(&call, Command::Coordination(command)).await?;
    Ok(Answer::json(json!({"ID": id.to_string()})).written_at(revision))
}

fn session_of(
    id: Uuid,
    here: NodeName,
    usual_checks: &dyn Fn(&NodeName) -> Vec<CheckId>,
    fields: Option<Fields<'_>>,
) -> Result<Session, FieldError> {
    let mut session = Session {
        id,
        name: String::new(),
        node_checks: usual_checks(&here),
        node: here,
        service_checks: Vec::new(),
        lock_delay_ms: milliseconds(LOCK_DELAY_DEFAULT),
        behavior: SessionBehavior::Release,
        ttl: String::new(),
        ttl_ms: None,
    };
    let Some(mut fields) = fields else { return Ok(session) };
    session.name = fields.text("Name")?.unwrap_or_default();
    if let Some(node) = fields.text("Node")? {
        session.node = node.parse().map_err(|error| fields.error("Node", error))?;
        session.node_checks = usual_checks(&session.node);
    }
    // `Checks` is the name of before 1.7.
    for name in ["NodeChecks", "Checks"] {
        if let Some(field) = fields.take(name) {
            let checks: Vec<String> = field.texts()?;
            session.node_checks = check_ids(checks).map_err(|error| fields.error(name, error))?;
            break;
        }
    }
    fields.ignored(&["NodeChecks", "Checks"]);
    for check in fields.list("ServiceChecks")? {
        let mut check = check.fields()?;
        let text = check.required_text("ID")?;
        session.service_checks.push(text.parse().map_err(|error| check.error("ID", error))?);
        check.only("Namespace", &["default"])?;
        check.finish()?;
    }
    if let Some(delay) = fields.take("LockDelay") {
        session.lock_delay_ms = milliseconds(
            lock_delay(&delay.value).ok_or_else(|| FieldError::new(&delay.path, "must be a duration, at most 60s"))?,
        );
    }
    match fields.text("Behavior")?.as_deref() {
        None | Some("release") => {}
        Some("delete") => session.behavior = SessionBehavior::Delete,
        Some(other) => return Err(fields.error("Behavior", format!("Invalid Behavior setting '{other}'"))),
    }
    if let Some(text) = fields.text("TTL")? {
        let ttl = parse_duration(&text).ok_or_else(|| fields.error("TTL", format!("Session TTL '{text}' invalid")))?;
        if !ttl.is_zero() {
            if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
                let reason = format!("Invalid Session TTL '{text}', must be between [10s=24h0m0s]");
                return Err(fields.error("TTL", reason));
            }
            (session.ttl, session.ttl_ms) = (text, Some(milliseconds(ttl)));
        }
    }
    fields.ignored(&["ID", "CreateIndex", "ModifyIndex"]);
    fields.tenancy()?;
    fields.finish()?;
    Ok(session)
}

fn check_ids(texts: Vec<String>) -> Result<Vec<CheckId>, starling_model::NameError> {
    texts.into_iter().filter(|text| !text.is_empty()).map(|text| text.parse()).collect()
}

fn lock_delay(value: &Value) -> Option<Duration> {
    let delay = match value {
        Value::String(text) => parse_duration(text)?,
        Value::Number(number) => match number.as_i64()? {
            seconds @ 0..LOCK_DELAY_SECONDS_BELOW => Duration::from_secs(seconds.unsigned_abs()),
            nanos @ LOCK_DELAY_SECONDS_BELOW.. => Duration::from_nanos(nanos.unsigned_abs()),
            _ => return None,
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    (delay <= LOCK_DELAY_MAX).then_some(delay)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn id_of(call: &Call) -> Result<Uuid, ApiError> {
    let text = call.param("id");
    text.to_ascii_lowercase()
        .parse()
        .map_err(|_| ApiError::bad_request(format!("Invalid Session ID: {text:?} is no UUID")))
}

pub(super) async fn destroy(api: Arc<Api>, call: Call) -> Outcome {
    let command = CoordinationCommand::EndSession(id_of(&call)?);
    let revision = api.commit(&call, Command::Coordination(command)).await?;
    Ok(Answer::json(json!(true)).written_at(revision))
}

pub(super) async fn renew(api: Arc<Api>, call: Call) -> Outcome {
    let id = id_of(&call)?;
    let command = CoordinationCommand::RenewSession { id, now_ms: super::now_ms() };
    match api.commit(&call, Command::Coordination(command)).await {
        Ok(_) => {}
        Err(CommitFailure::Refused(Refusal::Coordination(refusal @ CoordinationRefusal::UnknownSession(_)))) => {
            return Err(ApiError::not_found(refusal.to_string()));
        }
        Err(failure) => return Err(failure.into()),
    }
    let snapshot = api.catalog.snapshot();
    let sessions: Vec<Value> = snapshot.session(id).map(|session| form(session)).into_iter().collect();
    Ok(Answer::json(Value::Array(sessions)))
}

pub(super) async fn info(api: Arc<Api>, mut call: Call) -> Outcome {
    let id = id_of(&call)?;
    let view = view(&api, &mut call, &[Subject::Session(id)]).await?;
    let sessions: Vec<Value> = view.snapshot.session(id).map(|session| form(session)).into_iter().collect();
    Ok(Answer::json(Value::Array(sessions)).read_at(view.index))
}

pub(super) async fn of_node(api: Arc<Api>, mut call: Call) -> Outcome {
    let node = call.node_name()?;
    let view = view(&api, &mut call, &[Subject::NodeSessions(node.clone())]).await?;
    let sessions: Vec<Value> = view.snapshot.sessions_on(&node).map(|session| form(session)).collect();
    Ok(Answer::json(Value::Array(sessions)).read_at(view.index))
}

pub(super) async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::SessionList]).await?;
    let sessions: Vec<Value> = view.snapshot.sessions().map(|session| form(session)).collect();
    Ok(Answer::json(Value::Array(sessions)).read_at(view.index))
}

fn form(session: &Versioned<Session>) -> Value {
    let Session { id, name, node, node_checks, service_checks, lock_delay_ms, behavior, ttl, .. } = &session.value;
    let service_checks: Vec<_> = service_checks.iter().map(|id| json!({"ID": id.as_str(), "Namespace": ""})).collect();
    let node_checks: Vec<_> = node_checks.iter().map(|id| id.as_str()).collect();
    json!({
        "ID": id.to_string(),
        "Name": name,
        "Node": node.as_str(),
        "LockDelay": Duration::from_millis(*lock_delay_ms).as_nanos(),
        "Behavior": behavior.as_str(),
        "TTL": ttl,
        "NodeChecks": node_checks,
        "ServiceChecks": if service_checks.is_empty() { Value::Null } else { Value::Array(service_checks) },
        "CreateIndex": session.created.0,
        "ModifyIndex": session.modified.0,
    })
}
