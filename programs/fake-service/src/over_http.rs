//! The HTTP side of the port: routes a request to health, readiness, gRPC or the service itself.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, Either, Ready, ready};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};

use crate::answer::{Arrival, Protocol, Start};
use crate::config::ServerType;
use crate::over_grpc;
use crate::service::{FakeService, Reply};

/// Largest request body; it is counted and thrown away, so the limit is on time and traffic, not on memory.
const REQUEST_BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Longest a client may take to send its body.
const REQUEST_BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// Body of every response: one piece of JSON or text, or a gRPC stream.
pub(crate) type ResponseBody = http_body_util::Either<Full<Bytes>, tonic::body::Body>;

/// The service as one connection sees it.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) service: Arc<FakeService>,
}

impl hyper::service::Service<Request<Incoming>> for Door {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    /// An answer that waits for nothing is made in `call` and costs no boxed future.
    type Future =
        Either<Ready<Result<Self::Response, Infallible>>, BoxFuture<'static, Result<Self::Response, Infallible>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if over_grpc::is_grpc(&request) {
            let service = Arc::clone(&self.service);
            return Either::Right(Box::pin(async move {
                Ok(over_grpc::handle(service, request).await.map(http_body_util::Either::Right))
            }));
        }
        if let Some(response) = self.check(&request) {
            return Either::Left(ready(Ok(response)));
        }
        let start = Start::now();
        let script = self.service.script();
        if request.body().is_end_stream() && self.service.is_immediate(script) {
            let reply = self.service.answer_at_once(arrival(&request), start, script);
            return Either::Left(ready(Ok(json(reply))));
        }
        let service = Arc::clone(&self.service);
        Either::Right(Box::pin(async move {
            let (head, body) = request.into_parts();
            if let Err(refusal) = discard(body).await {
                return Ok(refusal.response());
            }
            let request = Request::from_parts(head, ());
            Ok(json(service.answer(arrival(&request), start, script).await))
        }))
    }
}

impl Door {
    /// Answers health checks, and refuses what the service does not speak.
    fn check(&self, request: &Request<Incoming>) -> Option<Response<ResponseBody>> {
        let config = &self.service.config;
        match request.uri().path() {
            "/health" if self.service.is_healthy() => Some(text(config.health_code, "OK\n")),
            "/health" => Some(text(config.health_code, "unhealthy\n")),
            "/ready" if self.service.is_ready() => Some(text(config.ready_code, "OK\n")),
            "/ready" => Some(text(config.unready_code, "not ready\n")),
            _ if config.server_type == ServerType::Grpc => {
                Some(text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "this service speaks gRPC: call FakeService/Handle\n"))
            }
            _ if request.method() == Method::CONNECT => {
                Some(text(StatusCode::METHOD_NOT_ALLOWED, "this service is no proxy\n"))
            }
            _ => None,
        }
    }
}

fn arrival<B>(request: &Request<B>) -> Arrival<'_> {
    Arrival {
        protocol: Protocol::Http,
        method: request.method().as_str(),
        target: request.uri().path_and_query().map_or("/", |target| target.as_str()),
        headers: request.headers(),
    }
}

/// Why a request body was not read to its end.
enum BodyRefusal {
    BrokeOff,
    TooLarge,
    TooSlow,
}

impl BodyRefusal {
    fn response(&self) -> Response<ResponseBody> {
        match self {
            Self::BrokeOff => text(StatusCode::BAD_REQUEST, "request body broke off\n"),
            Self::TooLarge => {
                let reason = format!("request body is larger than {REQUEST_BODY_BYTES_MAX} bytes\n");
                text(StatusCode::PAYLOAD_TOO_LARGE, reason)
            }
            Self::TooSlow => text(StatusCode::REQUEST_TIMEOUT, "request body took too long\n"),
        }
    }
}

/// Reads a request body to its end, keeping nothing.
async fn discard(mut body: Incoming) -> Result<(), BodyRefusal> {
    let mut size = 0;
    let read = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| BodyRefusal::BrokeOff)?;
            size += frame.data_ref().map_or(0, Bytes::len);
            if size > REQUEST_BODY_BYTES_MAX {
                return Err(BodyRefusal::TooLarge);
            }
        }
        Ok(())
    };
    tokio::time::timeout(REQUEST_BODY_TIME_MAX, read).await.unwrap_or(Err(BodyRefusal::TooSlow))
}

fn json(reply: Reply) -> Response<ResponseBody> {
    let status = reply.failure.map_or(StatusCode::OK, |failure| failure.code.http);
    respond(status, "application/json", reply.json)
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<ResponseBody> {
    respond(status, "text/plain; charset=utf-8", text)
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(http_body_util::Either::Left(Full::new(body.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
