//! What agents ask: the streams are served here, and everything else is asked of a server in the name of the node.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use starling_agent::remote::Passage;
use starling_attach::message::Hello;
use starling_model::{Change, InstanceId, Member, NodeName, Revision};
use starling_rpc::{
    AgentDoor, AgentStream, AliasView, Api, ApiBody, CallError, Credential, JoinAnswer, JoinRequest, LeafRequest,
    OwnRecords,
};
use starling_tls::IssuedLeaf;
use tokio::sync::watch;
use tower::service_fn;

use crate::streams::Streams;
use crate::upstream::Contact;
use crate::upstream::calls::{Asking, Calls};

/// Bytes of a request to the API that is passed on.
const API_REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Connections over which the API is asked, of which each takes some two hundred questions at once.
pub(crate) const API_CONNECTIONS: usize = 8;

/// The way in for agents.
pub(crate) struct Door {
    pub(crate) streams: Arc<Streams>,
    pub(crate) contact: watch::Receiver<Contact>,
}

impl Door {
    fn calls(&self) -> Result<Arc<Calls>, CallError> {
        let calls = self.contact.borrow().calls.clone();
        calls.ok_or_else(|| CallError::unavailable("this relay reaches no server"))
    }

    /// Over which one thing is asked; to be kept until it is answered.
    async fn asking(&self) -> Result<Asking, CallError> {
        self.calls()?.call().await
    }

    /// The same for a node.
    async fn asking_for(&self, node: &NodeName) -> Result<Asking, CallError> {
        self.asking().await?.for_node(node)
    }
}

#[async_trait]
impl AgentDoor for Door {
    /// Servers judge who is in the mesh, for each call that is passed on.
    fn admit(&self, _: &Credential) -> Result<(), CallError> {
        Ok(())
    }

    fn attach(&self, node: NodeName, hello: Hello) -> Result<Arc<dyn AgentStream>, CallError> {
        tracing::debug!(%node, version = hello.version, standby = hello.standby, "agent attached");
        Ok(Arc::new(self.streams.attach(node, &hello)?))
    }

    fn relay(&self, relay: NodeName, hello: Hello) -> Result<Arc<dyn AgentStream>, CallError> {
        Ok(Arc::new(self.streams.attach_relay(relay, hello.level)?))
    }

    async fn commit(&self, caller: &Credential, changes: Vec<Change>) -> Result<Revision, CallError> {
        self.asking_for(caller.member.name()).await?.client.commit(changes).await
    }

    async fn own_records(&self, node: &NodeName, _: Option<Revision>) -> Result<OwnRecords, CallError> {
        // The server that answered the last time may have been another, of another past.
        self.asking_for(node).await?.client.own_records(None).await
    }

    async fn issue_leaves(
        &self,
        node: &NodeName,
        wanted: Vec<LeafRequest>,
    ) -> Result<Vec<Result<IssuedLeaf, CallError>>, CallError> {
        self.asking_for(node).await?.client.issue_leaves(wanted).await
    }

    async fn renew(&self, caller: &Credential, csr_der: Vec<u8>) -> Result<IssuedLeaf, CallError> {
        match &caller.member {
            Member::Node(node) => self.asking_for(node).await?.client.renew(csr_der).await,
            Member::Relay(relay) => self.asking().await?.client.for_relay(relay)?.renew(csr_der).await,
        }
    }

    fn follow_checks(
        &self,
        of: &NodeName,
        service: Option<&InstanceId>,
    ) -> BoxStream<'static, Result<AliasView, CallError>> {
        let calls = match self.calls() {
            Ok(calls) => calls,
            Err(error) => return stream::iter([Err(error)]).boxed(),
        };
        // Another server is asked anew: this one may be cut off from the store, and say nothing more.
        let mut contact = self.contact.clone();
        let asked = Arc::clone(&calls);
        let is_over = async move {
            let is_another = |now: &Contact| now.calls.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &asked));
            // The sender is gone when the relay ends.
            let _ = contact.wait_for(is_another).await;
        };
        let (of, service) = (of.clone(), service.cloned());
        let begun = async move {
            let asking = calls.follow().await?.for_node(&of)?;
            let views = asking.client.follow_checks(&of, service.as_ref());
            // Its place is taken for as long as it is followed.
            Ok::<_, CallError>(views.inspect(move |_| {
                let _held = &asking;
            }))
        };
        stream::once(begun).try_flatten().take_until(is_over).boxed()
    }

    async fn join(&self, request: JoinRequest) -> Result<JoinAnswer, CallError> {
        tracing::info!(node = %request.node, "a node joins through this relay");
        self.asking().await?.client.join(&request).await
    }
}

/// The API of the servers, for what agents are asked and cannot answer.
pub(crate) fn api(ways: Vec<Passage>) -> Api {
    let ways = Arc::new(ways);
    let turns = Arc::new(AtomicUsize::new(0));
    Api::new(service_fn(move |request: Request<Incoming>| {
        let (ways, turns) = (Arc::clone(&ways), Arc::clone(&turns));
        async move {
            let turn = turns.fetch_add(1, Ordering::Relaxed) % ways.len().max(1);
            Ok::<_, Infallible>(match ways.get(turn) {
                Some(way) => pass_on(way, request).await,
                None => plain(StatusCode::SERVICE_UNAVAILABLE, "this relay has no way to a server".to_owned()),
            })
        }
    }))
}

type Answer = Response<Either<ApiBody, Full<Bytes>>>;

async fn pass_on(way: &Passage, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, API_REQUEST_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return plain(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()),
    };
    match way.ask(Request::from_parts(head, body)).await {
        Ok(answer) => answer.map(Either::Left),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("this relay reaches no server: {error}")),
    }
}

fn plain(status: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(Either::Right(Full::new(Bytes::from(text))));
    *answer.status_mut() = status;
    answer
}
