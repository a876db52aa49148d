//! Injected failures and delays.

use std::time::{Duration, Instant};

use ::http::StatusCode;

use crate::harness::{get, start};

#[tokio::test]
async fn a_rate_of_one_fails_every_request() {
    let service = start(&[("NAME", "bad"), ("ERROR_RATE", "1.0"), ("ERROR_CODE", "503")]).await;
    for _ in 0..20 {
        let (status, answer) = get(&service.uri()).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!((&answer["name"], &answer["code"]), (&"bad".into(), &503.into()));
        assert_eq!(answer["error"], "Service error automatically injected");
    }
}

#[tokio::test]
async fn a_failing_upstream_fails_the_tier_above_with_its_record() {
    let bad = start(&[("NAME", "bad"), ("ERROR_RATE", "1"), ("ERROR_CODE", "429")]).await;
    let front = start(&[("UPSTREAM_URIS", &bad.uri())]).await;
    let (status, answer) = get(&front.uri()).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    let nested = &answer["upstream_calls"][bad.uri()];
    assert_eq!((&nested["name"], &nested["code"]), (&"bad".into(), &429.into()));
    assert_eq!(nested["error"], "Service error automatically injected");
    assert_eq!(answer["error"], format!("upstream {}: expected status 200, got 429", bad.uri()));
}

#[tokio::test]
async fn a_request_takes_at_least_its_timing() {
    let service = start(&[("TIMING_50_PERCENTILE", "40ms")]).await;
    let begin = Instant::now();
    let (status, answer) = get(&service.uri()).await;
    assert_eq!(status, StatusCode::OK);
    assert!(begin.elapsed() >= Duration::from_millis(40));
    assert!(answer["start_time"].as_str().unwrap() < answer["end_time"].as_str().unwrap(), "{answer}");
    let duration = answer["duration"].as_str().unwrap();
    assert!(duration.ends_with('s') && !duration.ends_with("\u{b5}s"), "{duration}");
}

#[tokio::test]
async fn the_time_of_upstreams_counts_towards_the_timing() {
    let slow = start(&[("TIMING_50_PERCENTILE", "1s")]).await;
    let front = start(&[("TIMING_50_PERCENTILE", "1010ms"), ("UPSTREAM_URIS", &slow.uri())]).await;
    let begin = Instant::now();
    get(&front.uri()).await;
    let elapsed = begin.elapsed();
    assert!(elapsed >= Duration::from_millis(1010), "{elapsed:?}");
    assert!(elapsed < Duration::from_millis(2010), "the delays were added up: {elapsed:?}");
}

#[tokio::test]
async fn a_delay_fault_answers_late_and_with_its_code() {
    let service =
        start(&[("ERROR_RATE", "1"), ("ERROR_TYPE", "delay"), ("ERROR_DELAY", "30ms"), ("ERROR_CODE", "504")]).await;
    let begin = Instant::now();
    let (status, answer) = get(&service.uri()).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(answer["error"], "Service delay automatically injected");
    assert!(begin.elapsed() >= Duration::from_millis(30));
}
