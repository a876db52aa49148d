//! How much may be under way towards a service: calls, connections, and calls that wait for one.

use std::sync::Arc;

use starling_model::Protocol;
use starling_plan::plan::Limits;

use super::Mesh;
use super::backend::{Backend, Reply};
use crate::wire::eventually;

/// One endpoint that says nothing to the first request and answers all others.
async fn limited(protocol: Protocol, workers: usize, limits: Limits) -> (Mesh, Vec<Backend>) {
    let (mut mesh, backends) = Mesh::of_one(protocol, 1, |_| {}).await;
    mesh.workers = workers;
    Arc::make_mut(&mut mesh.plan.clusters[0]).limits = limits;
    mesh.serve().await;
    backends[0].next(&[Reply::Silence]);
    (mesh, backends)
}

const GET: &str = "GET / HTTP/1.1\r\nhost: api\r\n\r\n";

#[tokio::test]
async fn calls_beyond_the_limit_are_refused_by_all_workers_together() {
    for protocol in [Protocol::Http, Protocol::Http2] {
        let limits = Limits { concurrent_requests: Some(1), ..Limits::default() };
        let (mesh, backends) = limited(protocol, 2, limits).await;
        let mut first = mesh.client().await;
        first.send(GET).await;
        eventually("the first one is under way", || backends[0].waiting() == 1).await;
        for _ in 0..8 {
            let refused = mesh.get("/").await;
            assert_eq!(refused.status(), 503, "{protocol:?}");
        }
        assert_eq!(backends[0].waiting(), 1, "{protocol:?}");
        drop(first);
        while mesh.get("/").await.status() != 200 {}
    }
}

#[tokio::test]
async fn calls_wait_for_a_connection_where_there_may_be_no_more_and_not_too_many_of_them() {
    let limits = Limits { connections: Some(1), pending_requests: Some(1), ..Limits::default() };
    // Of one worker: each may have one connection to each endpoint.
    let (mesh, backends) = limited(Protocol::Http, 1, limits).await;
    let mut first = mesh.client().await;
    first.send(GET).await;
    eventually("the first one is under way", || backends[0].waiting() == 1).await;
    // Of two more, either waits, and the other may not.
    let (mut second, mut third) = (mesh.client().await, mesh.client().await);
    second.send(GET).await;
    third.send(GET).await;
    let (refused, waits) = tokio::select! {
        refused = second.message() => (refused, &mut third),
        refused = third.message() => (refused, &mut second),
    };
    assert_eq!(refused.status(), 503);
    assert_eq!(backends[0].waiting(), 1);
    drop(first);
    assert_eq!(waits.message().await.status(), 200);
    // Now there is one that is kept, which the next one has.
    assert_eq!(mesh.get("/").await.status(), 200);
}

#[tokio::test]
async fn calls_of_http2_share_the_connections_that_there_may_be() {
    let limits = Limits { connections: Some(1), ..Limits::default() };
    let (mesh, backends) = limited(Protocol::Http2, 1, limits).await;
    let mut first = mesh.client().await;
    first.send(GET).await;
    eventually("the first one is under way", || backends[0].waiting() == 1).await;
    for _ in 0..3 {
        assert_eq!(mesh.get("/").await.status(), 200);
    }
}
