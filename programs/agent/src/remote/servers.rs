//! The servers that a node knows, and which of them it goes to next.
//!
//! Each node has an order of its own among the servers, by rendezvous: a hash of the node's name with the server's address. So a fleet
//! spreads over its servers without being told, and a server that comes or goes moves only those that are its own. One that
//! has just failed comes last; one that is not in the mesh's own list, if there is a list, comes after those that are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use starling_model::NodeName;
use tokio::sync::watch;
use tokio::time::Instant;

/// For how long a server that has failed comes last.
const FAILED_FOR: Duration = Duration::from_secs(60);

/// Servers in the mesh's list that are known; more are left out.
const MEMBERS_MAX: usize = 64;

/// A server of the mesh, by its own word.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// The id of its process.
    pub id: String,
    /// Where it serves agents, host and port.
    pub address: String,
}

/// The servers.
#[derive(Debug)]
pub struct Servers {
    node: NodeName,
    /// Those that the operator named.
    named: Vec<String>,
    state: Mutex<State>,
    /// Moves when the mesh's list does.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    members: BTreeSet<Member>,
    /// Whether the list was kept from before a restart: what the operator names now goes before it.
    members_are_kept: bool,
    /// Whether the mesh's own list is not gone by: a relay's agents are not to go to its servers.
    named_only: bool,
    failed: BTreeMap<String, Instant>,
    /// The one that the node is attached to.
    primary: Option<String>,
}

impl Servers {
    /// The servers that the operator named, for this node.
    #[must_use]
    pub fn new(node: NodeName, named: Vec<String>) -> Self {
        Self { node, named, state: Mutex::default(), changed: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock leaves plain sets.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mesh's own list was this before a restart.
    pub fn set_kept_members(&self, members: impl IntoIterator<Item = Member>) {
        self.set_members(members);
        self.lock().members_are_kept = true;
    }

    /// The mesh's own list is now this; an empty one says nothing.
    pub fn set_members(&self, members: impl IntoIterator<Item = Member>) {
        let members: BTreeSet<_> = members.into_iter().take(MEMBERS_MAX).collect();
        let mut state = self.lock();
        state.members_are_kept = false;
        if state.members != members {
            state.members = members;
            drop(state);
            self.changed.send_modify(|changes| *changes += 1);
        }
    }

    /// Whether the node keeps to the servers that the operator named, since what it is attached to is a relay: what the mesh says
    /// of its servers is not meant for it.
    pub fn keep_to_named(&self, named_only: bool) {
        self.lock().named_only = named_only;
    }

    /// Moves when the mesh's list does.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// A server could not be reached, or ended the stream.
    pub fn failed(&self, address: &str) {
        self.lock().failed.insert(address.to_owned(), Instant::now());
    }

    /// A server has told everything.
    pub fn heard(&self, address: &str) {
        self.lock().failed.remove(address);
    }

    /// The node is attached to this one now, or to none.
    pub fn set_primary(&self, address: Option<&str>) {
        self.lock().primary = address.map(str::to_owned);
    }

    /// The server to go to next that is none of `except`.
    #[must_use]
    pub fn next(&self, except: &BTreeSet<&str>) -> Option<String> {
        self.in_order().into_iter().find(|address| !except.contains(address.as_str()))
    }

    /// Every server, the one that the node is attached to first.
    #[must_use]
    pub fn in_order(&self) -> Vec<String> {
        let mut state = self.lock();
        let now = Instant::now();
        state.failed.retain(|_, at| now.saturating_duration_since(*at) < FAILED_FOR);
        let members = state.members.iter().filter(|_| !state.named_only).map(|member| &member.address);
        let members: BTreeSet<&String> = members.collect();
        let all: BTreeSet<&String> = self.named.iter().chain(members.iter().copied()).collect();
        let mut all: Vec<_> = all
            .into_iter()
            .map(|address| {
                let is_stranger = match state.members_are_kept {
                    true => !self.named.contains(address),
                    false => !members.is_empty() && !members.contains(address),
                };
                let is_other = state.primary.as_ref() != Some(address);
                let failed = state.failed.get(address);
                ((is_other, failed, is_stranger, std::cmp::Reverse(self.weight(address))), address)
            })
            .collect();
        all.sort();
        all.into_iter().map(|(_, address)| address.clone()).collect()
    }

    /// FNV-1a, and the end of MurmurHash3 to spread it: the same in every release, so that an upgrade moves nobody.
    fn weight(&self, address: &str) -> u64 {
        let bytes = self.node.as_str().bytes().chain([0]).chain(address.bytes());
        let mut hash =
            bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        for factor in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
            hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
        }
        hash ^ (hash >> 33)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(node: &str, named: &[&str]) -> Servers {
        Servers::new(node.parse().expect("a name"), named.iter().map(|server| (*server).to_owned()).collect())
    }

    #[tokio::test]
    async fn a_fleet_spreads_and_a_server_that_goes_moves_only_its_own() {
        let first = |node: usize, named: &[&str]| servers(&format!("n{node}"), named).in_order()[0].clone();
        let mut nodes = BTreeMap::<_, usize>::new();
        for node in 0..3_000 {
            let (of_three, of_two) = (first(node, &["a:1", "b:1", "c:1"]), first(node, &["c:1", "a:1"]));
            assert!(of_three == "b:1" || of_three == of_two, "n{node} moves from {of_three} to {of_two}");
            *nodes.entry(of_three).or_default() += 1;
        }
        assert!(nodes.values().all(|count| (900..1_100).contains(count)), "{nodes:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_failed_comes_last_for_a_while_and_a_stranger_after_members() {
        let servers = servers("n1", &["a:1", "b:1", "c:1"]);
        let order = servers.in_order();
        servers.failed(&order[0]);
        assert_eq!(servers.in_order(), [&*order[1], &*order[2], &*order[0]]);
        tokio::time::advance(Duration::from_secs(1)).await;
        servers.failed(&order[1]);
        assert_eq!(servers.in_order(), [&*order[2], &*order[0], &*order[1]], "in turn");
        servers.heard(&order[0]);
        assert_eq!(servers.in_order(), [&*order[0], &*order[2], &*order[1]]);
        tokio::time::advance(FAILED_FOR).await;
        assert_eq!(servers.in_order(), order);

        let member = |id: &str, address: &str| Member { id: id.to_owned(), address: address.to_owned() };
        servers.set_members([member("1", &order[2]), member("2", "d:1")]);
        let found = servers.in_order();
        let members: BTreeSet<_> = found[..2].iter().map(String::as_str).collect();
        assert_eq!((members, found.len()), (BTreeSet::from([&*order[2], "d:1"]), 4));
        servers.set_primary(Some(&order[1]));
        assert_eq!(servers.in_order()[0], order[1]);
        assert_ne!(servers.next(&BTreeSet::from([&*order[1]])), Some(order[1].clone()));
    }

    #[test]
    fn behind_a_relay_a_node_keeps_to_what_was_named_and_a_list_from_before_a_restart_comes_after_it() {
        let servers = servers("n1", &["relay:1"]);
        let member = || [Member { id: "1".to_owned(), address: "server:1".to_owned() }];
        servers.set_kept_members(member());
        assert_eq!(servers.in_order(), ["relay:1", "server:1"]);
        servers.set_members(member());
        assert_eq!(servers.in_order(), ["server:1", "relay:1"]);
        servers.keep_to_named(true);
        assert_eq!(servers.in_order(), ["relay:1"]);
        servers.keep_to_named(false);
        assert_eq!(servers.in_order().len(), 2);
    }
}
