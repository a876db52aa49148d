//! The HTTP API for agents: what an agent is asked and cannot answer, it passes on over its own connection.
//!
//! No gRPC: plain requests of HTTP/2 beside it, under the paths of the API, so that what is passed on stays what it was.
//! Only agents are heard, who pass on what somebody on their machine asks, and other servers.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use starling_identity::Identity;
use tonic::body::Body;
use tonic::codegen::StdError;
use tower::{Service, ServiceExt};

use crate::connection::{Origin, Peer};

type Answering = BoxFuture<'static, Response<Body>>;

/// The API that agents reach.
#[derive(Clone)]
pub struct Api(Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>);

impl Api {
    /// Answers by `service`, which is usually a router.
    #[must_use]
    pub fn new<S, B>(service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Future: Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<StdError>,
    {
        Self(Arc::new(move |request| {
            let answering = service.clone().oneshot(request);
            Box::pin(async move {
                match answering.await {
                    Ok(answer) => answer.map(Body::new),
                    Err(never) => match never {},
                }
            })
        }))
    }

    /// Whether a request is for the API, by its path.
    pub(crate) fn is_meant_by(path: &str) -> bool {
        ["/v1/", "/starling/v1/"].iter().any(|prefix| path.starts_with(prefix))
    }

    /// Answers what the agent of a node or a relay passes on or another server asks, and nobody else.
    pub(crate) async fn answer(&self, origin: &Origin, request: Request<Incoming>) -> Response<Body> {
        match &origin.peer {
            Some(Peer::Member { identity, .. })
                if matches!(**identity, Identity::Agent { .. } | Identity::Server { .. } | Identity::Relay { .. }) =>
            {
                (self.0)(request).await
            }
            Some(Peer::Member { .. } | Peer::Loopback(_)) | None => {
                let mut forbidden = Response::new(Body::empty());
                *forbidden.status_mut() = StatusCode::FORBIDDEN;
                forbidden
            }
        }
    }
}
