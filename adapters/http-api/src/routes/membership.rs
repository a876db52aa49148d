//! How nodes come and go, asked in Consul's words. There is no gossip: a node comes by a join token, and goes with its agent.

use std::sync::Arc;

use starling_model::{AclSecret, CheckStatus, LIVENESS_CHECK, Member};

use super::enrolment::evict;
use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::router::{Api, Outcome};

pub(super) async fn join(_: Arc<Api>, _: Call) -> Outcome {
    Err(ApiError::bad_request(
        "nodes do not gossip here: make a token with `starling token create --join`, and start the agent of the node that is to join with \
         --join-token and --server",
    ))
}

pub(super) async fn leave(api: Arc<Api>, _: Call) -> Outcome {
    if !api.is_server() {
        api.agent()?.leave().await?;
        return Ok(Answer::empty());
    }
    match api.catalog.leaving(true) {
        Some(_) => Ok(Answer::empty()),
        None => Err(ApiError::bad_request(
            "there is no other that could take over from here: end the process, and `consul force-leave NODE` takes out its node",
        )),
    }
}

/// Evicts a node that is lost: it comes back by a new join token only. Of one that has left, there is nothing but to forget it.
pub(super) async fn force_leave(api: Arc<Api>, call: Call) -> Outcome {
    let (name, prunes) = (call.node_name()?, call.query.switch("prune")?);
    let snapshot = api.catalog.snapshot();
    let is_there = snapshot.node(&name).is_some();
    // A removal that was cut short has taken the node first.
    let remains = || snapshot.instances_on(&name).next().is_some() || snapshot.checks_on(&name).next().is_some();
    if !is_there && !remains() {
        let was_there = if prunes {
            api.catalog.forget_left_node(&name)
        } else {
            api.catalog.left_nodes().iter().any(|left| left.name == name)
        };
        if was_there {
            return Ok(Answer::empty());
        }
        return Err(ApiError::not_found(format!("No node found with name {:?}", name.as_str())));
    }
    let liveness = LIVENESS_CHECK.parse().expect("invariant: the name of a check");
    let lives = snapshot.check(&name, &liveness).is_some_and(|check| check.value.status != CheckStatus::Critical);
    if is_there && lives {
        return Err(ApiError::bad_request(format!("node {name} is alive; end its agent first")));
    }
    let (revision, _) = evict(&api, Member::Node(name.clone())).await?;
    if prunes {
        api.catalog.forget_left_node(&name);
    }
    Ok(Answer::empty().written_at(revision))
}

/// Tokens of an agent, by the names that Consul has had for them.
const TOKENS: &[(&str, &str)] = &[
    ("default", "default"),
    ("acl_token", "default"),
    ("agent", "agent"),
    ("acl_agent_token", "agent"),
    ("agent_master", "agent_recovery"),
    ("agent_recovery", "agent_recovery"),
    ("acl_agent_master_token", "agent_recovery"),
    ("replication", "replication"),
    ("acl_replication_token", "replication"),
    ("config_file_service_registration", "config_file_service_registration"),
    ("config_file_registration", "config_file_service_registration"),
    ("dns", "dns"),
];

pub(super) async fn token(api: Arc<Api>, call: Call) -> Outcome {
    let asked = call.param("token");
    let (_, kind) = TOKENS
        .iter()
        .find(|(name, _)| *name == asked)
        .ok_or_else(|| ApiError::not_found(format!("Token {asked:?} is unknown")))?;
    let token = {
        let context = Call::context(&api.catalog.authority());
        let mut fields = call.fields(&context)?;
        let token = fields.text("Token")?.unwrap_or_default();
        fields.finish()?;
        token
    };
    let wrong = || ApiError::bad_request("Token: is none");
    let secret = || (!token.is_empty()).then(|| AclSecret::new(&token).ok_or_else(wrong)).transpose();
    match *kind {
        "default" => api.agent()?.set_default_token(secret()?),
        "dns" => api.agent()?.set_dns_token(secret()?),
        // An agent proves itself by its certificate.
        _ => {}
    }
    Ok(Answer::empty())
}
