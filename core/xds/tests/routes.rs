//! Routes, targets and failover as Envoy's messages.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::Cluster as ClusterMessage;
use envoy_types::pb::envoy::config::cluster::v3::cluster::LbPolicy;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use envoy_types::pb::envoy::config::route::v3::{Route, RouteConfiguration};
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use starling_identity::{Layout, SpiffeId};
use starling_model::*;
use starling_plan::{Cluster, Endpoint, Endpoints, FailoverGroup, Limits, Plan, Routes, Target, Trust};
use starling_traffic::{Forward, MirrorTo, RouteRule, RouteTable, RuleAction, WeightedTarget};
use starling_xds::{MeshNames, Renderer, Resource, ResourceSet, ResourceType};

fn names() -> MeshNames {
    MeshNames {
        layout: Layout::Consul,
        trust_domain: TrustDomain::new("t.consul").unwrap(),
        namespace: Namespace::new("default").unwrap(),
        datacenter: Datacenter::new("dc1").unwrap(),
    }
}

fn identity(service: &str) -> SpiffeId {
    let names = names();
    SpiffeId::new(names.layout, names.trust_domain, names.namespace, names.datacenter, service.parse().unwrap())
}

fn cluster(subset: &str) -> Cluster {
    Cluster {
        service: "api".parse().unwrap(),
        subset: Some(subset.parse().unwrap()),
        sni: format!("{subset}.api.default.dc1.internal.t.consul"),
        identity: identity("api"),
        failover_identities: vec![identity("backup")],
        protocol: Protocol::Http,
        connect_timeout: Duration::from_secs(5),
        limits: Limits::default(),
        balance: BalancePolicy::RingHash { minimum_size: Some(64), maximum_size: None },
        outlier: Some(PassiveHealthCheck {
            max_failures: Some(3),
            max_ejected: Percent::parse(50.0),
            ..Default::default()
        }),
        retry_budget: Some(RetryBudget { percent: Percent::parse(12.5).unwrap(), min_concurrency: 4 }),
    }
}

fn target(of: &Cluster, weight: u32) -> WeightedTarget {
    WeightedTarget {
        cluster: of.sni.as_str().into(),
        weight,
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
    }
}

fn render(rules: Vec<RouteRule>, endpoints: Endpoints) -> ResourceSet {
    let clusters = vec![Arc::new(cluster("v1")), Arc::new(cluster("v2"))];
    let routes = Routes {
        service: "api".parse().unwrap(),
        protocol: Protocol::Http,
        table: Arc::new(RouteTable::new(rules)),
        targets: clusters.iter().map(|cluster| cluster.target()).collect(),
        retry_budget: None,
    };
    let outbound = starling_plan::Outbound {
        service: routes.service.clone(),
        bind: ([127, 0, 0, 1], 9001).into(),
        protocol: routes.protocol,
    };
    let plan = Plan {
        revision: Revision(1),
        proxy: InstanceKey { node: "n1".parse().unwrap(), id: "web-1".parse().unwrap() },
        service: "web".parse().unwrap(),
        trust: Arc::new(Trust { roots_pem: vec!["ROOT".to_owned()] }),
        inbound: None,
        edges: Vec::new(),
        outbounds: vec![Arc::new(outbound)],
        routes: vec![Arc::new(routes)],
        clusters,
        endpoints: vec![Arc::new(endpoints)],
        exits: Vec::new(),
        origins: Vec::new(),
        capture: None,
        access_log: Arc::new(starling_model::AccessLog { enabled: Some(false), ..Default::default() }),
        tracing: Arc::default(),
    };
    Renderer::new(names()).render(&plan, None)
}

fn decode<M: Message + Default>(resource: &Resource) -> M {
    M::decode(Any::decode(resource.any_bytes()).unwrap().value.as_slice()).unwrap()
}

fn group(port: u16) -> Vec<Endpoint> {
    vec![Endpoint { address: "10.0.0.1".parse().unwrap(), port, weight: 1 }]
}

fn endpoints(first: Vec<Endpoint>, groups: Vec<Vec<Endpoint>>) -> Endpoints {
    let target = |number: usize| Target { service: format!("backup-{number}").parse().unwrap(), subset: None };
    let group = |(number, endpoints)| FailoverGroup { target: target(number), endpoints };
    let of = cluster("v1");
    Endpoints {
        service: of.service.clone(),
        subset: of.subset.clone(),
        cluster: of.sni.clone(),
        from: None,
        endpoints: first,
        failover: groups.into_iter().enumerate().map(group).collect(),
    }
}

fn routes_of(forward: Forward, matches: RequestMatch) -> Route {
    let rule = RouteRule { matches, action: RuleAction::Forward(Box::new(forward)) };
    let set = render(vec![rule], endpoints(group(1), Vec::new()));
    let resource = set.get(ResourceType::Route, "api").unwrap();
    let mut message: RouteConfiguration = decode(resource);
    message.virtual_hosts.remove(0).routes.remove(0)
}

#[test]
fn a_rule_becomes_a_route_with_everything_that_it_says() {
    let (v1, v2) = (cluster("v1"), cluster("v2"));
    let mut canary = target(&v2, 100_000);
    canary.response_headers.set.insert("x-canary".to_owned(), "100%".to_owned());
    let forward = Forward {
        targets: vec![target(&v1, 900_000), canary],
        prefix_rewrite: Some("/".to_owned()),
        timeout: Some(Duration::from_secs(3)),
        per_try_timeout: Some(Duration::from_secs(1)),
        idle_timeout: Some(Duration::from_secs(30)),
        retry: Some(RetryPolicy {
            retries: Some(2),
            on: [RetryOn::Reset].into(),
            on_statuses: [503].into(),
            budget: None,
        }),
        mirror: Some(MirrorTo { cluster: v2.sni.as_str().into(), percent: Percent::parse(1.5).unwrap() }),
        fault: Some(Fault { delay: None, abort: Some(FaultAbort { status: 500, percent: Percent::ALL }) }),
        hash: vec![HashPolicy { on: HashOn::SourceAddress, terminal: true }],
        ..Forward::default()
    };
    let header = |test, invert| HeaderMatch { name: "x".to_owned(), test, invert, ignore_case: false };
    let matches = RequestMatch {
        path: Some(PathMatch::Prefix("/a/".to_owned())),
        ignore_path_case: true,
        headers: vec![header(HeaderTest::Present, true), header(HeaderTest::Exact("1".to_owned()), true)],
        query: vec![QueryMatch { name: "q".to_owned(), test: QueryTest::Present }],
        methods: vec!["GET".to_owned(), "PUT".to_owned()],
    };
    let route = routes_of(forward, matches);
    let tests = route.r#match.unwrap();
    assert_eq!((tests.headers.len(), tests.query_parameters.len()), (3, 1));
    assert!(!tests.case_sensitive.unwrap().value);
    // A field that is not there fails the test, and so passes its inverse.
    let treated: Vec<_> =
        tests.headers.iter().map(|test| (test.invert_match, test.treat_missing_header_as_empty)).collect();
    assert_eq!(treated, [(false, false), (true, false), (true, true)]);
    assert_eq!(route.typed_per_filter_config.keys().collect::<Vec<_>>(), ["envoy.filters.http.fault"]);
    let Some(Action::Route(action)) = route.action else { panic!("no action") };
    let Some(ClusterSpecifier::WeightedClusters(split)) = action.cluster_specifier else { panic!("no split") };
    let weights: Vec<_> = split.clusters.iter().map(|part| part.weight.unwrap().value).collect();
    assert_eq!(weights, [900_000, 100_000]);
    let added = split.clusters[1].response_headers_to_add[0].header.as_ref().unwrap();
    assert_eq!((added.key.as_str(), added.value.as_str()), ("x-canary", "100%%"));
    let retry = action.retry_policy.unwrap();
    assert_eq!(
        (retry.retry_on.as_str(), retry.retriable_status_codes.as_slice()),
        ("reset,retriable-status-codes", &[503][..])
    );
    assert_eq!((action.timeout.unwrap().seconds, retry.per_try_timeout.unwrap().seconds), (3, 1));
    let share = action.request_mirror_policies[0].runtime_fraction.as_ref().unwrap().default_value.unwrap();
    assert_eq!(share.numerator, 150);
    assert_eq!((action.prefix_rewrite.as_str(), action.hash_policy.len()), ("/", 1));
}

#[test]
fn routes_wait_for_every_cluster_that_they_name() {
    let (v1, v2) = (cluster("v1"), cluster("v2"));
    let forward = Forward { targets: vec![target(&v1, 500_000), target(&v2, 500_000)], ..Forward::default() };
    let rule = RouteRule { matches: RequestMatch::default(), action: RuleAction::Forward(Box::new(forward)) };
    let set = render(vec![rule], endpoints(group(1), Vec::new()));
    let named: Vec<_> = set.get(ResourceType::Route, "api").unwrap().clusters.iter().map(ToString::to_string).collect();
    assert_eq!(named, [v1.sni, v2.sni]);
}

#[test]
fn a_target_is_called_as_its_resolver_says() {
    let set = render(Vec::new(), endpoints(group(1), Vec::new()));
    let message: ClusterMessage = decode(set.get(ResourceType::Cluster, &cluster("v1").sni).unwrap());
    assert_eq!(message.lb_policy(), LbPolicy::RingHash);
    let thresholds = &message.circuit_breakers.unwrap().thresholds[0];
    assert_eq!(thresholds.retry_budget.as_ref().unwrap().budget_percent.unwrap().value, 12.5);
    let outlier = message.outlier_detection.unwrap();
    assert_eq!(outlier.consecutive_5xx.unwrap().value, 3);
    assert_eq!((outlier.max_ejection_percent.unwrap().value, outlier.enforcing_success_rate.unwrap().value), (50, 0));
    let tls = message.transport_socket.unwrap();
    // Whoever is failed over to shows an identity of its own.
    let text = format!("{:?}", String::from_utf8_lossy(&any_bytes(&tls)));
    assert!(text.contains("svc/api") && text.contains("svc/backup"), "{text}");
}

fn any_bytes(socket: &envoy_types::pb::envoy::config::core::v3::TransportSocket) -> Vec<u8> {
    socket.encode_to_vec()
}

#[test]
fn groups_have_priorities_without_gaps() {
    let priorities = |first, groups| {
        let set = render(Vec::new(), endpoints(first, groups));
        let message: ClusterLoadAssignment = decode(set.get(ResourceType::Endpoints, &cluster("v1").sni).unwrap());
        message.endpoints.iter().map(|group| (group.priority, group.lb_endpoints.len())).collect::<Vec<_>>()
    };
    assert_eq!(priorities(group(1), vec![Vec::new(), group(2), Vec::new()]), [(0, 1), (1, 0), (2, 1)]);
    assert_eq!(priorities(Vec::new(), vec![group(2)]), [(0, 0), (1, 1)]);
    assert_eq!(priorities(Vec::new(), vec![Vec::new()]), []);
}
