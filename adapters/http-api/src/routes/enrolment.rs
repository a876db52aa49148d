//! Enrolments: which nodes and relays are in the mesh by which key, and how an operator takes a name from its holder.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};
use starling_catalog::{Command, EnrolmentCommand, reusable_token_of};
use starling_model::{Enrolment, Holder, JoinTokenId, Member, Revision, UnixSeconds};

use crate::answer::{Answer, forms};
use crate::call::Call;
use crate::error::ApiError;
use crate::router::{Api, Outcome};

pub(super) async fn list(api: Arc<Api>, _: Call) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let enrolments: Vec<Value> = snapshot.enrolments().map(|enrolment| form(&enrolment.value)).collect();
    Ok(Answer::json(json!({"revision": snapshot.revision().0, "enrolments": enrolments})))
}

fn form(enrolment: &Enrolment) -> Value {
    let kind = match &enrolment.member {
        Member::Node(_) => "node",
        Member::Relay(_) => "relay",
    };
    let (status, key) = match &enrolment.holder {
        Holder::Key { current, .. } => ("enrolled", Some(current.to_string())),
        Holder::Evicted => ("evicted", None),
        Holder::Released => ("released", None),
    };
    let services = enrolment.services.as_ref();
    json!({
        "kind": kind,
        "name": enrolment.member.name().as_str(),
        "status": status,
        "epoch": enrolment.epoch,
        "since": forms::time(enrolment.since),
        "key_sha256": key,
        "services": services.map(|services| services.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "join_token": enrolment.join_token.map(|id| id.to_string()),
    })
}

pub(super) async fn evict_node(api: Arc<Api>, call: Call) -> Outcome {
    answer_eviction(&api, Member::Node(call.node_name()?)).await
}

pub(super) async fn evict_relay(api: Arc<Api>, call: Call) -> Outcome {
    answer_eviction(&api, Member::Relay(call.node_name()?)).await
}

pub(super) async fn release_node(api: Arc<Api>, call: Call) -> Outcome {
    release(&api, Member::Node(call.node_name()?)).await
}

pub(super) async fn release_relay(api: Arc<Api>, call: Call) -> Outcome {
    release(&api, Member::Relay(call.node_name()?)).await
}

async fn answer_eviction(api: &Api, member: Member) -> Outcome {
    let (revision, token) = evict(api, member).await?;
    let token = token.map(|id| id.to_string());
    Ok(Answer::json(json!({"revision": revision.0, "reusable_join_token": token})).written_at(revision))
}

/// Puts a member out of the mesh. Also answers with a join token by which it could come back under another name.
pub(super) async fn evict(api: &Api, member: Member) -> Result<(Revision, Option<JoinTokenId>), ApiError> {
    if matches!(&member, Member::Node(node) if *node == api.catalog.authority().node_name) {
        return Err(ApiError::bad_request(format!("{member} is this server's own node; stop the server instead")));
    }
    let token = reusable_token_of(&api.catalog.snapshot(), &member);
    Ok((commit(api, EnrolmentCommand::Evict { member, now: now() }).await?, token))
}

async fn release(api: &Api, member: Member) -> Outcome {
    let revision = commit(api, EnrolmentCommand::Release { member, now: now() }).await?;
    Ok(Answer::json(json!({"revision": revision.0})).written_at(revision))
}

async fn commit(api: &Api, command: EnrolmentCommand) -> Result<Revision, ApiError> {
    Ok(api.catalog.commit(Command::Enrolment(command)).await?)
}

fn now() -> UnixSeconds {
    UnixSeconds(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs())
}
