//! One connection to one server, from its opening to its end.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use starling_agent::remote::uplink::Ended;
use starling_attach::message::{Hello, LEVEL, LEVEL_OF_RELAYS, ServerSays};
use starling_attach::relay::LineId;
use starling_model::NodeName;
use starling_rpc::{AgentSender, CallError, Framed, ServerClient, ServerFrames};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::{CONNECT_TIMEOUT, is_of_servers};
use crate::streams::Streams;

/// Between two batches of reports. The first after a while goes at once.
const TELL_EVERY: Duration = Duration::from_millis(20);

/// Batches that wait for the connection; past this more coalesces in the roll.
const WAITING_MAX: usize = 4;

/// What becomes of a connection.
pub(super) enum Report {
    /// Which server it is, by its id, and whether it is a relay.
    Is { server: String, is_relay: bool },
    /// Everything has been told for the first time.
    Heard,
    /// The list of servers may be another.
    Servers,
    /// The server is leaving, or wishes the relay elsewhere.
    Leaving,
    /// The relay above reaches no server, or does again.
    Reach { cut_off: bool },
    /// It is over.
    Ended(Ended),
}

/// A connection to be made.
pub(super) struct Line {
    pub number: LineId,
    pub address: String,
    pub is_standby: bool,
    pub name: NodeName,
    pub tls: Arc<rustls::ClientConfig>,
    pub streams: Arc<Streams>,
    pub reports: mpsc::UnboundedSender<(LineId, Report)>,
}

impl Line {
    /// Makes it, and stays until it ends.
    pub(super) async fn run(self) {
        let ended = match self.open().await {
            Ok((sender, frames)) => self.stay(&sender, frames).await,
            Err(error) => error.into(),
        };
        self.report(Report::Ended(ended));
    }

    fn report(&self, report: Report) {
        // Nobody listens when the relay ends.
        let _ = self.reports.send((self.number, report));
    }

    async fn open(&self) -> Result<(AgentSender, ServerFrames<Framed>), CallError> {
        let client = ServerClient::connect(&*self.address, Arc::clone(&self.tls), CONNECT_TIMEOUT).await?;
        let hello = Hello {
            node: self.name.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            standby: self.is_standby,
            level: LEVEL,
        };
        let attached = tokio::time::timeout(CONNECT_TIMEOUT, client.relay(hello)).await;
        // Calls have connections of their own: their answers are not to hold up the stream.
        attached.map_err(|_| CallError::unavailable("the server does not open the stream"))?
    }

    async fn stay(&self, sender: &AgentSender, mut frames: ServerFrames<Framed>) -> Ended {
        let Some((first, woken)) = self.streams.begin(self.number) else {
            return Ended::Lost("it was given up while it was opened".to_owned());
        };
        for says in first {
            if let Err(error) = sender.send(says) {
                return error.into();
            }
        }
        let mut teller = Teller { last: None, timer: Box::pin(tokio::time::sleep(Duration::ZERO)), is_set: false };
        let (mut has_heard, mut servers) = (false, false);
        loop {
            tokio::select! {
                frame = frames.next() => match frame {
                    Some(Ok((frame, says))) => {
                        if let Err(ended) = self.hear(&frame, &says, &mut servers) {
                            return ended;
                        }
                        if matches!(says, ServerSays::Through(_)) && !std::mem::replace(&mut has_heard, true) {
                            self.report(Report::Heard);
                        }
                    }
                    Some(Err(error)) => return error.into(),
                    None => return Ended::Lost("the server ended the stream".to_owned()),
                },
                () = woken.notified() => {}
                () = &mut teller.timer, if teller.is_set => teller.is_set = false,
            }
            if let Err(error) = self.say(sender, &mut teller, &woken) {
                return error.into();
            }
        }
    }

    /// Says what there is to say.
    fn say(&self, sender: &AgentSender, teller: &mut Teller, woken: &Notify) -> Result<(), CallError> {
        for says in self.streams.requests(self.number) {
            sender.send(says)?;
        }
        if teller.is_set {
            return Ok(());
        }
        let now = Instant::now();
        if let Some(due) = teller.last.map(|last| last + TELL_EVERY).filter(|due| *due > now) {
            teller.set(due);
            return Ok(());
        }
        if sender.waiting() > WAITING_MAX {
            teller.set(now + TELL_EVERY);
            return Ok(());
        }
        if let Some(says) = self.streams.tell(self.number) {
            sender.send(says)?;
            teller.last = Some(now);
            // There may be more than goes into one batch.
            woken.notify_one();
        }
        Ok(())
    }

    fn hear(&self, frame: &bytes::Bytes, says: &ServerSays, servers: &mut bool) -> Result<(), Ended> {
        if let ServerSays::Welcome(welcome) = says
            && welcome.level < LEVEL_OF_RELAYS
        {
            return Err(Ended::Lost(format!("the server is of version {}, which knows no relays", welcome.version)));
        }
        let heard = self.streams.hear(self.number, says, frame)?;
        if heard.ended > 0 {
            tracing::info!(streams = heard.ended, "the servers' store has begun anew; agents attach anew");
        }
        match says {
            ServerSays::Welcome(welcome) => {
                self.report(Report::Is { server: welcome.server.clone(), is_relay: welcome.relay });
            }
            // Where it goes then is the relay's own business: it has a stream in reserve, or begins one.
            ServerSays::Leaving(_) | ServerSays::MoveTo(_) => self.report(Report::Leaving),
            ServerSays::Reach(reach) => self.report(Report::Reach { cut_off: reach.cut_off }),
            ServerSays::Update(update) => *servers |= is_of_servers(update.subject.as_ref()),
            ServerSays::Whole(whole) => *servers |= is_of_servers(whole.subject.as_ref()),
            // What was said of servers counts from here on.
            ServerSays::Through(_) if std::mem::take(servers) => self.report(Report::Servers),
            ServerSays::Through(_)
            | ServerSays::Unsubscribed(_)
            | ServerSays::Remind(_)
            | ServerSays::Superseded(_) => {}
        }
        Ok(())
    }
}

/// When reports are told next.
struct Teller {
    last: Option<Instant>,
    timer: std::pin::Pin<Box<tokio::time::Sleep>>,
    is_set: bool,
}

impl Teller {
    fn set(&mut self, at: Instant) {
        self.timer.as_mut().reset(at);
        self.is_set = true;
    }
}
