//! By which roots this relay goes, and those below it: said to whoever is above, so that no leaf is signed under a root before those
//! to whom it is shown trust it.

use std::collections::{BTreeMap, BTreeSet};

use starling_attach::StreamId;
use starling_attach::relay::LineId;
use starling_attach::relayed::{RELAY_ROOTS_MAX, RELAYS_MAX, ROOT_ID_BYTES_MAX, RelayTrusts, TRUSTS_BYTES_MAX, Trusts};
use starling_model::NodeName;
use starling_rpc::CallError;

use super::Streams;

/// Identifiers of the roots by which relays go.
type Roots = BTreeMap<NodeName, BTreeSet<String>>;

/// Bytes that a relay takes in [`Trusts`] beside its name and the identifiers of its roots, at most.
const RELAY_BYTES: usize = 7;

/// Bytes that the identifier of a root takes beside its own, at most.
const ROOT_BYTES: usize = 3;

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

    /// Lets one more relay be below the relay of this name.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] if there are too many.
    pub(super) fn admit(&self, name: &NodeName, relay: &NodeName) -> Result<(), CallError> {
        self.has_room_for(name, None, &[(relay.clone(), BTreeSet::new())].into())
    }

    /// A relay below is here, and has yet to say by which roots it goes.
    pub(super) fn attached(&mut self, id: StreamId, relay: NodeName) {
        self.below.insert(id, [(relay, BTreeSet::new())].into());
        self.changed();
    }

    /// What is said on the stream of a relay below from now on; answers whether it is another thing than before.
    fn said_below(&mut self, name: &NodeName, id: StreamId, said: Roots) -> Result<bool, CallError> {
        if self.below.get(&id) == Some(&said) {
            return Ok(false);
        }
        self.has_room_for(name, Some(id), &said)?;
        self.below.insert(id, said);
        self.changed();
        Ok(true)
    }

    /// Looks whether all of it can still be told if this is said on a stream, or on one more; also once others that speak of the same
    /// relays are gone. A server would end the stream of this relay for more.
    fn has_room_for(&self, name: &NodeName, id: Option<StreamId>, said: &Roots) -> Result<(), CallError> {
        let others = self.below.iter().filter(|(other, _)| Some(**other) != id).flat_map(|(_, roots)| roots);
        let mut all: BTreeMap<&NodeName, usize> = BTreeMap::new();
        for (relay, roots) in [(name, &self.own)].into_iter().chain(others).chain(said) {
            let roots: usize = roots.iter().map(|root| root.len() + ROOT_BYTES).sum();
            let bytes = all.entry(relay).or_default();
            *bytes = (*bytes).max(relay.as_str().len() + RELAY_BYTES + roots);
        }
        if all.len() > RELAYS_MAX || all.values().sum::<usize>() > TRUSTS_BYTES_MAX {
            return Err(CallError::unavailable(format!(
                "this relay and those below would be more than {RELAYS_MAX}, or their roots more than {TRUSTS_BYTES_MAX} bytes; \
                 attach to another"
            )));
        }
        Ok(())
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
            if roots.len() > RELAY_ROOTS_MAX || roots.iter().any(|root| root.len() > ROOT_ID_BYTES_MAX) {
                return Err(CallError::refused(format!(
                    "more than {RELAY_ROOTS_MAX} roots of one relay, or one of more than {ROOT_ID_BYTES_MAX} bytes"
                )));
            }
            below.insert(relay.parse().map_err(CallError::refused)?, roots.into_iter().collect());
        }
        let mut state = self.lock();
        let is_open = state.attached.contains_key(&id);
        if is_open && state.trust.said_below(&self.name, id, below)? {
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

    #[test]
    fn no_more_is_taken_on_than_servers_hear() {
        let (mut trust, own) = (Trust::default(), name("r1"));
        let (first, second) = ids();
        let relays = |numbers: std::ops::Range<usize>, roots: &BTreeSet<String>| -> Roots {
            numbers.map(|number| (name(&format!("n{number}")), roots.clone())).collect()
        };
        let one = BTreeSet::from(["aa".to_owned()]);
        assert!(trust.said_below(&own, first, relays(0..3_000, &one)).expect("there is room"));
        // The same relays by another stream are no others.
        assert!(trust.said_below(&own, second, relays(0..3_000, &one)).expect("there is room"));
        assert!(!trust.said_below(&own, second, relays(0..3_000, &one)).expect("there is room"));
        let refused =
            trust.said_below(&own, second, relays(3_000..RELAYS_MAX, &one)).expect_err("with this relay one more");
        assert!(matches!(refused, CallError::Unavailable { .. }), "{refused}");
        assert!(trust.said_below(&own, second, relays(3_000..RELAYS_MAX - 1, &one)).expect("there is room"));
        trust.admit(&own, &name("late")).expect_err("there is no room");
        trust.admit(&own, &name("n7")).expect("it is one of them");
        assert_eq!(trust.tell(1, &own).map(|told| told.relays.len()), Some(RELAYS_MAX));

        let long = (0..RELAY_ROOTS_MAX).map(|number| format!("{number:0width$}", width = ROOT_ID_BYTES_MAX)).collect();
        trust.left(second);
        trust.said_below(&own, first, relays(0..150, &long)).expect("there is room");
        trust.said_below(&own, second, relays(150..300, &long)).expect_err("it is more than servers read");
    }
}
