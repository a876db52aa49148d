//! Maintenance: a critical check that somebody has put on a node or a service by hand.

use std::sync::Arc;
use std::time::Duration;

use starling_model::{CheckDefinition, CheckId, CheckKind, CheckSpec, CheckStatus, InstanceId};

use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::parse::CheckRegistration;
use crate::parse::catalog::cut_output;
use crate::ports::AgentFailure;
use crate::router::{Api, Outcome};

/// Consul's identifiers of these checks.
const OF_NODE: &str = "_node_maintenance";
const OF_SERVICE: &str = "_service_maintenance:";

/// What is said where nobody gave a reason.
const NO_REASON: &str = "maintenance mode is on; whoever turned it on gave no reason";

pub(super) async fn node(api: Arc<Api>, call: Call) -> Outcome {
    turn(&api, &call, None).await
}

pub(super) async fn service(api: Arc<Api>, call: Call) -> Outcome {
    let id = call.instance_id()?;
    api.agent()?.service(&id).map_or(Ok(()), |instance| call.bearer().may_change_own(&instance))?;
    if api.agent()?.service(&id).is_none() {
        let hint = "Ensure that the service ID is passed, not the service name.";
        return Err(ApiError::not_found(format!("Unknown service ID {:?}. {hint}", id.as_str())));
    }
    turn(&api, &call, Some(id)).await
}

async fn turn(api: &Api, call: &Call, service: Option<InstanceId>) -> Outcome {
    if call.query.text("enable").is_none() {
        return Err(ApiError::bad_request("Missing value for enable"));
    }
    let on = call.query.switch("enable")?;
    let (id, name) = match &service {
        None => (OF_NODE.to_owned(), "Node Maintenance Mode"),
        Some(service) => (format!("{OF_SERVICE}{service}"), "Service Maintenance Mode"),
    };
    let id = CheckId::new(&id).map_err(|error| ApiError::bad_request(error.to_string()))?;
    if !on {
        return match api.agent()?.deregister_check(&id).await {
            Ok(revision) => Ok(Answer::empty().written_at(revision)),
            // It is off already.
            Err(AgentFailure::NotFound) => Ok(Answer::empty()),
            Err(failure @ (AgentFailure::BadRequest { .. } | AgentFailure::Internal(_))) => Err(failure.into()),
        };
    }
    let reason = cut_output(call.query.text("reason").unwrap_or(NO_REASON).to_owned());
    let spec = CheckSpec {
        id: Some(id),
        name: name.to_owned(),
        notes: reason,
        initial_status: CheckStatus::Critical,
        definition: CheckDefinition {
            kind: CheckKind::Maintenance,
            interval: Duration::ZERO,
            timeout: Duration::ZERO,
            success_before_passing: 1,
            failures_before_warning: 1,
            failures_before_critical: 1,
            deregister_after: None,
        },
        interval_text: String::new(),
        timeout_text: String::new(),
    };
    let revision = api.agent()?.register_check(CheckRegistration { spec, service }).await?;
    Ok(Answer::empty().written_at(revision))
}
