//! By which roots this relay goes, and those below it: said to whoever is above, so that no leaf is signed under a root before those
//! to whom it is shown trust it.

use std::collections::{BTreeMap, BTreeSet};

use starling_attach::StreamId;
use starling_attach::relay::LineId;
use starling_attach::relayed::{RELAY_ROOTS_MAX, RELAYS_MAX, RelayTrusts, Trusts};
use starling_model::NodeName;
use starling_rpc::CallError;

use super::Streams;

/// Identifiers of the roots by which relays go.
type Roots = BTreeMap<NodeName, BTreeSet<String>>;

/// What is known of this relay and those below.
#[derive(Debug, Default)]
pub(super) struct Trust {
    own: BTreeSet<String>,
    /// By the stream that says so.
    below: BTreeMap<StreamId, Roots>,
    /// Counts changes.
    version: u64,
    /// What was said on each stream to a server.
    told: BTreeMap<LineId, u64>,
}

impl Trust {
    fn changed(&mut self) {
        self.version += 1;
    }

    /// A relay below is here, and has yet to say by which roots it goes.
    pub(super) fn attached(&mut self, id: StreamId, relay: NodeName) {
        self.below.insert(id, [(relay, BTreeSet::new())].into());
        self.changed();
    }

    /// It is gone, and those below it with it.
    pub(super) fn left(&mut self, id: StreamId) {
        if self.below.remove(&id).is_some() {
            self.changed();
        }
    }

    /// A stream to a server is over.
    pub(super) fn end(&mut self, line: LineId) {
        self.told.remove(&line);
    }

    /// What there is to say on a stream to a server.
    pub(super) fn tell(&mut self, line: LineId, name: &NodeName) -> Option<Trusts> {
        if self.told.insert(line, self.version) == Some(self.version) {
            return None;
        }
        let mut all: Roots = [(name.clone(), self.own.clone())].into();
        for (relay, roots) in self.below.values().flatten() {
            // Of one that is here twice what it says last is not known.
            all.entry(relay.clone())
                .and_modify(|known| known.retain(|root| roots.contains(root)))
                .or_insert_with(|| roots.clone());
        }
        let said = |(relay, roots): (NodeName, BTreeSet<String>)| RelayTrusts {
            relay: relay.to_string(),
            roots: roots.into_iter().collect(),
        };
        Some(Trusts { relays: all.into_iter().map(said).collect() })
    }
}

impl Streams {
    /// This relay goes by these roots from now on, in what it shows and in whom it lets in.
    pub(crate) fn trusts(&self, roots: BTreeSet<String>) {
        let mut state = self.lock();
        if state.trust.own != roots {
            state.trust.own = roots;
            state.trust.changed();
            state.wake_lines();
        }
    }

    /// A relay below says by which roots it goes, and those below it.
    pub(super) fn trusted_below(&self, id: StreamId, relay: &NodeName, said: Trusts) -> Result<(), CallError> {
        let mut below: Roots = [(relay.clone(), BTreeSet::new())].into();
        for RelayTrusts { relay, roots } in said.relays {
            if roots.len() > RELAY_ROOTS_MAX || below.len() > RELAYS_MAX {
                return Err(CallError::refused(format!(
                    "more than {RELAYS_MAX} relays on one stream, or {RELAY_ROOTS_MAX} roots of one"
                )));
            }
            below.insert(relay.parse().map_err(CallError::refused)?, roots.into_iter().collect());
        }
        let mut state = self.lock();
        if let Some(known) = state.trust.below.get_mut(&id)
            && *known != below
        {
            *known = below;
            state.trust.changed();
            state.wake_lines();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> (StreamId, StreamId) {
        let mut relay = starling_attach::relay::Relay::new([]);
        (relay.attach_relay(), relay.attach_relay())
    }

    fn name(name: &str) -> NodeName {
        name.parse().expect("a name")
    }

    fn said(trust: &mut Trust, line: LineId) -> Option<Vec<(String, String)>> {
        let relays = trust.tell(line, &name("r1"))?.relays;
        Some(relays.into_iter().map(|said| (said.relay, said.roots.join(" "))).collect())
    }

    fn of(pairs: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
        Some(pairs.iter().map(|(relay, roots)| ((*relay).to_owned(), (*roots).to_owned())).collect())
    }

    #[test]
    fn each_server_is_told_once_of_all_relays_and_of_one_that_has_said_nothing_that_it_trusts_nothing() {
        let mut trust = Trust::default();
        let (first, second) = ids();
        assert_eq!(said(&mut trust, 1), of(&[("r1", "")]));
        assert_eq!(said(&mut trust, 1), None);
        trust.attached(first, name("below"));
        assert_eq!(said(&mut trust, 1), of(&[("below", ""), ("r1", "")]));
        let roots = |roots: &[&str]| roots.iter().map(|root| (*root).to_owned()).collect::<BTreeSet<_>>();
        trust.own = roots(&["aa", "bb"]);
        trust.below.insert(first, [(name("below"), roots(&["aa", "bb"])), (name("deep"), roots(&["aa"]))].into());
        // It has come a second time, and has said less by that.
        trust.attached(second, name("below"));
        trust.changed();
        assert_eq!(said(&mut trust, 1), of(&[("below", ""), ("deep", "aa"), ("r1", "aa bb")]));
        trust.left(second);
        assert_eq!(said(&mut trust, 1), of(&[("below", "aa bb"), ("deep", "aa"), ("r1", "aa bb")]));
        assert_eq!(said(&mut trust, 2), of(&[("below", "aa bb"), ("deep", "aa"), ("r1", "aa bb")]));
        trust.left(first);
        trust.end(1);
        assert_eq!(said(&mut trust, 1), of(&[("r1", "aa bb")]));
        assert_eq!(said(&mut trust, 2), of(&[("r1", "aa bb")]));
    }
}
