//! The loop that feeds one session: requests and resource sets in, responses and reports out.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use starling_model::AclSecret;
use starling_xds::wire::{DeltaResponse, SotwResponse};
use starling_xds::{AdsSession, Flavour, ProxyNode, ResourceType, Response, SessionError};
use tokio::sync::{mpsc, watch};
use tonic::{Status, Streaming};

use crate::connection::{Peer, stopped};
use crate::source::ProxySource;

/// Time for the first request on a stream, which says whose it is; until then it costs and serves nobody.
pub const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Responses between the session and the socket. A session has at most one unanswered response of each kind, so this
/// never fills.
pub(crate) const RESPONSES_QUEUED_MAX: usize = ResourceType::COUNT;

/// One of the two forms of the protocol.
pub(crate) trait Variant: 'static {
    const FLAVOUR: Flavour;
    type Request: prost::Message + Default + 'static;
    type Response: prost::Message + 'static;

    fn node(request: &Self::Request) -> Option<&Node>;
    fn handle(session: &mut AdsSession, request: Self::Request) -> Result<(), SessionError>;
    fn encode(response: &Response) -> Self::Response;
}

/// Incremental.
pub(crate) struct Delta;

impl Variant for Delta {
    const FLAVOUR: Flavour = Flavour::Delta;
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaResponse;

    fn node(request: &DeltaDiscoveryRequest) -> Option<&Node> {
        request.node.as_ref()
    }

    fn handle(session: &mut AdsSession, request: DeltaDiscoveryRequest) -> Result<(), SessionError> {
        session.handle_delta_request(request)
    }

    fn encode(response: &Response) -> DeltaResponse {
        response.to_delta()
    }
}

/// State of the world.
pub(crate) struct Sotw;

impl Variant for Sotw {
    const FLAVOUR: Flavour = Flavour::Sotw;
    type Request = DiscoveryRequest;
    type Response = SotwResponse;

    fn node(request: &DiscoveryRequest) -> Option<&Node> {
        request.node.as_ref()
    }

    fn handle(session: &mut AdsSession, request: DiscoveryRequest) -> Result<(), SessionError> {
        session.handle_sotw_request(request)
    }

    fn encode(response: &Response) -> SotwResponse {
        response.to_sotw()
    }
}

/// What happens to a stream next.
enum Input<R> {
    Request(R),
    Resources,
    Closed,
}

/// Serves one stream to its end.
///
/// # Errors
/// The status with which the stream ends, unless the client ended it.
pub(crate) async fn run<V: Variant>(
    source: Arc<dyn ProxySource>,
    (peer, token): (Peer, Option<AclSecret>),
    mut requests: Streaming<V::Request>,
    responses: mpsc::Sender<Result<V::Response, Status>>,
    mut stopping: watch::Receiver<bool>,
) -> Result<(), Status> {
    let Some(first) = first_request(&mut requests, &mut stopping).await? else { return Ok(()) };
    let node = V::node(&first).filter(|node| !node.id.is_empty());
    let node = ProxyNode::from(node.ok_or_else(|| Status::invalid_argument("the first request names no node"))?);
    tracing::debug!(id = node.id, user_agent = node.user_agent, ?peer, "proxy attaches");
    let mut feed = source.attach(node, peer, token).await?;
    let resources = Arc::clone(&feed.resources.borrow_and_update());
    let mut session = AdsSession::new(V::FLAVOUR, resources);
    let mut input = Input::Request(first);
    loop {
        match input {
            Input::Request(request) => {
                V::handle(&mut session, request).map_err(|error| Status::invalid_argument(error.to_string()))?;
            }
            Input::Resources => {
                let resources = Arc::clone(&feed.resources.borrow_and_update());
                // Of another count of revisions, by which this stream's say nothing: the proxy comes back, and is told what differs.
                if resources.revision < session.revision() {
                    return Err(Status::unavailable("the catalog was set back; attach again"));
                }
                session.handle_resources(resources);
            }
            Input::Closed => return Ok(()),
        }
        while let Some(response) = session.poll_response() {
            if responses.send(Ok(V::encode(&response))).await.is_err() {
                return Ok(());
            }
        }
        while let Some(report) = session.poll_report() {
            (feed.on_report)(report);
        }
        input = tokio::select! {
            request = requests.message() => request?.map_or(Input::Closed, Input::Request),
            changed = feed.resources.changed() => {
                changed.map_err(|_| Status::unavailable("the proxy is no longer served here"))?;
                Input::Resources
            }
            refused = &mut feed.ends => return Err(refused.into()),
            () = stopped(&mut stopping) => return Err(stopping_status()),
        };
    }
}

async fn first_request<R>(
    requests: &mut Streaming<R>,
    stopping: &mut watch::Receiver<bool>,
) -> Result<Option<R>, Status> {
    tokio::select! {
        request = tokio::time::timeout(FIRST_REQUEST_TIMEOUT, requests.message()) => {
            request.map_err(|_| Status::deadline_exceeded("no request came"))?
        }
        () = stopped(stopping) => Err(stopping_status()),
    }
}

pub(crate) fn stopping_status() -> Status {
    Status::unavailable("the server is stopping")
}
