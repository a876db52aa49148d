//! Which endpoint of several is called.

use std::collections::BTreeMap;
use std::sync::Arc;

use starling_model::{BalancePolicy, HashOn, HashPolicy, Protocol};
use tokio::net::TcpListener;

use super::backend::{Backend, Reply};
use super::{Mesh, always, sorted, to};
use crate::wire::{Wire, eventually};

async fn balanced(count: usize, policy: BalancePolicy, hash: Vec<HashOn>) -> (Mesh, Vec<Backend>) {
    let hash = hash.into_iter().map(|on| HashPolicy { on, terminal: false }).collect();
    let (mut mesh, backends) = Mesh::of_one(Protocol::Http, count, |forward| forward.hash = hash).await;
    Arc::make_mut(&mut mesh.plan.clusters[0]).balance = policy;
    mesh.serve().await;
    (mesh, backends)
}

fn counts(backends: &[Backend]) -> Vec<usize> {
    backends.iter().map(Backend::count).collect()
}

#[tokio::test]
async fn round_robin_is_even_and_by_weight() {
    let (mut mesh, backends) = balanced(3, BalancePolicy::RoundRobin, Vec::new()).await;
    for _ in 0..30 {
        mesh.get("/").await;
    }
    assert_eq!(counts(&backends), [10, 10, 10]);
    let heavy = backends[0].address.port();
    for endpoint in &mut mesh.endpoints(0).endpoints {
        endpoint.weight = if endpoint.port == heavy { 2 } else { 1 };
    }
    mesh.serve().await;
    for _ in 0..40 {
        mesh.get("/").await;
    }
    assert_eq!(counts(&backends), [20, 10, 10]);
}

#[tokio::test]
async fn policies_reach_everybody_and_least_request_passes_over_the_busy() {
    for policy in [
        BalancePolicy::Random,
        BalancePolicy::PeakEwma,
        BalancePolicy::RingHash { minimum_size: None, maximum_size: None },
        BalancePolicy::Maglev,
        BalancePolicy::LeastRequest { choice_count: None },
    ] {
        let (mesh, backends) = balanced(2, policy, Vec::new()).await;
        for _ in 0..60 {
            assert_eq!(mesh.get("/").await.status(), 200);
        }
        let counts = counts(&backends);
        // Peak EWMA stays with whoever was faster.
        let least = if policy == BalancePolicy::PeakEwma { 0 } else { 5 };
        assert!(
            counts.iter().all(|count| *count >= least) && counts.iter().sum::<usize>() == 60,
            "{policy:?} {counts:?}"
        );
    }
    let (mesh, backends) = balanced(2, BalancePolicy::LeastRequest { choice_count: None }, Vec::new()).await;
    backends[0].always(Reply::Silence);
    let mut hanging = Vec::new();
    while backends[0].waiting() == 0 {
        let mut client = mesh.client().await;
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        eventually("somebody is asked", || backends.iter().any(|backend| backend.waiting() > 0)).await;
        backends[1].asked();
        hanging.push(client);
    }
    for _ in 0..30 {
        assert_eq!(mesh.get("/").await.text(), "api-1");
    }
}

/// An endpoint that has just come takes its share as connections to it are made, one after the other.
#[tokio::test]
async fn calls_do_not_queue_up_for_an_endpoint_that_is_still_being_connected_to() {
    let (mut mesh, backends) = balanced(1, BalancePolicy::LeastRequest { choice_count: None }, Vec::new()).await;
    // It takes connections, and never says a word of TLS.
    let mute = TcpListener::bind((mesh.ip, 0)).await.unwrap();
    mesh.endpoints(0).endpoints = sorted(&[mute.local_addr().unwrap(), backends[0].address]);
    mesh.serve().await;
    backends[0].always(Reply::Silence);
    let mut clients = Vec::new();
    for number in 0..20 {
        let mut client = mesh.client().await;
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        clients.push(client);
        // All but one, however many calls the other endpoint has under way.
        eventually("the other endpoint is asked", || backends[0].waiting() >= number).await;
    }
}

/// Who answers each of these requests, and that it is always the same one.
async fn owners(mesh: &Mesh, requests: &[String]) -> Vec<String> {
    let mut owners = Vec::new();
    for request in requests {
        let first = mesh.ask(request).await.text();
        for _ in 0..5 {
            assert_eq!(mesh.ask(request).await.text(), first, "{request}");
        }
        owners.push(first);
    }
    owners
}

fn spread(owners: &[String]) -> usize {
    owners.iter().map(|owner| (owner, ())).collect::<BTreeMap<_, _>>().len()
}

#[tokio::test]
async fn the_same_header_or_parameter_stays_with_one_endpoint() {
    let ring = BalancePolicy::RingHash { minimum_size: None, maximum_size: None };
    let on = || vec![HashOn::Header("x-user".to_owned()), HashOn::QueryParameter("user".to_owned())];
    for policy in [ring, BalancePolicy::Maglev] {
        let (mut mesh, mut backends) = balanced(4, policy, on()).await;
        let by_header = |user: usize| format!("GET /?x=1 HTTP/1.1\r\nhost: api\r\nx-user: u{user}\r\n\r\n");
        let by_query = |user: usize| format!("GET /?x=1&user=u{user} HTTP/1.1\r\nhost: api\r\n\r\n");
        let requests: Vec<_> = (0..12).map(by_header).chain((0..12).map(by_query)).collect();
        let before = owners(&mesh, &requests).await;
        assert!(spread(&before[..12]) >= 2 && spread(&before[12..]) >= 2, "{before:?}");
        // When an endpoint goes, most of the others' callers stay where they are.
        let gone = backends.pop().unwrap();
        mesh.endpoints(0).endpoints.retain(|endpoint| endpoint.port != gone.address.port());
        mesh.serve().await;
        let after = owners(&mesh, &requests).await;
        let stayed = before.iter().filter(|owner| **owner != gone.name).count();
        let same = before.iter().zip(&after).filter(|(before, after)| before == after).count();
        assert!(after.iter().all(|owner| *owner != gone.name));
        assert!(same * 2 >= stayed, "{same} of {stayed} stay");
    }
}

#[tokio::test]
async fn the_same_source_stays_with_one_endpoint() {
    let (mesh, backends) = balanced(3, BalancePolicy::Maglev, vec![HashOn::SourceAddress]).await;
    let mut seen = Vec::new();
    for host in 1..=12 {
        let mut owners = Vec::new();
        for _ in 0..3 {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(([127, 0, 77, host], 0).into()).unwrap();
            let mut client = Wire::new(socket.connect(mesh.outbound).await.unwrap());
            client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
            owners.push(client.message().await.text());
        }
        assert_eq!(spread(&owners), 1, "{owners:?}");
        seen.append(&mut owners);
    }
    assert!(spread(&seen) >= 2);
    drop(backends);
}

#[tokio::test]
async fn a_cookie_is_set_and_then_heeded() {
    let cookie = HashOn::Cookie {
        name: "place".to_owned(),
        ttl: Some(std::time::Duration::from_secs(60)),
        path: Some("/".to_owned()),
        session: false,
    };
    let ring = BalancePolicy::RingHash { minimum_size: None, maximum_size: None };
    let (mesh, _backends) = balanced(4, ring, vec![cookie]).await;
    let mut seen = Vec::new();
    for _ in 0..10 {
        let first = mesh.get("/").await;
        let [set] = first.values("set-cookie")[..] else { panic!("one cookie: {}", first.head) };
        assert!(set.starts_with("place=") && set.ends_with("; Max-Age=60; Path=/; HttpOnly"), "{set}");
        let pair = set.split(';').next().unwrap();
        for _ in 0..5 {
            let again = mesh.ask(&format!("GET / HTTP/1.1\r\nhost: api\r\ncookie: a=b; {pair}\r\n\r\n")).await;
            assert_eq!(again.text(), first.text(), "{pair}");
            assert_eq!(again.values("set-cookie"), [""; 0], "it is there");
        }
        seen.push(first.text());
    }
    assert!(spread(&seen) >= 2);
    let answer = mesh.get2("/").await;
    assert!(answer.headers["set-cookie"].to_str().unwrap().starts_with("place="));
}

#[tokio::test]
async fn bare_connections_are_split_and_hashed_too() {
    let mut mesh = Mesh::new(Protocol::Tcp).await;
    let (old, new) = (mesh.backend("old").await, mesh.backend("new").await);
    mesh.cluster("v1.api", &[&old]);
    mesh.cluster("v2.api", &[&new]);
    mesh.routes(vec![always(to(&[("v1.api", 50), ("v2.api", 50)]))]);
    mesh.serve().await;
    for _ in 0..60 {
        let mut client = mesh.client().await;
        let hello = client.exactly(4).await;
        assert!(hello == b"old\n" || hello == b"new\n");
        client.send("ping").await;
        assert_eq!(client.exactly(4).await, b"ping");
    }
    let (old, new) = (old.count(), new.count());
    assert_eq!(old + new, 60);
    // Six standard deviations of 60 draws at one half: 23.
    assert!(old >= 7 && new >= 7, "{old} and {new}");
}
