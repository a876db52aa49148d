//! gRPC checks: `grpc.health.v1.Health/Check`; SERVING passes.
//!
//! Source: github.com/grpc/grpc, doc/health-checking.md and grpc/health/v1/health.proto.

use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use starling_model::CheckKind;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::dial;
use super::failure::Failure;
use super::tls::{Trust, name_for};
use super::{chain, critical, passing};
use crate::registrations::Health;

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct Question {
    /// Field 1: the service asked for; empty means the whole server.
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    /// Field 1: `ServingStatus`.
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum ServingStatus {
    /// UNKNOWN.
    Unknown = 0,
    /// SERVING.
    Serving = 1,
    /// NOT_SERVING.
    NotServing = 2,
    /// SERVICE_UNKNOWN.
    ServiceUnknown = 3,
}

/// Bytes of an answer; it is one enumeration.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

pub(super) async fn run(kind: &CheckKind, trust: &Trust) -> Result<Health, Failure> {
    let CheckKind::Grpc { address, service, .. } = kind else {
        return Ok(critical("not a gRPC check".to_owned()));
    };
    let name = if service.is_empty() { address.clone() } else { format!("{address}/{service}") };
    let answer = ask(kind, trust).await.map_err(|failure| failure.of(&format!("gRPC check {name}")))?;
    Ok(match answer {
        ServingStatus::Serving => passing(format!("gRPC check {name}: success")),
        other @ (ServingStatus::Unknown | ServingStatus::NotServing | ServingStatus::ServiceUnknown) => {
            critical(format!("gRPC check {name}: the server answered {other:?}"))
        }
    })
}

async fn ask(kind: &CheckKind, trust: &Trust) -> Result<ServingStatus, Failure> {
    let CheckKind::Grpc { address, service, tls, tls_skip_verify, tls_server_name } = kind else {
        return Err("not a gRPC check".to_owned().into());
    };
    let stream = dial::tcp(address.as_str()).await?;
    let channel = if *tls {
        let stream = trust.connect(stream, name_for(address, tls_server_name), *tls_skip_verify, Some(b"h2")).await?;
        channel(address, "https", stream).await?
    } else {
        channel(address, "http", stream).await?
    };
    let mut client = Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    client.ready().await.map_err(|error| chain(&error))?;
    let request = tonic::Request::new(Question { service: service.clone() });
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec: ProstCodec<Question, Answer> = ProstCodec::default();
    let answer = client.unary(request, path, codec).await;
    let answer = answer.map_err(|status| format!("{:?}: {}", status.code(), status.message()))?;
    Ok(ServingStatus::try_from(answer.into_inner().status).unwrap_or(ServingStatus::Unknown))
}

/// A channel over a stream that is connected already; it is not connected a second time.
async fn channel<S>(address: &str, scheme: &str, stream: S) -> Result<Channel, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let origin: Uri = format!("{scheme}://{address}").parse().map_err(|error| format!("{address:?}: {error}"))?;
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| chain(&error))?.origin(origin);
    let mut once = Some(TokioIo::new(stream));
    let connect = tower::service_fn(move |_: Uri| {
        let stream = once.take().ok_or_else(|| std::io::Error::other("the connection was lost"));
        std::future::ready(stream)
    });
    endpoint.connect_with_connector(connect).await.map_err(|error| chain(&error))
}
