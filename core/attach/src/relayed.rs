//! What a relay says of the nodes behind it, and its bytes. It goes in bounded batches; who hears it knows of each node what
//! it would know if the node were attached to it.
//!
//! Nodes and subjects are called by numbers, which are the relay's and hold for one stream: a subject's from the message that
//! names it, a node's from the message in which it comes to the one in which it is away.

mod notices;

use prost::Message;

use crate::message::{Rejected, WireSubject};

pub use notices::{NODES_PER_NOTICE, Notices};

/// Nodes behind one stream of a relay: a whole fleet, and some.
pub const RELAY_NODES_MAX: usize = 1 << 18;

/// Subjects on one stream of a relay, and numbers of subjects: one for each node behind it, and those of all services.
pub const RELAY_SUBJECTS_MAX: usize = 1 << 20;

/// Bytes of one message, about: what is more goes in the next.
pub const RELAYED_BYTES_MAX: usize = 256 * 1024;

/// A batch of what happened behind a relay. Its parts are heard in the order in which they stand here.
#[derive(Clone, PartialEq, Message)]
pub struct Relayed {
    /// Nodes that are away: their numbers may be given anew.
    #[prost(uint32, repeated, tag = "1")]
    pub away: Vec<u32>,
    /// Numbers of subjects.
    #[prost(message, repeated, tag = "2")]
    pub names: Vec<Named>,
    /// Nodes that have come.
    #[prost(message, repeated, tag = "3")]
    pub come: Vec<Come>,
    /// What nodes want, and want no longer.
    #[prost(message, repeated, tag = "4")]
    pub wants: Vec<Wants>,
    /// What proxies have refused.
    #[prost(message, repeated, tag = "5")]
    pub rejected: Vec<NodeRejected>,
    /// What is in force.
    #[prost(message, repeated, tag = "6")]
    pub in_force: Vec<InForce>,
}

/// A subject by its number.
#[derive(Clone, PartialEq, Message)]
pub struct Named {
    /// The number, below [`RELAY_SUBJECTS_MAX`].
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// The subject.
    #[prost(message, optional, tag = "2")]
    pub subject: Option<WireSubject>,
}

/// A node has come.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Come {
    /// The number by which it is called from now on.
    #[prost(uint32, tag = "1")]
    pub node: u32,
    /// Its name; its certificate said the same.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// A node is subscribed to other subjects than before.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Wants {
    /// The node.
    #[prost(uint32, tag = "1")]
    pub node: u32,
    /// What is in force at the node of what it wants from now on: what has touched it since concerns the node.
    #[prost(uint64, tag = "2")]
    pub as_of: u64,
    /// Subjects from now on.
    #[prost(uint32, repeated, tag = "3")]
    pub from_now: Vec<u32>,
    /// Subjects no longer.
    #[prost(uint32, repeated, tag = "4")]
    pub no_longer: Vec<u32>,
}

/// Everything up to a revision has come in force at some nodes.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct InForce {
    /// The revision.
    #[prost(uint64, tag = "1")]
    pub through: u64,
    /// Whether a proxy of these nodes still refuses something.
    #[prost(bool, tag = "2")]
    pub refusals_stand: bool,
    /// The nodes.
    #[prost(uint32, repeated, tag = "3")]
    pub nodes: Vec<u32>,
    /// For each of them, microseconds for which it has been so.
    #[prost(uint64, repeated, tag = "4")]
    pub held_us: Vec<u64>,
}

/// A proxy of a node has refused something.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeRejected {
    /// The node.
    #[prost(uint32, tag = "1")]
    pub node: u32,
    /// What was refused.
    #[prost(message, optional, tag = "2")]
    pub rejected: Option<Rejected>,
}

/// Which roots relays go by themselves, in what they show and in whom they let in: the relay that says so, and all below it. It is
/// said again, whole, when it changes; nothing is known of a relay before.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Trusts {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub relays: Vec<RelayTrusts>,
}

/// Which roots a relay goes by.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RelayTrusts {
    /// The relay.
    #[prost(string, tag = "1")]
    pub relay: String,
    /// Identifiers of the roots.
    #[prost(string, repeated, tag = "2")]
    pub roots: Vec<String>,
}

/// Relays that one stream speaks of: the one at its other end, and all below.
pub const RELAYS_MAX: usize = 4_096;

/// Roots that one relay goes by: those of some rotations that overlap.
pub const RELAY_ROOTS_MAX: usize = 64;

/// Bytes of a root's identifier: twice a SHA-1 in hex pairs with colons.
pub const ROOT_ID_BYTES_MAX: usize = 118;

/// Bytes of one [`Trusts`], about: [`RELAYS_MAX`] relays with the longest names and three roots each, and well below the 2 MiB that are
/// read at once.
pub const TRUSTS_BYTES_MAX: usize = 1536 * 1024;

/// Nodes that owe a report on what may have come and gone before they were known here: each is told the next `Through`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Remind {
    /// The nodes, by the relay's numbers.
    #[prost(uint32, repeated, tag = "1")]
    pub nodes: Vec<u32>,
}

/// Nodes that have attached elsewhere since: what is open of them at the relay is to end, as it would at a server.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Superseded {
    /// The nodes.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<Gone>,
}

/// A node that was here by this number. If another has it by now nothing is meant.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Gone {
    /// The relay's number.
    #[prost(uint32, tag = "1")]
    pub node: u32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// A stretch of the life of the servers' store, as a relay has to know it to tell whether an agent is of this past.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WireEpoch {
    /// Its name.
    #[prost(fixed64, tag = "1")]
    pub id: u64,
    /// The revision that the store was at when it began.
    #[prost(uint64, tag = "2")]
    pub after: u64,
}
