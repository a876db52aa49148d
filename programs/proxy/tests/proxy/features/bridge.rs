//! What is tried again, given up and copied where a request comes in one version of HTTP and goes on in the other.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use starling_model::{BalancePolicy, Protocol, RetryBudget, RetryPolicy};
use starling_traffic::{Forward, MirrorTo};

use super::backend::{Backend, Reply};
use super::{Mesh, always, percent, retry, sorted, to};
use crate::app::{answer, send_all};
use crate::http2::request;
use crate::wire::{eventually, within};

/// What services speak; their callers speak the other version.
const SPOKEN: [Protocol; 2] = [Protocol::Grpc, Protocol::Http];

/// Endpoints whose turns alternate.
async fn some(protocol: Protocol, count: usize, edit: impl FnOnce(&mut Forward)) -> (Mesh, Vec<Backend>) {
    let (mut mesh, backends) = Mesh::of_one(protocol, count, edit).await;
    Arc::make_mut(&mut mesh.plan.clusters[0]).balance = BalancePolicy::RoundRobin;
    mesh.serve().await;
    (mesh, backends)
}

/// Asks in the version that the service does not speak: each chunk on its own, none for a request without a body.
async fn ask(mesh: &Mesh, protocol: Protocol, chunks: &[&[u8]]) -> (u16, String) {
    let method = if chunks.is_empty() { "GET" } else { "POST" };
    if protocol == Protocol::Http {
        let mut sender = within(mesh.client2().await.ready()).await.unwrap();
        let (response, mut body) = sender.send_request(request(method, "/"), chunks.is_empty()).unwrap();
        for chunk in chunks {
            // Whoever answers early may take no more.
            let _ = within(send_all(&mut body, Bytes::copy_from_slice(chunk))).await;
        }
        if !chunks.is_empty() {
            let _ = body.send_data(Bytes::new(), true);
        }
        let answer = answer(response).await.unwrap();
        return (answer.status, String::from_utf8(answer.body).unwrap());
    }
    let mut client = mesh.client().await;
    let framing = if chunks.is_empty() { "" } else { "transfer-encoding: chunked\r\n" };
    client.send(format!("{method} / HTTP/1.1\r\nhost: api\r\n{framing}\r\n")).await;
    for chunk in chunks {
        let _ = client.try_send(format!("{:x}\r\n", chunk.len())).await;
        let _ = client.try_send([chunk, &b"\r\n"[..]].concat()).await;
    }
    if !chunks.is_empty() {
        let _ = client.try_send("0\r\n\r\n").await;
    }
    let answer = client.message().await;
    (answer.status(), answer.text())
}

fn said(status: u16, text: &str) -> (u16, String) {
    (status, text.to_owned())
}

#[tokio::test]
async fn what_fails_is_tried_again_elsewhere_with_its_body() {
    for (failing, on) in [
        (Reply::Status(503), "gateway-error"),
        (Reply::Early(500), "5xx"),
        (Reply::Status(409), "retriable-4xx"),
        (Reply::Break, "reset"),
        (Reply::Grpc(14), "unavailable"),
        (Reply::Grpc(1), "cancelled"),
    ] {
        for protocol in SPOKEN {
            let (mesh, backends) = some(protocol, 2, |forward| forward.retry = Some(retry(1, &[on]))).await;
            backends[0].always(failing);
            for _ in 0..3 {
                let answer = ask(&mesh, protocol, &[b"some ", b"words"]).await;
                assert_eq!(answer, said(200, "api-1"), "{on} {protocol:?}");
                assert_eq!(ask(&mesh, protocol, &[]).await, said(200, "api-1"), "{on} {protocol:?}");
            }
            if protocol == Protocol::Grpc {
                assert_eq!(mesh.post(b"some words").await.text(), "api-1", "{on}: of a length that is told");
            }
            assert!(backends[0].count() >= 2, "{on} {protocol:?}: it was tried");
            let asked = backends[1].asked();
            let (posts, others): (Vec<_>, Vec<_>) = asked.iter().partition(|asked| asked.method == "POST");
            assert_eq!((posts.len(), others.len()), (3 + usize::from(protocol == Protocol::Grpc), 3));
            assert!(posts.iter().all(|asked| asked.body == b"some words"), "{on} {protocol:?}");
            assert!(others.iter().all(|asked| asked.body.is_empty()));
        }
    }
}

#[tokio::test]
async fn a_try_whose_time_is_up_is_made_again_elsewhere_and_given_up_at_last() {
    for protocol in SPOKEN {
        let (mesh, backends) = some(protocol, 2, |forward| {
            forward.per_try_timeout = Some(Duration::from_millis(200));
            forward.retry = Some(retry(1, &["5xx"]));
        })
        .await;
        backends[0].always(Reply::Silence);
        for _ in 0..2 {
            assert_eq!(ask(&mesh, protocol, &[b"some words"]).await, said(200, "api-1"), "{protocol:?}");
        }
        assert!(backends[0].count() >= 1);
        assert!(backends[1].asked().iter().all(|asked| asked.body == b"some words"));
        backends[1].always(Reply::Silence);
        assert_eq!(ask(&mesh, protocol, &[]).await, said(504, "upstream request timeout"), "{protocol:?}");
        assert_eq!((backends[0].count(), backends[1].count()), (1, 1), "{protocol:?}");
    }
}

#[tokio::test]
async fn nothing_is_tried_more_often_than_the_policy_says_or_on_other_conditions() {
    for protocol in SPOKEN {
        let (mesh, backends) =
            some(protocol, 1, |forward| forward.retry = Some(retry(2, &["gateway-error", "unavailable"]))).await;
        for (reply, tries, expected) in [
            (Reply::Status(503), 3, said(503, "api-0")),
            (Reply::Grpc(14), 3, said(200, if protocol == Protocol::Grpc { "" } else { "api-0" })),
            (Reply::Status(500), 1, said(500, "api-0")),
            (Reply::Status(404), 1, said(404, "api-0")),
        ] {
            backends[0].always(reply);
            for chunks in [&[][..], &[&b"some words"[..]]] {
                assert_eq!(ask(&mesh, protocol, chunks).await, expected, "{protocol:?} {reply:?}");
                assert_eq!(backends[0].count(), tries, "{protocol:?} {reply:?}");
            }
        }
        let budget = RetryBudget { percent: percent(0), min_concurrency: 0 };
        let without = |forward: &mut Forward| {
            forward.retry = Some(RetryPolicy { budget: Some(budget), ..retry(3, &["5xx"]) });
        };
        let (mesh, backends) = some(protocol, 1, without).await;
        backends[0].always(Reply::Status(500));
        assert_eq!(ask(&mesh, protocol, &[b"some words"]).await, said(500, "api-0"));
        assert_eq!(backends[0].count(), 1, "{protocol:?}: no retry fits into the budget");
    }
}

#[tokio::test]
async fn a_stream_that_was_refused_unseen_is_sent_again_whatever_the_policy_says() {
    let (mesh, backends) = some(Protocol::Http2, 1, |_| {}).await;
    backends[0].next(&[Reply::Refuse, Reply::Refuse]);
    assert_eq!(mesh.get("/").await.text(), "api-0");
    assert_eq!(backends[0].count(), 3);
    // Though not for ever.
    backends[0].always(Reply::Refuse);
    assert_eq!(mesh.get("/").await.status(), 503);
    assert_eq!(backends[0].count(), 3);
    // With a body, where that is kept.
    let (mesh, backends) = some(Protocol::Http2, 1, |forward| forward.retry = Some(retry(1, &["unavailable"]))).await;
    backends[0].next(&[Reply::Refuse, Reply::Refuse]);
    assert_eq!(mesh.post(b"some words").await.text(), "api-0");
    assert_eq!(backends[0].asked().last().unwrap().body, b"some words");
}

#[tokio::test]
async fn an_answer_that_has_begun_is_the_answer() {
    for protocol in SPOKEN {
        let (mesh, backends) = some(protocol, 1, |forward| forward.retry = Some(retry(3, &["5xx", "reset"]))).await;
        backends[0].always(Reply::Half);
        if protocol == Protocol::Http {
            let mut sender = within(mesh.client2().await.ready()).await.unwrap();
            let (response, _) = sender.send_request(request("GET", "/"), true).unwrap();
            let mut response = within(response).await.unwrap();
            assert_eq!(response.status(), 200);
            let body = response.body_mut();
            assert_eq!(within(body.data()).await.unwrap().unwrap(), "half");
            backends[0].break_off();
            assert!(within(body.data()).await.unwrap().is_err(), "it does not look whole");
        } else {
            let mut client = mesh.client().await;
            client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
            assert!(client.head().await.starts_with("HTTP/1.1 200 "));
            assert_eq!(client.exactly(7).await, b"4\r\nhalf");
            backends[0].break_off();
            assert_eq!(client.rest().await, b"\r\n", "it does not look whole");
        }
        assert_eq!(backends[0].count(), 1, "{protocol:?}");
    }
}

#[tokio::test]
async fn an_answer_that_has_begun_may_take_longer_than_a_try() {
    let each = Duration::from_millis(200);
    for protocol in SPOKEN {
        let (mesh, backends) = some(protocol, 1, |forward| forward.per_try_timeout = Some(each)).await;
        backends[0].always(Reply::Half);
        let mut sender = within(mesh.client2().await.ready()).await.unwrap();
        let (response, _) = sender.send_request(request("GET", "/"), true).unwrap();
        let mut response = within(response).await.unwrap();
        assert_eq!(within(response.body_mut().data()).await.unwrap().unwrap(), "half");
        let mut client = mesh.client().await;
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        assert!(client.head().await.starts_with("HTTP/1.1 200 "));
        let cut = tokio::time::timeout(each * 2, async {
            tokio::select! {
                _ = response.body_mut().data() => "HTTP/2",
                _ = client.rest() => "HTTP/1.1",
            }
        });
        assert!(cut.await.is_err(), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_body_too_large_to_be_kept_is_sent_once_and_the_answer_is_the_servers() {
    for protocol in SPOKEN {
        let (mesh, backends) = some(protocol, 1, |forward| forward.retry = Some(retry(2, &["5xx"]))).await;
        let fits = [[b'x'; 16 * 1024].as_slice(), &[b'y'; 16 * 1024], &[b'z'; 8 * 1024]];
        backends[0].next(&[Reply::Status(503), Reply::Break]);
        assert_eq!(ask(&mesh, protocol, &fits).await, said(200, "api-0"), "{protocol:?}");
        assert!(backends[0].asked().iter().map(|asked| &asked.body).eq([&fits.concat(); 3]), "in order");
        let large = vec![b'x'; 300 * 1024];
        backends[0].next(&[Reply::Status(500)]);
        assert_eq!(ask(&mesh, protocol, &[&large]).await, said(500, "api-0"), "{protocol:?}");
        assert_eq!(backends[0].count(), 1, "{protocol:?}");
        assert_eq!(ask(&mesh, protocol, &[&large[..]; 10]).await, said(200, "api-0"), "no window is lost");
        assert_eq!(backends[0].asked()[0].body.len(), 10 * large.len());
    }
}

#[tokio::test]
async fn what_was_not_sent_yet_follows_what_is_sent_again() {
    for protocol in SPOKEN {
        let (mesh, backends) = some(protocol, 1, |forward| forward.retry = Some(retry(1, &["5xx"]))).await;
        backends[0].next(&[Reply::Early(503)]);
        let (mut client, mut sender) = (mesh.client().await, within(mesh.client2().await.ready()).await.unwrap());
        let text = if protocol == Protocol::Http {
            let (response, mut body) = sender.send_request(request("POST", "/"), false).unwrap();
            within(send_all(&mut body, Bytes::from_static(b"first"))).await.unwrap();
            eventually("the first try is over", || backends[0].waiting() >= 1).await;
            within(send_all(&mut body, Bytes::from_static(b"second"))).await.unwrap();
            body.send_data(Bytes::new(), true).unwrap();
            String::from_utf8(answer(response).await.unwrap().body).unwrap()
        } else {
            client.send("POST / HTTP/1.1\r\nhost: api\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
            eventually("the first try is over", || backends[0].waiting() >= 1).await;
            client.send("6\r\nsecond\r\n0\r\n\r\n").await;
            client.message().await.text()
        };
        let asked = backends[0].asked();
        assert_eq!((&*text, asked.len(), &*asked[1].body), ("api-0", 2, &b"firstsecond"[..]), "{protocol:?}");
    }
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_connected_to_is_passed_over() {
    for protocol in SPOKEN {
        let (mut mesh, backends) =
            Mesh::of_one(protocol, 1, |forward| forward.retry = Some(retry(1, &["connect-failure"]))).await;
        let nobody = mesh.nobody().await;
        mesh.endpoints(0).endpoints = sorted(&[nobody, backends[0].address]);
        Arc::make_mut(&mut mesh.plan.clusters[0]).balance = BalancePolicy::RoundRobin;
        mesh.serve().await;
        for _ in 0..6 {
            assert_eq!(ask(&mesh, protocol, &[b"some words"]).await, said(200, "api-0"), "{protocol:?}");
        }
    }
}

#[tokio::test]
async fn a_mirror_gets_copies_and_changes_nothing() {
    for protocol in SPOKEN {
        let mut mesh = Mesh::new(protocol).await;
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
            assert_eq!(ask(&mesh, protocol, &[b"some ", b"words"]).await, said(200, "own"), "{protocol:?}");
        }
        assert_eq!(ask(&mesh, protocol, &[]).await, said(200, "own"), "{protocol:?}");
        eventually("every request is copied", || copies.waiting() == 5).await;
        let (own, copied) = (own.asked(), copies.asked());
        let posted = copied.iter().filter(|asked| asked.method == "POST" && asked.body == b"some words");
        assert_eq!((own.len(), posted.count()), (5, 4), "{protocol:?}");
        assert!(copied.iter().any(|asked| asked.method == "GET" && asked.body.is_empty()), "{protocol:?}");
    }
}
