//! Rendering: what is in the set, what is shared, and that equal plans have equal bytes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster as ClusterMessage;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::config::route::v3::route::Action as RouteKind;
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use starling_identity::{Layout, SpiffeId, service_sni};
use starling_model::{
    Action, BalancePolicy, Datacenter, InstanceKey, Namespace, Protocol, Revision, ServiceName, SourceDecision,
    TrustDomain,
};
use starling_plan::{Cluster, Endpoint, Endpoints, Inbound, Limits, LocalApp, Outbound, Plan, Routes, Trust};
use starling_traffic::{Policy, PolicyRule};
use starling_xds::{Leaf, MeshNames, Renderer, Resource, ResourceSet, ResourceType};

fn names() -> MeshNames {
    MeshNames {
        layout: Layout::Consul,
        trust_domain: TrustDomain::new("t.consul").unwrap(),
        namespace: Namespace::new("default").unwrap(),
        datacenter: Datacenter::new("dc1").unwrap(),
    }
}

fn service(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

fn cluster(name: &str, protocol: Protocol) -> Arc<Cluster> {
    let names = names();
    Arc::new(Cluster {
        service: service(name),
        subset: None,
        failover_identities: Vec::new(),
        balance: BalancePolicy::default(),
        outlier: None,
        retry_budget: None,
        sni: service_sni(&service(name), &names.namespace, &names.datacenter, &names.trust_domain),
        identity: SpiffeId::new(names.layout, names.trust_domain, names.namespace, names.datacenter, service(name)),
        protocol,
        connect_timeout: Duration::from_secs(5),
        limits: Limits { connections: Some(7), ..Limits::default() },
    })
}

fn endpoints(of: &Cluster, port: u16) -> Arc<Endpoints> {
    let endpoint = Endpoint { address: "10.0.0.1".parse().unwrap(), port, weight: 1 };
    Arc::new(Endpoints {
        service: of.service.clone(),
        subset: None,
        cluster: of.sni.clone(),
        from: None,
        endpoints: vec![endpoint],
        failover: Vec::new(),
    })
}

fn outbound(name: &str, port: u16, protocol: Protocol) -> Arc<Outbound> {
    Arc::new(Outbound { service: service(name), bind: ([127, 0, 0, 1], port).into(), protocol })
}

/// Everything to one cluster.
fn routes(of: &Cluster) -> Arc<Routes> {
    Arc::new(Routes::to_one(of, Some(Duration::from_secs(15))))
}

fn policy() -> Arc<Policy> {
    let rule = |source: &str| PolicyRule {
        source: source.parse().unwrap(),
        written_for: "web".parse().unwrap(),
        precedence: 9,
        decision: SourceDecision::Connection(Action::Allow),
    };
    let rules = ["a", "b", "c", "d", "e"].map(rule).to_vec();
    Arc::new(Policy { destination: service("web"), default: Action::Deny, rules })
}

fn inbound(protocol: Protocol, address: &str, policy: &Arc<Policy>) -> Arc<Inbound> {
    Arc::new(Inbound {
        service: service("web"),
        bind: "10.0.0.9:21000".parse().unwrap(),
        protocol,
        local_app: LocalApp {
            address: address.to_owned(),
            port: 8080,
            connect_timeout: Duration::from_secs(1),
            request_timeout: None,
        },
        max_connections: None,
        rate_limit: None,
        policy: Arc::clone(policy),
    })
}

fn plan() -> Plan {
    let (api, db) = (cluster("api", Protocol::Http), cluster("db", Protocol::Tcp));
    Plan {
        revision: Revision(4),
        proxy: InstanceKey { node: "n1".parse().unwrap(), id: "web-1".parse().unwrap() },
        service: service("web"),
        trust: Arc::new(Trust { roots_pem: vec!["ROOT".to_owned()] }),
        inbound: Some(inbound(Protocol::Http, "127.0.0.1", &policy())),
        edges: Vec::new(),
        outbounds: vec![outbound("api", 9001, Protocol::Http), outbound("db", 9002, Protocol::Tcp)],
        routes: vec![routes(&api), routes(&db)],
        endpoints: vec![endpoints(&api, 1), endpoints(&db, 2)],
        clusters: vec![api, db],
        exits: Vec::new(),
        origins: Vec::new(),
        capture: None,
        access_log: Arc::default(),
        tracing: Arc::default(),
    }
}

fn leaf() -> Arc<Leaf> {
    Arc::new(Leaf { certificate_chain_pem: "CHAIN".to_owned(), private_key_pem: "SECRET-KEY".to_owned() })
}

fn list(set: &ResourceSet) -> Vec<String> {
    let all = ResourceType::ALL.into_iter().flat_map(|kind| set.of_kind(kind));
    all.map(|resource| format!("{} {}", resource.kind.abbreviation(), resource.name)).collect()
}

fn decode<M: Message + Default>(resource: &Resource) -> M {
    M::decode(Any::decode(resource.any_bytes()).unwrap().value.as_slice()).unwrap()
}

#[test]
fn a_plan_becomes_these_resources() {
    let set = Renderer::new(names()).render(&plan(), Some(&leaf()));
    assert_eq!(set.revision, Revision(4));
    let expected = [
        "cds api.default.dc1.internal.t.consul",
        "cds db.default.dc1.internal.t.consul",
        "cds local_app",
        "eds api.default.dc1.internal.t.consul",
        "eds db.default.dc1.internal.t.consul",
        "sds leaf",
        "sds roots",
        "lds api:127.0.0.1:9001",
        "lds db:127.0.0.1:9002",
        "lds public_listener:10.0.0.9:21000",
        "rds api",
        "rds inbound:web",
    ];
    assert_eq!(list(&set), expected);
    let tcp = inbound(Protocol::Tcp, "127.0.0.1", &policy());
    let tcp = Renderer::new(names()).render(&Plan { inbound: Some(tcp), ..plan() }, None);
    assert!(list(&tcp).contains(&"ecds policy:web".to_owned()));
    assert!(!list(&tcp).iter().any(|name| name == "rds inbound:web" || name == "sds leaf"));
    assert!(!format!("{set:?} {:?}", leaf()).contains("SECRET"), "a key is printed");
}

#[test]
fn equal_plans_have_equal_versions_whoever_renders_them() {
    let first = Renderer::new(names()).render(&plan(), Some(&leaf()));
    for _ in 0..20 {
        assert_eq!(Renderer::new(names()).render(&plan(), Some(&leaf())), first);
    }
}

#[test]
fn proxies_share_what_their_plans_share() {
    let mut renderer = Renderer::new(names());
    let one = plan();
    let two = Plan { inbound: None, outbounds: one.outbounds.clone(), ..one.clone() };
    let (one_set, two_set) = (renderer.render(&one, None), renderer.render(&two, None));
    for kind in ResourceType::ALL {
        for resource in two_set.of_kind(kind) {
            assert!(Arc::ptr_eq(resource, one_set.get(kind, &resource.name).unwrap()), "{resource:?}");
        }
    }
    // One part is replaced: one resource is.
    let mut three = one.clone();
    three.endpoints[0] = endpoints(&three.clusters[0], 99);
    let three_set = renderer.render(&three, None);
    let changed: Vec<_> = ResourceType::ALL
        .into_iter()
        .flat_map(|kind| three_set.of_kind(kind))
        .filter(|resource| !Arc::ptr_eq(resource, one_set.get(resource.kind, &resource.name).unwrap()))
        .map(|resource| resource.kind)
        .collect();
    assert_eq!(changed, [ResourceType::Endpoints]);
}

#[test]
fn a_policy_changes_no_listener() {
    let mut renderer = Renderer::new(names());
    for protocol in [Protocol::Http, Protocol::Tcp] {
        let before =
            renderer.render(&Plan { inbound: Some(inbound(protocol, "127.0.0.1", &policy())), ..plan() }, None);
        let open = Arc::new(Policy { default: Action::Allow, ..Policy::clone(&policy()) });
        let after = renderer.render(&Plan { inbound: Some(inbound(protocol, "127.0.0.1", &open)), ..plan() }, None);
        let versions = |set: &ResourceSet, kind| set.of_kind(kind).iter().map(|r| r.version).collect::<Vec<_>>();
        assert_eq!(versions(&before, ResourceType::Listener), versions(&after, ResourceType::Listener));
        let kind = if protocol.is_l7() { ResourceType::Route } else { ResourceType::Extension };
        assert_ne!(versions(&before, kind), versions(&after, kind));
    }
}

#[test]
fn endpoints_count_anew_when_their_cluster_has_changed() {
    let mut renderer = Renderer::new(names());
    let before = plan();
    let mut after = before.clone();
    after.clusters[0] =
        Arc::new(Cluster { connect_timeout: Duration::from_secs(9), ..Cluster::clone(&before.clusters[0]) });
    let sni = before.clusters[0].sni.clone();
    let [before, after] = [before, after].map(|plan| renderer.render(&plan, None));
    let of = |set: &ResourceSet| set.get(ResourceType::Endpoints, &sni).unwrap().version;
    assert_ne!(of(&before), of(&after));
}

#[test]
fn what_is_missing_from_a_plan_does_no_harm() {
    let mut bare = plan();
    bare.endpoints.remove(0);
    bare.clusters.remove(1);
    bare.routes.remove(1);
    let set = Renderer::new(names()).render(&bare, None);
    let assignment: ClusterLoadAssignment = decode(set.get(ResourceType::Endpoints, &bare.clusters[0].sni).unwrap());
    assert!(assignment.endpoints.is_empty());
    assert!(!list(&set).iter().any(|name| name.starts_with("lds db")));
}

#[test]
fn settings_reach_the_messages() {
    let app = inbound(Protocol::Grpc, "app.local", &policy());
    let grpc = Plan { inbound: Some(app), ..plan() };
    let set = Renderer::new(names()).render(&grpc, None);
    let local: ClusterMessage = decode(set.get(ResourceType::Cluster, "local_app").unwrap());
    assert_eq!(local.cluster_discovery_type, Some(ClusterDiscoveryType::Type(DiscoveryType::StrictDns.into())));
    let api: ClusterMessage = decode(set.get(ResourceType::Cluster, &grpc.clusters[0].sni).unwrap());
    let thresholds = &api.circuit_breakers.unwrap().thresholds[0];
    assert_eq!(thresholds.max_connections.unwrap().value, 7);
    let timeout = |name: &str| {
        let mut routes: RouteConfiguration = decode(set.get(ResourceType::Route, name).unwrap());
        let Some(RouteKind::Route(route)) = routes.virtual_hosts.remove(0).routes.remove(0).action else {
            panic!("no cluster");
        };
        route.timeout.unwrap().seconds
    };
    assert_eq!((timeout("api"), timeout("inbound:web")), (15, 0));
}
