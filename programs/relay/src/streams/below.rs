//! The stream of a relay below: what it says of the nodes behind it goes on to the server in this relay's own numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use starling_attach::message::{AgentSays, Subjects, decode_subject};
use starling_attach::relay::NodeNumber;
use starling_attach::relayed::{InForce, Notices, RELAY_SUBJECTS_MAX, Relayed};
use starling_attach::{Parts, StreamId};
use starling_catalog::Subject;
use starling_model::{NodeName, Revision};
use starling_rpc::{AgentStream, CallError, whole_request};

use super::{Attached, Place, State, Streams, What};

/// A relay's stream as the transport sees it; when it is dropped the nodes behind it are away.
pub(crate) struct OfRelay {
    streams: Arc<Streams>,
    id: StreamId,
    /// In which it began.
    life: u64,
    relay: NodeName,
    behind: Mutex<Behind>,
    /// Of a request that is yet to be whole.
    parts: Mutex<Parts>,
    /// Set once the first frame is sent.
    welcomed: OnceLock<()>,
    welcome: Bytes,
}

/// What the relay has said, by its numbers.
#[derive(Default)]
struct Behind {
    subjects: BTreeMap<u32, Subject>,
    nodes: BTreeMap<u32, (NodeName, NodeNumber)>,
}

impl Behind {
    fn subjects<'a>(&'a self, numbers: &[u32]) -> Result<Vec<&'a Subject>, CallError> {
        let named = |number| self.subjects.get(number).ok_or_else(|| unnamed("subject", *number));
        numbers.iter().map(named).collect()
    }

    fn name(&self, number: u32) -> Option<&NodeName> {
        self.nodes.get(&number).map(|(name, _)| name)
    }
}

/// Whether a subject is of a node, and of another than this one.
fn is_of_another(subject: &Subject, node: Option<&NodeName>) -> bool {
    matches!(subject, Subject::Node(whose) if Some(whose) != node)
}

fn unnamed(what: &str, number: u32) -> CallError {
    CallError::refused(format!("the relay speaks of {what} {number}, which it has not named"))
}

impl Streams {
    /// Attaches a relay.
    pub(crate) fn attach_relay(self: &Arc<Self>, relay: NodeName, level: u32) -> Result<OfRelay, CallError> {
        let mut state = self.lock();
        let welcome = self.admit(&state)?;
        state.trust.admit(&self.name, &relay)?;
        let id = state.relay.attach_relay();
        state.attached.insert(id, Attached::new(What::Relay, level));
        state.below.insert(id, Notices::to(level));
        state.trust.attached(id, relay.clone());
        state.wake_lines();
        let life = state.life;
        self.metrics.relays.inc();
        tracing::info!(%relay, "a relay attached");
        let (welcomed, behind, parts) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Ok(OfRelay { streams: Arc::clone(self), id, life, relay, behind, parts, welcomed, welcome })
    }
}

impl OfRelay {
    fn hear(&self, relayed: Relayed) -> Result<(), CallError> {
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.streams.lock();
        if !state.attached.contains_key(&self.id) {
            return Ok(());
        }
        for number in relayed.away {
            let (name, own) = behind.nodes.remove(&number).ok_or_else(|| unnamed("node", number))?;
            self.is_away(&mut state, &name, number, own);
        }
        for named in relayed.names {
            if named.number as usize >= RELAY_SUBJECTS_MAX {
                return Err(CallError::refused(format!("more than {RELAY_SUBJECTS_MAX} subjects of one relay")));
            }
            let subject = named.subject.as_ref().ok_or_else(|| unnamed("subject", named.number))?;
            behind.subjects.insert(named.number, decode_subject(subject).map_err(CallError::refused)?);
        }
        for come in relayed.come {
            let name: NodeName = come.name.parse().map_err(CallError::refused)?;
            if let Some((earlier, own)) = behind.nodes.remove(&come.node) {
                self.is_away(&mut state, &earlier, come.node, own);
            }
            let place = Place::Below(self.id, come.node);
            let own = self.streams.is_here(&mut state, &name, |_| place).map_err(CallError::unavailable)?;
            behind.nodes.insert(come.node, (name, own));
        }
        for wants in relayed.wants {
            let from_now = behind.subjects(&wants.from_now)?;
            let no_longer = behind.subjects(&wants.no_longer)?;
            let Some(own) = self.own(&state, &behind, wants.node)? else { continue };
            if let Some(foreign) = from_now.iter().find(|subject| is_of_another(subject, behind.name(wants.node))) {
                self.end_below(&mut state, wants.node, own, foreign);
                continue;
            }
            state.relay.roll.wants_no_longer(own, no_longer.into_iter());
            state.relay.roll.wants(own, Revision(wants.as_of), from_now.into_iter());
        }
        for said in relayed.rejected {
            let rejected = said.rejected.ok_or_else(|| unnamed("refusal of node", said.node))?;
            let Some(own) = self.own(&state, &behind, said.node)? else { continue };
            state.relay.roll.rejected(own, rejected.bounded());
        }
        let (now_us, at) = (self.streams.now_us(), state.relay.revision());
        for InForce { through, refusals_stand, nodes, held_us } in relayed.in_force {
            let held_us = held_us.into_iter().chain(std::iter::repeat(0));
            for (number, held_us) in nodes.into_iter().zip(held_us) {
                let Some(own) = self.own(&state, &behind, number)? else { continue };
                // Nothing that is yet to come can be in force.
                let through = Revision(through).min(at);
                state.relay.roll.applied(own, through, refusals_stand, now_us.saturating_sub(held_us));
            }
        }
        state.wake_lines();
        Ok(())
    }

    /// The number of a node here; `None` if it has come elsewhere since.
    fn own(&self, state: &State, behind: &Behind, number: u32) -> Result<Option<NodeNumber>, CallError> {
        let (_, own) = behind.nodes.get(&number).ok_or_else(|| unnamed("node", number))?;
        Ok((state.places.get(own) == Some(&Place::Below(self.id, number))).then_some(*own))
    }

    /// A node wants what it may not have: its stream ends, and no other.
    fn end_below(&self, state: &mut State, number: u32, own: NodeNumber, foreign: &Subject) {
        let Some(node) = state.relay.roll.name(own).cloned() else { return };
        tracing::warn!(relay = %self.relay, %node, "a node below has to attach anew: {foreign} is not of its node");
        let waker = state.is_superseded_below(self.id, number, node.clone());
        self.streams.is_away(state, &node, own);
        waker.into_iter().for_each(Waker::wake);
    }

    fn is_away(&self, state: &mut State, name: &NodeName, number: u32, own: NodeNumber) {
        state.below.get_mut(&self.id).into_iter().for_each(|notices| notices.forget(number));
        // Its number may be another's by now.
        if state.places.get(&own) == Some(&Place::Below(self.id, number)) {
            self.streams.is_away(state, name, own);
        }
    }
}

impl AgentStream for OfRelay {
    fn handle(&self, says: AgentSays) -> Result<(), CallError> {
        match says {
            AgentSays::Subscribe(part) => {
                let Some(subscribe) = whole_request(&self.parts, part, RELAY_SUBJECTS_MAX)? else { return Ok(()) };
                let mut state = self.streams.lock();
                if !state.attached.contains_key(&self.id) {
                    return Ok(());
                }
                state.subscribe(self.id, &subscribe)?;
                let wakers = state.wakers([self.id]);
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
                Ok(())
            }
            AgentSays::Unsubscribe(Subjects { subjects }) => {
                let subjects = subjects.iter().map(decode_subject).collect::<Result<Vec<_>, _>>();
                self.streams.lock().relay.unsubscribe(self.id, &subjects.map_err(CallError::refused)?);
                Ok(())
            }
            AgentSays::Relayed(relayed) => self.hear(relayed),
            AgentSays::Trusts(trusts) => self.streams.trusted_below(self.id, &self.relay, trusts),
            AgentSays::Here(_) => Ok(()),
            AgentSays::Hello(_) => Err(CallError::refused("a second hello")),
            AgentSays::Applied(_) | AgentSays::Rejected(_) | AgentSays::Promote(_) => {
                Err(CallError::refused("a relay reports for the nodes behind it, and not for itself"))
            }
        }
    }

    fn poll_take(&self, context: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, CallError>> {
        if self.welcomed.set(()).is_ok() {
            return Poll::Ready(Ok(vec![self.welcome.clone()]));
        }
        self.streams.poll_take(self.id, self.life, context)
    }
}

impl Drop for OfRelay {
    fn drop(&mut self) {
        let nodes = std::mem::take(&mut self.behind.lock().unwrap_or_else(PoisonError::into_inner).nodes);
        let mut state = self.streams.lock();
        if !nodes.is_empty() {
            tracing::info!(relay = %self.relay, nodes = nodes.len(), "a relay is gone, and the nodes behind it are away");
        }
        for (number, (name, own)) in nodes {
            self.is_away(&mut state, &name, number, own);
        }
        self.streams.close(&mut state, self.id);
    }
}
