//! The gRPC service, with responses that are encoded already.
//!
//! Generated servers answer with messages that own their content; this one answers with messages that share it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http_body::Body as HttpBody;
use starling_model::AclSecret;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::StdError;
use tonic::metadata::MetadataMap;
use tonic::server::{Grpc, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::connection::{Origin, Peer};
use crate::serve::REQUEST_BYTES_MAX;
use crate::source::ProxySource;
use crate::stream::{Delta, RESPONSES_QUEUED_MAX, Sotw, Variant, run};

pub(crate) const DELTA_PATH: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const SOTW_PATH: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// Where a proxy shows its token.
const TOKEN: &str = "x-consul-token";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// `envoy.service.discovery.v3.AggregatedDiscoveryService`.
#[derive(Clone)]
pub(crate) struct AdsService {
    pub source: Arc<dyn ProxySource>,
    pub stopping: watch::Receiver<bool>,
}

impl AdsService {
    /// Every path of the service begins so.
    pub(crate) const PREFIX: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/";

    /// Answers a call from `origin`.
    pub(crate) async fn answer<B>(self, origin: Origin, request: http::Request<B>) -> http::Response<Body>
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        let Some(peer) = origin.peer else {
            return Status::unauthenticated("xDS is for members of the mesh, and the caller has no certificate")
                .into_http();
        };
        match request.uri().path() {
            DELTA_PATH => self.stream::<Delta, B>(peer, request).await,
            SOTW_PATH => self.stream::<Sotw, B>(peer, request).await,
            _ => Status::unimplemented("no such method").into_http(),
        }
    }

    async fn stream<V: Variant, B>(self, peer: Peer, request: http::Request<B>) -> http::Response<Body>
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        let codec = ProstCodec::<V::Response, V::Request>::default();
        let mut grpc = Grpc::new(codec).max_decoding_message_size(REQUEST_BYTES_MAX);
        grpc.streaming(Method::<V> { service: self, peer, variant: std::marker::PhantomData }, request).await
    }
}

/// One of the service's two methods.
struct Method<V> {
    service: AdsService,
    peer: Peer,
    variant: std::marker::PhantomData<fn() -> V>,
}

impl<V: Variant> StreamingService<V::Request> for Method<V> {
    type Response = V::Response;
    type ResponseStream = ReceiverStream<Result<V::Response, Status>>;
    type Future = BoxFuture<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<V::Request>>) -> Self::Future {
        let (AdsService { source, stopping }, peer) = (self.service.clone(), self.peer.clone());
        Box::pin(async move {
            let token = token(request.metadata())?;
            let (sender, receiver) = mpsc::channel(RESPONSES_QUEUED_MAX);
            let requests = request.into_inner();
            tokio::spawn(async move {
                if let Err(status) = run::<V>(source, (peer, token), requests, sender.clone(), stopping).await {
                    // Nobody to tell is as good as told.
                    let _ = sender.send(Err(status)).await;
                }
            });
            Ok(Response::new(ReceiverStream::new(receiver)))
        })
    }
}

/// What a caller shows for a token, by Consul's name for it.
fn token(metadata: &MetadataMap) -> Result<Option<AclSecret>, Status> {
    let Some(shown) = metadata.get(TOKEN).filter(|shown| !shown.is_empty()) else { return Ok(None) };
    let secret = shown.to_str().ok().and_then(AclSecret::new);
    secret.map(Some).ok_or_else(|| Status::unauthenticated(format!("{TOKEN}: nobody has such a token")))
}
