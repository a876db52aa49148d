//! The streams that feed a mirror. All of them are heard alike; one of them, the primary, is told what is in force.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use starling_attach::message::{AgentSays, Applied, Promote, ServerSays};
use starling_attach::{Intake, ReplicaError};
use starling_catalog::Subject;
use starling_model::Revision;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::refusals::Refusals;
use super::{Mirror, Outgoing, Standing, State};

/// A stream's number, which no other of the mirror has.
pub(super) type StreamNumber = u64;

/// What is kept of a stream.
pub(super) struct Feed {
    pub intake: Intake,
    waker: Arc<Notify>,
}

/// One stream from a server. When it is dropped, what it has not handed over is gone, and nothing else.
pub struct Stream {
    mirror: Arc<Mirror>,
    number: StreamNumber,
    waker: Arc<Notify>,
}

/// What a stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The server is told what is in force; the node is attached to it.
    Primary,
    /// In reserve.
    Standby,
}

impl Mirror {
    /// Begins a stream: answers with what to say first on it, which is every subject, each with what is there of it. A primary
    /// takes the place of the one before it.
    #[must_use]
    pub fn open(self: &Arc<Self>, role: Role) -> (Stream, AgentSays) {
        let mut state = self.lock();
        let beside = role == Role::Standby;
        let (intake, says) = Intake::begin(Arc::make_mut(&mut state.replica), beside);
        let waker = Arc::new(Notify::new());
        let number = state.opened;
        state.opened += 1;
        state.streams.insert(number, Feed { intake, waker: Arc::clone(&waker) });
        if role == Role::Primary {
            state.promote(number);
        }
        (Stream { mirror: Arc::clone(self), number, waker }, says)
    }
}

impl Stream {
    /// The stream becomes the primary: answers with what to tell the server.
    #[must_use]
    pub fn promote(&self) -> AgentSays {
        let mut state = self.mirror.lock();
        let said = state.streams.get(&self.number).map_or(0, |feed| feed.intake.through().0);
        let through = state.standing().through.min(said);
        state.promote(self.number);
        drop(state);
        self.waker.notify_one();
        AgentSays::Promote(Promote { through })
    }

    /// Hears what the server says. Where that is the last of something new everyone concerned is woken, and the subjects that
    /// changed are answered; [`Stream::take_outgoing`] may have something after each.
    ///
    /// # Errors
    /// [`ReplicaError`]; the stream has to end then.
    pub fn handle(&self, says: &ServerSays) -> Result<Option<BTreeSet<Subject>>, ReplicaError> {
        let mut state = self.mirror.lock();
        state.heard_at = Instant::now();
        let State { replica, streams, .. } = &mut *state;
        let Some(feed) = streams.get_mut(&self.number) else { return Err(ReplicaError::BegunAnew) };
        if !feed.intake.hear(&**replica, says)? {
            return Ok(None);
        }
        let before = replica.through();
        let handed = feed.intake.hand_over(Arc::make_mut(replica));
        state.announce(&handed.touched, Revision(before.0.saturating_add(1)));
        let primary = state.primary.filter(|primary| *primary != self.number);
        primary.and_then(|primary| state.streams.get(&primary)).into_iter().for_each(Feed::wake);
        drop(state);
        for reason in &handed.unreadable {
            tracing::warn!(
                reason,
                "a server sent an item that this release cannot read; it allows nothing until it is replaced"
            );
        }
        self.mirror.note_written(&handed.node_written);
        self.mirror.known.notify_waiters();
        Ok(Some(handed.touched))
    }

    /// Waits until there is something to tell the server. Safe to drop.
    pub async fn outgoing(&self) {
        self.waker.notified().await;
    }

    /// What there is to tell the server now.
    #[must_use]
    pub fn take_outgoing(&self, now: Instant) -> Outgoing {
        let mut state = self.mirror.lock();
        let Some(feed) = state.streams.get_mut(&self.number) else { return Outgoing::default() };
        let says = feed.intake.requests();
        // Nothing that another server has told is known to be known to this one.
        let said = feed.intake.through();
        if state.primary == Some(self.number) { state.report(says, said, now) } else { Outgoing { says, next: None } }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.mirror.lock();
        state.streams.remove(&self.number);
        if state.primary == Some(self.number) {
            state.primary = None;
        }
    }
}

impl Feed {
    pub(super) fn wake(&self) {
        self.waker.notify_one();
    }
}

impl State {
    /// Whoever is told from now on may have heard of nothing.
    fn promote(&mut self, number: StreamNumber) {
        self.primary = Some(number);
        self.told = None;
        self.hold_until = None;
        self.refusals().for_each(Refusals::tell_anew);
    }

    /// Adds to `says` what there is to say of what is in force, to a server that has said `Through` so far.
    fn report(&mut self, mut says: Vec<AgentSays>, said: Revision, now: Instant) -> Outgoing {
        let mut refused: Vec<_> = self.refusals().flat_map(|refusals| refusals.take_untold(said.0)).collect();
        refused.sort_by_key(|rejected| rejected.revision);
        says.extend(refused.into_iter().map(AgentSays::Rejected));
        let standing = self.standing();
        let standing = Standing { through: standing.through.min(said.0), ..standing };
        if self.standing.0 != standing {
            self.standing = (standing, now);
        }
        if self.told == Some(standing) || standing.through == 0 {
            return Outgoing { says, next: None };
        }
        if let Some(until) = self.hold_until.filter(|until| *until > now) {
            return Outgoing { says, next: Some(until) };
        }
        self.hold_until = None;
        self.told = Some(standing);
        let held = now.saturating_duration_since(self.standing.1).as_micros();
        says.push(AgentSays::Applied(Applied {
            through: standing.through,
            refusals_stand: standing.refusals_stand,
            held_us: u64::try_from(held).unwrap_or(u64::MAX),
        }));
        Outgoing { says, next: None }
    }

    /// There may be something to tell.
    pub(super) fn wake(&self) {
        self.streams.values().for_each(Feed::wake);
    }

    /// What the mirror begins to hold is asked for on every stream.
    pub(super) fn ask_for(&mut self, subject: &Subject) {
        self.streams.values_mut().for_each(|feed| feed.intake.want(subject));
    }

    /// Forgets what nobody has wanted since before the last sweep. Not while a server would not say when it has heard of it.
    pub(super) fn sweep(&mut self) {
        if !self.streams.values().all(|feed| feed.intake.may_forget()) {
            return;
        }
        let later = mem::take(&mut self.idle[1]);
        for subject in mem::replace(&mut self.idle[0], later) {
            Arc::make_mut(&mut self.replica).forget(&subject);
            self.streams.values_mut().for_each(|feed| feed.intake.forget(&subject));
        }
    }
}
