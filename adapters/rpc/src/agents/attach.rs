//! One agent's stream: what is shared between the task that reads it and the body that is sent.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::task::AtomicWaker;
use starling_attach::FromAgent;
use starling_attach::message::{AgentSays, Hello};
use starling_model::NodeName;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, Streaming};

use super::body::AttachBody;
use super::{AgentDoor, AgentStream};
use crate::call::CallError;
use crate::connection::stopped;
use crate::stream::stopping_status;

/// Time for the first frame of a stream, which says who calls; until then it costs and serves nobody.
pub const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes set aside for an agent's frames; most are a few bytes long, and there is a buffer for each stream.
const READ_BUFFER_BYTES: usize = 64;

/// A stream between its begin and its end.
pub(crate) struct Attached {
    state: Mutex<State>,
    /// Of the task that sends.
    sender: AtomicWaker,
}

enum State {
    Open(Arc<dyn AgentStream>),
    /// To be told to the agent.
    Ended(Status),
}

impl Attached {
    /// What is sent next.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, Status>> {
        self.stream()?.poll_take(cx).map_err(Status::from)
    }

    /// Fails once the stream has ended; otherwise the task is woken when it does.
    pub(super) fn poll_ended(&self, cx: &mut Context<'_>) -> Result<(), Status> {
        self.sender.register(cx.waker());
        self.stream().map(drop)
    }

    fn handle(&self, says: AgentSays) -> Result<(), Status> {
        match says {
            AgentSays::Here(_) => Ok(()),
            AgentSays::Hello(_) => Err(Status::invalid_argument("a second hello on one stream")),
            says @ (AgentSays::Subscribe(_)
            | AgentSays::Unsubscribe(_)
            | AgentSays::Applied(_)
            | AgentSays::Rejected(_)
            | AgentSays::Promote(_)
            | AgentSays::Relayed(_)
            | AgentSays::Trusts(_)) => Ok(self.stream()?.handle(says)?),
        }
    }

    /// Lets go of the door's end at once: it may be long until there is room to tell the agent.
    fn end(&self, status: Status) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *state, State::Ended(status));
        drop(state);
        drop(old);
        self.sender.wake();
    }

    fn stream(&self) -> Result<Arc<dyn AgentStream>, Status> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open(stream) => Ok(Arc::clone(stream)),
            State::Ended(status) => Err(status.clone()),
        }
    }
}

/// The task that reads an agent's frames; it ends with the body.
pub(super) struct Reader(JoinHandle<()>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whose a stream is, by the caller's certificate.
pub(super) enum Attaching {
    Node(NodeName),
    Relay(NodeName),
}

/// Begins a stream: reads who calls, and asks the door.
///
/// # Errors
/// The status with which the call ends.
pub(super) async fn begin(
    door: Arc<dyn AgentDoor>,
    who: Attaching,
    mut frames: Streaming<AgentSays>,
    mut stopping: watch::Receiver<bool>,
) -> Result<AttachBody, Status> {
    let hello = tokio::select! {
        first = tokio::time::timeout(FIRST_FRAME_TIMEOUT, frames.message()) => match first {
            Ok(Ok(Some(AgentSays::Hello(hello)))) => hello,
            Ok(Ok(_)) => return Err(Status::invalid_argument("a stream begins with a hello")),
            Ok(Err(status)) => return Err(status),
            Err(_) => return Err(Status::deadline_exceeded("no hello came")),
        },
        () = stopped(&mut stopping) => return Err(stopping_status()),
    };
    let Hello { node: named, version, standby, level: _ } = &hello;
    let (kind, name) = match &who {
        Attaching::Node(name) => ("node", name),
        Attaching::Relay(name) => ("relay", name),
    };
    if *named != name.as_str() {
        let reason = format!("the certificate is of {kind} {name}, and the hello of {kind} {named:?}");
        return Err(CallError::refused(reason).into());
    }
    let stream = match who {
        Attaching::Node(node) => {
            tracing::debug!(%node, version, standby, "agent attaches");
            door.attach(node, hello)?
        }
        Attaching::Relay(relay) => {
            tracing::debug!(%relay, version, standby, "relay attaches");
            door.relay(relay, hello)?
        }
    };
    let attached = Arc::new(Attached { state: Mutex::new(State::Open(stream)), sender: AtomicWaker::new() });
    let reader = tokio::spawn(read(Arc::clone(&attached), frames, stopping));
    Ok(AttachBody::new(attached, Reader(reader)))
}

async fn read(attached: Arc<Attached>, mut frames: Streaming<AgentSays>, mut stopping: watch::Receiver<bool>) {
    let mut stopped = std::pin::pin!(stopped(&mut stopping));
    let status = loop {
        let heard = tokio::select! {
            heard = frames.message() => heard,
            () = &mut stopped => break stopping_status(),
        };
        match heard {
            Ok(Some(says)) => {
                if let Err(status) = attached.handle(says) {
                    break status;
                }
            }
            // An agent that has said its last word is gone.
            Ok(None) => break Status::ok(""),
            Err(status) => break status,
        }
    };
    attached.end(status);
}

/// Reads what agents say.
pub(super) struct AgentDecoder;

impl Decoder for AgentDecoder {
    type Item = AgentSays;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<AgentSays>, Status> {
        let frame = bytes::Buf::copy_to_bytes(src, bytes::Buf::remaining(src));
        let says = FromAgent::from_bytes(frame).map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Some(says))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(READ_BUFFER_BYTES, READ_BUFFER_BYTES)
    }
}
