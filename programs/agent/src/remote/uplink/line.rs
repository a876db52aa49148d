//! One connection to one server, from its opening to its end: what is heard goes to the mirror at once, and what becomes of
//! the connection to the keeper.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use starling_attach::ReplicaError;
use starling_attach::message::{Hello, LEVEL, MoveTo, ServerSays, Through, Welcome};
use starling_model::NodeName;
use starling_rpc::{AgentSender, CallError, ConnectError, ServerClient, ServerFrames};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::{CONNECT_TIMEOUT, Ended, Listener};
use crate::remote::mirror::{Mirror, Role, Stream};

/// Names a connection.
pub(super) type LineNumber = u64;

/// What becomes of a connection.
pub(super) enum Report {
    /// The stream is open.
    Open(ServerClient),
    /// Which server it is, by its id, and whether it is a relay.
    Is { server: String, is_relay: bool },
    /// Everything has been told for the first time.
    Heard,
    /// The server wishes the stream to go there.
    MoveTo(MoveTo),
    /// The server is leaving.
    Leaving,
    /// The relay reaches no server, or does again.
    Reach { cut_off: bool },
    /// It is over.
    Ended(Ended),
}

/// A connection to be made.
pub(super) struct Line {
    pub number: LineNumber,
    pub address: String,
    pub role: Role,
    pub node: NodeName,
    pub tls: Arc<rustls::ClientConfig>,
    pub mirror: Arc<Mirror>,
    pub listener: Arc<dyn Listener>,
    pub reports: mpsc::UnboundedSender<(LineNumber, Report)>,
    /// The stream is to become the primary.
    pub promote: Arc<Notify>,
}

impl Line {
    /// Makes it, and stays until it ends.
    pub(super) async fn run(self) {
        let ended = match self.open().await {
            Ok((sender, frames, stream)) => self.stay(&sender, frames, &stream).await,
            Err(error) => error.into(),
        };
        self.report(Report::Ended(ended));
    }

    fn report(&self, report: Report) {
        // Nobody listens when the node ends.
        let _ = self.reports.send((self.number, report));
    }

    async fn open(&self) -> Result<(AgentSender, ServerFrames, Stream), CallError> {
        let tls = Arc::clone(&self.tls);
        let client = ServerClient::connect(&*self.address, tls, CONNECT_TIMEOUT).await.map_err(unreached)?;
        let hello = Hello {
            node: self.node.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            standby: self.role == Role::Standby,
            level: LEVEL,
        };
        // Until frames come nobody listens for silence.
        let attached = tokio::time::timeout(CONNECT_TIMEOUT, client.attach(hello)).await;
        let (sender, frames) =
            attached.map_err(|_| CallError::unavailable("the server does not open the stream"))??;
        let (stream, first) = self.mirror.open(self.role);
        first.in_parts().into_iter().try_for_each(|says| sender.send(says))?;
        self.report(Report::Open(client));
        Ok((sender, frames, stream))
    }

    async fn stay(&self, sender: &AgentSender, mut frames: ServerFrames, stream: &Stream) -> Ended {
        let mut report_at = None;
        let mut report = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let mut has_heard = false;
        loop {
            tokio::select! {
                frame = frames.next() => match frame {
                    Some(Ok(says)) => {
                        if let Err(error) = self.hear(&says, stream) {
                            return error.into();
                        }
                        if matches!(says, ServerSays::Through(_)) && !std::mem::replace(&mut has_heard, true) {
                            self.report(Report::Heard);
                        }
                    }
                    Some(Err(error)) => return error.into(),
                    None => return Ended::Lost("the server ended the stream".to_owned()),
                },
                () = stream.outgoing() => {}
                () = &mut report, if report_at.is_some() => {}
                // Said in here, so that nothing is said of what is in force before it.
                () = self.promote.notified() => if let Err(error) = sender.send(stream.promote()) {
                    return error.into();
                },
            }
            let outgoing = stream.take_outgoing(Instant::now());
            for says in outgoing.says {
                if let Err(error) = sender.send(says) {
                    return error.into();
                }
            }
            if let Some(at) = outgoing.next.filter(|at| report_at != Some(*at)) {
                report.as_mut().reset(at);
            }
            report_at = outgoing.next;
        }
    }

    fn hear(&self, says: &ServerSays, stream: &Stream) -> Result<(), ReplicaError> {
        if let Some(touched) = stream.handle(says)? {
            self.listener.heard(&touched);
        }
        match says {
            ServerSays::Welcome(welcome) => self.welcomed(welcome),
            ServerSays::MoveTo(to) => self.report(Report::MoveTo(to.clone())),
            ServerSays::Leaving(_) => self.report(Report::Leaving),
            ServerSays::Reach(reach) => self.report(Report::Reach { cut_off: reach.cut_off }),
            ServerSays::Through(Through { report_within_ms: within @ 1.., .. }) => {
                let within = Duration::from_millis(u64::from(*within));
                let now = Instant::now();
                self.mirror.hold_report(now, now + within.mul_f64(0.5 + fastrand::f64() / 2.0));
            }
            ServerSays::Update(_)
            | ServerSays::Whole(_)
            | ServerSays::Through(_)
            | ServerSays::Unsubscribed(_)
            | ServerSays::Remind(_)
            | ServerSays::Superseded(_) => {}
        }
        Ok(())
    }

    fn welcomed(&self, welcome: &Welcome) {
        if !welcome.server.is_empty() {
            self.report(Report::Is { server: welcome.server.clone(), is_relay: welcome.relay });
        }
        self.listener.welcomed(welcome);
    }
}

/// Why there is no connection, with all that is known of the reason.
fn unreached(error: ConnectError) -> CallError {
    CallError::unavailable(format!("{:#}", anyhow::Error::from(error)))
}
