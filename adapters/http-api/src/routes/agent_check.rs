//! The agent's own checks.

use std::sync::Arc;

use serde_json::{Map, Value};
use starling_model::{CheckId, CheckStatus, Revision};

use crate::answer::{Answer, forms};
use crate::call::{Call, log_notices};
use crate::error::ApiError;
use crate::parse::catalog::cut_output;
use crate::parse::parse_check;
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
    done(&id, api.agent()?.deregister_check(&id).await)
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
    let note = cut_output(call.query.text("note").unwrap_or_default().to_owned());
    done(&id, api.agent()?.update_check(&id, status, note).await)
}

pub(super) async fn update(api: Arc<Api>, call: Call) -> Outcome {
    let id = call.check_id()?;
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
