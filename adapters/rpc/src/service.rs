//! The gRPC service, with responses that are encoded already.
//!
//! Generated servers answer with messages that own their content; this one answers with messages that share it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::connection::Peer;
use crate::serve::REQUEST_BYTES_MAX;
use crate::source::ProxySource;
use crate::stream::{Delta, RESPONSES_QUEUED_MAX, Sotw, Variant, run};

const DELTA_PATH: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const SOTW_PATH: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// `envoy.service.discovery.v3.AggregatedDiscoveryService`.
#[derive(Clone)]
pub(crate) struct AdsService {
    pub source: Arc<dyn ProxySource>,
    pub stopping: watch::Receiver<bool>,
}

impl NamedService for AdsService {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl<B> Service<http::Request<B>> for AdsService
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        match request.uri().path() {
            DELTA_PATH => Box::pin(service.answer::<Delta, B>(request)),
            SOTW_PATH => Box::pin(service.answer::<Sotw, B>(request)),
            _ => Box::pin(async { Ok(Status::unimplemented("no such method").into_http()) }),
        }
    }
}

impl AdsService {
    async fn answer<V: Variant, B>(self, request: http::Request<B>) -> Result<http::Response<Body>, Infallible>
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        let codec = ProstCodec::<V::Response, V::Request>::default();
        let mut grpc = Grpc::new(codec).max_decoding_message_size(REQUEST_BYTES_MAX);
        Ok(grpc.streaming(Method::<V> { service: self, variant: std::marker::PhantomData }, request).await)
    }
}

/// One of the service's two methods.
struct Method<V> {
    service: AdsService,
    variant: std::marker::PhantomData<fn() -> V>,
}

impl<V: Variant> StreamingService<V::Request> for Method<V> {
    type Response = V::Response;
    type ResponseStream = ReceiverStream<Result<V::Response, Status>>;
    type Future = BoxFuture<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<V::Request>>) -> Self::Future {
        let AdsService { source, stopping } = self.service.clone();
        Box::pin(async move {
            let peer = request.extensions().get::<Peer>().cloned();
            let peer = peer.ok_or_else(|| Status::internal("the connection has no peer"))?;
            let (sender, receiver) = mpsc::channel(RESPONSES_QUEUED_MAX);
            let requests = request.into_inner();
            tokio::spawn(async move {
                if let Err(status) = run::<V>(source, peer, requests, sender.clone(), stopping).await {
                    // Nobody to tell is as good as told.
                    let _ = sender.send(Err(status)).await;
                }
            });
            Ok(Response::new(ReceiverStream::new(receiver)))
        })
    }
}
