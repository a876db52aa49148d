//! The gRPC side, and tiers of both protocols.

use ::http::StatusCode;
use ::http::uri::PathAndQuery;
use prost::Message;
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::harness::{Running, get, nobody, start, within};

/// Written from the published proto rather than taken from the crate, so that the wire format is tested too.
#[derive(Clone, PartialEq, Message)]
struct HandleRequest {
    #[prost(bytes = "vec", tag = "1")]
    data: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct HandleResponse {
    #[prost(string, tag = "1")]
    message: String,
    #[prost(int32, tag = "2")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

async fn client(service: &Running) -> tonic::client::Grpc<Channel> {
    let channel = Endpoint::from_shared(service.uri()).expect("a URI").connect().await.expect("a connection");
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.expect("a connection");
    client
}

async fn unary<Q, R>(service: &Running, path: &'static str, request: Q) -> Result<R, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let mut client = client(service).await;
    let path = PathAndQuery::from_static(path);
    let response = client.unary(tonic::Request::new(request), path, ProstCodec::<Q, R>::default());
    within(response).await.map(tonic::Response::into_inner)
}

async fn handle(service: &Running) -> Result<Value, Status> {
    let request = HandleRequest { data: b"ping".to_vec() };
    let response: HandleResponse = unary(service, "/FakeService/Handle", request).await?;
    assert_eq!(response.code, 0);
    Ok(serde_json::from_str(&response.message).expect("JSON"))
}

async fn check(service: &Running, name: &str) -> Result<i32, Status> {
    let request = HealthRequest { service: name.to_owned() };
    let response: HealthResponse = unary(service, "/grpc.health.v1.Health/Check", request).await?;
    Ok(response.status)
}

async fn watch(service: &Running, name: &str) -> Streaming<HealthResponse> {
    let mut client = client(service).await;
    let request = tonic::Request::new(HealthRequest { service: name.to_owned() });
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Watch");
    let codec = ProstCodec::<HealthRequest, HealthResponse>::default();
    within(client.server_streaming(request, path, codec)).await.expect("a stream").into_inner()
}

#[tokio::test]
async fn both_kinds_of_service_answer_handle() {
    for kind in ["grpc", "http"] {
        let service = start(&[("NAME", "api"), ("SERVER_TYPE", kind)]).await;
        let answer = handle(&service).await.unwrap();
        let seen = json!([answer["name"], answer["type"], answer["code"], answer["body"]]);
        assert_eq!(seen, json!(["api", "gRPC", 0, "Hello World"]));
    }
}

#[tokio::test]
async fn http_calls_grpc_calls_http() {
    let db = start(&[("NAME", "db")]).await;
    let api = start(&[("NAME", "api"), ("SERVER_TYPE", "grpc"), ("UPSTREAM_URIS", &db.uri())]).await;
    let web = start(&[("NAME", "web"), ("UPSTREAM_URIS", &api.grpc_uri())]).await;

    let headers = [("x-request-id", "r-7")];
    let (status, answer) = crate::harness::call(::http::Method::GET, &web.uri(), &headers, bytes::Bytes::new()).await;

    assert_eq!(status, StatusCode::OK);
    let api_answer = &answer["upstream_calls"][api.grpc_uri()];
    assert_eq!(json!([api_answer["name"], api_answer["type"], api_answer["code"]]), json!(["api", "gRPC", 0]));
    let db_answer = &api_answer["upstream_calls"][db.uri()];
    assert_eq!(json!([db_answer["name"], db_answer["type"], db_answer["code"]]), json!(["db", "HTTP", 200]));
    assert_eq!(api_answer["request"]["headers"]["x-request-id"], "r-7");
    assert_eq!(db_answer["request"]["headers"]["x-request-id"], "r-7");
}

#[tokio::test]
async fn a_failing_grpc_upstream_is_nested_with_its_own_answer() {
    let bad = start(&[("NAME", "bad"), ("SERVER_TYPE", "grpc"), ("ERROR_RATE", "1"), ("ERROR_CODE", "7")]).await;
    let status = handle(&bad).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "Service error automatically injected"));

    let api = start(&[("NAME", "api"), ("SERVER_TYPE", "grpc"), ("UPSTREAM_URIS", &bad.grpc_uri())]).await;
    assert_eq!(handle(&api).await.unwrap_err().code(), Code::Internal);

    let web = start(&[("UPSTREAM_URIS", &api.grpc_uri())]).await;
    let (status, answer) = get(&web.uri()).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    let api_answer = &answer["upstream_calls"][api.grpc_uri()];
    assert_eq!(json!([api_answer["name"], api_answer["code"]]), json!(["api", 13]));
    let bad_answer = &api_answer["upstream_calls"][bad.grpc_uri()];
    assert_eq!(json!([bad_answer["name"], bad_answer["code"]]), json!(["bad", 7]));
}

#[tokio::test]
async fn an_error_too_large_for_a_header_still_fails_cleanly() {
    let long = "x".repeat(10_000);
    let bad = start(&[("NAME", &long), ("SERVER_TYPE", "grpc"), ("ERROR_RATE", "1"), ("ERROR_CODE", "7")]).await;
    assert_eq!(handle(&bad).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn an_unreachable_grpc_upstream_is_recorded() {
    let gone = format!("grpc://{}", nobody().await);
    let web = start(&[("UPSTREAM_URIS", &gone)]).await;
    let (status, answer) = get(&web.uri()).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer["upstream_calls"][&gone]["code"], 14);
    assert!(answer["upstream_calls"][&gone]["error"].as_str().unwrap().contains("Unavailable"), "{answer}");
}

#[tokio::test]
async fn health_is_checked_by_name() {
    for kind in ["grpc", "http"] {
        let service = start(&[("SERVER_TYPE", kind)]).await;
        assert_eq!(check(&service, "").await.unwrap(), SERVING);
        assert_eq!(check(&service, "FakeService").await.unwrap(), SERVING);
        assert_eq!(check(&service, "nobody").await.unwrap_err().code(), Code::NotFound);
    }
    let sick = start(&[("HEALTH_CHECK_RESPONSE_CODE", "500")]).await;
    assert_eq!(check(&sick, "").await.unwrap(), NOT_SERVING);
}

#[tokio::test]
async fn a_health_watch_hears_of_the_stop() {
    let mut service = start(&[("SERVER_TYPE", "grpc")]).await;
    let mut known = watch(&service, "").await;
    let mut unknown = watch(&service, "nobody").await;
    let status = async |stream: &mut Streaming<HealthResponse>| {
        within(stream.message()).await.unwrap().map(|response| response.status)
    };
    assert_eq!(status(&mut known).await, Some(SERVING));
    assert_eq!(status(&mut unknown).await, Some(SERVICE_UNKNOWN));
    service.begin_stop();
    assert_eq!(status(&mut known).await, Some(NOT_SERVING));
    assert_eq!(status(&mut known).await, None);
    assert_eq!(status(&mut unknown).await, None);
    service.stopped().await;
}

#[tokio::test]
async fn grpc_services_refuse_plain_http_but_for_health() {
    let service = start(&[("SERVER_TYPE", "grpc")]).await;
    assert_eq!(get(&service.uri()).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(get(&format!("{}/health", service.uri())).await.0, StatusCode::OK);
    let unknown: Result<HandleResponse, Status> = unary(&service, "/FakeService/Other", HandleRequest::default()).await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
}
