//! The messages of the calls beside the stream, and their limits. Records travel in the form in which they are stored.

use std::time::Duration;

use prost::Message;
use starling_model::{Change, Check, InstanceId, NodeName, Record, RecordKey, Revision, ServiceName, UnixSeconds};
use starling_tls::IssuedLeaf;

use super::{AliasView, JoinAnswer, JoinRequest, LeafRequest, OwnRecords};
use crate::call::CallError;

/// Bytes in one commit: some ten thousand records.
pub const COMMIT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes in any other request beside the stream: signing requests of some thousand workloads.
pub const AGENT_REQUEST_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Bytes in one frame of an agent: one part of a request, and the reports of a relay.
pub const AGENT_FRAME_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Bytes in one frame of a server: the whole of a service with some half a million instances.
pub const SERVER_FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes in an answer beside the stream: all records of one node.
pub const SERVER_REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The methods' paths.
pub(crate) mod path {
    pub(crate) const ATTACH: &str = "/starling.agent.v1.Agents/Attach";
    pub(crate) const COMMIT: &str = "/starling.agent.v1.Agents/Commit";
    pub(crate) const OWN_RECORDS: &str = "/starling.agent.v1.Agents/OwnRecords";
    pub(crate) const ISSUE_LEAVES: &str = "/starling.agent.v1.Agents/IssueLeaves";
    pub(crate) const RENEW: &str = "/starling.agent.v1.Agents/Renew";
    pub(crate) const FOLLOW_CHECKS: &str = "/starling.agent.v1.Agents/FollowChecks";
    pub(crate) const RELAY: &str = "/starling.agent.v1.Agents/Relay";
    pub(crate) const JOIN: &str = "/starling.agent.v1.Agents/Join";
}

/// By this a relay says for which node it asks.
pub(crate) const FOR_NODE: &str = "starling-for-node";

/// By this a relay says for which relay below it asks.
pub(crate) const FOR_RELAY: &str = "starling-for-relay";

/// The messages themselves. Fields may be added; a number is never given a new meaning.
pub(crate) mod wire {
    use prost::{Message, Oneof};

    /// A record, or that there is none under the key.
    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct KeyValue {
        #[prost(string, tag = "1")]
        pub key: String,
        #[prost(bytes = "vec", optional, tag = "2")]
        pub value: Option<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct Commit {
        #[prost(message, repeated, tag = "1")]
        pub changes: Vec<KeyValue>,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Message)]
    pub(crate) struct Committed {
        #[prost(uint64, tag = "1")]
        pub revision: u64,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Message)]
    pub(crate) struct OwnRecordsRequest {
        /// 0 if the agent has compared itself with nothing.
        #[prost(uint64, tag = "1")]
        pub since: u64,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct OwnRecords {
        #[prost(uint64, tag = "1")]
        pub revision: u64,
        #[prost(message, repeated, tag = "2")]
        pub records: Vec<KeyValue>,
        /// There are records, which are those of `since`.
        #[prost(bool, tag = "3")]
        pub unchanged: bool,
        #[prost(uint32, tag = "4")]
        pub again_after_s: u32,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct LeafWanted {
        #[prost(string, tag = "1")]
        pub service: String,
        #[prost(bytes = "vec", tag = "2")]
        pub csr_der: Vec<u8>,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct IssueLeaves {
        #[prost(message, repeated, tag = "1")]
        pub wanted: Vec<LeafWanted>,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct IssuedLeaves {
        #[prost(message, repeated, tag = "1")]
        pub answers: Vec<LeafAnswer>,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct LeafAnswer {
        #[prost(oneof = "LeafOutcome", tags = "1, 2, 3, 4, 5")]
        pub outcome: Option<LeafOutcome>,
    }

    #[derive(Clone, PartialEq, Eq, Oneof)]
    pub(crate) enum LeafOutcome {
        #[prost(message, tag = "1")]
        Issued(Leaf),
        #[prost(string, tag = "2")]
        Refused(String),
        #[prost(string, tag = "3")]
        Unavailable(String),
        #[prost(message, tag = "4")]
        Overloaded(Overloaded),
        #[prost(string, tag = "5")]
        BeginAnew(String),
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct Overloaded {
        #[prost(string, tag = "1")]
        pub reason: String,
        #[prost(uint64, tag = "2")]
        pub retry_after_ms: u64,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct Leaf {
        #[prost(string, tag = "1")]
        pub certificate_pem: String,
        #[prost(string, tag = "2")]
        pub chain_pem: String,
        #[prost(string, tag = "3")]
        pub serial: String,
        #[prost(uint64, tag = "4")]
        pub not_before: u64,
        #[prost(uint64, tag = "5")]
        pub not_after: u64,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct Renew {
        #[prost(bytes = "vec", tag = "1")]
        pub csr_der: Vec<u8>,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct FollowChecks {
        #[prost(string, tag = "1")]
        pub node: String,
        #[prost(string, optional, tag = "2")]
        pub service: Option<String>,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct ChecksSeen {
        #[prost(bool, tag = "1")]
        pub exists: bool,
        #[prost(message, repeated, tag = "2")]
        pub checks: Vec<KeyValue>,
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    #[prost(skip_debug)]
    pub(crate) struct Join {
        /// A secret: this message has no debug form.
        #[prost(string, tag = "1")]
        pub token: String,
        #[prost(string, tag = "2")]
        pub node: String,
        #[prost(string, tag = "3")]
        pub node_id: String,
        #[prost(bytes = "vec", tag = "4")]
        pub csr_der: Vec<u8>,
        /// It is a relay, and no node.
        #[prost(bool, tag = "5")]
        pub relay: bool,
    }

    impl std::fmt::Debug for Join {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Join").field("node", &self.node).finish_non_exhaustive()
        }
    }

    #[derive(Clone, PartialEq, Eq, Message)]
    pub(crate) struct Joined {
        #[prost(message, optional, tag = "1")]
        pub leaf: Option<Leaf>,
        #[prost(string, tag = "2")]
        pub roots_pem: String,
    }
}

/// A request or an answer with its form on the wire.
pub(crate) trait OnWire: Sized {
    type Message: Message + Default + 'static;

    fn into_wire(self) -> Self::Message;

    /// # Errors
    /// Why the message means nothing.
    fn from_wire(message: Self::Message) -> Result<Self, String>;
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn put(record: &Record) -> wire::KeyValue {
    wire::KeyValue { key: record.key().encode(), value: Some(record.encode()) }
}

fn record(key: &RecordKey, value: &[u8]) -> Result<Record, String> {
    // The key decides who may write it, so decoding requires that it is the content's.
    Record::decode(key, value).map_err(|error| match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    })
}

fn key(text: &str) -> Result<RecordKey, String> {
    RecordKey::decode(text).map_err(|error| error.to_string())
}

fn stored(pair: &wire::KeyValue) -> Result<Record, String> {
    let value = pair.value.as_ref().ok_or_else(|| format!("record {:?} has no value", pair.key))?;
    record(&key(&pair.key)?, value)
}

impl OnWire for Vec<Change> {
    type Message = wire::Commit;

    fn into_wire(self) -> wire::Commit {
        let change = |change| match change {
            Change::Put(record) => put(&record),
            Change::Delete(key) => wire::KeyValue { key: key.encode(), value: None },
        };
        wire::Commit { changes: self.into_iter().map(change).collect() }
    }

    fn from_wire(message: wire::Commit) -> Result<Self, String> {
        let change = |pair: &wire::KeyValue| match &pair.value {
            Some(value) => Ok(Change::Put(record(&key(&pair.key)?, value)?)),
            None => Ok(Change::Delete(key(&pair.key)?)),
        };
        message.changes.iter().map(change).collect()
    }
}

impl OnWire for Revision {
    type Message = wire::Committed;

    fn into_wire(self) -> wire::Committed {
        wire::Committed { revision: self.0 }
    }

    fn from_wire(message: wire::Committed) -> Result<Self, String> {
        Ok(Self(message.revision))
    }
}

/// Asks for a node's records if they are others than at a revision.
pub(crate) struct Compared(pub Option<Revision>);

impl OnWire for Compared {
    type Message = wire::OwnRecordsRequest;

    fn into_wire(self) -> wire::OwnRecordsRequest {
        wire::OwnRecordsRequest { since: self.0.map_or(0, |since| since.0) }
    }

    fn from_wire(message: wire::OwnRecordsRequest) -> Result<Self, String> {
        Ok(Self((message.since > 0).then_some(Revision(message.since))))
    }
}

impl OnWire for OwnRecords {
    type Message = wire::OwnRecords;

    fn into_wire(self) -> wire::OwnRecords {
        let records = self.records.iter().flatten().map(put).collect();
        let Self { revision, again_after_s, .. } = self;
        wire::OwnRecords { revision: revision.0, records, unchanged: self.records.is_none(), again_after_s }
    }

    fn from_wire(message: wire::OwnRecords) -> Result<Self, String> {
        let records: Result<_, _> = message.records.iter().map(stored).collect();
        let records = if message.unchanged { None } else { Some(records?) };
        Ok(Self { revision: Revision(message.revision), records, again_after_s: message.again_after_s })
    }
}

impl OnWire for Vec<LeafRequest> {
    type Message = wire::IssueLeaves;

    fn into_wire(self) -> wire::IssueLeaves {
        let wanted = |leaf: LeafRequest| wire::LeafWanted { service: leaf.service.to_string(), csr_der: leaf.csr_der };
        wire::IssueLeaves { wanted: self.into_iter().map(wanted).collect() }
    }

    fn from_wire(message: wire::IssueLeaves) -> Result<Self, String> {
        let wanted = |leaf: wire::LeafWanted| {
            Ok(LeafRequest { service: parse::<ServiceName>(&leaf.service)?, csr_der: leaf.csr_der })
        };
        message.wanted.into_iter().map(wanted).collect()
    }
}

impl OnWire for Vec<Result<IssuedLeaf, CallError>> {
    type Message = wire::IssuedLeaves;

    fn into_wire(self) -> wire::IssuedLeaves {
        let answer = |answer: Result<IssuedLeaf, CallError>| {
            let outcome = match answer {
                Ok(leaf) => wire::LeafOutcome::Issued(leaf.into_wire()),
                Err(CallError::Refused { reason }) => wire::LeafOutcome::Refused(reason),
                Err(CallError::BeginAnew { reason }) => wire::LeafOutcome::BeginAnew(reason),
                Err(CallError::Unavailable { reason }) => wire::LeafOutcome::Unavailable(reason),
                Err(CallError::Overloaded { reason, retry_after }) => {
                    let retry_after_ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
                    wire::LeafOutcome::Overloaded(wire::Overloaded { reason, retry_after_ms })
                }
            };
            wire::LeafAnswer { outcome: Some(outcome) }
        };
        wire::IssuedLeaves { answers: self.into_iter().map(answer).collect() }
    }

    fn from_wire(message: wire::IssuedLeaves) -> Result<Self, String> {
        let answer = |answer: wire::LeafAnswer| {
            Ok(match answer.outcome.ok_or("an answer of unknown kind")? {
                wire::LeafOutcome::Issued(leaf) => Ok(IssuedLeaf::from_wire(leaf)?),
                wire::LeafOutcome::Refused(reason) => Err(CallError::Refused { reason }),
                wire::LeafOutcome::BeginAnew(reason) => Err(CallError::BeginAnew { reason }),
                wire::LeafOutcome::Unavailable(reason) => Err(CallError::Unavailable { reason }),
                wire::LeafOutcome::Overloaded(wire::Overloaded { reason, retry_after_ms }) => {
                    Err(CallError::Overloaded { reason, retry_after: Duration::from_millis(retry_after_ms) })
                }
            })
        };
        message.answers.into_iter().map(answer).collect()
    }
}

impl OnWire for IssuedLeaf {
    type Message = wire::Leaf;

    fn into_wire(self) -> wire::Leaf {
        wire::Leaf {
            certificate_pem: self.certificate_pem,
            chain_pem: self.chain_pem,
            serial: self.serial,
            not_before: self.not_before.0,
            not_after: self.not_after.0,
        }
    }

    fn from_wire(leaf: wire::Leaf) -> Result<Self, String> {
        Ok(Self {
            certificate_pem: leaf.certificate_pem,
            chain_pem: leaf.chain_pem,
            serial: leaf.serial,
            not_before: UnixSeconds(leaf.not_before),
            not_after: UnixSeconds(leaf.not_after),
        })
    }
}

/// A signing request for the agent's own certificate.
pub(crate) struct Renewal(pub Vec<u8>);

impl OnWire for Renewal {
    type Message = wire::Renew;

    fn into_wire(self) -> wire::Renew {
        wire::Renew { csr_der: self.0 }
    }

    fn from_wire(message: wire::Renew) -> Result<Self, String> {
        Ok(Self(message.csr_der))
    }
}

/// Whose checks are followed.
pub(crate) struct Followed {
    pub node: NodeName,
    pub service: Option<InstanceId>,
}

impl OnWire for Followed {
    type Message = wire::FollowChecks;

    fn into_wire(self) -> wire::FollowChecks {
        wire::FollowChecks { node: self.node.to_string(), service: self.service.as_ref().map(ToString::to_string) }
    }

    fn from_wire(message: wire::FollowChecks) -> Result<Self, String> {
        let service = message.service.as_deref().map(parse).transpose()?;
        Ok(Self { node: parse(&message.node)?, service })
    }
}

impl OnWire for AliasView {
    type Message = wire::ChecksSeen;

    fn into_wire(self) -> wire::ChecksSeen {
        let checks = self.checks.into_iter().map(|check| put(&Record::Check(check))).collect();
        wire::ChecksSeen { exists: self.exists, checks }
    }

    fn from_wire(message: wire::ChecksSeen) -> Result<Self, String> {
        let check = |pair: &wire::KeyValue| -> Result<Check, String> {
            let Record::Check(check) = stored(pair)? else { return Err(format!("{:?} is no check", pair.key)) };
            Ok(check)
        };
        let checks: Result<_, _> = message.checks.iter().map(check).collect();
        Ok(Self { exists: message.exists, checks: checks? })
    }
}

impl OnWire for JoinRequest {
    type Message = wire::Join;

    fn into_wire(self) -> wire::Join {
        wire::Join {
            token: self.token,
            node: self.node.to_string(),
            node_id: self.node_id,
            csr_der: self.csr_der,
            relay: self.relay,
        }
    }

    fn from_wire(message: wire::Join) -> Result<Self, String> {
        let wire::Join { token, node, node_id, csr_der, relay } = message;
        Ok(Self { token, node: parse(&node)?, node_id, csr_der, relay, through: None })
    }
}

impl OnWire for JoinAnswer {
    type Message = wire::Joined;

    fn into_wire(self) -> wire::Joined {
        wire::Joined { leaf: Some(self.leaf.into_wire()), roots_pem: self.roots_pem }
    }

    fn from_wire(message: wire::Joined) -> Result<Self, String> {
        let leaf = IssuedLeaf::from_wire(message.leaf.ok_or("the answer holds no certificate")?)?;
        Ok(Self { leaf, roots_pem: message.roots_pem })
    }
}
