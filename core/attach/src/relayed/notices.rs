//! What there is to say to a relay of the nodes behind it, until it takes it. A node is named once however often there is cause, so
//! that a relay that does not read costs no more than it has nodes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use starling_model::NodeName;

use super::{Gone, Remind, Superseded};
use crate::message::{FromServer, LEVEL_OF_TRUSTS, ServerSays};

/// Nodes in one frame: at most some 550 KB with the longest names.
pub const NODES_PER_NOTICE: usize = 4_096;

/// What there is to say, by the relay's numbers. It holds no more of them than there are nodes behind the relay, if whoever keeps it says
/// when a number is nobody's any more.
#[derive(Debug)]
pub struct Notices {
    remind: BTreeSet<u32>,
    superseded: BTreeMap<u32, NodeName>,
    hears_of_superseded: bool,
}

impl Notices {
    /// Nothing yet, for a relay of this level.
    #[must_use]
    pub fn to(level: u32) -> Self {
        let hears_of_superseded = level >= LEVEL_OF_TRUSTS;
        Self { remind: BTreeSet::new(), superseded: BTreeMap::new(), hears_of_superseded }
    }

    /// A node owes a report on what it may never be sent.
    pub fn remind(&mut self, node: u32) {
        self.remind.insert(node);
    }

    /// A node has attached elsewhere.
    pub fn superseded(&mut self, node: u32, name: NodeName) {
        if self.hears_of_superseded {
            self.superseded.insert(node, name);
        }
    }

    /// The relay has said that a node is away, or has given its number to another.
    pub fn forget(&mut self, node: u32) {
        self.remind.remove(&node);
        self.superseded.remove(&node);
    }

    /// Takes all of it, in frames of which none names more than [`NODES_PER_NOTICE`].
    #[must_use]
    pub fn take(&mut self) -> Vec<Bytes> {
        let gone = std::mem::take(&mut self.superseded).into_iter();
        let gone: Vec<_> = gone.map(|(node, name)| Gone { node, name: name.to_string() }).collect();
        let gone =
            gone.chunks(NODES_PER_NOTICE).map(|nodes| ServerSays::Superseded(Superseded { nodes: nodes.to_vec() }));
        let remind: Vec<_> = std::mem::take(&mut self.remind).into_iter().collect();
        let remind = remind.chunks(NODES_PER_NOTICE).map(|nodes| ServerSays::Remind(Remind { nodes: nodes.to_vec() }));
        gone.chain(remind).map(|says| FromServer::from(says).to_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::LEVEL;

    fn taken(notices: &mut Notices) -> Vec<ServerSays> {
        notices.take().into_iter().map(|frame| FromServer::from_bytes(frame).expect("readable")).collect()
    }

    #[test]
    fn a_node_is_named_once_and_one_that_is_away_not_at_all() {
        let (mut notices, name) = (Notices::to(LEVEL), "n1".parse::<NodeName>().expect("a name"));
        for _ in 0..1_000 {
            notices.remind(1);
            notices.remind(2);
            notices.superseded(1, name.clone());
        }
        notices.superseded(3, name.clone());
        notices.forget(3);
        notices.forget(2);
        let gone = Superseded { nodes: vec![Gone { node: 1, name: name.to_string() }] };
        assert_eq!(taken(&mut notices), [ServerSays::Superseded(gone), ServerSays::Remind(Remind { nodes: vec![1] })]);
        assert_eq!(taken(&mut notices), []);
    }

    #[test]
    fn a_relay_of_before_is_told_nothing_that_it_would_not_understand() {
        let mut notices = Notices::to(LEVEL_OF_TRUSTS - 1);
        notices.superseded(1, "n1".parse().expect("a name"));
        notices.remind(2);
        assert_eq!(taken(&mut notices), [ServerSays::Remind(Remind { nodes: vec![2] })]);
    }

    #[test]
    fn many_nodes_are_named_in_several_frames() {
        let mut notices = Notices::to(LEVEL);
        (0..10_000).for_each(|node| notices.remind(node));
        let counts = taken(&mut notices).into_iter().map(|says| {
            let ServerSays::Remind(remind) = says else { panic!("{says:?}") };
            remind.nodes.len()
        });
        assert_eq!(counts.collect::<Vec<_>>(), [NODES_PER_NOTICE, NODES_PER_NOTICE, 10_000 - 2 * NODES_PER_NOTICE]);
    }
}
