//! Exits of a terminating gateway: one listener with a chain for each, and nothing in it that changes with policy or place.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use starling_identity::Layout;
use starling_model::{
    Action, InstanceKey, OriginTls, Protocol, Revision, ServiceIntentions, SourceDecision, SourceIntention,
};
use starling_plan::{Exit, Origins, OutsideEndpoint, Plan, Trust};
use starling_traffic::Policy;
use starling_xds::{Leaf, MeshNames, Renderer, Resource, ResourceSet, ResourceType, ServiceLeaves};

fn names() -> MeshNames {
    MeshNames {
        layout: Layout::Consul,
        trust_domain: "mesh.test".parse().unwrap(),
        namespace: "default".parse().unwrap(),
        datacenter: "dc1".parse().unwrap(),
    }
}

fn policy(service: &str, denied: &[&str]) -> Arc<Policy> {
    let source = |source: &&str| SourceIntention {
        source: source.parse().unwrap(),
        decision: SourceDecision::Connection(Action::Deny),
        description: String::new(),
        id: None,
    };
    let entry = ServiceIntentions {
        destination: service.parse().unwrap(),
        sources: denied.iter().map(source).collect(),
        meta: BTreeMap::new(),
    };
    Arc::new(Policy::build(&service.parse().unwrap(), Action::Allow, vec![&entry]))
}

fn exit(service: &str, protocol: Protocol, denied: &[&str]) -> Exit {
    Exit {
        service: service.parse().unwrap(),
        subset: None,
        bind: "10.0.0.9:8443".parse().unwrap(),
        sni: format!("{service}.default.dc1.internal.mesh.test"),
        protocol,
        tls: None,
        connect_timeout: Duration::from_secs(5),
        request_timeout: None,
        max_connections: None,
        rate_limit: None,
        policy: policy(service, denied),
    }
}

fn plan(exits: Vec<Exit>, address: &str) -> Plan {
    let origins = |exit: &Exit| {
        let origins = vec![OutsideEndpoint { address: address.to_owned(), port: 80, weight: 1 }];
        Arc::new(Origins {
            service: exit.service.clone(),
            subset: None,
            keeps_host: false,
            host: None,
            shuns_local: false,
            origins,
        })
    };
    Plan {
        revision: Revision(1),
        proxy: InstanceKey { node: "n1".parse().unwrap(), id: "egress".parse().unwrap() },
        service: "egress".parse().unwrap(),
        trust: Arc::new(Trust { roots_pem: vec!["ROOT".to_owned()] }),
        inbound: None,
        edges: Vec::new(),
        outbounds: Vec::new(),
        routes: Vec::new(),
        clusters: Vec::new(),
        endpoints: Vec::new(),
        origins: exits.iter().map(origins).collect(),
        exits: exits.into_iter().map(Arc::new).collect(),
        capture: None,
        access_log: Arc::default(),
        tracing: Arc::default(),
    }
}

fn leaves(services: &[&str]) -> ServiceLeaves {
    let leaf = |service: &&str| {
        let leaf = Leaf { certificate_chain_pem: format!("CHAIN {service}"), private_key_pem: "KEY".to_owned() };
        (service.parse().unwrap(), Arc::new(leaf))
    };
    services.iter().map(leaf).collect()
}

fn decode<M: Message + Default>(resource: &Resource) -> M {
    M::decode(Any::decode(resource.any_bytes()).unwrap().value.as_slice()).unwrap()
}

fn listener(set: &ResourceSet) -> &Resource {
    set.get(ResourceType::Listener, "terminating:10.0.0.9:8443").unwrap()
}

#[test]
fn what_is_denied_and_where_it_is_drains_no_listener() {
    let mut renderer = Renderer::new(names());
    let both = leaves(&["legacy", "raw"]);
    let mut rendered = |denied: &[&str], address: &str| {
        let exits = vec![exit("legacy", Protocol::Http, denied), exit("raw", Protocol::Tcp, denied)];
        renderer.render_gateway(&plan(exits, address), None, &both)
    };
    let (first, denied, moved) =
        (rendered(&[], "192.0.2.1"), rendered(&["web"], "192.0.2.1"), rendered(&[], "192.0.2.2"));
    let version = |set: &ResourceSet, kind, name: &str| set.get(kind, name).unwrap().version;
    for other in [&denied, &moved] {
        assert_eq!(listener(&first).version, listener(other).version);
        for cluster in ["exit:legacy", "exit:raw"] {
            let kind = ResourceType::Cluster;
            assert_eq!(version(&first, kind, cluster), version(other, kind, cluster));
        }
    }
    for (kind, name) in [(ResourceType::Route, "exit:legacy"), (ResourceType::Extension, "policy:raw")] {
        assert_ne!(version(&first, kind, name), version(&denied, kind, name), "{name}");
        assert_eq!(version(&first, kind, name), version(&moved, kind, name), "{name}");
    }
    let kind = ResourceType::Endpoints;
    assert_ne!(version(&first, kind, "exit:legacy"), version(&moved, kind, "exit:legacy"));
}

#[test]
fn each_has_a_chain_by_its_name_and_who_has_no_certificate_is_left_out() {
    let exits = || vec![exit("Legacy", Protocol::Http, &[]), exit("raw", Protocol::Tcp, &[])];
    let names_of = |set: &ResourceSet| {
        let message: Listener = decode(listener(set));
        let matches = message.filter_chains.into_iter().filter_map(|chain| chain.filter_chain_match);
        matches.flat_map(|found| found.server_names).collect::<Vec<_>>()
    };
    let mut renderer = Renderer::new(names());
    let plan = plan(exits(), "192.0.2.1");
    let all = renderer.render_gateway(&plan, None, &leaves(&["Legacy", "raw"]));
    // Envoy compares names in lower case.
    assert_eq!(names_of(&all), ["legacy.default.dc1.internal.mesh.test", "raw.default.dc1.internal.mesh.test"]);
    assert!(all.get(ResourceType::Secret, "leaf:raw").is_some());
    let one = renderer.render_gateway(&plan, None, &leaves(&["raw"]));
    assert_eq!(names_of(&one), ["raw.default.dc1.internal.mesh.test"]);
    assert!(one.get(ResourceType::Cluster, "exit:Legacy").is_none());
    let none = renderer.render_gateway(&plan, None, &leaves(&[]));
    assert!(none.of_kind(ResourceType::Listener).is_empty(), "nobody is let in without a certificate");
}

#[test]
fn who_is_known_by_name_is_resolved_and_tls_is_by_files() {
    let mut wants_tls = exit("legacy", Protocol::Http, &[]);
    wants_tls.tls = Some(OriginTls {
        authorities: "/etc/ca.pem".into(),
        certificate: None,
        server_name: Some("legacy.example.com".to_owned()),
    });
    let leaves = leaves(&["legacy"]);
    let rendered = |exit: &Exit, address: &str| {
        Renderer::new(names()).render_gateway(&plan(vec![exit.clone()], address), None, &leaves)
    };
    let cluster = |set: &ResourceSet| decode::<Cluster>(set.get(ResourceType::Cluster, "exit:legacy").unwrap());
    let by_name = rendered(&wants_tls, "legacy.example.com");
    let dns = ClusterDiscoveryType::Type(DiscoveryType::StrictDns.into());
    assert_eq!(cluster(&by_name).cluster_discovery_type, Some(dns));
    assert!(cluster(&by_name).load_assignment.is_some() && cluster(&by_name).transport_socket.is_some());
    assert!(by_name.get(ResourceType::Endpoints, "exit:legacy").is_none());
    assert!(by_name.get(ResourceType::Secret, "authorities:/etc/ca.pem").is_some());
    let by_address = rendered(&exit("legacy", Protocol::Http, &[]), "192.0.2.1");
    let eds = ClusterDiscoveryType::Type(DiscoveryType::Eds.into());
    assert_eq!(cluster(&by_address).cluster_discovery_type, Some(eds));
    assert!(cluster(&by_address).transport_socket.is_none(), "in plaintext");
    assert!(by_address.get(ResourceType::Endpoints, "exit:legacy").is_some());
}
