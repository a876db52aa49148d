//! Gateways as Envoy's messages: what a change touches, and what is believed of whom.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::data_source::Specifier;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{Secret, secret::Type};
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use starling_identity::{Layout, SpiffeId};
use starling_model::*;
use starling_plan::{Cluster, Edge, EdgeHost, EdgeRoute, Limits, Plan, Routes, Trust};
use starling_xds::{MeshNames, Renderer, Resource, ResourceSet, ResourceType};

fn names() -> MeshNames {
    MeshNames {
        layout: Layout::Consul,
        trust_domain: TrustDomain::new("t.consul").unwrap(),
        namespace: Namespace::new("default").unwrap(),
        datacenter: Datacenter::new("dc1").unwrap(),
    }
}

fn cluster(service: &str, subset: &str, protocol: Protocol) -> Cluster {
    let MeshNames { layout, trust_domain, namespace, datacenter } = names();
    Cluster {
        service: service.parse().unwrap(),
        subset: Some(subset.parse().unwrap()),
        sni: format!("{subset}.{service}.internal"),
        identity: SpiffeId::new(layout, trust_domain, namespace, datacenter, service.parse().unwrap()),
        failover_identities: Vec::new(),
        protocol,
        connect_timeout: std::time::Duration::from_secs(5),
        limits: Limits::default(),
        balance: BalancePolicy::default(),
        outlier: None,
        retry_budget: None,
    }
}

fn edge(protocol: Protocol, hosts: &[&str]) -> Edge {
    Edge {
        bind: "10.0.0.9:443".parse().unwrap(),
        protocol,
        tls: None,
        proxy_protocol: false,
        trusted_proxies: Vec::new(),
        max_connections: None,
        route: EdgeRoute::Hosts(vec![EdgeHost {
            service: "api".parse().unwrap(),
            hosts: hosts.iter().map(|host| HostPattern::try_from((*host).to_owned()).unwrap()).collect(),
            request_headers: HeaderEdits::default(),
            response_headers: HeaderEdits::default(),
        }]),
    }
}

fn plan(edge: &Arc<Edge>, cluster: &Cluster) -> Plan {
    Plan {
        revision: Revision(1),
        proxy: InstanceKey { node: "n1".parse().unwrap(), id: "ingress".parse().unwrap() },
        service: "ingress".parse().unwrap(),
        trust: Arc::new(Trust { roots_pem: vec!["ROOT".to_owned()] }),
        inbound: None,
        edges: vec![Arc::clone(edge)],
        outbounds: Vec::new(),
        routes: vec![Arc::new(Routes::to_one(cluster, None))],
        clusters: vec![Arc::new(cluster.clone())],
        endpoints: Vec::new(),
        access_log: Arc::default(),
        exits: Vec::new(),
        origins: Vec::new(),
        capture: None,
        tracing: Arc::default(),
    }
}

fn decode<M: Message + Default>(resource: &Resource) -> M {
    M::decode(Any::decode(resource.any_bytes()).unwrap().value.as_slice()).unwrap()
}

fn listener(set: &ResourceSet) -> &Resource {
    set.get(ResourceType::Listener, "ingress:10.0.0.9:443").unwrap()
}

#[test]
fn other_hosts_are_other_routes_and_drain_no_listener() {
    let (mut renderer, api) = (Renderer::new(names()), cluster("api", "v1", Protocol::Http));
    let before = renderer.render(&plan(&Arc::new(edge(Protocol::Http, &["*.example.com"])), &api), None);
    let after = renderer.render(&plan(&Arc::new(edge(Protocol::Http, &["api.ingress.*", "*"])), &api), None);
    assert_eq!(listener(&before).version, listener(&after).version);
    let routes = |set: &ResourceSet| set.get(ResourceType::Route, "edge:10.0.0.9:443").unwrap().version;
    assert_ne!(routes(&before), routes(&after));
    let message: RouteConfiguration = decode(after.get(ResourceType::Route, "edge:10.0.0.9:443").unwrap());
    assert_eq!(message.virtual_hosts[0].domains, ["api.ingress.*", "*"]);
    assert!(message.ignore_port_in_host_matching);
}

#[test]
fn other_routes_of_an_edge_that_stays_are_seen_whatever_their_address() {
    for protocol in [Protocol::Http, Protocol::Tcp] {
        let (mut renderer, edge) = (Renderer::new(names()), Arc::new(edge(protocol, &["*"])));
        let kind = if protocol.is_l7() { ResourceType::Route } else { ResourceType::Listener };
        let mut seen = Vec::new();
        // Each plan is gone before the next is made, so that its routes may get the same place in memory.
        for subset in ["v1", "v2", "v3", "v1"] {
            let set = renderer.render(&plan(&edge, &cluster("api", subset, protocol)), None);
            let resource = set.of_kind(kind).iter().find(|resource| resource.name.ends_with("10.0.0.9:443"));
            seen.push(resource.unwrap().version);
        }
        assert!(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] == seen[3], "{protocol:?}: {seen:?}");
    }
}

#[test]
fn who_is_trusted_has_a_chain_of_its_own() {
    let mut edge = edge(Protocol::Http, &["*"]);
    let chains = |edge: &Edge| {
        let set =
            Renderer::new(names()).render(&plan(&Arc::new(edge.clone()), &cluster("api", "v1", Protocol::Http)), None);
        decode::<Listener>(listener(&set))
    };
    let message = chains(&edge);
    assert_eq!((message.filter_chains.len(), message.listener_filters.len()), (1, 0));
    edge.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
    edge.proxy_protocol = true;
    let message = chains(&edge);
    let trusted = message.filter_chains[0].filter_chain_match.as_ref().unwrap();
    let ranges: Vec<_> = trusted.source_prefix_ranges.iter().map(|range| range.address_prefix.as_str()).collect();
    assert_eq!(ranges, ["10.0.0.0", "fd00::"]);
    assert!(message.filter_chains[1].filter_chain_match.is_none(), "everybody else");
    assert_eq!(message.listener_filters[0].name, "envoy.filters.listener.proxy_protocol");
}

#[test]
fn files_are_secrets_that_name_them_and_hold_nothing() {
    let files = |name: &str| CertificateFiles {
        certificate: format!("/etc/{name}.crt").into(),
        key: format!("/etc/{name}.key").into(),
    };
    let mut edge = edge(Protocol::Http, &["*"]);
    edge.tls =
        Some(IngressTls { certificates: vec![files("a"), files("b")], min_version: TlsVersion::V1_3, secret: None });
    let set = Renderer::new(names()).render(&plan(&Arc::new(edge), &cluster("api", "v1", Protocol::Http)), None);
    for name in ["a", "b"] {
        let secret: Secret =
            decode(set.get(ResourceType::Secret, &format!("file:/etc/{name}.crt:/etc/{name}.key")).unwrap());
        let Some(Type::TlsCertificate(certificate)) = secret.r#type else { panic!("a certificate") };
        let path = |source: Option<envoy_types::pb::envoy::config::core::v3::DataSource>| {
            let specifier = source?.specifier?;
            if let Specifier::Filename(path) = specifier { Some(path) } else { None }
        };
        assert_eq!(path(certificate.certificate_chain), Some(format!("/etc/{name}.crt")));
        assert_eq!(path(certificate.private_key), Some(format!("/etc/{name}.key")));
    }
}
