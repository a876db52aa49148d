//! Intentions, one by one: each is one source of a `service-intentions` entry.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use starling_catalog::{Command, IntentionById, IntentionRefusal, Refusal, Snapshot, Subject};
use starling_model::{
    Access, Action, ConfigEntry, ConfigKind, IntentionSubject, Resource, Revision, ServiceIntentions, ServiceName,
    SourceIntention, Uuid, Versioned,
};
use starling_traffic::{Policy, authorise};

use crate::answer::{Answer, forms};
use crate::blocking::view;
use crate::call::{Call, Query};
use crate::error::ApiError;
use crate::parse::intention::{parse_exact, parse_named, parse_subject};
use crate::ports::CommitFailure;
use crate::router::{Api, Outcome};

/// One intention with the revisions of the entry that holds it.
struct Listed<'s> {
    entry: &'s ServiceIntentions,
    source: &'s SourceIntention,
    created: Revision,
    modified: Revision,
}

impl Listed<'_> {
    fn form(&self) -> Value {
        forms::intention(&self.entry.destination, self.source, &self.entry.meta, self.created, self.modified)
    }

    fn precedence(&self) -> u8 {
        self.source.precedence(&self.entry.destination)
    }
}

fn of_entry(entry: &Versioned<ConfigEntry>) -> impl Iterator<Item = Listed<'_>> {
    let (created, modified) = (entry.created, entry.modified);
    let entry = if let ConfigEntry::ServiceIntentions(entry) = &entry.value { Some(entry) } else { None };
    entry
        .into_iter()
        .flat_map(move |entry| entry.sources.iter().map(move |source| Listed { entry, source, created, modified }))
}

/// Those that `wanted` keeps, the one that decides first.
fn listed(snapshot: &Snapshot, wanted: impl Fn(&Listed<'_>) -> bool) -> Value {
    let entries = snapshot.configs(ConfigKind::ServiceIntentions);
    let mut all: Vec<Listed<'_>> = entries.flat_map(|entry| of_entry(entry)).filter(wanted).collect();
    all.sort_by(|a, b| {
        let names = |listed: &Listed<'_>| (listed.source.source.to_string(), listed.entry.destination.to_string());
        b.precedence().cmp(&a.precedence()).then_with(|| names(a).cmp(&names(b)))
    });
    Value::Array(all.iter().map(Listed::form).collect())
}

pub(super) async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::ConfigList(ConfigKind::ServiceIntentions)]).await?;
    Ok(Answer::json(listed(&view.snapshot, |_| true)).read_at(view.index))
}

/// A required parameter that names one side of an intention.
fn side(query: &Query, name: &str) -> Result<IntentionSubject, ApiError> {
    let text =
        query.text(name).ok_or_else(|| ApiError::bad_request(format!("required query parameter '{name}' not set")))?;
    parse_subject(text).map_err(|reason| ApiError::bad_request(format!("{name}: {reason}")))
}

pub(super) async fn read(api: Arc<Api>, mut call: Call) -> Outcome {
    let (source, destination) = (side(&call.query, "source")?, side(&call.query, "destination")?);
    let view = view(&api, &mut call, &[Subject::Intentions(destination.clone())]).await?;
    let entry = view.snapshot.intentions(&destination);
    let found = entry.and_then(|entry| of_entry(entry).find(|listed| listed.source.source == source));
    match found {
        Some(listed) => Ok(Answer::json(listed.form()).read_at(view.index)),
        None => Err(ApiError::not_found("Intention not found").at(view.index)),
    }
}

pub(super) async fn write(api: Arc<Api>, call: Call) -> Outcome {
    let (source, destination) = (side(&call.query, "source")?, side(&call.query, "destination")?);
    let intention = {
        let context = Call::context(&api.catalog.authority());
        parse_exact(call.fields(&context)?, source, &destination)?
    };
    let revision = put(&api, &call, destination, intention).await?;
    Ok(Answer::json(json!(true)).written_at(revision))
}

pub(super) async fn create(api: Arc<Api>, call: Call) -> Outcome {
    let id = Uuid::from_random(fastrand::u128(..));
    let mut named = {
        let context = Call::context(&api.catalog.authority());
        parse_named(call.fields(&context)?, None)?
    };
    named.intention.id = Some(id);
    let (destination, source) = (named.destination.clone(), named.intention.source.clone());
    let revision = put(&api, &call, named.destination, named.intention).await?;
    // One that was there before under these names has kept its own.
    let snapshot = api.catalog.snapshot();
    let there =
        snapshot.intentions(&destination).and_then(|entry| of_entry(entry).find(|it| it.source.source == source));
    let id = there.and_then(|listed| listed.source.id).unwrap_or(id);
    Ok(Answer::json(json!({"ID": id.to_string()})).written_at(revision))
}

/// The identifier in the path.
fn id_of(call: &Call) -> Result<Uuid, ApiError> {
    call.param("id").parse().map_err(|error| ApiError::bad_request(format!("id: {error}")))
}

pub(super) async fn read_by_id(api: Arc<Api>, mut call: Call) -> Outcome {
    let id = id_of(&call)?;
    let view = view(&api, &mut call, &[Subject::ConfigList(ConfigKind::ServiceIntentions)]).await?;
    let mut all = view.snapshot.configs(ConfigKind::ServiceIntentions).flat_map(|entry| of_entry(entry));
    match all.find(|listed| listed.source.id == Some(id)) {
        Some(listed) => {
            let destination = listed.entry.destination.to_string();
            call.bearer().require(Resource::Intentions, &destination, Access::Read)?;
            Ok(Answer::json(listed.form()).read_at(view.index))
        }
        None => Err(ApiError::not_found("Intention not found").at(view.index)),
    }
}

pub(super) async fn write_by_id(api: Arc<Api>, call: Call) -> Outcome {
    let id = id_of(&call)?;
    let named = {
        let context = Call::context(&api.catalog.authority());
        parse_named(call.fields(&context)?, Some(id))?
    };
    let command = IntentionById::Put { id, destination: named.destination, intention: named.intention };
    match api.commit(&call, Command::IntentionById(command)).await {
        Ok(revision) => Ok(Answer::json(json!({"ID": id.to_string()})).written_at(revision)),
        Err(CommitFailure::Refused(Refusal::Intention(IntentionRefusal::Unknown(_)))) => {
            Err(ApiError::not_found("Intention not found"))
        }
        Err(failure) => Err(failed(failure)),
    }
}

pub(super) async fn delete_by_id(api: Arc<Api>, call: Call) -> Outcome {
    let revision = api.commit(&call, Command::IntentionById(IntentionById::Delete(id_of(&call)?))).await?;
    Ok(Answer::json(json!(true)).written_at(revision))
}

async fn put(
    api: &Api,
    call: &Call,
    destination: IntentionSubject,
    intention: SourceIntention,
) -> Result<Revision, ApiError> {
    api.commit(call, Command::PutIntention { destination, intention }).await.map_err(failed)
}

fn failed(failure: CommitFailure) -> ApiError {
    match failure {
        CommitFailure::Refused(refusal @ Refusal::ProtocolConflict { .. }) => {
            ApiError::bad_request(format!("Permissions: {refusal}"))
        }
        CommitFailure::Refused(_)
        | CommitFailure::Denied(_)
        | CommitFailure::Invalid(_)
        | CommitFailure::NoLeader(_)
        | CommitFailure::Unavailable(_) => failure.into(),
    }
}

pub(super) async fn delete(api: Arc<Api>, call: Call) -> Outcome {
    let (source, destination) = (side(&call.query, "source")?, side(&call.query, "destination")?);
    let revision = api.commit(&call, Command::DeleteIntention { destination, source }).await?;
    Ok(Answer::json(json!(true)).written_at(revision))
}

pub(super) async fn matching(api: Arc<Api>, mut call: Call) -> Outcome {
    let by_source = match call.query.text("by") {
        Some("source") => true,
        Some("destination") => false,
        Some(_) => return Err(ApiError::bad_request("'by' parameter must be one of 'source' or 'destination'")),
        None => return Err(ApiError::bad_request("required query parameter 'by' not set")),
    };
    let mut names = Vec::new();
    for text in call.query.all("name") {
        let name = parse_subject(text).map_err(|reason| ApiError::bad_request(format!("name: {reason}")))?;
        names.push((text.to_owned(), name));
    }
    if names.is_empty() {
        return Err(ApiError::bad_request("required query parameter 'name' not set"));
    }
    let mut subjects = vec![Subject::Intentions(IntentionSubject::Any)];
    if by_source {
        subjects = vec![Subject::ConfigList(ConfigKind::ServiceIntentions)];
    } else {
        subjects.extend(names.iter().map(|(_, name)| Subject::Intentions(name.clone())));
    }
    let view = view(&api, &mut call, &subjects).await?;
    let mut answer = Map::new();
    for (text, name) in &names {
        let covers = |side: &IntentionSubject| *side == IntentionSubject::Any || side == name;
        let wanted =
            |listed: &Listed<'_>| covers(if by_source { &listed.source.source } else { &listed.entry.destination });
        answer.insert(text.clone(), listed(&view.snapshot, wanted));
    }
    Ok(Answer::json(Value::Object(answer)).read_at(view.index))
}

/// A required parameter that names one service, not the wildcard.
pub(super) fn service_side(query: &Query, name: &str) -> Result<ServiceName, ApiError> {
    match side(query, name)? {
        IntentionSubject::Service(service) => Ok(service),
        IntentionSubject::Any => Err(ApiError::bad_request(format!("{name}: must be one service, not *"))),
    }
}

/// Everything that decides about calls of `destination`, as it stands.
pub(super) fn policy(api: &Api, snapshot: &Snapshot, destination: &ServiceName) -> Policy {
    let default = api.catalog.authority().default_intention_action;
    Policy::build(destination, default, snapshot.intentions_covering(destination))
}

pub(super) async fn check(api: Arc<Api>, call: Call) -> Outcome {
    if call.query.text("source-type").is_some_and(|kind| kind != "consul") {
        return Err(ApiError::bad_request("source-type: must be \"consul\""));
    }
    let (source, destination) = (service_side(&call.query, "source")?, service_side(&call.query, "destination")?);
    let snapshot = api.catalog.snapshot();
    let verdict = authorise(&policy(&api, &snapshot, &destination), &source, None);
    Ok(Answer::json(json!({"Allowed": verdict.action == Action::Allow})))
}
