//! Config entries.

use std::sync::Arc;

use serde_json::{Value, json};
use starling_catalog::{Command, Refusal, Subject};
use starling_model::{Access, ConfigEntry, ConfigEntryKey, ConfigKind, IntentionSubject, ServiceName, SourceDecision};

use crate::acl::resource_of_kind;
use crate::answer::{Answer, forms};
use crate::blocking::view;
use crate::call::{Call, log_notices};
use crate::error::ApiError;
use crate::parse::config_entry::KINDS_UNSUPPORTED;
use crate::parse::parse_config_entry;
use crate::ports::CommitFailure;
use crate::router::{Api, Outcome};

pub(super) async fn write(api: Arc<Api>, call: Call) -> Outcome {
    let cas = call.query.cas()?;
    let entry = {
        let context = Call::context(&api.catalog.authority());
        let entry = parse_config_entry(call.fields(&context)?)?;
        log_notices(&context);
        entry
    };
    let conflict_path = conflict_path(&entry);
    match api.commit(&call, Command::PutConfig { entry, cas }).await {
        Ok(revision) => Ok(Answer::json(json!(true)).written_at(revision)),
        Err(CommitFailure::Refused(Refusal::Cas { .. })) => Ok(Answer::json(json!(false))),
        Err(CommitFailure::Refused(refusal @ (Refusal::ProtocolConflict { .. } | Refusal::RoutingProtocol { .. }))) => {
            Err(ApiError::bad_request(format!("{conflict_path}: {refusal}")))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// The field that stands against the protocol of a service, if one does.
fn conflict_path(entry: &ConfigEntry) -> String {
    match entry {
        ConfigEntry::ProxyDefaults(_) => "Config.protocol".to_owned(),
        ConfigEntry::ServiceDefaults(_) => "Protocol".to_owned(),
        ConfigEntry::ServiceIntentions(entry) => {
            let by_request = |decision: &SourceDecision| matches!(decision, SourceDecision::Requests(_));
            let index = entry.sources.iter().position(|source| by_request(&source.decision)).unwrap_or(0);
            format!("Sources[{index}].Permissions")
        }
        ConfigEntry::ServiceResolver(_)
        | ConfigEntry::ServiceRouter(_)
        | ConfigEntry::ServiceSplitter(_)
        | ConfigEntry::IngressGateway(_)
        | ConfigEntry::TerminatingGateway(_)
        | ConfigEntry::Mesh(_)
        | ConfigEntry::Kept(_) => "Name".to_owned(),
    }
}

/// The kind in the path; `None` for one of Consul's that this release does not have.
fn kind_of(call: &Call) -> Result<Option<ConfigKind>, ApiError> {
    let text = call.param("kind");
    match ConfigKind::of_users(text) {
        Ok(kind) => Ok(Some(kind)),
        Err(_) if KINDS_UNSUPPORTED.contains(&text) => Ok(None),
        Err(_) => Err(ApiError::bad_request(format!("invalid config entry kind: {text}"))),
    }
}

pub(super) async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let Some(kind) = kind_of(&call)? else {
        // Nothing can change what is not there: a reader that waits waits for the time to pass.
        let view = view(&api, &mut call, &[]).await?;
        return Ok(Answer::json(json!([])).read_at(view.index));
    };
    let view = view(&api, &mut call, &[Subject::ConfigList(kind)]).await?;
    let entries: Vec<Value> = view.snapshot.configs(kind).map(|entry| forms::config_entry(entry)).collect();
    Ok(Answer::json(Value::Array(entries)).read_at(view.index))
}

fn not_found(call: &Call) -> ApiError {
    let (kind, name) = (call.param("kind"), call.param("name"));
    ApiError::not_found(format!("Config entry not found for {kind:?} / {name:?}"))
}

pub(super) async fn read(api: Arc<Api>, mut call: Call) -> Outcome {
    let Some(kind) = kind_of(&call)? else { return Err(not_found(&call)) };
    let name = call.param("name").to_owned();
    let name = name.as_str();
    let wrong_name = |error: starling_model::NameError| ApiError::bad_request(format!("Name: {error}"));
    let subject = match kind {
        ConfigKind::ProxyDefaults | ConfigKind::Mesh => Subject::ProxyDefaults,
        ConfigKind::ServiceDefaults
        | ConfigKind::ServiceResolver
        | ConfigKind::ServiceRouter
        | ConfigKind::ServiceSplitter
        | ConfigKind::IngressGateway
        | ConfigKind::TerminatingGateway => Subject::Routing(ServiceName::new(name).map_err(wrong_name)?),
        // Few and seldom written: a reader of one is woken for any of its kind.
        ConfigKind::Kept(_) => Subject::ConfigList(kind),
        ConfigKind::ServiceIntentions => Subject::Intentions(name.parse::<IntentionSubject>().map_err(wrong_name)?),
    };
    let view = view(&api, &mut call, &[subject]).await?;
    match view.snapshot.config(&ConfigEntryKey { kind, name: name.to_owned() }) {
        Some(entry) => {
            let form = forms::config_entry(entry);
            if let Some(resource) = resource_of_kind(call.param("kind")) {
                call.bearer().require(resource, name, Access::Read)?;
            }
            Ok(Answer::json(form).read_at(view.index))
        }
        None => Err(not_found(&call).at(view.index)),
    }
}

pub(super) async fn delete(api: Arc<Api>, call: Call) -> Outcome {
    let cas = call.query.cas()?;
    let Some(kind) = kind_of(&call)? else {
        let reason = format!("Kind: {:?} is not supported in this release", call.param("kind"));
        return Err(ApiError::bad_request(reason));
    };
    let key = ConfigEntryKey { kind, name: call.param("name").to_owned() };
    match api.commit(&call, Command::DeleteConfig { key, cas }).await {
        Ok(revision) if cas.is_some() => Ok(Answer::json(json!(true)).written_at(revision)),
        Ok(revision) => Ok(Answer::json(json!({})).written_at(revision)),
        Err(CommitFailure::Refused(Refusal::Cas { .. })) => Ok(Answer::json(json!(false))),
        Err(failure) => Err(failure.into()),
    }
}
