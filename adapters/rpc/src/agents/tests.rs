//! Signs of life, over a pipe instead of a socket: with the clock in hand.

use std::sync::Mutex;
use std::time::Duration;

use futures::StreamExt;
use http_body_util::BodyExt;
use prost::Message;
use starling_attach::message::{Applied, ServerSays, through};
use starling_identity::Identity;
use tokio::io::DuplexStream;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::*;
use crate::client::PING_AFTER;
use crate::connection::{Connection, Origin, Peer};
use crate::http2::{Doors, serve_connection};
use crate::pulse::{Pulse, Pulsed, SILENCE_MAX};
use crate::{ServerClient, ServerFrames};

/// Bytes in the pipe, either way.
const PIPE_BYTES: usize = 4 * 1024;

/// Has one revision after the other to say, as fast as they are taken, up to a limit.
struct Talker {
    revisions: Mutex<std::ops::Range<u64>>,
    /// False once the stream is dropped.
    attached: watch::Sender<bool>,
}

struct Talk(Arc<Talker>);

impl AgentStream for Talk {
    fn handle(&self, _: AgentSays) -> Result<(), CallError> {
        Ok(())
    }

    fn poll_take(&self, _: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, CallError>> {
        match self.0.revisions.lock().unwrap().next() {
            Some(revision) => Poll::Ready(Ok(vec![through(Revision(revision), 0)])),
            None => Poll::Pending,
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.0.attached.send_replace(false);
    }
}

struct Door(Arc<Talker>);

#[async_trait]
impl AgentDoor for Door {
    fn admit(&self, _: &Credential) -> Result<(), CallError> {
        Ok(())
    }

    fn attach(&self, _: NodeName, _: Hello) -> Result<Arc<dyn AgentStream>, CallError> {
        self.0.attached.send_replace(true);
        Ok(Arc::new(Talk(Arc::clone(&self.0))))
    }

    async fn commit(&self, _: &Credential, _: Vec<Change>) -> Result<Revision, CallError> {
        Ok(Revision(1))
    }

    async fn own_records(&self, _: &NodeName, _: Option<Revision>) -> Result<OwnRecords, CallError> {
        Err(CallError::refused("not here"))
    }

    async fn issue_leaves(
        &self,
        _: &NodeName,
        _: Vec<LeafRequest>,
    ) -> Result<Vec<Result<IssuedLeaf, CallError>>, CallError> {
        Err(CallError::refused("not here"))
    }

    async fn renew(&self, _: &Credential, _: Vec<u8>) -> Result<IssuedLeaf, CallError> {
        Err(CallError::refused("not here"))
    }

    fn follow_checks(&self, _: &NodeName, _: Option<&InstanceId>) -> BoxStream<'static, Result<AliasView, CallError>> {
        futures::stream::empty().boxed()
    }

    async fn join(&self, _: JoinRequest) -> Result<JoinAnswer, CallError> {
        Err(CallError::refused("not here"))
    }
}

/// A server at one end of a pipe; stops when the sender is dropped.
fn serve(revisions: std::ops::Range<u64>, pipe: DuplexStream) -> (Arc<Talker>, watch::Sender<bool>) {
    let talker = Arc::new(Talker { revisions: Mutex::new(revisions), attached: watch::Sender::new(false) });
    let (stop, stopping) = watch::channel(false);
    let identity = Arc::new(Identity::Agent {
        trust_domain: "11111111-2222-3333-4444-555555555555.consul".parse().unwrap(),
        datacenter: "dc1".parse().unwrap(),
        node: "n1".parse().unwrap(),
    });
    let peer =
        Peer::Member { identity, key: KeyFingerprint([1; 32]), address: ([127, 0, 0, 1], 1).into(), is_local: true };
    let pulse = Pulse::new();
    let entrance = starling_sockets::Entrance::new("test", 1.into());
    let held = crate::connection::Held::of(entrance.enter(std::net::Ipv4Addr::LOCALHOST.into(), 0).expect("a place"));
    let connection = Connection::new(Pulsed::new(pipe, Arc::clone(&pulse)), None, held, stopping.clone());
    let doors = Doors { agents: Some(Arc::new(Door(Arc::clone(&talker)))), ..Doors::default() };
    tokio::spawn(serve_connection(connection, Origin { peer: Some(peer), pulse }, doors, stopping));
    (talker, stop)
}

fn hello() -> Hello {
    Hello { node: "n1".to_owned(), ..Hello::default() }
}

async fn client(pipe: DuplexStream) -> ServerClient {
    let pulse = Pulse::new();
    ServerClient::over(Pulsed::new(pipe, Arc::clone(&pulse)), pulse).await.unwrap()
}

async fn next_revision(frames: &mut ServerFrames) -> Result<u64, CallError> {
    let says = frames.next().await.unwrap()?;
    let ServerSays::Through(through) = says else { panic!("{says:?}") };
    Ok(through.revision)
}

#[tokio::test(start_paused = true)]
async fn a_stream_on_which_nothing_happens_stays() {
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let (talker, _stop) = serve(0..0, far);
    let (_sender, mut frames) = client(near).await.attach(hello()).await.unwrap();
    let hour = Duration::from_secs(60 * 60);
    assert!(tokio::time::timeout(hour, frames.next()).await.is_err(), "something was said");
    assert!(*talker.attached.borrow());
}

#[tokio::test(start_paused = true)]
async fn a_silent_agent_is_gone_in_time() {
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let (talker, _stop) = serve(0..0, far);
    // It begins as an agent does, and then says no more.
    let (mut http2, connection) =
        hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), hyper_util::rt::TokioIo::new(near))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let hello = starling_attach::FromAgent::from(AgentSays::Hello(hello())).encode_to_vec();
    let first = [&[0, 0, 0, 0, u8::try_from(hello.len()).unwrap()][..], &hello].concat();
    let first = http_body::Frame::data(Bytes::from(first));
    let body = futures::stream::iter([Ok::<_, std::convert::Infallible>(first)]).chain(futures::stream::pending());
    let request = http::Request::post(format!("http://starling{}", path::ATTACH));
    let request = request.body(http_body_util::StreamBody::new(body)).unwrap();
    let mut answer = http2.send_request(request).await.unwrap().into_body();
    let attached = Instant::now();
    answer.frame().await.unwrap().unwrap_err();
    talker.attached.subscribe().wait_for(|attached| !attached).await.unwrap();
    assert_eq!(attached.elapsed().as_secs(), SILENCE_MAX.as_secs());
    // The whole connection is closed: what is under way to a dead agent would stay for long.
    drop(http2);
    drop(connection.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_gone_in_time() {
    let (near, mut middle) = tokio::io::duplex(PIPE_BYTES);
    let (mut other_middle, far) = tokio::io::duplex(PIPE_BYTES);
    let (_talker, _stop) = serve(1..2, far);
    let relay = async move { drop(tokio::io::copy_bidirectional(&mut middle, &mut other_middle).await) };
    let (frozen, freezing) = oneshot::channel::<()>();
    // From then on the pipe is open, and nothing comes through.
    tokio::spawn(async move {
        let mut relay = std::pin::pin!(relay);
        tokio::select! {
            () = &mut relay => {}
            _ = freezing => std::future::pending().await,
        }
    });
    let (_sender, mut frames) = client(near).await.attach(hello()).await.unwrap();
    assert_eq!(next_revision(&mut frames).await, Ok(1));
    frozen.send(()).unwrap();
    let before = Instant::now();
    assert_eq!(frames.next().await, Some(Err(CallError::unavailable("nothing was heard from the server"))));
    assert_eq!(before.elapsed().as_secs(), SILENCE_MAX.as_secs());
    assert_eq!(frames.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_slow_to_read_is_not_dead() {
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let (talker, _stop) = serve(1..1_000_000, far);
    let client = client(near).await;
    let (sender, mut frames) = client.attach(hello()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(*talker.attached.borrow());
    // Nothing was taken for which there was no room.
    let taken = talker.revisions.lock().unwrap().start;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(talker.revisions.lock().unwrap().start, taken);
    // Meanwhile it is heard, and served otherwise.
    sender.send(AgentSays::Applied(Applied::default())).unwrap();
    assert_eq!(client.commit(Vec::new()).await, Ok(Revision(1)));
    for expected in 1..taken {
        assert_eq!(next_revision(&mut frames).await, Ok(expected));
    }
    // One at a time, be it just before it would ping or later than a server that is not there may be.
    let mut expected = taken..;
    for pause in [PING_AFTER * 9 / 10, 2 * SILENCE_MAX] {
        for _ in 0..20 {
            tokio::time::sleep(pause).await;
            assert_eq!(next_revision(&mut frames).await.ok(), expected.next());
        }
    }
}
