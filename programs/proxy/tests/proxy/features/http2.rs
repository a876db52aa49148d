//! What is tried again, given up and copied in HTTP/2 and gRPC.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use starling_model::{BalancePolicy, Protocol, RetryBudget, RetryPolicy};
use starling_traffic::{Forward, MirrorTo};

use super::backend::{Backend, Reply};
use super::{Mesh, always, percent, retry, sorted, to};
use crate::app::{Answer, answer, send_all};
use crate::http2::request;
use crate::wire::{eventually, within};

/// Two endpoints whose turns alternate.
async fn two(edit: impl FnOnce(&mut Forward)) -> (Mesh, Vec<Backend>) {
    let (mut mesh, backends) = Mesh::of_one(Protocol::Grpc, 2, edit).await;
    Arc::make_mut(&mut mesh.plan.clusters[0]).balance = BalancePolicy::RoundRobin;
    mesh.serve().await;
    (mesh, backends)
}

/// Sends chunks one by one, and trailers.
async fn post(mesh: &Mesh, chunks: &[&[u8]], trailers: Option<HeaderMap>) -> Answer {
    let mut sender = within(mesh.client2().await.ready()).await.unwrap();
    let (response, mut body) = sender.send_request(request("POST", "/api.Service/Call"), false).unwrap();
    for chunk in chunks {
        // Whoever answers early may take no more.
        let _ = within(send_all(&mut body, Bytes::copy_from_slice(chunk))).await;
    }
    let _ = match trailers {
        Some(trailers) => body.send_trailers(trailers),
        None => body.send_data(Bytes::new(), true),
    };
    answer(response).await.unwrap()
}

fn text(answer: &Answer) -> (u16, &str) {
    (answer.status, std::str::from_utf8(&answer.body).unwrap())
}

#[tokio::test]
async fn what_fails_is_tried_again_elsewhere_with_its_body_and_trailers() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "7".parse().unwrap());
    for (failing, on) in [
        (Reply::Status(503), "gateway-error"),
        (Reply::Early(500), "5xx"),
        (Reply::Break, "reset"),
        (Reply::Grpc(14), "unavailable"),
        (Reply::Grpc(8), "resource-exhausted"),
    ] {
        let (mesh, backends) = two(|forward| forward.retry = Some(retry(1, &[on]))).await;
        backends[0].always(failing);
        for trailers in [None, Some(trailers.clone()), None, Some(trailers.clone())] {
            let answer = post(&mesh, &[b"some ", b"words"], trailers).await;
            assert_eq!(text(&answer), (200, "api-1"), "{on}");
            assert_eq!(text(&mesh.get2("/").await), (200, "api-1"), "{on}");
        }
        assert!(backends[0].count() >= 2, "{on}: it was tried");
        let asked = backends[1].asked();
        let (posts, others): (Vec<_>, Vec<_>) = asked.iter().partition(|asked| asked.method == "POST");
        assert_eq!((posts.len(), others.len()), (4, 4));
        assert!(posts.iter().all(|asked| asked.body == b"some words"), "{on}");
        assert_eq!(posts.iter().filter(|asked| asked.values("x-checksum") == ["7"]).count(), 2, "{on}");
    }
}

#[tokio::test]
async fn nothing_is_tried_more_often_than_the_policy_says_or_on_other_conditions() {
    let (mut mesh, backends) =
        Mesh::of_one(Protocol::Grpc, 1, |forward| forward.retry = Some(retry(2, &["unavailable"]))).await;
    mesh.serve().await;
    for (reply, tries, status, grpc) in [
        (Reply::Grpc(14), 3, 200, Some("14")),
        (Reply::Grpc(13), 1, 200, Some("13")),
        (Reply::Status(503), 1, 503, None),
        (Reply::Break, 1, 503, None),
    ] {
        backends[0].always(reply);
        let answer = mesh.get2("/").await;
        assert_eq!(backends[0].count(), tries, "{reply:?}");
        let told = answer.headers.get("grpc-status").map(|code| code.to_str().unwrap().to_owned());
        assert_eq!((answer.status, told), (status, grpc.map(str::to_owned)), "{reply:?}");
    }
    // A stream that was refused unseen may always be sent again, though not for ever.
    backends[0].always(Reply::Status(200));
    backends[0].next(&[Reply::Refuse, Reply::Refuse]);
    assert_eq!(text(&mesh.get2("/").await), (200, "api-0"));
    assert_eq!(backends[0].count(), 3);
    backends[0].always(Reply::Refuse);
    assert_eq!(mesh.get2("/").await.status, 503);
    assert_eq!(backends[0].count(), 3);
}

#[tokio::test]
async fn a_body_too_large_to_be_kept_is_sent_once_and_the_answer_is_the_servers() {
    let (mut mesh, backends) =
        Mesh::of_one(Protocol::Http2, 1, |forward| forward.retry = Some(retry(2, &["5xx"]))).await;
    mesh.serve().await;
    let fits = [[b'x'; 16 * 1024].as_slice(), &[b'y'; 16 * 1024], &[b'z'; 16 * 1024]];
    backends[0].next(&[Reply::Status(503), Reply::Break]);
    assert_eq!(post(&mesh, &fits, None).await.status, 200);
    assert!(backends[0].asked().iter().map(|asked| &asked.body).eq([&fits.concat(); 3]), "in order");
    backends[0].next(&[Reply::Status(500)]);
    let large = vec![b'x'; 300 * 1024];
    assert_eq!(text(&post(&mesh, &[&large], None).await), (500, "api-0"));
    assert_eq!(backends[0].count(), 1);
    assert_eq!(post(&mesh, &[&large[..]; 10], None).await.status, 200, "no window is lost");
}

#[tokio::test]
async fn what_was_not_sent_yet_follows_what_is_sent_again() {
    let (mut mesh, backends) =
        Mesh::of_one(Protocol::Http2, 1, |forward| forward.retry = Some(retry(1, &["5xx"]))).await;
    mesh.serve().await;
    backends[0].next(&[Reply::Early(503)]);
    let mut sender = within(mesh.client2().await.ready()).await.unwrap();
    let (response, mut body) = sender.send_request(request("POST", "/"), false).unwrap();
    within(send_all(&mut body, Bytes::from_static(b"first"))).await.unwrap();
    eventually("the first try is over", || backends[0].waiting() >= 1).await;
    within(send_all(&mut body, Bytes::from_static(b"second"))).await.unwrap();
    body.send_data(Bytes::new(), true).unwrap();
    assert_eq!(text(&answer(response).await.unwrap()), (200, "api-0"));
    let asked = backends[0].asked();
    assert_eq!((asked.len(), &*asked[1].body), (2, &b"firstsecond"[..]));
}

#[tokio::test]
async fn times_and_budgets_hold_here_too() {
    let each = Duration::from_millis(200);
    let (mesh, backends) = two(|forward| {
        forward.per_try_timeout = Some(each);
        forward.retry = Some(retry(1, &["5xx"]));
    })
    .await;
    backends[0].always(Reply::Silence);
    for _ in 0..2 {
        assert_eq!(text(&post(&mesh, &[b"some words"], None).await), (200, "api-1"));
    }
    backends[1].always(Reply::Silence);
    assert_eq!(text(&mesh.get2("/").await), (504, "upstream request timeout"));

    let (mut mesh, backends) = Mesh::of_one(Protocol::Http2, 1, |forward| {
        forward.timeout = Some(Duration::from_millis(300));
        let budget = RetryBudget { percent: percent(0), min_concurrency: 0 };
        forward.retry = Some(RetryPolicy { budget: Some(budget), ..retry(3, &["5xx"]) });
    })
    .await;
    mesh.serve().await;
    backends[0].always(Reply::Status(500));
    assert_eq!(text(&mesh.get2("/").await), (500, "api-0"));
    assert_eq!(backends[0].count(), 1, "no retry fits into the budget");
    backends[0].always(Reply::Silence);
    assert_eq!(mesh.get2("/").await.status, 504);
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_connected_to_is_passed_over() {
    let (mut mesh, backends) =
        Mesh::of_one(Protocol::Grpc, 1, |forward| forward.retry = Some(retry(1, &["connect-failure"]))).await;
    let nobody = mesh.nobody().await;
    mesh.endpoints(0).endpoints = sorted(&[nobody, backends[0].address]);
    Arc::make_mut(&mut mesh.plan.clusters[0]).balance = BalancePolicy::RoundRobin;
    mesh.serve().await;
    for _ in 0..6 {
        assert_eq!(post(&mesh, &[b"some words"], None).await.status, 200);
    }
}

#[tokio::test]
async fn a_mirror_gets_copies_and_changes_nothing() {
    let mut mesh = Mesh::new(Protocol::Http2).await;
    let own = mesh.backend("own").await;
    let copies = Backend::start(&mesh.ca, mesh.ip, "shadow", "copies").await;
    mesh.cluster("api", &[&own]);
    mesh.cluster("shadow", &[&copies]);
    let shadow = to(&[("shadow", 100)]).targets.remove(0).cluster;
    let mut forward = to(&[("api", 100)]);
    forward.mirror = Some(MirrorTo { cluster: shadow, percent: percent(100) });
    mesh.routes(vec![always(forward)]);
    mesh.serve().await;
    copies.next(&[Reply::Status(500), Reply::Silence, Reply::Break]);
    for _ in 0..4 {
        assert_eq!(text(&post(&mesh, &[b"some ", b"words"], None).await), (200, "own"));
    }
    assert_eq!(text(&mesh.get2("/bare").await), (200, "own"));
    eventually("every request is copied", || copies.waiting() == 5).await;
    let (own, copied) = (own.asked(), copies.asked());
    assert_eq!((own.len(), copied.iter().filter(|asked| asked.body == b"some words").count()), (5, 4));
    assert!(copied.iter().any(|asked| asked.method == "GET" && asked.target == "/bare"));
}
