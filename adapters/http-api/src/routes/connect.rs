//! Certificates, and the question that applications with mesh TLS of their own ask about a peer.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use starling_catalog::Subject;
use starling_identity::Identity;
use starling_model::{Access, Action, Resource, Revision, ServiceName};
use starling_traffic::{Decider, authorise as decide};

use super::intention::policy;
use crate::answer::{Answer, forms};
use crate::blocking::{jittered, view};
use crate::call::Call;
use crate::error::ApiError;
use crate::ports::AgentFailure;
use crate::router::{Api, Outcome};

/// Refuses who asks where the operator has said that there is no mesh.
fn refuse_without_connect(api: &Api) -> Result<(), ApiError> {
    if api.catalog.authority().connect_off {
        return Err(ApiError::bad_request(
            "Connect must be enabled in order to use this endpoint: connect.enabled is false in the agent's configuration",
        ));
    }
    Ok(())
}

pub(super) async fn roots(api: Arc<Api>, mut call: Call) -> Outcome {
    refuse_without_connect(&api)?;
    let view = view(&api, &mut call, &[Subject::Roots]).await?;
    let roots = view.snapshot.roots();
    if call.query.switch("pem")? {
        let pem: String = roots.iter().map(|root| root.value.certificate_pem.as_str()).collect();
        return Ok(Answer::pem(pem).read_at(view.index));
    }
    let active = roots.iter().find(|root| root.value.active).map_or("", |root| root.value.id.as_str());
    let list: Vec<Value> = roots.iter().map(|root| forms::root(root)).collect();
    let trust_domain = api.catalog.authority().trust_domain;
    let form = json!({"ActiveRootID": active, "TrustDomain": trust_domain.as_str(), "Roots": list});
    Ok(Answer::json(form).read_at(view.index))
}

pub(super) async fn leaf(api: Arc<Api>, mut call: Call) -> Outcome {
    refuse_without_connect(&api)?;
    let service = call.service_name()?;
    let wait = jittered(call.query.wait()?);
    let after = call.query.index()?;
    let leaf = match after {
        // Not waiting means: whatever there is now.
        None => api.agent()?.leaf(&service, Revision(0), wait).await,
        Some(after) => match call.wait_for(&api, api.agent()?.leaf(&service, after, wait)).await? {
            Some(leaf) => leaf,
            None => api.agent()?.leaf(&service, Revision(0), Duration::ZERO).await,
        },
    };
    match leaf {
        Ok(leaf) => Ok(Answer::json(forms::leaf(&leaf)).read_at(leaf.modified)),
        Err(AgentFailure::NotFound) => Err(ApiError::not_found(format!("no instance of {service} is registered here"))),
        Err(failure @ (AgentFailure::BadRequest { .. } | AgentFailure::Internal(_))) => Err(failure.into()),
    }
}

pub(super) async fn authorize(api: Arc<Api>, call: Call) -> Outcome {
    let facts = api.catalog.authority();
    let (target, uri) = {
        let context = Call::context(&facts);
        let mut fields = call.fields(&context)?;
        let target = fields.required_text("Target")?;
        let target = ServiceName::new(&target).map_err(|error| fields.error("Target", error))?;
        let uri = fields.required_text("ClientCertURI")?;
        let uri = uri.parse::<Identity>().map_err(|error| fields.error("ClientCertURI", error))?;
        // Certificates are not revoked one by one, so the serial number decides nothing.
        fields.ignored(&["ClientCertSerial"]);
        fields.tenancy()?;
        fields.finish()?;
        (target, uri)
    };
    call.bearer().require(Resource::Service, target.as_str(), Access::Write)?;
    let (authorized, reason) = match uri {
        Identity::Workload(id) if id.trust_domain != facts.trust_domain => {
            (false, format!("Identity from an external trust domain: {}", id.trust_domain))
        }
        Identity::Workload(id) => judge(&api, &id.service, &target),
        Identity::Agent { .. } | Identity::Server { .. } | Identity::Relay { .. } | Identity::Authority(_) => {
            return Err(ApiError::bad_request("ClientCertURI: is not the identity of a service"));
        }
    };
    Ok(Answer::json(json!({"Authorized": authorized, "Reason": reason})))
}

fn judge(api: &Api, source: &ServiceName, target: &ServiceName) -> (bool, String) {
    let snapshot = api.catalog.snapshot();
    let policy = policy(api, &snapshot, target);
    let verdict = decide(&policy, source, None);
    let reason = match verdict.decided_by {
        // Consul's words, whoever has decided that.
        Decider::Default => "Default behavior configured by ACLs".to_owned(),
        Decider::Connection { .. }
        | Decider::Permission { .. }
        | Decider::NoPermission { .. }
        | Decider::RequestNeeded { .. } => {
            format!("Matched {} ({})", verdict.explain(&policy), verdict.action.as_str())
        }
    };
    (verdict.action == Action::Allow, reason)
}
