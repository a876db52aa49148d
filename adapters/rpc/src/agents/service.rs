//! `starling.agent.v1.Agents`: who may call what, and how a call reaches the door.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;
use http_body::Body as HttpBody;
use starling_model::{Change, Member, NodeName};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codec::Streaming;
use tonic::codegen::StdError;
use tonic::metadata::GRPC_CONTENT_TYPE;
use tonic::server::{Grpc, ServerStreamingService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::attach::{AgentDecoder, Attaching, begin};
use super::messages::{Compared, Followed, OnWire, Renewal};
use super::{
    AGENT_FRAME_BYTES_MAX, AGENT_REQUEST_BYTES_MAX, AgentDoor, COMMIT_BYTES_MAX, Credential, FOR_NODE, FOR_RELAY,
    JoinRequest, LeafRequest, path, wire,
};
use crate::call::CallError;
use crate::connection::{Origin, Peer, stopped};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The service in front of a door.
#[derive(Clone)]
pub(crate) struct AgentsService {
    pub door: Arc<dyn AgentDoor>,
    pub stopping: watch::Receiver<bool>,
}

impl AgentsService {
    /// Every path of the service begins so.
    pub(crate) const PREFIX: &str = "/starling.agent.v1.Agents/";

    /// Answers a call from `origin`.
    pub(crate) async fn answer<B>(self, origin: Origin, request: http::Request<B>) -> http::Response<Body>
    where
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        let door = self.door;
        if request.uri().path() == path::JOIN {
            let through = relay(&origin);
            let join = |join: JoinRequest| async move { door.join(JoinRequest { through, ..join }).await };
            return unary(request, AGENT_REQUEST_BYTES_MAX, join).await;
        }
        // Before anything of the request is read.
        let caller = caller(&origin, request.headers()).and_then(|caller| {
            // Of the caller itself the connection has been judged.
            caller.spoken_for().map_or(Ok(()), |member| door.admit(member))?;
            Ok(caller)
        });
        let caller = match caller {
            Ok(caller) => caller,
            Err(error) => return Status::from(error).into_http(),
        };
        let Caller { credential, through } = caller;
        if let Some(relay) = &through {
            tracing::debug!(member = %credential.member, %relay, path = request.uri().path(), "a relay asks for a member");
        }
        match (&credential.member, &through, request.uri().path()) {
            (Member::Node(node), None, path::ATTACH) => {
                attach(door, Attaching::Node(node.clone()), request, self.stopping).await
            }
            (Member::Relay(relay), None, path::RELAY) => {
                attach(door, Attaching::Relay(relay.clone()), request, self.stopping).await
            }
            (_, _, path::RENEW) => {
                let renew = |Renewal(csr_der)| async move { door.renew(&credential, csr_der).await };
                unary(request, AGENT_REQUEST_BYTES_MAX, renew).await
            }
            (Member::Node(_), _, _) => answer_node(door, self.stopping, credential, request).await,
            (Member::Relay(relay), Some(through), _) => {
                let reason = format!("relay {through} asks for relay {relay} what only a node is answered");
                Status::from(CallError::refused(reason)).into_http()
            }
            (Member::Relay(relay), None, _) => {
                let reason = format!("relay {relay} does not say for which node it asks");
                Status::from(CallError::refused(reason)).into_http()
            }
        }
    }
}

/// Answers what the agent of a node asks, by itself or through a relay.
async fn answer_node<B>(
    door: Arc<dyn AgentDoor>,
    stopping: watch::Receiver<bool>,
    caller: Credential,
    request: http::Request<B>,
) -> http::Response<Body>
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send,
{
    let node = caller.member.name().clone();
    match request.uri().path() {
        path::COMMIT => {
            let commit = |changes: Vec<Change>| async move { door.commit(&caller, changes).await };
            unary(request, COMMIT_BYTES_MAX, commit).await
        }
        path::OWN_RECORDS => {
            let ask = |Compared(since)| async move { door.own_records(&node, since).await };
            unary(request, AGENT_REQUEST_BYTES_MAX, ask).await
        }
        path::ISSUE_LEAVES => {
            let issue = |wanted: Vec<LeafRequest>| async move { door.issue_leaves(&node, wanted).await };
            unary(request, AGENT_REQUEST_BYTES_MAX, issue).await
        }
        path::FOLLOW_CHECKS => {
            let codec = ProstCodec::<wire::ChecksSeen, wire::FollowChecks>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(AGENT_REQUEST_BYTES_MAX);
            grpc.server_streaming(FollowChecks { door, stopping }, request).await
        }
        _ => Status::unimplemented("no such method").into_http(),
    }
}

/// Who calls.
struct Caller {
    credential: Credential,
    /// The relay that speaks for it.
    through: Option<NodeName>,
}

impl Caller {
    /// The member that a relay speaks for.
    fn spoken_for(&self) -> Option<&Credential> {
        self.through.as_ref().map(|_| &self.credential)
    }
}

/// The relay that calls, for itself or for others.
fn relay(origin: &Origin) -> Option<NodeName> {
    match origin.member()?.member {
        Member::Relay(relay) => Some(relay),
        Member::Node(_) => None,
    }
}

/// Who calls, by its certificate. Only a relay speaks for another than itself.
fn caller(origin: &Origin, headers: &http::HeaderMap) -> Result<Caller, CallError> {
    let named = |header| {
        let name = headers.get(header).map(|name| {
            let name = name.to_str().map_err(CallError::refused)?;
            name.parse::<NodeName>().map_err(CallError::refused)
        });
        name.transpose()
    };
    let Some(credential) = origin.member() else {
        return Err(match &origin.peer {
            Some(Peer::Member { identity, .. }) => {
                CallError::refused(format!("this is for agents and relays, and the caller is {identity}"))
            }
            Some(Peer::Loopback(_)) | None => {
                CallError::refused("this is for agents, and the caller has no certificate; join first")
            }
        });
    };
    let behind = |member, relay: &NodeName| {
        Ok(Caller { credential: Credential { member, key: None }, through: Some(relay.clone()) })
    };
    match (&credential.member, named(FOR_NODE)?, named(FOR_RELAY)?) {
        (_, None, None) => Ok(Caller { credential, through: None }),
        (Member::Node(node), Some(other), _) | (Member::Node(node), None, Some(other)) => Err(CallError::refused(
            format!("only a relay speaks for another node, and {node} is none; it spoke for {other}"),
        )),
        (Member::Relay(relay), Some(node), None) => behind(Member::Node(node), relay),
        (Member::Relay(relay), None, Some(below)) => behind(Member::Relay(below), relay),
        (Member::Relay(relay), Some(node), Some(below)) => {
            Err(CallError::refused(format!("relay {relay} asks for node {node} and for relay {below} at once")))
        }
    }
}

async fn attach<B>(
    door: Arc<dyn AgentDoor>,
    who: Attaching,
    request: http::Request<B>,
    stopping: watch::Receiver<bool>,
) -> http::Response<Body>
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send,
{
    let frames = Streaming::new_request(AgentDecoder, request.into_body(), None, Some(AGENT_FRAME_BYTES_MAX));
    match begin(door, who, frames, stopping).await {
        Ok(body) => {
            let mut response = http::Response::new(Body::new(body));
            response.headers_mut().insert(http::header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
            response
        }
        Err(status) => status.into_http(),
    }
}

/// Answers a call of one request and one answer.
async fn unary<B, I, O, F>(
    request: http::Request<B>,
    bytes_max: usize,
    call: impl FnOnce(I) -> F + Send + 'static,
) -> http::Response<Body>
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send,
    I: OnWire + Send + 'static,
    O: OnWire,
    F: Future<Output = Result<O, CallError>> + Send + 'static,
    I::Message: Send + Sync,
    O::Message: Send + Sync,
{
    let mut call = Some(call);
    let service = tower::service_fn(move |request: Request<I::Message>| {
        let call = call.take().expect("invariant: a unary request is one message");
        let input = read::<I>(request.into_inner());
        async move { Ok::<_, Status>(Response::new(call(input?).await?.into_wire())) }
    });
    let codec = ProstCodec::<O::Message, I::Message>::default();
    Grpc::new(codec).max_decoding_message_size(bytes_max).unary(service, request).await
}

fn read<I: OnWire>(message: I::Message) -> Result<I, Status> {
    I::from_wire(message).map_err(Status::invalid_argument)
}

struct FollowChecks {
    door: Arc<dyn AgentDoor>,
    stopping: watch::Receiver<bool>,
}

impl ServerStreamingService<wire::FollowChecks> for FollowChecks {
    type Response = wire::ChecksSeen;
    type ResponseStream = BoxStream<'static, Result<wire::ChecksSeen, Status>>;
    type Future = BoxFuture<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<wire::FollowChecks>) -> Self::Future {
        let (door, mut stopping) = (Arc::clone(&self.door), self.stopping.clone());
        Box::pin(async move {
            let Followed { node, service } = read(request.into_inner())?;
            let views = door.follow_checks(&node, service.as_ref()).map(|view| Ok(view?.into_wire()));
            Ok(Response::new(views.take_until(async move { stopped(&mut stopping).await }).boxed()))
        })
    }
}
