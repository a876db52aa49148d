//! An agent's stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use starling_attach::message::{AgentSays, Hello, SUBJECTS_MAX, Subjects, decode_subject};
use starling_attach::{Parts, StreamId};
use starling_catalog::Subject;
use starling_model::{InstanceId, NodeName, Revision};
use starling_rpc::{AgentStream, CallError, whole_request};

use super::{Attached, Place, Streams, What};

/// One agent's stream as the transport sees it; when a primary is dropped the node is away.
pub(crate) struct OfAgent {
    streams: Arc<Streams>,
    id: StreamId,
    /// In which it began.
    life: u64,
    /// Of a request that is yet to be whole.
    parts: Mutex<Parts>,
    /// Set once the first frame is sent.
    welcomed: OnceLock<()>,
    welcome: Bytes,
}

impl Streams {
    /// Attaches an agent.
    pub(crate) fn attach(self: &Arc<Self>, node: NodeName, hello: &Hello) -> Result<OfAgent, CallError> {
        let mut state = self.lock();
        let welcome = self.admit(&state)?;
        let id = state.relay.attach(node.clone());
        let what = if hello.standby {
            if let Some(earlier) = state.standbys.insert(node.clone(), id) {
                let earlier = self.close(&mut state, earlier);
                earlier.and_then(|attached| attached.waker).into_iter().for_each(Waker::wake);
                state.standbys.insert(node.clone(), id);
            }
            self.metrics.standbys.inc();
            What::Standby(node)
        } else {
            let here = self.is_here(&mut state, &node, |_| Place::Here(id));
            let number = here.map_err(|crowded| {
                state.relay.remove(id);
                CallError::unavailable(crowded)
            })?;
            self.metrics.agents.inc();
            What::Primary(node, number)
        };
        state.attached.insert(id, Attached::new(what, hello.level));
        let (life, parts, welcomed) = (state.life, Mutex::default(), OnceLock::new());
        Ok(OfAgent { streams: Arc::clone(self), id, life, parts, welcomed, welcome })
    }
}

impl OfAgent {
    fn promote(&self, through: Revision) -> Result<(), CallError> {
        let mut state = self.streams.lock();
        let Some(What::Standby(node)) = state.attached.get(&self.id).map(|attached| attached.what.clone()) else {
            return Ok(());
        };
        if state.standbys.get(&node) == Some(&self.id) {
            state.standbys.remove(&node);
        }
        let place = Place::Here(self.id);
        let number = self.streams.is_here(&mut state, &node, |_| place).map_err(CallError::unavailable)?;
        self.streams.metrics.standbys.dec();
        self.streams.metrics.agents.inc();
        if let Some(attached) = state.attached.get_mut(&self.id) {
            attached.what = What::Primary(node, number);
        }
        let subjects = state.relay.subjects(self.id);
        let as_of = through.min(state.relay.revision());
        state.relay.roll.wants(number, as_of, subjects.iter());
        // It reports on everything up to now, also where there was nothing to send.
        state.relay.remind(self.id);
        state.wake_lines();
        let wakers = state.wakers([self.id]);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Does something for the node if this is its primary.
    fn report(&self, report: impl FnOnce(&mut starling_attach::relay::Roll, u32)) {
        let mut state = self.streams.lock();
        if let Some(What::Primary(_, number)) = state.attached.get(&self.id).map(|attached| attached.what.clone()) {
            report(&mut state.relay.roll, number);
            state.wake_lines();
        }
    }
}

impl AgentStream for OfAgent {
    fn handle(&self, says: AgentSays) -> Result<(), CallError> {
        match says {
            AgentSays::Hello(_) => return Err(CallError::refused("a second hello")),
            AgentSays::Subscribe(part) => {
                let Some(subscribe) = whole_request(&self.parts, part, SUBJECTS_MAX)? else { return Ok(()) };
                let mut state = self.streams.lock();
                let Some(what) = state.attached.get(&self.id).map(|attached| attached.what.clone()) else {
                    return Ok(());
                };
                let at = state.relay.revision();
                let resumed = state.subscribe(self.id, &subscribe)?;
                if let What::Primary(_, number) = what {
                    // What is fresh to the agent is sent as it is now; only what it had before may be behind.
                    let mut by_revision: BTreeMap<Revision, Vec<Subject>> = BTreeMap::new();
                    for (subject, have) in resumed {
                        let as_of = if have == Revision(0) { at } else { have };
                        by_revision.entry(as_of).or_default().push(subject);
                    }
                    for (as_of, subjects) in by_revision {
                        state.relay.roll.wants(number, as_of, subjects.iter());
                    }
                }
                let wakers = state.wakers([self.id]);
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
            }
            AgentSays::Unsubscribe(Subjects { subjects }) => {
                let subjects = subjects.iter().map(decode_subject).collect::<Result<Vec<_>, _>>();
                let subjects = subjects.map_err(CallError::refused)?;
                self.streams.lock().relay.unsubscribe(self.id, &subjects);
                self.report(|roll, number| roll.wants_no_longer(number, subjects.iter()));
            }
            AgentSays::Applied(applied) => {
                let since_us = self.streams.now_us().saturating_sub(applied.held_us);
                // Nothing that is yet to come can be in force.
                let through = Revision(applied.through).min(self.streams.revision());
                self.report(|roll, number| roll.applied(number, through, applied.refusals_stand, since_us));
            }
            AgentSays::Rejected(rejected) => {
                let rejected = rejected.bounded();
                rejected.proxy.parse::<InstanceId>().map_err(CallError::refused)?;
                self.report(|roll, number| roll.rejected(number, rejected));
            }
            AgentSays::Promote(promote) => self.promote(Revision(promote.through))?,
            AgentSays::Here(_) => {}
            AgentSays::Relayed(_) | AgentSays::Trusts(_) => {
                return Err(CallError::refused("only a relay speaks for others"));
            }
        }
        Ok(())
    }

    fn poll_take(&self, context: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, CallError>> {
        if self.welcomed.set(()).is_ok() {
            return Poll::Ready(Ok(vec![self.welcome.clone()]));
        }
        self.streams.poll_take(self.id, self.life, context)
    }
}

impl Drop for OfAgent {
    fn drop(&mut self) {
        let mut state = self.streams.lock();
        self.streams.close(&mut state, self.id);
    }
}
