//! Services behind services.

use std::sync::Arc;

use ::http::{Method, Response, StatusCode};
use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::sync::Barrier;

use crate::harness::{call, get, listener, nobody, plain, start, start_on};

#[tokio::test]
async fn three_tiers_answer_nested() {
    let c = start(&[("NAME", "c"), ("MESSAGE", r#"{"from": "c"}"#)]).await;
    let b = start(&[("NAME", "b"), ("UPSTREAM_URIS", &c.uri())]).await;
    let a = start(&[("NAME", "a"), ("UPSTREAM_URIS", &b.uri())]).await;

    let (status, answer) = get(&a.uri()).await;

    assert_eq!(status, StatusCode::OK);
    let (b, c) = (&answer["upstream_calls"][b.uri()], &answer["upstream_calls"][b.uri()]["upstream_calls"][c.uri()]);
    let seen = |answer: &Value| json!([answer["name"], answer["code"], answer["body"], answer["type"]]);
    assert_eq!(seen(&answer), json!(["a", 200, "Hello World", "HTTP"]));
    assert_eq!(seen(b), json!(["b", 200, "Hello World", "HTTP"]));
    assert_eq!(seen(c), json!(["c", 200, {"from": "c"}, "HTTP"]));
    assert_eq!(c["headers"]["content-type"], "application/json");
    assert_eq!(c.get("upstream_calls"), None);
}

#[tokio::test]
async fn path_query_and_tracing_go_on_but_the_clients_identity_does_not() {
    let c = start(&[]).await;
    let b = start(&[("UPSTREAM_URIS", &format!("{}/base", c.uri()))]).await;
    let headers = [
        ("x-request-id", "r-1"),
        ("x-forwarded-client-cert", "URI=spiffe://t/ns/default/dc/dc1/svc/web"),
        ("x-version", "2"),
    ];

    let (_, answer) = call(Method::POST, &format!("{}/x?q=1", b.uri()), &headers, Bytes::from_static(b"body")).await;

    assert_eq!(answer["uri"], "/x?q=1");
    let expected = json!({
        "method": "POST",
        "path": "/x",
        "headers": {"x-request-id": "r-1", "x-forwarded-client-cert": "URI=spiffe://t/ns/default/dc/dc1/svc/web"},
    });
    assert_eq!(answer["request"], expected);
    let (_, nested) = answer["upstream_calls"].as_object().unwrap().iter().next().unwrap();
    let expected = json!({"method": "GET", "path": "/base/x", "headers": {"x-request-id": "r-1"}});
    assert_eq!(nested["request"], expected);
}

#[tokio::test]
async fn requests_are_not_appended_when_that_is_off() {
    let upstream = plain(|request| async move {
        let has = |name| request.headers().contains_key(name);
        let seen = json!({"uri": request.uri().to_string(), "version": has("x-version"), "traced": has("traceparent")});
        Response::new(Full::new(Bytes::from(seen.to_string())))
    })
    .await;
    let headers = [("x-version", "2"), ("traceparent", "00-1-2-01")];
    for (append, expected) in [
        ("true", json!({"uri": "/x", "version": true, "traced": true})),
        ("false", json!({"uri": "/", "version": false, "traced": true})),
    ] {
        let front = start(&[("UPSTREAM_URIS", &upstream.uri()), ("HTTP_CLIENT_APPEND_REQUEST", append)]).await;
        let (status, answer) = call(Method::GET, &format!("{}/x", front.uri()), &headers, Bytes::new()).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(answer["upstream_calls"][upstream.uri()]["body"], expected);
    }
}

/// The upstream answers nobody until three requests are there, so only parallel calls can succeed.
async fn call_three_at_once(workers: &str, timeout: &str) -> StatusCode {
    let barrier = Arc::new(Barrier::new(3));
    let upstream = plain(move |_| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Response::new(Full::new(Bytes::new()))
        }
    })
    .await;
    let uri = upstream.uri();
    let uris = [uri.as_str(); 3].join(",");
    let variables =
        [("UPSTREAM_URIS", uris.as_str()), ("UPSTREAM_WORKERS", workers), ("HTTP_CLIENT_REQUEST_TIMEOUT", timeout)];
    let front = start(&variables).await;
    let (status, answer) = get(&front.uri()).await;
    let keys: Vec<&String> = answer["upstream_calls"].as_object().expect("calls").keys().collect();
    assert_eq!(keys, [&uri, &format!("{uri} (2)"), &format!("{uri} (3)")]);
    status
}

#[tokio::test]
async fn workers_call_in_parallel() {
    assert_eq!(call_three_at_once("3", "20s").await, StatusCode::OK);
}

#[tokio::test]
async fn one_worker_calls_one_after_the_other() {
    assert_eq!(call_three_at_once("1", "50ms").await, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn an_unreachable_upstream_is_recorded_and_the_others_still_called() {
    let gone = format!("http://{}", nobody().await);
    let well = start(&[("NAME", "well")]).await;
    let front = start(&[("UPSTREAM_URIS", &format!("{gone},{}", well.uri()))]).await;

    let (status, answer) = get(&front.uri()).await;

    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer["code"], 500);
    assert!(answer["error"].as_str().unwrap().starts_with(&format!("upstream {gone}: ")), "{answer}");
    assert_eq!(answer["upstream_calls"][&gone]["code"], -1);
    assert!(answer["upstream_calls"][&gone]["error"].as_str().unwrap().contains("refused"), "{answer}");
    assert_eq!(answer["upstream_calls"][well.uri()]["name"], "well");
}

#[tokio::test]
async fn a_silent_upstream_runs_into_the_timeout() {
    let silent = listener().await;
    let uri = format!("http://{}", silent.local_addr().unwrap());
    let front = start(&[("UPSTREAM_URIS", &uri), ("HTTP_CLIENT_REQUEST_TIMEOUT", "50ms")]).await;
    let (status, answer) = get(&front.uri()).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer["upstream_calls"][&uri]["error"], "no answer within 50ms");
}

#[tokio::test]
async fn answers_of_other_kinds_become_the_body() {
    for (body, expected) in [("plain text", json!("plain text")), (r#"{"x":1}"#, json!({"x": 1})), ("[1]", json!([1]))]
    {
        let upstream =
            plain(move |_| async move { Response::new(Full::new(Bytes::from_static(body.as_bytes()))) }).await;
        let front = start(&[("UPSTREAM_URIS", &upstream.uri())]).await;
        let (status, answer) = get(&front.uri()).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(answer["upstream_calls"][upstream.uri()]["body"], expected);
    }
}

#[tokio::test]
async fn an_answer_past_the_limit_is_refused() {
    let huge = Bytes::from(vec![b' '; 5 * 1024 * 1024]);
    let upstream = plain(move |_| {
        let huge = huge.clone();
        async move { Response::new(Full::new(huge)) }
    })
    .await;
    let front = start(&[("UPSTREAM_URIS", &upstream.uri())]).await;
    let (status, answer) = get(&front.uri()).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer["upstream_calls"][upstream.uri()]["error"], "length limit exceeded");
}

#[tokio::test]
async fn a_loop_of_upstreams_ends() {
    let listener = listener().await;
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let _looping = start_on(listener, &[("UPSTREAM_URIS", &uri)]);

    let (status, mut answer) = get(&uri).await;

    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    let mut depth = 0;
    while let Some(calls) = answer.get_mut("upstream_calls") {
        answer = calls[&uri].take();
        depth += 1;
    }
    assert_eq!((depth, &answer["code"]), (16, &json!(508)));
}

#[tokio::test]
async fn keep_alives_decide_whether_connections_are_reused() {
    for (keep_alives, expected) in [("true", 1), ("false", 3)] {
        let upstream = plain(|_| async { Response::new(Full::new(Bytes::from_static(b"{}"))) }).await;
        let front = start(&[("UPSTREAM_URIS", &upstream.uri()), ("HTTP_CLIENT_KEEP_ALIVES", keep_alives)]).await;
        for _ in 0..3 {
            assert_eq!(get(&front.uri()).await.0, StatusCode::OK);
        }
        assert_eq!(upstream.connections(), expected, "keep-alives {keep_alives}");
    }
}

#[tokio::test]
async fn upstreams_get_the_configured_body() {
    use http_body_util::BodyExt;
    let upstream =
        plain(
            |request| async move { Response::new(Full::new(request.into_body().collect().await.unwrap().to_bytes())) },
        )
        .await;
    let front = start(&[("UPSTREAM_URIS", &upstream.uri()), ("UPSTREAM_REQUEST_BODY", "ping")]).await;
    let (_, answer) = get(&front.uri()).await;
    assert_eq!(answer["upstream_calls"][upstream.uri()]["body"], "ping");
}
