//! How long is waited, what is tried again, and what is made to go wrong, in HTTP/1.1.

use std::time::{Duration, Instant};

use starling_model::{BalancePolicy, Fault, FaultAbort, FaultDelay, HashOn, HashPolicy, Protocol, RetryBudget};

use super::backend::{Backend, Reply};
use super::{Mesh, percent, retry, sorted};
use crate::http2::request;
use crate::wire::within;

/// Two endpoints whose turns alternate.
async fn two(edit: impl FnOnce(&mut starling_traffic::Forward)) -> (Mesh, Vec<Backend>) {
    let (mut mesh, backends) = Mesh::of_one(Protocol::Http, 2, edit).await;
    std::sync::Arc::make_mut(&mut mesh.plan.clusters[0]).balance = BalancePolicy::RoundRobin;
    mesh.serve().await;
    (mesh, backends)
}

#[tokio::test]
async fn a_request_is_given_up_when_its_time_is_up_however_many_tries_that_were() {
    let time = Duration::from_millis(300);
    let (mut mesh, backends) = Mesh::of_one(Protocol::Http, 1, |forward| forward.timeout = Some(time)).await;
    mesh.serve().await;
    backends[0].always(Reply::Silence);
    let began = Instant::now();
    let answer = mesh.get("/").await;
    assert_eq!((answer.status(), &*answer.text()), (504, "upstream request timeout"));
    assert!(began.elapsed() >= time);
    assert_eq!(backends[0].count(), 1);

    // With a time for each try, there are as many as fit into the whole.
    let (mut mesh, backends) = Mesh::of_one(Protocol::Http, 1, |forward| {
        forward.timeout = Some(Duration::from_millis(700));
        forward.per_try_timeout = Some(Duration::from_millis(200));
        forward.retry = Some(retry(100, &["5xx"]));
    })
    .await;
    mesh.serve().await;
    backends[0].always(Reply::Silence);
    let answer = mesh.get("/").await;
    assert_eq!((answer.status(), &*answer.text()), (504, "upstream request timeout"));
    let tries = backends[0].count();
    assert!((2..=4).contains(&tries), "{tries} tries of 200 ms within 700 ms");
}

#[tokio::test]
async fn connecting_counts_as_waiting() {
    let mut mesh = Mesh::new(Protocol::Http).await;
    // It listens and never shakes hands.
    let mute = tokio::net::TcpListener::bind((mesh.ip, 0)).await.unwrap();
    mesh.cluster_at("api", &[mute.local_addr().unwrap()]).connect_timeout = Duration::from_secs(60);
    let mut forward = super::to(&[("api", 100)]);
    forward.timeout = Some(Duration::from_millis(100));
    mesh.routes(vec![super::always(forward)]);
    mesh.serve().await;
    assert_eq!(mesh.get("/").await.status(), 504);
    assert_eq!(mesh.get2("/").await.status, 504);
}

#[tokio::test]
async fn a_try_whose_time_is_up_is_made_again_elsewhere() {
    let (mesh, backends) = two(|forward| {
        forward.per_try_timeout = Some(Duration::from_millis(200));
        forward.retry = Some(retry(1, &["5xx"]));
    })
    .await;
    backends[0].always(Reply::Silence);
    for _ in 0..2 {
        let answer = mesh.post(b"some words").await;
        assert_eq!((answer.status(), &*answer.text()), (200, "api-1"));
    }
    assert!(backends[0].count() >= 1);
    assert!(backends[1].asked().iter().all(|asked| asked.body == b"some words"));
}

#[tokio::test]
async fn what_fails_is_tried_again_elsewhere_with_its_body() {
    for (failing, on) in [
        (Reply::Status(503), "gateway-error"),
        (Reply::Status(500), "5xx"),
        (Reply::Status(409), "retriable-4xx"),
        (Reply::Break, "reset"),
        (Reply::Grpc(14), "unavailable"),
    ] {
        let (mesh, backends) = two(|forward| forward.retry = Some(retry(1, &[on]))).await;
        backends[0].always(failing);
        for _ in 0..4 {
            let answer = mesh.post(b"some words").await;
            assert_eq!((answer.status(), &*answer.text()), (200, "api-1"), "{on}");
        }
        assert!(backends[0].count() >= 2, "{on}: it was tried");
        let asked = backends[1].asked();
        assert_eq!(asked.len(), 4);
        assert!(asked.iter().all(|asked| asked.body == b"some words"), "{on}");
    }
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_connected_to_is_passed_over() {
    let (mut mesh, backends) =
        Mesh::of_one(Protocol::Http, 1, |forward| forward.retry = Some(retry(1, &["connect-failure"]))).await;
    let nobody = mesh.nobody().await;
    mesh.endpoints(0).endpoints = sorted(&[nobody, backends[0].address]);
    std::sync::Arc::make_mut(&mut mesh.plan.clusters[0]).balance = BalancePolicy::RoundRobin;
    mesh.serve().await;
    for _ in 0..6 {
        assert_eq!(mesh.post(b"some words").await.status(), 200);
    }
    // Without the policy, half of them fail.
    mesh.routes(vec![super::always(super::to(&[("api", 100)]))]);
    mesh.serve().await;
    let mut failed = 0;
    for _ in 0..6 {
        let answer = mesh.post(b"some words").await;
        assert!(answer.status() == 200 || answer.text() == "upstream connect failure", "{}", answer.text());
        failed += usize::from(answer.status() == 503);
    }
    assert_eq!(failed, 3);
}

#[tokio::test]
async fn however_endpoints_are_chosen_a_retry_goes_to_another() {
    for policy in [
        BalancePolicy::LeastRequest { choice_count: None },
        BalancePolicy::Random,
        BalancePolicy::RingHash { minimum_size: None, maximum_size: None },
        BalancePolicy::Maglev,
    ] {
        for protocol in [Protocol::Http, Protocol::Http2] {
            let (mut mesh, backends) = Mesh::of_one(protocol, 2, |forward| {
                forward.retry = Some(retry(1, &["5xx"]));
                forward.hash = vec![HashPolicy { on: HashOn::SourceAddress, terminal: false }];
            })
            .await;
            let nobody = mesh.nobody().await;
            for (failing, endpoints) in [(Some(0), [0, 1]), (Some(1), [0, 1]), (None, [0, 0])] {
                let mut addresses: Vec<_> = endpoints.iter().map(|place: &usize| backends[*place].address).collect();
                match failing {
                    Some(place) => {
                        backends[place].always(Reply::Status(500));
                        backends[1 - place].always(Reply::Status(200));
                    }
                    None => {
                        backends[0].always(Reply::Status(200));
                        addresses[1] = nobody;
                    }
                }
                mesh.endpoints(0).endpoints = sorted(&addresses);
                std::sync::Arc::make_mut(&mut mesh.plan.clusters[0]).balance = policy;
                mesh.serve().await;
                for _ in 0..10 {
                    assert_eq!(mesh.get2("/").await.status, 200, "{policy:?} {protocol:?} {failing:?}");
                    assert_eq!(mesh.get("/").await.status(), 200, "{policy:?} {protocol:?} {failing:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn nothing_is_tried_more_often_than_the_policy_says_or_on_other_conditions() {
    let (mut mesh, backends) =
        Mesh::of_one(Protocol::Http, 1, |forward| forward.retry = Some(retry(2, &["gateway-error"]))).await;
    mesh.serve().await;
    backends[0].always(Reply::Status(503));
    let answer = mesh.get("/").await;
    assert_eq!((answer.status(), &*answer.text()), (503, "api-0"), "the last answer is the answer");
    assert_eq!(backends[0].count(), 3);
    backends[0].always(Reply::Status(500));
    assert_eq!(mesh.get("/").await.status(), 500);
    assert_eq!(backends[0].count(), 1, "another status");
    backends[0].always(Reply::Status(404));
    assert_eq!(mesh.get("/").await.status(), 404);
    assert_eq!(backends[0].count(), 1);
}

#[tokio::test]
async fn a_body_too_large_to_be_kept_is_sent_once_and_the_answer_is_the_servers() {
    let (mut mesh, backends) =
        Mesh::of_one(Protocol::Http, 1, |forward| forward.retry = Some(retry(2, &["5xx"]))).await;
    mesh.serve().await;
    let fits = vec![b'x'; 40 * 1024];
    backends[0].next(&[Reply::Status(503), Reply::Break]);
    assert_eq!(mesh.post(&fits).await.status(), 200);
    assert!(backends[0].asked().iter().map(|asked| &asked.body).eq([&fits; 3]));
    backends[0].next(&[Reply::Status(500)]);
    let answer = mesh.post(&vec![b'x'; 200 * 1024]).await;
    assert_eq!((answer.status(), &*answer.text()), (500, "api-0"));
    assert_eq!(backends[0].count(), 1);
}

#[tokio::test]
async fn what_was_not_sent_yet_follows_what_is_sent_again() {
    let (mut mesh, backends) =
        Mesh::of_one(Protocol::Http, 1, |forward| forward.retry = Some(retry(1, &["5xx"]))).await;
    mesh.serve().await;
    backends[0].next(&[Reply::Early(503)]);
    let mut client = mesh.client().await;
    client.send("POST / HTTP/1.1\r\nhost: api\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
    crate::wire::eventually("the first try is over", || backends[0].waiting() >= 1).await;
    client.send("6\r\nsecond\r\n0\r\n\r\n").await;
    let answer = client.message().await;
    assert_eq!((answer.status(), &*answer.text()), (200, "api-0"));
    let asked = backends[0].asked();
    assert_eq!((asked.len(), &*asked[1].body), (2, &b"firstsecond"[..]));
}

#[tokio::test]
async fn a_retry_that_the_budget_refuses_is_not_made() {
    let (mut mesh, backends) = Mesh::of_one(Protocol::Http, 1, |forward| {
        let budget = RetryBudget { percent: percent(0), min_concurrency: 1 };
        forward.retry = Some(starling_model::RetryPolicy { budget: Some(budget), ..retry(3, &["5xx"]) });
    })
    .await;
    mesh.serve().await;
    // One at a time may be tried again, and again.
    backends[0].next(&[Reply::Status(500), Reply::Status(500), Reply::Status(500)]);
    assert_eq!(mesh.get("/").await.status(), 200);
    assert_eq!(backends[0].count(), 4);
    // While one retry hangs, nobody else's is made, and the answer is the server's.
    backends[0].next(&[Reply::Status(500), Reply::Silence]);
    let mut client = mesh.client().await;
    client.send("GET /hangs HTTP/1.1\r\nhost: api\r\n\r\n").await;
    crate::wire::eventually("a retry is under way", || backends[0].waiting() == 2).await;
    backends[0].asked();
    backends[0].next(&[Reply::Status(500)]);
    let answer = mesh.get("/").await;
    assert_eq!((answer.status(), &*answer.text()), (500, "api-0"));
    assert_eq!(backends[0].count(), 1);
    // When it ends, its place is free.
    drop(client);
    let mut tried = false;
    for _ in 0..100 {
        backends[0].next(&[Reply::Status(500)]);
        tried = mesh.get("/").await.status() == 200;
        if tried {
            break;
        }
    }
    assert!(tried);
}

#[tokio::test]
async fn faults_are_made_as_often_as_is_said() {
    let (mut mesh, backends) = Mesh::of_one(Protocol::Http, 1, |forward| {
        let abort = Some(FaultAbort { status: 418, percent: percent(100) });
        forward.fault = Some(Fault { abort, delay: None });
    })
    .await;
    mesh.serve().await;
    let answer = mesh.get("/").await;
    assert_eq!((answer.status(), &*answer.text()), (418, "fault filter abort"));
    assert_eq!(mesh.get2("/").await.status, 418);
    // What answers HEAD has no body: it would be taken for the next answer.
    let mut client = mesh.client().await;
    for _ in 0..2 {
        client.send("HEAD / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        let answer = client.bodiless().await;
        assert_eq!((answer.status(), &answer.values("content-length")[..]), (418, &["18"][..]));
    }
    let mut sender = within(mesh.client2().await.ready()).await.unwrap();
    let head = crate::app::answer(sender.send_request(request("HEAD", "/"), true).unwrap().0).await.unwrap();
    assert_eq!((head.status, head.body.len()), (418, 0));
    assert_eq!(backends[0].count(), 0);
    let delay = FaultDelay { duration: Duration::from_millis(120), percent: percent(100) };
    for (share, waits) in [(percent(100), true), (percent(0), false)] {
        let mut forward = super::to(&[("api", 100)]);
        let delay = Some(FaultDelay { percent: share, ..delay });
        let abort = Some(FaultAbort { status: 418, percent: percent(0) });
        forward.fault = Some(Fault { abort, delay });
        mesh.routes(vec![super::always(forward)]);
        mesh.serve().await;
        for version in [1, 2] {
            let began = Instant::now();
            let status = if version == 1 { mesh.get("/").await.status() } else { mesh.get2("/").await.status };
            assert_eq!(status, 200);
            assert!(!waits || began.elapsed() >= Duration::from_millis(120), "{version}");
        }
    }
}
