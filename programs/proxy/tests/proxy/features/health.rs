//! Endpoints that are left out, those that stand in, and how much an instance takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use starling_model::{BalancePolicy, PassiveHealthCheck, Protocol, RateLimit};
use starling_plan::plan::{FailoverGroup, Target};

use super::backend::{Backend, Reply};
use super::{Mesh, always, percent, sorted, to};
use crate::wire::{eventually, within};
use crate::world::{Setup, World, identity, service};

/// Three failures in a row take an endpoint out, for so long.
fn check(time: Duration) -> Option<PassiveHealthCheck> {
    Some(PassiveHealthCheck {
        interval: None,
        max_failures: Some(3),
        enforcing: None,
        max_ejected: Some(percent(100)),
        base_ejection_time: Some(time),
    })
}

#[tokio::test]
async fn an_endpoint_that_fails_again_and_again_is_left_out_and_comes_back() {
    let out = Duration::from_millis(1_500);
    for (protocol, failing) in [
        (Protocol::Http, Reply::Status(500)),
        (Protocol::Http, Reply::Break),
        (Protocol::Http2, Reply::Status(503)),
        (Protocol::Http2, Reply::Break),
    ] {
        let (mut mesh, backends) = Mesh::of_one(protocol, 2, |_| {}).await;
        let cluster = Arc::make_mut(&mut mesh.plan.clusters[0]);
        (cluster.balance, cluster.outlier) = (BalancePolicy::RoundRobin, check(out));
        mesh.serve().await;
        backends[0].always(failing);
        for _ in 0..12 {
            mesh.get2("/").await;
        }
        let since = Instant::now();
        assert_eq!(backends[0].count(), 3, "{protocol:?} {failing:?}");
        backends[0].always(Reply::Status(200));
        while backends[0].waiting() == 0 {
            assert_eq!(mesh.get2("/").await.status, 200);
            assert!(since.elapsed() < Duration::from_secs(20));
        }
        assert!(since.elapsed() > out / 2, "{:?} {failing:?}", since.elapsed());
    }
}

#[tokio::test]
async fn whoever_does_not_answer_in_time_is_left_out_whatever_is_spoken() {
    for (protocol, version) in [(Protocol::Http, 1), (Protocol::Http, 2), (Protocol::Http2, 1), (Protocol::Http2, 2)] {
        let time = Some(Duration::from_millis(100));
        let (mut mesh, backends) = Mesh::of_one(protocol, 2, |forward| forward.timeout = time).await;
        let cluster = Arc::make_mut(&mut mesh.plan.clusters[0]);
        (cluster.balance, cluster.outlier) = (BalancePolicy::RoundRobin, check(Duration::from_secs(60)));
        mesh.serve().await;
        backends[0].always(Reply::Silence);
        let mut statuses = Vec::new();
        for _ in 0..9 {
            statuses.push(if version == 1 { mesh.get("/").await.status() } else { mesh.get2("/").await.status });
        }
        let late = statuses.iter().filter(|status| **status == 504).count();
        assert_eq!((late, backends[0].count()), (3, 3), "{protocol:?} {version} {statuses:?}");
    }
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_connected_to_is_left_out() {
    let (mut mesh, backends) = Mesh::of_one(Protocol::Http, 1, |_| {}).await;
    let nobody = mesh.nobody().await;
    mesh.endpoints(0).endpoints = sorted(&[nobody, backends[0].address]);
    let cluster = Arc::make_mut(&mut mesh.plan.clusters[0]);
    (cluster.balance, cluster.outlier) = (BalancePolicy::RoundRobin, check(Duration::from_secs(60)));
    mesh.serve().await;
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(mesh.get("/").await.status());
    }
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 3, "{statuses:?}");
    assert!(statuses[6..].iter().all(|status| *status == 200));
}

/// Calls api; where it is not, db stands in.
async fn with_failover(protocol: Protocol, presented: &str) -> (Mesh, Backend, Backend) {
    let mut mesh = Mesh::new(protocol).await;
    let (own, other) = (mesh.backend("own").await, Backend::start(&mesh.ca, mesh.ip, presented, "other").await);
    mesh.cluster("api", &[&own]).failover_identities = vec![identity("cache"), identity("db")];
    let target = |name| Target { service: service(name), subset: None };
    mesh.endpoints(0).failover = vec![
        FailoverGroup { target: target("cache"), endpoints: Vec::new() },
        FailoverGroup { target: target("db"), endpoints: sorted(&[other.address]) },
    ];
    mesh.routes(vec![always(to(&[("api", 100)]))]);
    mesh.serve().await;
    (mesh, own, other)
}

#[tokio::test]
async fn another_service_stands_in_with_its_own_identity() {
    let (mut mesh, own, _other) = with_failover(Protocol::Http, "db").await;
    let mut client = mesh.client().await;
    let there = sorted(&[own.address]);
    for (endpoints, expected) in [(there.clone(), "own"), (Vec::new(), "other"), (there, "own")] {
        mesh.endpoints(0).endpoints = endpoints;
        mesh.serve().await;
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        let answer = client.message().await;
        assert_eq!((answer.status(), &*answer.text()), (200, expected));
    }
    // Who is neither is not called, though it stands where db is said to be; nor is db's place api's.
    for presented in ["stranger", "api", "cache"] {
        let (mut mesh, _own, other) = with_failover(Protocol::Http, presented).await;
        mesh.endpoints(0).endpoints.clear();
        mesh.serve().await;
        let answer = mesh.get("/").await;
        assert_eq!((answer.status(), &*answer.text()), (503, "upstream connect failure"), "{presented}");
        assert_eq!(other.count(), 0);
    }
}

#[tokio::test]
async fn bare_connections_fail_over_too() {
    let (mut mesh, _own, _other) = with_failover(Protocol::Tcp, "db").await;
    assert_eq!(mesh.client().await.exactly(4).await, b"own\n");
    let endpoints = std::mem::take(&mut mesh.endpoints(0).endpoints);
    mesh.serve().await;
    assert_eq!(mesh.client().await.exactly(6).await, b"other\n");
    mesh.endpoints(0).endpoints = endpoints;
    mesh.serve().await;
    assert_eq!(mesh.client().await.exactly(4).await, b"own\n");
}

#[tokio::test]
async fn an_instance_takes_so_many_requests_and_refuses_the_rest() {
    let mut setup = Setup::of(Protocol::Http);
    setup.workers = 2;
    let mut world = World::start(setup).await;
    let app = world.app.mirror();
    let inbound = Arc::make_mut(world.api.plan.inbound.as_mut().unwrap());
    inbound.rate_limit = Some(RateLimit { per_second: 1, burst: 5 });
    world.api.apply().await;
    let began = Instant::now();
    let mut refused = 0;
    for _ in 0..15 {
        // Connections of their own, so that several workers take them.
        let mut client = world.client().await;
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        let answer = client.message().await;
        match answer.status() {
            200 => {}
            429 => {
                refused += 1;
                assert_eq!(answer.text(), "local_rate_limited");
            }
            status => panic!("{status}"),
        }
    }
    let most = 5 + began.elapsed().as_secs() + 1;
    assert!((5..=most).contains(&app.served()), "{} of 15 within {:?}", app.served(), began.elapsed());
    assert_eq!(app.served() + refused, 15);
    // In time it takes more.
    let mut client = world.client().await;
    let answered = async {
        loop {
            client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
            if client.message().await.status() == 200 {
                break;
            }
        }
    };
    within(answered).await;
    // And as much as comes once nothing is said.
    Arc::make_mut(world.api.plan.inbound.as_mut().unwrap()).rate_limit = None;
    world.api.apply().await;
    for _ in 0..10 {
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        assert_eq!(client.message().await.status(), 200);
    }
    eventually("all are counted", || crate::world::counted(&world.api.engine)["2xx"] == app.served()).await;
}
