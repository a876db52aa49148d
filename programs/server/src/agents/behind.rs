//! The streams of relays, and the nodes behind them: each is known here as if it were attached, but that nothing is sent to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use starling_attach::message::{MessageError, Reached, decode_subject};
use starling_attach::relayed::{
    InForce, Notices, RELAY_NODES_MAX, RELAY_ROOTS_MAX, RELAY_SUBJECTS_MAX, RELAYS_MAX, RelayTrusts, Relayed, Trusts,
    Wants,
};
use starling_attach::{StreamId, SubscribeError};
use starling_catalog::{Refused, Subject};
use starling_model::{NameError, NodeName, Revision};

use super::{Agents, Attached, IsLeaving, State, Superseded, wake};
use crate::hub::AttachedNode;
use crate::liveness::Liveness;

/// Why what a relay says cannot be heard; its stream has to end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misspoken {
    /// A number that stands for nothing.
    #[error("the relay speaks of {0} {1}, which it has not named")]
    Unnamed(&'static str, u32),
    /// Over a limit.
    #[error("the relay speaks of more than {0} {1}")]
    TooMany(usize, &'static str),
    /// A name outside the grammar.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A subject that cannot be subscribed to.
    #[error(transparent)]
    Subject(#[from] MessageError),
}

/// A relay's stream; when dropped the nodes behind it are away.
pub(crate) struct RelayStream {
    agents: Arc<Agents>,
    id: StreamId,
    relay: NodeName,
    behind: Mutex<Behind>,
}

/// What there is of a relay while its stream is open.
#[derive(Debug)]
pub(super) struct OfRelay {
    /// The roots by which it goes, and by which those below it go.
    trust: Trust,
    /// What to say to it of the nodes behind it.
    pub(super) notices: Notices,
}

/// Identifiers of the roots by which relays go.
type Trust = BTreeMap<NodeName, BTreeSet<String>>;

/// What the relay has said.
#[derive(Default)]
struct Behind {
    /// By the relay's numbers.
    subjects: BTreeMap<u32, Subject>,
    nodes: BTreeMap<u32, Node>,
}

struct Node {
    /// Under which it is known here, unless it has come elsewhere since.
    id: StreamId,
    receipts: AttachedNode,
    /// Its name, until it was said what it wants. Until then receipts do not know what it owes, and it is better spoken of by the
    /// server that it comes from.
    arrives: Option<NodeName>,
}

impl Behind {
    fn node(&self, number: u32) -> Result<&Node, Misspoken> {
        self.nodes.get(&number).ok_or(Misspoken::Unnamed("node", number))
    }

    fn subjects(&self, numbers: &[u32]) -> Result<BTreeSet<Subject>, Misspoken> {
        let named = |number: &u32| self.subjects.get(number).cloned().ok_or(Misspoken::Unnamed("subject", *number));
        numbers.iter().map(named).collect()
    }
}

impl Agents {
    /// Attaches a relay's stream.
    ///
    /// # Errors
    /// [`IsLeaving`] if the server is.
    pub(crate) fn attach_relay(self: &Arc<Self>, relay: NodeName, level: u32) -> Result<RelayStream, IsLeaving> {
        let mut state = self.lock();
        if state.leaving {
            return Err(IsLeaving);
        }
        let id = state.fleet.attach_relay();
        state.fleet.tell_endings(id);
        // It has yet to say by which roots it goes.
        let trust = [(relay.clone(), BTreeSet::new())].into();
        state.relays.insert(id, OfRelay { trust, notices: Notices::to(level) });
        state.attached.insert(id, Attached { notices: Some(Vec::new()), ..Attached::new(relay.clone()) });
        self.metrics.relays.inc();
        Ok(RelayStream { agents: Arc::clone(self), id, relay, behind: Mutex::default() })
    }

    /// Relays that have not said that they go by this root, of those that are attached here, and of those below them.
    pub(crate) fn relays_without(&self, root: &str) -> BTreeSet<NodeName> {
        let state = self.lock();
        let relays = state.relays.values().flat_map(|relay| &relay.trust);
        let without = relays.filter(|(_, roots)| !roots.contains(root));
        without.map(|(relay, _)| relay.clone()).collect()
    }

    /// A node has come to a relay below, which calls it by `number`: it is attached from now on, in the place of any stream of it before.
    fn attach_behind(self: &Arc<Self>, relay: StreamId, number: u32, node: &NodeName) -> Node {
        let mut state = self.lock();
        let id = state.fleet.attach_behind(node.clone());
        state.attached.insert(id, Attached { behind: Some((relay, number)), ..Attached::new(node.clone()) });
        self.metrics.behind.inc();
        Node { id, receipts: self.is_primary(&mut state, id, node), arrives: Some(node.clone()) }
    }

    /// A node behind a relay is away, and it is said how, unless it has come elsewhere since; the relay's number for it may be
    /// another's from now on.
    fn left_behind(&self, relay: StreamId, number: u32, id: StreamId, say_how: impl Fn(&Liveness, &NodeName)) {
        self.metrics.behind.dec();
        let mut state = self.lock();
        state.relays.get_mut(&relay).into_iter().for_each(|relay| relay.notices.forget(number));
        let Some(attached) = state.attached.get_mut(&id) else { return };
        attached.away = true;
        say_how(&self.liveness, &attached.node);
        self.metrics.attached.dec();
    }
}

impl RelayStream {
    fn lock(&self) -> MutexGuard<'_, Behind> {
        // A panic while holding the lock leaves plain maps.
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to subjects, each with what the relay has of it, having heard so far.
    ///
    /// # Errors
    /// [`SubscribeError`]; nothing is subscribed then.
    pub(crate) fn subscribe(
        &self,
        mut resumes: Vec<(Subject, Revision)>,
        reached: Option<&Reached>,
    ) -> Result<(), SubscribeError> {
        let mut state = self.agents.lock();
        let at = state.fleet.revision();
        self.agents.lineage.admit(&mut resumes, reached, at)?;
        state.fleet.subscribe(self.id, &resumes)?;
        wake(&mut state, self.id);
        Ok(())
    }

    /// Ends subscriptions.
    pub(crate) fn unsubscribe(&self, subjects: &[Subject]) {
        self.agents.lock().fleet.unsubscribe(self.id, subjects);
    }

    /// Hears what happened behind the relay; this server is at `at`. Answers with the nodes that have come, and of which it is known
    /// what they want.
    ///
    /// # Errors
    /// [`Misspoken`]; the stream has to end then.
    pub(crate) fn hear(&self, relayed: Relayed, at: Revision) -> Result<Vec<NodeName>, Misspoken> {
        let mut behind = self.lock();
        for number in relayed.away {
            let node = behind.nodes.remove(&number).ok_or(Misspoken::Unnamed("node", number))?;
            self.agents.left_behind(self.id, number, node.id, Liveness::is_away);
        }
        for named in relayed.names {
            if named.number as usize >= RELAY_SUBJECTS_MAX {
                return Err(Misspoken::TooMany(RELAY_SUBJECTS_MAX, "subjects"));
            }
            let subject = decode_subject(named.subject.as_ref().ok_or(MessageError::Unknown)?)?;
            behind.subjects.insert(named.number, subject);
        }
        for node in relayed.come {
            if behind.nodes.len() >= RELAY_NODES_MAX {
                return Err(Misspoken::TooMany(RELAY_NODES_MAX, "nodes"));
            }
            let name: NodeName = node.name.parse()?;
            if let Some(earlier) = behind.nodes.remove(&node.node) {
                self.agents.left_behind(self.id, node.node, earlier.id, Liveness::is_away);
            }
            behind.nodes.insert(node.node, self.agents.attach_behind(self.id, node.node, &name));
        }
        let mut arrived = Vec::with_capacity(relayed.wants.len());
        for wants in &relayed.wants {
            if self.wants(&behind, wants)? {
                arrived.extend(behind.nodes.get_mut(&wants.node).and_then(|node| node.arrives.take()));
            }
        }
        for said in relayed.rejected {
            let rejected = said.rejected.ok_or(Misspoken::Unnamed("refusal of node", said.node))?.bounded();
            behind.node(said.node)?.receipts.rejected(Refused {
                revision: Revision(rejected.revision),
                since: Revision(rejected.since),
                // It counts also if nothing can be called so: one node is not to cost the others behind the relay.
                proxy: rejected.proxy.parse().ok(),
                type_url: rejected.type_url,
                resources: rejected.resources,
                text: rejected.text,
            });
        }
        for InForce { through, refusals_stand, nodes, held_us } in relayed.in_force {
            // Nothing that is yet to come can be in force.
            let through = Revision(through).min(at);
            let held_us = held_us.into_iter().chain(std::iter::repeat(0));
            for (number, held_us) in nodes.into_iter().zip(held_us) {
                let held = Duration::from_micros(held_us);
                behind.node(number)?.receipts.applied(through, refusals_stand, held);
            }
        }
        let asked = relayed.wants.iter().map(|wants| wants.node);
        let owing = asked.filter(|number| behind.nodes.get(number).is_some_and(|node| node.receipts.owes()));
        self.remind(owing.collect());
        Ok(arrived)
    }

    /// Hears by which roots the relay goes, and those below it.
    ///
    /// # Errors
    /// [`Misspoken`]; the stream has to end then.
    pub(crate) fn trusts(&self, trusts: Trusts) -> Result<(), Misspoken> {
        if trusts.relays.len() > RELAYS_MAX {
            return Err(Misspoken::TooMany(RELAYS_MAX, "relays"));
        }
        // That it is here is known, whatever it says.
        let mut known: Trust = [(self.relay.clone(), BTreeSet::new())].into();
        for RelayTrusts { relay, roots } in trusts.relays {
            if roots.len() > RELAY_ROOTS_MAX {
                return Err(Misspoken::TooMany(RELAY_ROOTS_MAX, "roots"));
            }
            known.insert(relay.parse()?, roots.into_iter().collect());
        }
        if let Some(relay) = self.agents.lock().relays.get_mut(&self.id) {
            relay.trust = known;
        }
        Ok(())
    }

    /// A node wants other subjects than before; answers whether it may have them. If not its stream ends, as it would if it were
    /// attached here, and no other.
    fn wants(&self, behind: &Behind, wants: &Wants) -> Result<bool, Misspoken> {
        let node = behind.node(wants.node)?;
        let (from_now, no_longer) = (behind.subjects(&wants.from_now)?, behind.subjects(&wants.no_longer)?);
        let as_of = Revision(wants.as_of);
        let mut state = self.agents.lock();
        // First, since it may have as much as it may in the place of as much.
        if !no_longer.is_empty() {
            state.fleet.unsubscribe(node.id, &no_longer.into_iter().collect::<Vec<_>>());
        }
        let resumes: Vec<_> = from_now.iter().map(|subject| (subject.clone(), as_of)).collect();
        if let Err(refused) = state.fleet.subscribe(node.id, &resumes) {
            self.end_behind(&mut state, wants.node, node.id, &refused);
            return Ok(false);
        }
        // Under the lock, so that a commit finds the node subscribed or is found by what is said here.
        node.receipts.subscribed(as_of, &from_now);
        Ok(true)
    }

    /// The relay is to end the stream of a node, and says then that it is away.
    fn end_behind(&self, state: &mut State, number: u32, id: StreamId, refused: &SubscribeError) {
        // One that has come elsewhere since is told so already.
        let Some(node) = state.attached.get(&id).map(|attached| attached.node.clone()) else { return };
        tracing::warn!(relay = %self.relay, %node, "a node behind a relay has to attach anew: {refused}");
        if let Some(OfRelay { notices, .. }) = state.relays.get_mut(&self.id) {
            notices.superseded(number, node);
        }
        wake(state, self.id);
    }

    /// These owe a report on what has happened before they were subscribed here; nothing may be on its way to them.
    fn remind(&self, nodes: Vec<u32>) {
        if nodes.is_empty() {
            return;
        }
        let mut state = self.agents.lock();
        if let Some(OfRelay { notices, .. }) = state.relays.get_mut(&self.id) {
            nodes.into_iter().for_each(|node| notices.remind(node));
        }
        state.fleet.remind(self.id);
        wake(&mut state, self.id);
    }

    /// The frames to send next, in order.
    ///
    /// # Errors
    /// Never.
    pub(crate) fn poll_take(&self, context: &mut Context<'_>) -> Poll<Result<Vec<Bytes>, Superseded>> {
        self.agents.poll_take(self.id, context)
    }
}

impl Drop for RelayStream {
    fn drop(&mut self) {
        let nodes = std::mem::take(&mut self.lock().nodes);
        if !nodes.is_empty() {
            tracing::info!(relay = %self.relay, nodes = nodes.len(), "a relay is gone, and the nodes behind it are away");
        }
        for (number, node) in nodes {
            self.agents.left_behind(self.id, number, node.id, Liveness::is_away_with_its_relay);
        }
        let mut state = self.agents.lock();
        state.attached.remove(&self.id);
        state.relays.remove(&self.id);
        state.fleet.remove(self.id);
        drop(state);
        self.agents.metrics.relays.dec();
    }
}
