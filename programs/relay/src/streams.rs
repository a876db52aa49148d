//! The streams of agents, and of relays below: one lock around the pure [`Relay`], and one waker per stream.
//!
//! Nobody awaits while holding the lock. A node has one primary stream, here or at a relay below, by which its server knows it to
//! be here; a stream in reserve is told the same, and the server hears nothing of it.

mod agent;
mod below;
mod trust;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use starling_attach::message::{
    AgentSays, LEVEL, LEVEL_OF_REACH, LEVEL_OF_TRUSTS, Leaving, MessageError, Reach, ServerSays, Subscribe, Welcome,
};
use starling_attach::relay::{Crowded, LineId, NodeNumber, Relay};
use starling_attach::relayed::Notices;
use starling_attach::{FromServer, ReplicaError, StreamId};
use starling_catalog::Subject;
use starling_model::{NodeName, Revision};
use starling_rpc::CallError;
use starling_telemetry::{Counter, Gauge, Registry};
use tokio::sync::Notify;

/// What a relay itself follows.
pub(crate) const OWN: [Subject; 2] = [Subject::Roots, Subject::Servers];

/// Every stream of a relay.
pub(crate) struct Streams {
    state: Mutex<State>,
    started: Instant,
    name: NodeName,
    /// Of this process, by which whoever is attached to it twice sees that it is.
    id: String,
    metrics: Metrics,
}

struct State {
    relay: Relay,
    /// By the stream's number.
    attached: BTreeMap<StreamId, Attached>,
    /// The newest primary of each node, here or at a relay below.
    nodes: BTreeMap<NodeName, NodeNumber>,
    /// Where each node is.
    places: BTreeMap<NodeNumber, Place>,
    standbys: BTreeMap<NodeName, StreamId>,
    /// What to say to relays below of the nodes behind them.
    below: BTreeMap<StreamId, Notices>,
    lines: BTreeMap<LineId, Line>,
    /// What streams are told first; `None` before a server has told everything.
    welcome: Option<Bytes>,
    leaving: bool,
    /// Whether no server is reached, as streams are told.
    cut_off: bool,
    /// Counts how often every stream was ended.
    life: u64,
    trust: trust::Trust,
}

/// A stream from a server.
#[derive(Default)]
struct Line {
    /// Woken when there is something to say on it.
    waker: Arc<Notify>,
    /// What streams are told first once what this server tells is what they are told.
    welcome: Option<Bytes>,
    /// Whether the server has said that it hears by which roots relays go.
    hears_trusts: bool,
}

struct Attached {
    what: What,
    waker: Option<Waker>,
    /// Whether it is told that this relay is leaving, or was.
    leaving: Leave,
    /// Whether it was told that no server is reached; `None` if it would not understand.
    told_cut_off: Option<bool>,
}

impl Attached {
    /// A stream to one who understands `level`.
    fn new(what: What, level: u32) -> Self {
        Self { what, waker: None, leaving: Leave::Stays, told_cut_off: (level >= LEVEL_OF_REACH).then_some(false) }
    }
}

/// How far a stream is with the word that the relay is leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Leave {
    #[default]
    Stays,
    ToBeTold,
    Told,
}

/// What a stream is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Primary(NodeName, NodeNumber),
    Standby(NodeName),
    Relay,
}

/// Where a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Attached here.
    Here(StreamId),
    /// Behind a relay that is attached here, and the number that it has there.
    Below(StreamId, NodeNumber),
}

struct Metrics {
    agents: Gauge,
    standbys: Gauge,
    relays: Gauge,
    nodes: Gauge,
    heard: Counter,
    sent_frames: Counter,
    sent_bytes: Counter,
    encoded: Counter,
    told: Counter,
}

/// What came of a frame from a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Heard {
    /// Agents have to attach anew.
    pub(crate) ended: usize,
}

impl Streams {
    pub(crate) fn new(name: NodeName, registry: &Registry) -> Arc<Self> {
        let state = State {
            relay: Relay::new(OWN),
            attached: BTreeMap::new(),
            nodes: BTreeMap::new(),
            places: BTreeMap::new(),
            standbys: BTreeMap::new(),
            below: BTreeMap::new(),
            lines: BTreeMap::new(),
            welcome: None,
            leaving: false,
            cut_off: false,
            life: 0,
            trust: trust::Trust::default(),
        };
        let id = format!("relay-{:016x}", fastrand::u64(..));
        Arc::new(Self { state: Mutex::new(state), started: Instant::now(), name, id, metrics: Metrics::new(registry) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves plain maps; at worst a stream is sent something twice.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// The relay's own id, as streams are told.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Streams of agents that are open, in reserve or not, and of relays below.
    pub(crate) fn open(&self) -> usize {
        self.lock().attached.len()
    }

    /// Everything is known up to here.
    pub(crate) fn revision(&self) -> Revision {
        self.lock().relay.revision()
    }

    /// The items of a subject that the relay follows itself, as they travel.
    pub(crate) fn items(&self, subject: &Subject) -> Vec<starling_attach::message::WireItem> {
        self.lock().relay.holding().items(subject).collect()
    }

    /// A stream from a server is being made: it may begin, until it is over.
    pub(crate) fn expect(&self, line: LineId) {
        self.lock().lines.insert(line, Line::default());
    }

    /// Begins a stream from a server that is expected: answers with what to say on it first, and with what is woken when there is
    /// more. `None` if it is over already: whoever made it is told so at its next step only.
    pub(crate) fn begin(&self, line: LineId) -> Option<(Vec<AgentSays>, Arc<Notify>)> {
        let mut state = self.lock();
        let waker = Arc::clone(&state.lines.get(&line)?.waker);
        Some((state.relay.begin(line), waker))
    }

    /// A stream from a server is over.
    pub(crate) fn end(&self, line: LineId) {
        let mut state = self.lock();
        state.lines.remove(&line);
        state.trust.end(line);
        state.relay.end(line);
    }

    /// A stream from a server is told of the nodes from now on.
    pub(crate) fn promote(&self, line: LineId) {
        let mut state = self.lock();
        state.relay.promote(line);
        state.wake_lines();
    }

    /// Servers have not what was heard: agents have to attach anew, and begin with nothing where they must.
    pub(crate) fn begin_anew(&self) -> usize {
        let mut state = self.lock();
        state.lines.clear();
        state.relay.begin_anew();
        state.welcome = None;
        self.end_all(state)
    }

    /// Hears what a server says.
    pub(crate) fn hear(&self, line: LineId, says: &ServerSays, frame: &Bytes) -> Result<Heard, ReplicaError> {
        self.metrics.heard.inc();
        let mut state = self.lock();
        let heard = state.relay.hear(line, says, frame, self.now_ms())?;
        if let Some(kept) = state.lines.get_mut(&line) {
            if let ServerSays::Welcome(welcome) = says {
                kept.welcome = Some(self.welcome(welcome));
                kept.hears_trusts = welcome.level >= LEVEL_OF_TRUSTS;
            }
            if let Some(welcome) = kept.welcome.take_if(|_| heard.handed_over) {
                state.welcome = Some(welcome);
            }
        }
        if heard.other_epoch {
            return Ok(Heard { ended: self.end_all(state) });
        }
        let mut wakers = state.wakers(heard.woken);
        for number in heard.superseded {
            wakers.extend(self.is_superseded(&mut state, number));
        }
        for number in heard.reminded {
            wakers.extend(state.remind(number));
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Ok(Heard::default())
    }

    /// What the mesh says of itself, in the words of this relay.
    fn welcome(&self, welcome: &Welcome) -> Bytes {
        let own = Welcome {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            level: LEVEL.min(welcome.level),
            server: self.id.clone(),
            server_name: self.name.to_string(),
            relay: true,
            ..welcome.clone()
        };
        FromServer::from(ServerSays::Welcome(own)).to_bytes()
    }

    /// Every stream ends; who had it attaches anew.
    fn end_all(&self, mut state: MutexGuard<'_, State>) -> usize {
        state.life += 1;
        let ids: Vec<_> = state.attached.keys().copied().collect();
        let mut wakers = Vec::new();
        for id in &ids {
            wakers.extend(self.close(&mut state, *id).and_then(|attached| attached.waker));
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        ids.len()
    }

    /// Forgets a stream, and what is behind it is away.
    fn close(&self, state: &mut State, id: StreamId) -> Option<Attached> {
        let attached = state.attached.remove(&id)?;
        state.relay.remove(id);
        match &attached.what {
            What::Primary(node, number) => {
                self.metrics.agents.dec();
                self.is_away(state, node, *number);
            }
            What::Standby(node) => {
                self.metrics.standbys.dec();
                if state.standbys.get(node) == Some(&id) {
                    state.standbys.remove(node);
                }
            }
            What::Relay => {
                state.trust.left(id);
                state.wake_lines();
                self.metrics.relays.dec();
                state.below.remove(&id);
            }
        }
        Some(attached)
    }

    /// A node has attached elsewhere, not by way of this relay; answers with whom to wake.
    fn is_superseded(&self, state: &mut State, number: NodeNumber) -> Option<Waker> {
        match *state.places.get(&number)? {
            // It sees that it is no longer the current one, and ends.
            Place::Here(id) => self.close(state, id)?.waker,
            Place::Below(id, below) => {
                let name = state.relay.roll.name(number)?.clone();
                state.is_superseded_below(id, below, name)
            }
        }
    }

    fn is_away(&self, state: &mut State, node: &NodeName, number: NodeNumber) {
        if state.places.remove(&number).is_none() {
            return;
        }
        self.metrics.nodes.dec();
        state.relay.roll.away(number);
        if state.nodes.get(node) == Some(&number) {
            state.nodes.remove(node);
        }
        state.wake_lines();
    }

    /// A node has come, in the place of any stream of it before.
    fn is_here(
        &self,
        state: &mut State,
        node: &NodeName,
        place: impl FnOnce(NodeNumber) -> Place,
    ) -> Result<NodeNumber, Crowded> {
        if let Some(earlier) = state.nodes.get(node).copied() {
            match state.places.get(&earlier).copied() {
                Some(Place::Here(id)) => {
                    let earlier = self.close(state, id);
                    // It sees that it is no longer the current one, and ends.
                    earlier.and_then(|attached| attached.waker).into_iter().for_each(Waker::wake);
                }
                Some(Place::Below(id, below)) => {
                    state.is_superseded_below(id, below, node.clone()).into_iter().for_each(Waker::wake);
                    self.is_away(state, node, earlier);
                }
                None => {}
            }
        }
        let number = state.relay.roll.come(node.clone())?;
        state.nodes.insert(node.clone(), number);
        state.places.insert(number, place(number));
        self.metrics.nodes.inc();
        state.wake_lines();
        Ok(number)
    }

    /// What there is to say on a stream to a server about what is wanted, and about whom relays trust.
    pub(crate) fn requests(&self, line: LineId) -> Vec<AgentSays> {
        let mut state = self.lock();
        let mut says = state.relay.requests(line);
        // Nothing more is said on one that is over.
        if state.lines.get(&line).is_some_and(|line| line.hears_trusts) {
            says.extend(state.trust.tell(line, &self.name).map(AgentSays::Trusts));
        }
        says
    }

    /// What there is to tell of the nodes on it.
    pub(crate) fn tell(&self, line: LineId) -> Option<AgentSays> {
        let now_us = self.now_us();
        let relayed = self.lock().relay.tell(line, now_us)?;
        self.metrics.told.inc();
        Some(AgentSays::Relayed(relayed))
    }

    /// Forgets what nobody wants any more.
    pub(crate) fn sweep(&self) {
        let mut state = self.lock();
        state.relay.sweep();
        state.wake_lines();
    }

    /// Tells every stream that this relay is leaving, and takes no others.
    pub(crate) fn leave(&self) {
        let mut state = self.lock();
        state.leaving = true;
        let mut wakers = Vec::new();
        for attached in state.attached.values_mut().filter(|attached| attached.leaving == Leave::Stays) {
            attached.leaving = Leave::ToBeTold;
            wakers.extend(attached.waker.take());
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Tells every stream whether servers are reached.
    pub(crate) fn tell_reach(&self, servers: bool) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.cut_off, !servers) != servers {
            return;
        }
        let hearing = state.attached.values_mut().filter(|attached| attached.told_cut_off.is_some());
        let wakers: Vec<_> = hearing.filter_map(|attached| attached.waker.take()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn admit(&self, state: &State) -> Result<Bytes, CallError> {
        if state.leaving {
            return Err(CallError::unavailable("this relay is leaving; attach to another"));
        }
        if !state.relay.is_current() {
            return Err(CallError::unavailable("this relay has yet to hear what the servers' store is now"));
        }
        state.welcome.clone().ok_or_else(|| CallError::unavailable("this relay has reached no server yet"))
    }

    /// What a stream that began in `life` is sent next.
    fn poll_take(&self, id: StreamId, life: u64, context: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, CallError>> {
        let mut state = self.lock();
        let (is_of_now, cut_off) = (state.life == life, state.cut_off);
        let Some(attached) = state.attached.get_mut(&id) else {
            return Poll::Ready(Err(CallError::unavailable(if is_of_now {
                "a later stream of this node has taken over"
            } else {
                "this relay has begun anew; attach anew"
            })));
        };
        attached.waker = Some(context.waker().clone());
        let mut notices = Vec::new();
        if attached.leaving == Leave::ToBeTold {
            attached.leaving = Leave::Told;
            notices.push(FromServer::from(ServerSays::Leaving(Leaving {})).to_bytes());
        }
        if let Some(told) = attached.told_cut_off.as_mut().filter(|told| **told != cut_off) {
            *told = cut_off;
            notices.push(FromServer::from(ServerSays::Reach(Reach { cut_off })).to_bytes());
        }
        notices.extend(state.below.get_mut(&id).into_iter().flat_map(Notices::take));
        if !notices.is_empty() {
            return Poll::Ready(Ok(notices));
        }
        let before = state.relay.encoded();
        let frames = state.relay.take(id, self.now_ms());
        let encoded = state.relay.encoded() - before;
        drop(state);
        if frames.is_empty() {
            return Poll::Pending;
        }
        self.metrics.encoded.inc_by(encoded);
        self.metrics.sent_frames.inc_by(frames.len() as u64);
        self.metrics.sent_bytes.inc_by(frames.iter().map(|frame| frame.len() as u64).sum());
        Poll::Ready(Ok(frames))
    }
}

impl State {
    fn wakers(&mut self, ids: impl IntoIterator<Item = StreamId>) -> Vec<Waker> {
        ids.into_iter().filter_map(|id| self.attached.get_mut(&id)?.waker.take()).collect()
    }

    fn wake_lines(&self) {
        self.lines.values().for_each(|line| line.waker.notify_one());
    }

    /// A node of a relay below has attached elsewhere; answers with whom to wake.
    fn is_superseded_below(&mut self, id: StreamId, below: NodeNumber, name: NodeName) -> Option<Waker> {
        self.below.get_mut(&id)?.superseded(below, name);
        self.attached.get_mut(&id)?.waker.take()
    }

    /// A node is to be told a `Through`; answers with whom to wake.
    fn remind(&mut self, number: NodeNumber) -> Option<Waker> {
        let id = match *self.places.get(&number)? {
            Place::Here(id) => id,
            Place::Below(id, below) => {
                self.below.get_mut(&id)?.remind(below);
                id
            }
        };
        self.relay.remind(id);
        self.attached.get_mut(&id)?.waker.take()
    }

    /// Subscribes a stream, and answers with what it has of what, as far as that may be relied on.
    fn subscribe(&mut self, id: StreamId, subscribe: &Subscribe) -> Result<Vec<(Subject, Revision)>, CallError> {
        let read = |resume: &starling_attach::message::Resume| -> Result<_, CallError> {
            let subject = resume.subject.as_ref().ok_or_else(|| CallError::refused(MessageError::Unknown))?;
            let subject = starling_attach::message::decode_subject(subject).map_err(CallError::refused)?;
            Ok((subject, Revision(resume.have)))
        };
        let resumes = subscribe.resumes.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let resumed = self.relay.subscribe(id, resumes, subscribe.reached.as_ref())?;
        self.wake_lines();
        Ok(resumed)
    }
}

impl Metrics {
    fn new(registry: &Registry) -> Self {
        let gauge = |name, help| registry.register(name, help, Gauge::default());
        let counter = |name, help| registry.register(name, help, Counter::default());
        Self {
            agents: gauge("relay_agents_attached", "Agents whose stream is open here"),
            standbys: gauge("relay_agents_standby", "Agents that have a stream open here in reserve"),
            relays: gauge("relay_relays_attached", "Relays below whose stream is open here, in reserve or not"),
            nodes: gauge("relay_nodes", "Nodes that servers are told of: agents attached here or at a relay below"),
            heard: counter("relay_frames_heard", "Frames heard from servers, those of a stream in reserve included"),
            sent_frames: counter("relay_frames_passed", "Frames taken by the streams of agents and of relays below"),
            sent_bytes: counter(
                "relay_bytes_passed",
                "Bytes of frames taken by the streams of agents and of relays below",
            ),
            encoded: counter("relay_frames_encoded", "Frames that were made here, and not passed on as they came"),
            told: counter("relay_reports_told", "Batches of reports of nodes that were said to a server"),
        }
    }
}

#[cfg(test)]
mod tests;
