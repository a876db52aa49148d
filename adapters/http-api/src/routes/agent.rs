//! The agent's own services, and the agent itself.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};
use starling_catalog::Snapshot;
use starling_model::{Access, Check, CheckStatus, Resource, Revision, ServiceInstance, ServiceRegistration};

use super::agent_check::may_touch;
use super::members::{self, SERF_PORT};
use crate::answer::{Answer, forms};
use crate::blocking::jittered;
use crate::call::{Call, log_notices};
use crate::error::ApiError;
use crate::parse::opaque::refuse_contradicted_protocols;
use crate::parse::{FieldError, parse_service};
use crate::ports::AgentFailure;
use crate::router::{Api, Outcome};

/// The release of Consul whose API this is; clients look at it to decide what they may ask for.
pub const CONSUL_VERSION: &str = "1.22.0";

pub(super) async fn own(api: Arc<Api>, _: Call) -> Outcome {
    let facts = api.catalog.authority();
    let (plaintext, tls) = (facts.grpc_port.unwrap_or(0), facts.grpc_tls_port.unwrap_or(0));
    Ok(Answer::json(json!({
        "Config": {
            "Datacenter": facts.datacenter.as_str(),
            "PrimaryDatacenter": facts.datacenter.as_str(),
            "NodeName": facts.node_name.as_str(),
            "NodeID": facts.node_id,
            "Revision": facts.version,
            "Server": api.is_server(),
            "Version": CONSUL_VERSION,
        },
        "DebugConfig": {
            "Datacenter": facts.datacenter.as_str(),
            "DNSPort": facts.dns_port.unwrap_or(0),
            "SerfAdvertiseAddrLAN": format!("tcp://{}:{SERF_PORT}", facts.node_address),
            "GRPCPort": plaintext,
            "GRPCTLSPort": tls,
        },
        "Coord": null,
        "Member": members::own(&api),
        "Stats": super::stats::stats(&api),
        "Meta": {},
        "xDS": {
            "SupportedProxies": {"envoy": facts.envoy_versions},
            "Port": plaintext,
            "Ports": {"Plaintext": plaintext, "TLS": tls},
        },
    })))
}

/// What a proxy of this node has to know at its start; for whoever may read a service of the node, the node or the agent.
pub(super) async fn xds(api: Arc<Api>, call: Call) -> Outcome {
    let facts = api.catalog.authority();
    let own = facts.node_name.as_str();
    let reads = |instance: &ServiceInstance| call.bearer().reads(Resource::Service, instance.name.as_str());
    if !call.bearer().reads(Resource::Agent, own) && !api.agent()?.services().iter().any(reads) {
        call.bearer().require(Resource::Node, own, Access::Read)?;
    }
    Ok(Answer::json(json!({
        "node": own,
        "node_id": facts.node_id,
        "datacenter": facts.datacenter.as_str(),
        "xds_port": facts.grpc_port,
    })))
}

pub(super) async fn services(api: Arc<Api>, _: Call) -> Outcome {
    let facts = api.catalog.authority();
    let form = |instance: ServiceInstance| (instance.key.id.to_string(), forms::agent_service(&instance, &facts));
    Ok(Answer::json(api.agent()?.services().into_iter().map(form).collect::<Map<_, _>>().into()))
}

pub(super) async fn service(api: Arc<Api>, mut call: Call) -> Outcome {
    let id = call.instance_id()?;
    let facts = api.catalog.authority();
    let deadline = tokio::time::Instant::now() + jittered(call.query.wait()?);
    loop {
        let generation = api.agent()?.generation();
        let Some(instance) = api.agent()?.service(&id) else {
            return Err(ApiError::not_found(format!("unknown service ID: {id}")));
        };
        call.bearer().require(Resource::Service, instance.name.as_str(), Access::Read)?;
        let (form, hash) = forms::agent_service_hashed(&instance, &facts);
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        if call.query.text("hash") != Some(hash.as_str()) || left.is_zero() {
            return Ok(Answer::json(form).content_hash(hash));
        }
        if call.wait_for(&api, api.agent()?.wait_generation(generation, left)).await?.is_none() {
            return Ok(Answer::json(form).content_hash(hash));
        }
    }
}

pub(super) async fn reload(api: Arc<Api>, _: Call) -> Outcome {
    let waiting = api.agent()?.reload().await?;
    if waiting.is_empty() {
        return Ok(Answer::empty());
    }
    Ok(Answer::json(json!({"FromNextStart": waiting})))
}

pub(super) async fn register(api: Arc<Api>, call: Call) -> Outcome {
    let replace = call.query.switch("replace-existing-checks")?;
    let registration = {
        let context = Call::context(&api.catalog.authority());
        let registration = parse_service(call.fields(&context)?)?;
        call.bearer().may_register(&registration, &api.agent()?.services())?;
        let checks = registration.checks.iter().chain(registration.sidecar.iter().flat_map(|sidecar| &sidecar.checks));
        checks.filter_map(|check| check.id.as_ref()).try_for_each(|id| may_touch(&api, &call, id))?;
        refuse_contradictions(&registration, &api.catalog.snapshot())?;
        log_notices(&context);
        registration
    };
    let revision = api.agent()?.register_service(registration, replace).await?;
    Ok(Answer::empty().written_at(revision))
}

fn refuse_contradictions(registration: &ServiceRegistration, snapshot: &Snapshot) -> Result<(), FieldError> {
    let nested = registration.sidecar.as_ref().and_then(|sidecar| sidecar.instance.sidecar());
    for (path, proxy) in [("Proxy", registration.instance.sidecar()), ("Connect.SidecarService.Proxy", nested)] {
        if let Some(proxy) = proxy {
            refuse_contradicted_protocols(path, proxy, snapshot)?;
        }
    }
    Ok(())
}

pub(super) async fn deregister(api: Arc<Api>, call: Call) -> Outcome {
    let id = call.instance_id()?;
    api.agent()?.service(&id).map_or(Ok(()), |instance| call.bearer().may_change_own(&instance))?;
    match api.agent()?.deregister_service(&id).await {
        Ok(revision) => Ok(Answer::empty().written_at(revision)),
        Err(AgentFailure::NotFound) => {
            let hint = "Ensure that the service ID is passed, not the service name.";
            Err(ApiError::not_found(format!("Unknown service ID {:?}. {hint}", id.as_str())))
        }
        Err(failure @ (AgentFailure::BadRequest { .. } | AgentFailure::Internal(_))) => Err(failure.into()),
    }
}

pub(super) async fn health_by_name(api: Arc<Api>, call: Call) -> Outcome {
    // What can be no name is that of no service, too.
    let name = call.param("service");
    let (facts, checks) = (api.catalog.authority(), api.agent()?.checks());
    let mut worst = CheckStatus::Passing;
    let mut entries = Vec::new();
    for instance in api.agent()?.services().into_iter().filter(|instance| instance.name.as_str() == name) {
        let health = Health::of(&instance, &checks);
        worst = worst.max(health.status);
        entries.push(health.form(forms::agent_service(&instance, &facts)));
    }
    if entries.is_empty() {
        return missing(&call, format!("ServiceName {name} Not Found"), json!([]));
    }
    Ok(verdict(&call, worst, Value::Array(entries)))
}

pub(super) async fn health_by_id(api: Arc<Api>, call: Call) -> Outcome {
    let id = call.param("id");
    let (facts, checks) = (api.catalog.authority(), api.agent()?.checks());
    let Some(instance) = id.parse().ok().and_then(|id| api.agent().ok()?.service(&id)) else {
        let form = json!({"AggregatedStatus": "critical", "Service": null, "Checks": null});
        return missing(&call, format!("ServiceId {id} not found"), form);
    };
    call.bearer().require(Resource::Service, instance.name.as_str(), Access::Read)?;
    let health = Health::of(&instance, &checks);
    let status = health.status;
    Ok(verdict(&call, status, health.form(forms::agent_service(&instance, &facts))))
}

struct Health<'a> {
    status: CheckStatus,
    checks: Vec<&'a Check>,
}

impl<'a> Health<'a> {
    fn of(instance: &ServiceInstance, checks: &'a [Check]) -> Self {
        let concerns = |check: &&Check| check.service.as_ref().is_none_or(|service| service.id == instance.key.id);
        let checks: Vec<&Check> = checks.iter().filter(concerns).collect();
        let worst = checks.iter().map(|check| check.status).max();
        Self { status: worst.unwrap_or(CheckStatus::Passing), checks }
    }

    fn form(&self, service: Value) -> Value {
        let form = |check: &&Check| forms::check(check, Revision(0), Revision(0));
        let checks: Vec<Value> = self.checks.iter().map(form).collect();
        json!({"AggregatedStatus": self.status.as_str(), "Service": service, "Checks": checks})
    }
}

fn wants_text(call: &Call) -> bool {
    let accept = call.headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match call.query.text("format") {
        Some(format) => format == "text",
        None => accept.starts_with("text/plain"),
    }
}

/// The status code is what load balancers look at; the body is for people.
fn verdict(call: &Call, status: CheckStatus, form: Value) -> Answer {
    let code = match status {
        CheckStatus::Passing => StatusCode::OK,
        CheckStatus::Warning => StatusCode::TOO_MANY_REQUESTS,
        CheckStatus::Critical => StatusCode::SERVICE_UNAVAILABLE,
    };
    let answer = if wants_text(call) { Answer::text(status.as_str().to_owned()) } else { Answer::json(form) };
    answer.status(code)
}

fn missing(call: &Call, reason: String, form: Value) -> Outcome {
    if wants_text(call) {
        return Err(ApiError::not_found(reason));
    }
    Ok(Answer::json(form).status(StatusCode::NOT_FOUND))
}
