//! What is said on the stream, and its bytes: protobuf, declared here rather than in a file of its own, since both ends
//! are this crate.
//!
//! Fields may be added; a number is never given a new meaning. What cannot be understood is an error of the stream, never
//! passed over: an agent that misses a removal is worse than one that reconnects.

use bytes::Bytes;
use prost::Message;
use starling_catalog::Subject;
use starling_model::{IntentionSubject, NameError, Revision, ServiceName};

use crate::relayed::{Relayed, Remind, Superseded, Trusts, WireEpoch};

/// Subjects in one request, all parts of it together, and so on one stream: what some thousand workloads of one node need.
pub const SUBJECTS_MAX: usize = 16_384;

/// Bytes of a proxy's own words in a refusal; the rest is cut.
pub const REFUSAL_TEXT_BYTES_MAX: usize = 4 * 1024;

/// Resources named in a refusal; more are left out.
pub const REFUSAL_RESOURCES_MAX: usize = 64;

/// Bytes of a proxy's name, of a resource's and of a type's, in a refusal: twice the longest identifier. The rest is cut.
pub const REFUSAL_NAME_BYTES_MAX: usize = 512;

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Not protobuf of this form.
    #[error("a frame cannot be decoded: {0}")]
    Undecodable(String),
    /// A frame without content, or of a kind from the future.
    #[error("a frame of unknown kind")]
    Unknown,
    /// A subject that cannot be subscribed to from afar.
    #[error("subject kind {0} is unknown")]
    Subject(u32),
    /// A name where there is one of a kind only.
    #[error("subject kind {0} has no name")]
    Named(u32),
    /// A name outside the grammar.
    #[error(transparent)]
    Name(#[from] NameError),
    /// An item that does not fit its subject.
    #[error("an item of {subject} cannot be read: {reason}")]
    Item {
        /// The subject.
        subject: String,
        /// What is wrong.
        reason: String,
    },
}

/// What either end understands, told in the first frame of each. 1 adds that a server says of how many ended subscriptions it
/// has heard, where an agent's stream should go, and that it is leaving; and that an agent has a second stream in reserve. 2
/// adds relays: a server knows the nodes behind them, and agents that what they are attached to is one. 3 adds that a relay
/// says by which roots it goes, and is told of nodes that have attached elsewhere; and requests in parts, which a server of
/// before answers part by part. 4 adds that a relay says whether it reaches a server.
pub const LEVEL: u32 = 4;

/// From this level on either end understands ends of subscriptions, moves and servers that leave.
pub const LEVEL_OF_MOVES: u32 = 1;

/// From this level on a server understands relays.
pub const LEVEL_OF_RELAYS: u32 = 2;

/// From this level on a server hears by which roots relays go, and a relay of nodes that have attached elsewhere.
pub const LEVEL_OF_TRUSTS: u32 = 3;

/// From this level on agents and relays hear whether the relay that they are attached to reaches a server.
pub const LEVEL_OF_REACH: u32 = 4;

/// A frame from an agent, or from a relay.
#[derive(Clone, PartialEq, Message)]
pub struct FromAgent {
    /// What it says.
    #[prost(oneof = "AgentSays", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    pub says: Option<AgentSays>,
}

/// What an agent says.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum AgentSays {
    /// The first frame: who it is.
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// Adds subjects, each with what the agent has of it.
    #[prost(message, tag = "2")]
    Subscribe(Subscribe),
    /// Ends subscriptions.
    #[prost(message, tag = "3")]
    Unsubscribe(Subjects),
    /// Everything up to a revision is in force at this node.
    #[prost(message, tag = "4")]
    Applied(Applied),
    /// A proxy of this node refused something.
    #[prost(message, tag = "5")]
    Rejected(Rejected),
    /// It is still there, and has had nothing else to say for a while.
    #[prost(message, tag = "6")]
    Here(Here),
    /// A stream that was in reserve is the node's primary from now on.
    #[prost(message, tag = "7")]
    Promote(Promote),
    /// Something has happened behind a relay; relays say so, and nobody else.
    #[prost(message, tag = "8")]
    Relayed(Relayed),
    /// Which roots a relay goes by, and those below it; relays say so, and nobody else.
    #[prost(message, tag = "9")]
    Trusts(Trusts),
}

/// Who is at the other end.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// The node's name, or the relay's; its certificate says the same.
    #[prost(string, tag = "1")]
    pub node: String,
    /// The agent's version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// Whether the stream is in reserve: it is told the same as any, and the node is not here by it.
    #[prost(bool, tag = "3")]
    pub standby: bool,
    /// What the agent understands: [`LEVEL`] of its release.
    #[prost(uint32, tag = "4")]
    pub level: u32,
}

/// The stream becomes the node's primary.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Promote {
    /// What is in force at the node, as far as this server has said `Through`.
    #[prost(uint64, tag = "1")]
    pub through: u64,
}

/// Subscriptions to add, or a part of them.
#[derive(Clone, PartialEq, Message)]
pub struct Subscribe {
    /// The subjects.
    #[prost(message, repeated, tag = "1")]
    pub resumes: Vec<Resume>,
    /// How far the agent has heard: of which store what it has is. None from agents that do not know.
    #[prost(message, optional, tag = "2")]
    pub reached: Option<Reached>,
    /// Whether the request goes on in the next frame. Nothing of it is answered before all of it is there.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// The furthest that an agent has heard of.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Reached {
    /// The epoch of the server's store when it said so.
    #[prost(fixed64, tag = "1")]
    pub epoch: u64,
    /// The revision.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
}

/// A subject and what the agent has of it.
#[derive(Clone, PartialEq, Message)]
pub struct Resume {
    /// The subject.
    #[prost(message, optional, tag = "1")]
    pub subject: Option<WireSubject>,
    /// The revision up to which the agent has everything of it; 0 for nothing.
    #[prost(uint64, tag = "2")]
    pub have: u64,
}

/// Some subjects.
#[derive(Clone, PartialEq, Message)]
pub struct Subjects {
    /// The subjects.
    #[prost(message, repeated, tag = "1")]
    pub subjects: Vec<WireSubject>,
}

/// A subject on the wire.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WireSubject {
    /// Which kind, by the numbers of [`encode_subject`].
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    /// Of what; empty where there is one only.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// The kind of what is written on a node.
const KIND_NODE: u32 = 7;

impl WireSubject {
    /// Whether it is about what is written on a node.
    #[must_use]
    pub fn is_node(&self) -> bool {
        self.kind == KIND_NODE
    }
}

/// Everything up to a revision has come in force.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Applied {
    /// The revision.
    #[prost(uint64, tag = "1")]
    pub through: u64,
    /// Whether a proxy still refuses something.
    #[prost(bool, tag = "2")]
    pub refusals_stand: bool,
    /// Microseconds for which it has been so: what the agent was asked to wait before it said so.
    #[prost(uint64, tag = "3")]
    pub held_us: u64,
}

/// A refusal.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Rejected {
    /// The proxy, an instance of the node.
    #[prost(string, tag = "1")]
    pub proxy: String,
    /// The revision whose rendering was refused.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    /// The resource type.
    #[prost(string, tag = "3")]
    pub type_url: String,
    /// The resources in the refused response.
    #[prost(string, repeated, tag = "4")]
    pub resources: Vec<String>,
    /// The proxy's own words.
    #[prost(string, tag = "5")]
    pub text: String,
    /// The revision that was in force when it was sent; what came after that is what is refused.
    #[prost(uint64, tag = "6")]
    pub since: u64,
}

/// An agent's sign of life. Field 1 is reserved.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Here {}

/// A frame from a server. Tag 5 is reserved.
#[derive(Clone, PartialEq, Message)]
pub struct FromServer {
    /// What it says.
    #[prost(oneof = "ServerSays", tags = "1, 2, 3, 4, 6, 7, 8, 9, 10, 11")]
    pub says: Option<ServerSays>,
}

/// What a server says.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ServerSays {
    /// The first frame: which mesh this is.
    #[prost(message, tag = "1")]
    Welcome(Welcome),
    /// One item of one subject.
    #[prost(message, tag = "2")]
    Update(Update),
    /// The whole of a subject.
    #[prost(message, tag = "3")]
    Whole(Whole),
    /// Everything up to a revision that concerns the agent has been sent.
    #[prost(message, tag = "4")]
    Through(Through),
    /// What follows was said after so many endings of subscriptions were heard of.
    #[prost(message, tag = "6")]
    Unsubscribed(Unsubscribed),
    /// The node should rather be attached elsewhere.
    #[prost(message, tag = "7")]
    MoveTo(MoveTo),
    /// The server is leaving: nothing should stay attached to it.
    #[prost(message, tag = "8")]
    Leaving(Leaving),
    /// Nodes behind a relay owe a report.
    #[prost(message, tag = "9")]
    Remind(Remind),
    /// Nodes behind a relay have attached elsewhere.
    #[prost(message, tag = "10")]
    Superseded(Superseded),
    /// The relay reaches no server, or does again.
    #[prost(message, tag = "11")]
    Reach(Reach),
}

/// Which mesh this is: what holds for all of it and is no part of the catalog.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Welcome {
    /// The authority of every identity.
    #[prost(string, tag = "1")]
    pub trust_domain: String,
    /// The datacentre.
    #[prost(string, tag = "2")]
    pub datacenter: String,
    /// Whether calls that no intention decides are allowed.
    #[prost(bool, tag = "3")]
    pub default_allow: bool,
    /// The server's version, for people.
    #[prost(string, tag = "4")]
    pub version: String,
    /// The present epoch of the server's store; 0 from servers that have none.
    #[prost(fixed64, tag = "5")]
    pub epoch: u64,
    /// What the server understands: [`LEVEL`] of its release.
    #[prost(uint32, tag = "6")]
    pub level: u32,
    /// Which server this is, by the id of its process; empty from those that have none.
    #[prost(string, tag = "7")]
    pub server: String,
    /// The server's name, for people.
    #[prost(string, tag = "8")]
    pub server_name: String,
    /// Whether it is a relay: an agent that is attached to one keeps to those that it was told of by its operator.
    #[prost(bool, tag = "9")]
    pub relay: bool,
    /// The epochs that the store remembers, for relays; the last is the present one.
    #[prost(message, repeated, tag = "10")]
    pub epochs: Vec<WireEpoch>,
    /// Whether access is controlled, and what holds where no rule does: `allow` or `deny`; empty where it is not.
    #[prost(string, tag = "11")]
    pub acl_default: String,
}

/// Of how many ends of subscriptions the server has heard on this stream.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Unsubscribed {
    /// Counts the agent's [`AgentSays::Unsubscribe`].
    #[prost(uint64, tag = "1")]
    pub count: u64,
}

/// Where an agent's primary stream should go: it is opened there, promoted when it is current, and only then closed here.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MoveTo {
    /// The server, by the id of its process.
    #[prost(string, tag = "1")]
    pub server: String,
    /// Where it serves agents, host and port.
    #[prost(string, tag = "2")]
    pub address: String,
}

/// The server is leaving.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Leaving {}

/// How it stands between a relay and the servers, after a while in which that did not change.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Reach {
    /// It reaches none: nobody speaks for the nodes behind it.
    #[prost(bool, tag = "1")]
    pub cut_off: bool,
}

/// One item of one subject, new, changed or gone.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Update {
    /// The subject.
    #[prost(message, optional, tag = "1")]
    pub subject: Option<WireSubject>,
    /// When it changed.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    /// The item.
    #[prost(message, optional, tag = "3")]
    pub item: Option<WireItem>,
}

/// An item on the wire.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WireItem {
    /// Which one of its subject.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its content; `None` if it is gone.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub value: Option<Bytes>,
}

/// The whole of a subject at a revision; replaces what was there.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Whole {
    /// The subject.
    #[prost(message, optional, tag = "1")]
    pub subject: Option<WireSubject>,
    /// When.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    /// Its items.
    #[prost(message, repeated, tag = "3")]
    pub items: Vec<WireItem>,
}

/// Everything up to a revision has been sent.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Through {
    /// The revision.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// Milliseconds within which the agent is to say that it has come in force: at a moment of its own choice in the second
    /// half of them, so that no fleet answers while it is still being told. 0 for at once.
    #[prost(uint32, tag = "2")]
    pub report_within_ms: u32,
}

impl From<AgentSays> for FromAgent {
    fn from(says: AgentSays) -> Self {
        Self { says: Some(says) }
    }
}

impl From<ServerSays> for FromServer {
    fn from(says: ServerSays) -> Self {
        Self { says: Some(says) }
    }
}

impl FromServer {
    /// The finished bytes of the frame.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// [`MessageError`] if the bytes are none.
    pub fn from_bytes(bytes: Bytes) -> Result<ServerSays, MessageError> {
        let frame = Self::decode(bytes).map_err(|error| MessageError::Undecodable(error.to_string()))?;
        frame.says.ok_or(MessageError::Unknown)
    }
}

impl FromAgent {
    /// Reads a frame.
    ///
    /// # Errors
    /// [`MessageError`] if the bytes are none.
    pub fn from_bytes(bytes: Bytes) -> Result<AgentSays, MessageError> {
        let frame = Self::decode(bytes).map_err(|error| MessageError::Undecodable(error.to_string()))?;
        frame.says.ok_or(MessageError::Unknown)
    }
}

impl Rejected {
    /// The same, cut to the limits of this module.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.resources.truncate(REFUSAL_RESOURCES_MAX);
        self.resources.iter_mut().for_each(|name| cut(name, REFUSAL_NAME_BYTES_MAX));
        cut(&mut self.proxy, REFUSAL_NAME_BYTES_MAX);
        cut(&mut self.type_url, REFUSAL_NAME_BYTES_MAX);
        cut(&mut self.text, REFUSAL_TEXT_BYTES_MAX);
        self
    }
}

/// Cuts `text` to at most `bytes_max`, between characters.
fn cut(text: &mut String, bytes_max: usize) {
    text.truncate(text.floor_char_boundary(bytes_max));
}

/// A subject on the wire; `None` for one that is not sent to agents.
#[must_use]
pub fn encode_subject(subject: &Subject) -> Option<WireSubject> {
    let (kind, name) = match subject {
        Subject::Endpoints(service) => (1, service.to_string()),
        Subject::Service(service) => (2, service.to_string()),
        Subject::Routing(service) => (3, service.to_string()),
        Subject::Intentions(destination) => (4, destination.to_string()),
        Subject::ProxyDefaults => (5, String::new()),
        Subject::Roots => (6, String::new()),
        Subject::Node(node) => (KIND_NODE, node.to_string()),
        Subject::Destinations(source) => (8, source.to_string()),
        Subject::Servers => (9, String::new()),
        Subject::Origins(service) => (10, service.to_string()),
        Subject::ServicesOutside => (11, String::new()),
        Subject::Instance(_)
        | Subject::ServiceList
        | Subject::NodeList
        | Subject::CheckList
        | Subject::ConfigList(_)
        | Subject::Kv(_)
        | Subject::KvFolder(_)
        | Subject::Session(_)
        | Subject::NodeSessions(_)
        | Subject::SessionList
        | Subject::Access => return None,
    };
    Some(WireSubject { kind, name })
}

/// The subject that is meant.
///
/// # Errors
/// [`MessageError`] if there is no such kind, or the name is outside the grammar.
pub fn decode_subject(wire: &WireSubject) -> Result<Subject, MessageError> {
    let service = || wire.name.parse::<ServiceName>();
    Ok(match wire.kind {
        1 => Subject::Endpoints(service()?),
        2 => Subject::Service(service()?),
        3 => Subject::Routing(service()?),
        4 => Subject::Intentions(wire.name.parse::<IntentionSubject>()?),
        5 | 6 | 9 | 11 if !wire.name.is_empty() => return Err(MessageError::Named(wire.kind)),
        5 => Subject::ProxyDefaults,
        6 => Subject::Roots,
        KIND_NODE => Subject::Node(wire.name.parse()?),
        8 => Subject::Destinations(service()?),
        9 => Subject::Servers,
        10 => Subject::Origins(service()?),
        11 => Subject::ServicesOutside,
        other => return Err(MessageError::Subject(other)),
    })
}

/// A frame that says that everything up to `revision` has been sent, and when to answer.
#[must_use]
pub fn through(revision: Revision, report_within_ms: u32) -> Bytes {
    FromServer::from(ServerSays::Through(Through { revision: revision.0, report_within_ms })).to_bytes()
}

/// A frame that says that so many ends of subscriptions were heard of.
#[must_use]
pub fn unsubscribed(count: u64) -> Bytes {
    FromServer::from(ServerSays::Unsubscribed(Unsubscribed { count })).to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_refusal_is_longer_than_its_limit() {
        // Three bytes each, so that no limit falls between two of them.
        let long = "€".repeat(REFUSAL_TEXT_BYTES_MAX);
        let resources = vec![long.clone(); REFUSAL_RESOURCES_MAX + 1];
        let (proxy, type_url) = (long.clone(), long.clone());
        let rejected = Rejected { proxy, type_url, resources, text: long, ..Rejected::default() }.bounded();
        assert_eq!(rejected.proxy, "€".repeat(REFUSAL_NAME_BYTES_MAX / 3));
        assert_eq!(rejected.type_url, "€".repeat(REFUSAL_NAME_BYTES_MAX / 3));
        assert_eq!(rejected.resources, vec!["€".repeat(REFUSAL_NAME_BYTES_MAX / 3); REFUSAL_RESOURCES_MAX]);
        assert_eq!(rejected.text, "€".repeat(REFUSAL_TEXT_BYTES_MAX / 3));
    }
}
