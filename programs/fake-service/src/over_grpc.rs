//! The gRPC side: `FakeService/Handle`, the standard health service, and the client of `FakeService`.
//!
//! The messages are few and small, so they are written here by hand rather than generated:
//!
//! ```proto
//! service FakeService { rpc Handle(Request) returns (Response) {} }
//! message Request { bytes data = 1; }
//! message Response { string Message = 1; int32 code = 2; }
//! ```

use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use futures::stream::{self, BoxStream, StreamExt};
use http::header::CONTENT_TYPE;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response, Version};
use hyper::body::Incoming;
use prost::Message;
use tonic::metadata::MetadataMap;
use tonic::server::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::answer::{Arrival, Protocol, Start};
use crate::service::{Failure, FakeService};
use crate::upstream::UPSTREAM_ANSWER_BYTES_MAX;

/// Largest request message; its data is thrown away, and gRPC servers commonly stop at this size.
const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Largest answer put into an error status: it travels in a header, and with its base64 must stay below the 16 KiB
/// of headers that common gRPC clients accept.
const STATUS_DETAIL_BYTES_MAX: usize = 8 * 1024;

/// Longest status text, for the same reason.
const STATUS_TEXT_BYTES_MAX: usize = 1024;

const HANDLE: &str = "/FakeService/Handle";
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Names under which the health service knows this server; the empty one stands for the whole.
const HEALTH_NAMES: [&str; 3] = ["", "FakeService", "grpc.health.v1.Health"];

const RESPONSE_TYPE_URL: &str = "type.googleapis.com/Response";

/// Request of `FakeService/Handle`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct HandleRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) data: Vec<u8>,
}

/// Response of `FakeService/Handle`: the JSON that the HTTP side would answer.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct HandleResponse {
    #[prost(string, tag = "1")]
    pub(crate) message: String,
    #[prost(int32, tag = "2")]
    pub(crate) code: i32,
}

/// `google.rpc.Status`, as carried by the `grpc-status-details-bin` trailer.
#[derive(Clone, PartialEq, Eq, Message)]
struct RichStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Eq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
struct HealthResponse {
    #[prost(enumeration = "HealthStatus", tag = "1")]
    status: i32,
}

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum HealthStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

/// Whether a request is a gRPC call rather than plain HTTP.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_2
        && request.headers().get(CONTENT_TYPE).is_some_and(|kind| {
            let rest = kind.as_bytes().strip_prefix(b"application/grpc");
            rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
        })
}

/// Answers one gRPC call.
pub(crate) async fn handle(service: Arc<FakeService>, request: Request<Incoming>) -> Response<tonic::body::Body> {
    match request.uri().path() {
        HANDLE => {
            let method = tower::service_fn(move |request| answer(Arc::clone(&service), request));
            let codec = ProstCodec::<HandleResponse, HandleRequest>::default();
            Grpc::new(codec).max_decoding_message_size(REQUEST_BYTES_MAX).unary(method, request).await
        }
        HEALTH_CHECK => {
            let method = tower::service_fn(move |request| check(Arc::clone(&service), request));
            Grpc::new(ProstCodec::<HealthResponse, HealthRequest>::default()).unary(method, request).await
        }
        HEALTH_WATCH => {
            let method = tower::service_fn(move |request| watch(Arc::clone(&service), request));
            Grpc::new(ProstCodec::<HealthResponse, HealthRequest>::default()).server_streaming(method, request).await
        }
        unknown => Status::unimplemented(format!("no method {unknown}")).into_http(),
    }
}

async fn answer(
    service: Arc<FakeService>,
    request: tonic::Request<HandleRequest>,
) -> Result<tonic::Response<HandleResponse>, Status> {
    let start = Start::now();
    let headers = request.into_parts().0.into_headers();
    let arrival = Arrival { protocol: Protocol::Grpc, method: "POST", target: HANDLE, headers: &headers };
    let reply = service.answer(arrival, start, service.script()).await;
    let message = String::from_utf8(reply.json).expect("invariant: serde_json writes UTF-8");
    match reply.failure {
        None => Ok(tonic::Response::new(HandleResponse { message, code: Code::Ok.into() })),
        Some(failure) => Err(status_of(failure, message)),
    }
}

/// A failure as a status that carries the answer with it, so that a caller can nest it.
fn status_of(failure: Failure, message: String) -> Status {
    let code = failure.code.grpc;
    let mut text = failure.error;
    text.truncate(text.floor_char_boundary(STATUS_TEXT_BYTES_MAX));
    if message.len() > STATUS_DETAIL_BYTES_MAX {
        return Status::new(code, text);
    }
    let value = HandleResponse { message, code: code.into() }.encode_to_vec();
    let details = vec![Any { type_url: RESPONSE_TYPE_URL.to_owned(), value }];
    let rich = RichStatus { code: code.into(), message: text.clone(), details };
    Status::with_details(code, text, Bytes::from(rich.encode_to_vec()))
}

/// The answer a failed call carries, if a fake service sent it.
pub(crate) fn message_in(status: &Status) -> Option<String> {
    let rich = RichStatus::decode(status.details()).ok()?;
    let detail = rich.details.into_iter().find(|detail| detail.type_url == RESPONSE_TYPE_URL)?;
    HandleResponse::decode(detail.value.as_slice()).ok().map(|response| response.message)
}

/// Calls `FakeService/Handle`, and returns the response's headers and message.
pub(crate) async fn call(
    channel: Channel,
    headers: HeaderMap,
    request: HandleRequest,
) -> Result<(HeaderMap, String), Status> {
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(UPSTREAM_ANSWER_BYTES_MAX);
    client.ready().await.map_err(|error| Status::unavailable(format!("{:#}", anyhow::Error::from(error))))?;
    let mut request = tonic::Request::new(request);
    *request.metadata_mut() = MetadataMap::from_headers(headers);
    let codec = ProstCodec::<HandleRequest, HandleResponse>::default();
    let response = client.unary(request, PathAndQuery::from_static(HANDLE), codec).await?;
    let (metadata, response, _) = response.into_parts();
    Ok((metadata.into_headers(), response.message))
}

fn serving(service: &FakeService) -> HealthStatus {
    if service.is_healthy() && !*service.stopping.borrow() { HealthStatus::Serving } else { HealthStatus::NotServing }
}

async fn check(
    service: Arc<FakeService>,
    request: tonic::Request<HealthRequest>,
) -> Result<tonic::Response<HealthResponse>, Status> {
    let name = request.get_ref().service.as_str();
    if !HEALTH_NAMES.contains(&name) {
        return Err(Status::not_found(format!("no service named {name:?}")));
    }
    Ok(tonic::Response::new(HealthResponse { status: serving(&service).into() }))
}

/// Tells the status now, and that it ends when the server begins to stop; then the stream closes.
async fn watch(
    service: Arc<FakeService>,
    request: tonic::Request<HealthRequest>,
) -> Result<tonic::Response<BoxStream<'static, Result<HealthResponse, Status>>>, Status> {
    let known = HEALTH_NAMES.contains(&request.get_ref().service.as_str());
    let now = if known { serving(&service) } else { HealthStatus::ServiceUnknown };
    let first = stream::once(async move { Ok(HealthResponse { status: now.into() }) });
    let last = at_stop(service, now);
    Ok(tonic::Response::new(first.chain(last).boxed()))
}

fn at_stop(service: Arc<FakeService>, before: HealthStatus) -> impl Stream<Item = Result<HealthResponse, Status>> {
    let mut stopping = service.stopping.clone();
    let stopped = async move {
        // A closed channel means that the server is gone already.
        let _ = stopping.wait_for(|stopping| *stopping).await;
        (before == HealthStatus::Serving).then(|| Ok(HealthResponse { status: HealthStatus::NotServing.into() }))
    };
    stream::once(stopped).filter_map(futures::future::ready)
}
