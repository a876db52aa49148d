//! The agent's own checks.

use std::sync::Arc;

use serde_json::{Map, Value};
use starling_model::{Access, CheckId, CheckStatus, Resource, Revision};

use crate::answer::{Answer, forms};
use crate::call::{Call, log_notices};
use crate::error::ApiError;
use crate::parse::catalog::cut_output;
use crate::parse::{CheckRegistration, parse_check};
use crate::ports::AgentFailure;
use crate::router::{Api, Outcome};

pub(super) async fn checks(api: Arc<Api>, _: Call) -> Outcome {
    let checks = api.agent()?.checks();
    let form = |check: &starling_model::Check| (check.id.to_string(), forms::check(check, Revision(0), Revision(0)));
    Ok(Answer::json(Value::Object(checks.iter().map(form).collect::<Map<_, _>>())))
}

pub(super) async fn register(api: Arc<Api>, call: Call) -> Outcome {
    let registration = {
        let context = Call::context(&api.catalog.authority());
        let registration = parse_check(call.fields(&context)?)?;
        log_notices(&context);
        registration
    };
    may_register(&api, &call, &registration)?;
    let path_and_id = registration.service.clone();
    match api.agent()?.register_check(registration).await {
        Ok(revision) => Ok(Answer::empty().written_at(revision)),
        Err(AgentFailure::NotFound) => {
            let id = path_and_id.map(|id| id.to_string()).unwrap_or_default();
            Err(ApiError::not_found(format!("ServiceID {id:?} does not exist")))
        }
        Err(failure @ (AgentFailure::BadRequest { .. } | AgentFailure::Internal(_))) => Err(failure.into()),
    }
}

pub(super) async fn deregister(api: Arc<Api>, call: Call) -> Outcome {
    let id = call.check_id()?;
    may_touch(&api, &call, &id)?;
    done(&id, api.agent()?.deregister_check(&id).await)
}

/// Refuses what is another's: the check that was there, and the service that it is to speak of.
fn may_register(api: &Api, call: &Call, registration: &CheckRegistration) -> Result<(), ApiError> {
    // Without an identifier it is known by its name.
    let named = registration.spec.id.clone().or_else(|| CheckId::new(&registration.spec.name).ok());
    named.map_or(Ok(()), |id| may_touch(api, call, &id))?;
    match &registration.service {
        // One that is not there is refused for that.
        Some(service) => {
            api.agent()?.service(service).map_or(Ok(()), |instance| call.bearer().may_change_own(&instance))?
        }
        None => {
            let node = api.catalog.authority().node_name;
            call.bearer().require(Resource::Node, node.as_str(), Access::Write)?;
        }
    }
    Ok(())
}

/// Refuses to touch a check of somebody else's.
pub(super) fn may_touch(api: &Api, call: &Call, id: &CheckId) -> Result<(), ApiError> {
    let checks = api.agent()?.checks();
    let check = checks.iter().find(|check| check.id == *id);
    Ok(check.map_or(Ok(()), |check| call.bearer().may_touch_own_check(check))?)
}

fn done(id: &CheckId, result: Result<Revision, AgentFailure>) -> Outcome {
    match result {
        Ok(revision) => Ok(Answer::empty().written_at(revision)),
        Err(AgentFailure::NotFound) => {
            let hint = "Ensure that the check ID is passed, not the check name.";
            Err(ApiError::not_found(format!("Unknown check ID {:?}. {hint}", id.as_str())))
        }
        Err(failure @ (AgentFailure::BadRequest { .. } | AgentFailure::Internal(_))) => Err(failure.into()),
    }
}

pub(super) async fn pass(api: Arc<Api>, call: Call) -> Outcome {
    report(&api, &call, CheckStatus::Passing).await
}

pub(super) async fn warn(api: Arc<Api>, call: Call) -> Outcome {
    report(&api, &call, CheckStatus::Warning).await
}

pub(super) async fn fail(api: Arc<Api>, call: Call) -> Outcome {
    report(&api, &call, CheckStatus::Critical).await
}

async fn report(api: &Api, call: &Call, status: CheckStatus) -> Outcome {
    let id = call.check_id()?;
    may_touch(api, call, &id)?;
    let note = cut_output(call.query.text("note").unwrap_or_default().to_owned());
    done(&id, api.agent()?.update_check(&id, status, note).await)
}

pub(super) async fn update(api: Arc<Api>, call: Call) -> Outcome {
    let id = call.check_id()?;
    may_touch(&api, &call, &id)?;
    let (status, output) = {
        let context = Call::context(&api.catalog.authority());
        let mut fields = call.fields(&context)?;
        let status = fields.text("Status")?.unwrap_or_default();
        let status = status.parse::<CheckStatus>().map_err(|error| fields.error("Status", error))?;
        let output = fields.text("Output")?.unwrap_or_default();
        fields.finish()?;
        (status, cut_output(output))
    };
    done(&id, api.agent()?.update_check(&id, status, output).await)
}
