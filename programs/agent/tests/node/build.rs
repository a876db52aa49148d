//! Registrations as tests need them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use starling_agent::{Agent, AgentConfig, system_clock};
use starling_model::service::InstanceKey;
use starling_model::{
    CheckDefinition, CheckId, CheckKind, CheckSpec, CheckStatus, Datacenter, InstanceId, InstanceKind, Node, NodeName,
    OpaqueSettings, Port, ServiceInstance, ServiceName, ServiceRegistration, SidecarProxy, Weights,
};

use crate::fake_server::FakeServer;

/// The interval of checks in these tests.
pub const INTERVAL: Duration = Duration::from_millis(20);

/// Sidecar ports of these tests. Nothing listens on the first well-known ports, so the listener checks that the agent adds
/// stay critical whatever else runs on the machine.
pub const SILENT_PORTS: RangeInclusive<u16> = 2..=6;

pub fn node() -> Node {
    Node {
        name: NodeName::new("n1").unwrap(),
        id: "0f0e0d0c-0b0a-0908-0706-050403020100".to_owned(),
        address: "127.0.0.1".to_owned(),
        tagged_addresses: BTreeMap::new(),
        meta: BTreeMap::new(),
    }
}

pub fn config(data_dir: &Path) -> AgentConfig {
    AgentConfig {
        node: node(),
        locality: None,
        datacenter: Datacenter::new("dc1").unwrap(),
        data_dir: data_dir.to_owned(),
        script_checks: starling_agent::ScriptChecks::ALL,
        sidecar_ports: SILENT_PORTS,
        services_of_files: BTreeSet::new(),
        checks_of_files: BTreeSet::new(),
        clock: system_clock(),
    }
}

pub async fn start(data_dir: &Path, server: &Arc<FakeServer>) -> Agent {
    Agent::start(config(data_dir), Arc::clone(server) as _).await.unwrap()
}

pub fn instance_id(text: &str) -> InstanceId {
    InstanceId::new(text).unwrap()
}

pub fn check_id(text: &str) -> CheckId {
    CheckId::new(text).unwrap()
}

pub fn service(name: &str, checks: Vec<CheckSpec>) -> ServiceRegistration {
    let instance = ServiceInstance {
        key: InstanceKey { node: node().name, id: instance_id(name) },
        name: ServiceName::new(name).unwrap(),
        kind: InstanceKind::Typical,
        address: None,
        port: Port::try_from(8080).ok(),
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        enable_tag_override: false,
        native: false,
        locality: None,
        kept: starling_model::OpaqueSettings::default(),
    };
    ServiceRegistration { instance, checks, sidecar: None }
}

pub fn with_sidecar(mut given: ServiceRegistration) -> ServiceRegistration {
    let name = given.instance.name.to_string();
    let mut nested = service(&format!("{name}-sidecar-proxy"), Vec::new());
    nested.instance.port = None;
    nested.instance.kind = InstanceKind::Sidecar(Box::new(SidecarProxy {
        destination: given.instance.name.clone(),
        destination_id: None,
        local_address: "127.0.0.1".to_owned(),
        local_port: None,
        upstreams: Vec::new(),
        config: OpaqueSettings::default(),
        transparent: None,
        kept: starling_model::OpaqueSettings::default(),
    }));
    given.sidecar = Some(Box::new(nested));
    given
}

pub fn check(id: &str, kind: CheckKind) -> CheckSpec {
    CheckSpec {
        id: Some(check_id(id)),
        name: id.to_owned(),
        notes: String::new(),
        initial_status: CheckStatus::Critical,
        definition: CheckDefinition {
            kind,
            interval: INTERVAL,
            timeout: Duration::from_secs(5),
            success_before_passing: 1,
            failures_before_warning: 1,
            failures_before_critical: 1,
            deregister_after: None,
        },
        interval_text: "20ms".to_owned(),
        timeout_text: "5s".to_owned(),
    }
}

pub fn ttl(id: &str, ttl: Duration) -> CheckSpec {
    check(id, CheckKind::Ttl { ttl })
}

pub fn http(id: &str, url: String) -> CheckSpec {
    let kind = CheckKind::Http {
        url,
        method: "GET".to_owned(),
        headers: BTreeMap::new(),
        body: String::new(),
        tls_skip_verify: false,
        tls_server_name: String::new(),
        disable_redirects: false,
    };
    check(id, kind)
}

pub fn script(id: &str, command: &str) -> CheckSpec {
    check(id, CheckKind::Script { args: vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_owned()] })
}
