//! What one service answers over HTTP.

use ::http::{Method, Request, StatusCode, Version};
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::harness::{call, get, read, start, within};

#[tokio::test]
async fn any_path_and_method_is_answered() {
    let service = start(&[("NAME", "web")]).await;
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::OPTIONS, Method::PATCH] {
        let uri = format!("{}/some/path?x=1", service.uri());
        let (status, answer) = call(method.clone(), &uri, &[], Bytes::from_static(b"some body")).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(answer["request"]["method"], method.as_str());
        assert_eq!(answer["request"]["path"], "/some/path");
        assert_eq!(answer["uri"], "/some/path?x=1");
    }
    let (status, _) = call(Method::HEAD, &service.uri(), &[], Bytes::new()).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn http2_without_tls_is_spoken_on_the_same_port() {
    let service = start(&[("NAME", "web")]).await;
    let stream = TcpStream::connect(service.address).await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get(format!("{}/x", service.uri())).body(Full::new(Bytes::new())).unwrap();
    let response = within(client.send_request(request)).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    let (status, answer) = read(response).await;
    assert_eq!((status, &answer["uri"]), (StatusCode::OK, &"/x".into()));
    connection.abort();
}

#[tokio::test]
async fn a_body_past_the_limit_is_refused() {
    let service = start(&[]).await;
    let body = Bytes::from(vec![0; 16 * 1024 * 1024]);
    let (status, _) = call(Method::POST, &service.uri(), &[], body.clone()).await;
    assert_eq!(status, StatusCode::OK);
    let stream = TcpStream::connect(service.address).await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let body = Bytes::from([&body[..], b"x"].concat());
    let request = Request::post(service.uri()).body(Full::new(body)).unwrap();
    let (status, text) = read(within(client.send_request(request)).await.unwrap()).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{text}");
    connection.abort();
}

#[tokio::test]
async fn health_and_readiness_follow_the_settings() {
    let service = start(&[]).await;
    assert_eq!(get(&format!("{}/health", service.uri())).await, (StatusCode::OK, "OK\n".into()));
    assert_eq!(get(&format!("{}/ready", service.uri())).await, (StatusCode::OK, "OK\n".into()));

    let service = start(&[
        ("HEALTH_CHECK_RESPONSE_CODE", "500"),
        ("READY_CHECK_RESPONSE_DELAY", "1h"),
        ("READY_CHECK_RESPONSE_FAILURE_CODE", "425"),
        ("ERROR_RATE", "1"),
    ])
    .await;
    assert_eq!(get(&format!("{}/health", service.uri())).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(get(&format!("{}/ready", service.uri())).await.0, StatusCode::TOO_EARLY);
}

#[tokio::test]
async fn readiness_comes_with_time() {
    let service = start(&[("READY_CHECK_RESPONSE_DELAY", "30ms"), ("READY_CHECK_RESPONSE_CODE", "204")]).await;
    let uri = format!("{}/ready", service.uri());
    within(async {
        while get(&uri).await.0 != StatusCode::NO_CONTENT {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
