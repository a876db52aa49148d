//! The stored form: which records there are, under which keys, in which bytes.
//!
//! A record is JSON under a key `KIND/…`; the store below knows bytes only. Fields may be added with a default; a field
//! is never given a new meaning.

use std::fmt;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::acl::{AclKey, AclRecord};
use crate::authority::{CaKeyRecord, RootOverlap};
use crate::check::Check;
use crate::config_entry::{ConfigEntry, ConfigEntryKey};
use crate::coordination::{CoordinationKey, CoordinationRecord};
use crate::enrolment::{Enrolment, Member};
use crate::join_token::{JoinTokenId, JoinTokenRecord};
use crate::name::{CheckId, NodeName};
use crate::node::Node;
use crate::server::{AttachmentRecord, LeaderRecord, ServerId, ServerRecord};
use crate::service::{InstanceKey, ServiceInstance};
use crate::time::UnixSeconds;
use crate::virtual_address::VirtualAddress;

/// A commit number of the store; also Consul's index. 0 is before the first commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value with the revisions at which it was made and last changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// Consul's `CreateIndex`.
    pub created: Revision,
    /// Consul's `ModifyIndex`.
    pub modified: Revision,
}

/// Everything that the store holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A node.
    Node(Node),
    /// A service instance.
    Instance(ServiceInstance),
    /// A check.
    Check(Check),
    /// A config entry.
    Config(ConfigEntry),
    /// A root certificate of the mesh's CA; its private key is not here.
    CaRoot(CaRootRecord),
    /// What signs under a root; its private key is sealed, or elsewhere.
    CaKey(CaKeyRecord),
    /// A join token; its secret is not here.
    JoinToken(JoinTokenRecord),
    /// The key by which a node or relay holds its name.
    Enrolment(Enrolment),
    /// A fence; it has no content.
    Fence(Fence),
    /// The virtual address of a service.
    VirtualAddress(VirtualAddress),
    /// A server that runs.
    Server(ServerRecord),
    /// The server that has the duties of which there is only one.
    Leader(LeaderRecord),
    /// The server that a node is attached to.
    Attachment(AttachmentRecord),
    /// What applications coordinate themselves by.
    Coordination(CoordinationRecord),
    /// Tokens and what they may.
    Acl(AclRecord),
}

/// What decides about several records at once rewrites the fence that stands for them, and commits only if nobody else
/// has: of two such decisions made on the same state one is made again. Only the revision of a fence matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fence {
    /// What services speak, and what relies on that.
    Protocols,
    /// Which roots are trusted, and which of them signs.
    Authority,
    /// The names of policies and roles.
    AclNames,
    /// That the first token was made.
    AclBootstrap,
    /// The names of prepared queries.
    QueryNames,
}

impl Fence {
    const ALL: [Self; 5] = [Self::Protocols, Self::Authority, Self::AclNames, Self::AclBootstrap, Self::QueryNames];

    /// The fence's name in its key.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Protocols => "protocols",
            Self::Authority => "authority",
            Self::AclNames => "acl-names",
            Self::AclBootstrap => "acl-bootstrap",
            Self::QueryNames => "query-names",
        }
    }
}

/// One step of a transaction.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are writes, and each would be an allocation more")]
pub enum Change {
    /// Write this record, new or over the old one.
    Put(Record),
    /// Remove this record; nothing happens if it is not there.
    Delete(RecordKey),
}

impl Change {
    /// The key that is written.
    #[must_use]
    pub fn key(&self) -> RecordKey {
        match self {
            Self::Put(record) => record.key(),
            Self::Delete(key) => key.clone(),
        }
    }
}

/// A root certificate that proxies trust.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaRootRecord {
    /// SHA-1 of the certificate as Consul prints it: hex pairs with colons.
    pub id: String,
    /// A name for people.
    pub name: String,
    /// The certificate in PEM.
    pub certificate_pem: String,
    /// The serial number.
    pub serial: u64,
    /// Hex of the subject key identifier, pairs with colons.
    pub signing_key_id: String,
    /// The trust domain it stands for.
    pub trust_domain: crate::name::TrustDomain,
    /// Not valid before.
    pub not_before: UnixSeconds,
    /// Not valid after.
    pub not_after: UnixSeconds,
    /// Whether new leaves are signed with it.
    pub active: bool,
    /// How far it has come, if it is one beside another. The one that signs, and stays, has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<RootOverlap>,
    /// Seconds over which agents spread the renewal of their leaves when this root begins to sign; 0 is their own choice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub renew_within_s: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The key of the one record of its kind.
const LEADER: &str = "leader/duties";

/// The key of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordKey {
    /// A node.
    Node(NodeName),
    /// A service instance.
    Instance(InstanceKey),
    /// A check.
    Check(NodeName, CheckId),
    /// A config entry.
    Config(ConfigEntryKey),
    /// A root certificate.
    CaRoot(String),
    /// What signs under a root.
    CaKey(String),
    /// A join token.
    JoinToken(JoinTokenId),
    /// The enrolment of a node or relay.
    Enrolment(Member),
    /// A fence.
    Fence(Fence),
    /// A virtual address.
    VirtualAddress(Ipv4Addr),
    /// A server.
    Server(ServerId),
    /// The leader.
    Leader,
    /// The server of a node.
    Attachment(NodeName),
    /// What applications coordinate themselves by.
    Coordination(CoordinationKey),
    /// A token, or what one may.
    Acl(AclKey),
}

/// Why bytes are no record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The key has no known form.
    #[error("record key {0:?} has no known form")]
    Key(String),
    /// The value is not the JSON of its kind.
    #[error("record {key:?} cannot be read")]
    Value {
        /// The key.
        key: String,
        /// What the JSON reader said.
        #[source]
        source: serde_json::Error,
    },
    /// The value is the record of another key.
    #[error("record {key:?} holds the record of {content:?}")]
    Misplaced {
        /// The key it is stored under.
        key: String,
        /// The key of its content.
        content: String,
    },
}

/// A record of a node itself, or of something on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnNode<'k> {
    /// The node.
    Node(&'k NodeName),
    /// An instance on it.
    Instance(&'k InstanceKey),
    /// A check on it.
    Check(&'k NodeName, &'k CheckId),
}

impl<'k> OnNode<'k> {
    /// The node.
    #[must_use]
    pub fn node(self) -> &'k NodeName {
        match self {
            Self::Node(node) | Self::Check(node, _) => node,
            Self::Instance(key) => &key.node,
        }
    }
}

impl RecordKey {
    /// What on which node it is of; `None` for what is no node's own: the mesh's, or the servers'.
    #[must_use]
    pub fn on_node(&self) -> Option<OnNode<'_>> {
        match self {
            Self::Node(node) => Some(OnNode::Node(node)),
            Self::Instance(key) => Some(OnNode::Instance(key)),
            Self::Check(node, id) => Some(OnNode::Check(node, id)),
            Self::Config(_)
            | Self::CaRoot(_)
            | Self::CaKey(_)
            | Self::JoinToken(_)
            | Self::Enrolment(_)
            | Self::Fence(_)
            | Self::VirtualAddress(_)
            | Self::Server(_)
            | Self::Leader
            | Self::Attachment(_)
            | Self::Coordination(_)
            | Self::Acl(_) => None,
        }
    }

    /// The [`RECORD_LEVEL`](crate::RECORD_LEVEL) of the first release that reads this kind.
    #[must_use]
    pub fn level(&self) -> u32 {
        match self {
            // Every release that announces a level, and those before, read these.
            Self::Node(_)
            | Self::Instance(_)
            | Self::Check(..)
            | Self::Config(_)
            | Self::CaRoot(_)
            | Self::CaKey(_)
            | Self::JoinToken(_)
            | Self::Fence(_)
            | Self::VirtualAddress(_)
            | Self::Server(_)
            | Self::Leader
            | Self::Attachment(_)
            | Self::Coordination(_)
            | Self::Acl(_) => 0,
            Self::Enrolment(_) => 1,
        }
    }

    /// The key's bytes: `KIND/…`, parts joined by `/`, which no name holds; what follows the kind of an application's own key is
    /// that key as it is.
    #[must_use]
    pub fn encode(&self) -> String {
        match self {
            Self::Node(name) => format!("node/{name}"),
            Self::Instance(key) => format!("instance/{}/{}", key.node, key.id),
            Self::Check(node, id) => format!("check/{node}/{id}"),
            Self::Config(key) => format!("config/{}/{}", key.kind.as_str(), key.name),
            Self::CaRoot(id) => format!("ca-root/{id}"),
            Self::CaKey(id) => format!("ca-key/{id}"),
            Self::JoinToken(id) => format!("join-token/{id}"),
            Self::Enrolment(member) => format!("enrolment/{}", member.encode()),
            Self::Fence(fence) => format!("fence/{}", fence.as_str()),
            Self::VirtualAddress(address) => format!("virtual-address/{address}"),
            Self::Server(id) => format!("server/{id}"),
            Self::Leader => LEADER.to_owned(),
            Self::Attachment(node) => format!("attachment/{node}"),
            Self::Coordination(key) => key.encode(),
            Self::Acl(key) => key.encode(),
        }
    }

    /// Reads what [`RecordKey::encode`] wrote.
    ///
    /// # Errors
    /// [`RecordError::Key`] if the text has another form.
    pub fn decode(text: &str) -> Result<Self, RecordError> {
        Self::parse(text).ok_or_else(|| RecordError::Key(text.to_owned()))
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once('/')?;
        match kind {
            "node" => Some(Self::Node(rest.parse().ok()?)),
            "instance" => {
                let (node, id) = rest.split_once('/')?;
                Some(Self::Instance(InstanceKey { node: node.parse().ok()?, id: id.parse().ok()? }))
            }
            "check" => {
                let (node, id) = rest.split_once('/')?;
                Some(Self::Check(node.parse().ok()?, id.parse().ok()?))
            }
            "config" => {
                let (kind, name) = rest.split_once('/')?;
                Some(Self::Config(ConfigEntryKey { kind: kind.parse().ok()?, name: name.to_owned() }))
            }
            "ca-root" => Some(Self::CaRoot(rest.to_owned())),
            "ca-key" => Some(Self::CaKey(rest.to_owned())),
            "join-token" => Some(Self::JoinToken(rest.parse().ok()?)),
            "enrolment" => Member::parse(rest).map(Self::Enrolment),
            "fence" => Fence::ALL.into_iter().find(|fence| rest == fence.as_str()).map(Self::Fence),
            "virtual-address" => Some(Self::VirtualAddress(rest.parse().ok()?)),
            "server" => Some(Self::Server(rest.parse().ok()?)),
            "leader" => (text == LEADER).then_some(Self::Leader),
            "attachment" => Some(Self::Attachment(rest.parse().ok()?)),
            _ => CoordinationKey::parse(kind, rest)
                .map(Self::Coordination)
                .or_else(|| AclKey::parse(kind, rest).map(Self::Acl)),
        }
    }
}

impl Record {
    /// The key under which it is stored.
    #[must_use]
    pub fn key(&self) -> RecordKey {
        match self {
            Self::Node(node) => RecordKey::Node(node.name.clone()),
            Self::Instance(instance) => RecordKey::Instance(instance.key.clone()),
            Self::Check(check) => RecordKey::Check(check.node.clone(), check.id.clone()),
            Self::Config(entry) => RecordKey::Config(entry.key()),
            Self::CaRoot(root) => RecordKey::CaRoot(root.id.clone()),
            Self::CaKey(key) => RecordKey::CaKey(key.root.clone()),
            Self::JoinToken(token) => RecordKey::JoinToken(token.id),
            Self::Enrolment(enrolment) => RecordKey::Enrolment(enrolment.member.clone()),
            Self::Fence(fence) => RecordKey::Fence(*fence),
            Self::VirtualAddress(value) => RecordKey::VirtualAddress(value.address),
            Self::Server(server) => RecordKey::Server(server.id),
            Self::Leader(_) => RecordKey::Leader,
            Self::Attachment(attachment) => RecordKey::Attachment(attachment.node.clone()),
            Self::Coordination(record) => RecordKey::Coordination(record.key()),
            Self::Acl(record) => RecordKey::Acl(record.key()),
        }
    }

    /// The value's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let encoded = match self {
            Self::Node(value) => serde_json::to_vec(value),
            Self::Instance(value) => serde_json::to_vec(value),
            Self::Check(value) => serde_json::to_vec(value),
            Self::Config(value) => serde_json::to_vec(value),
            Self::CaRoot(value) => serde_json::to_vec(value),
            Self::CaKey(value) => serde_json::to_vec(value),
            Self::JoinToken(value) => serde_json::to_vec(value),
            Self::Enrolment(value) => serde_json::to_vec(value),
            Self::Fence(_) => serde_json::to_vec(&()),
            Self::VirtualAddress(value) => serde_json::to_vec(value),
            Self::Server(value) => serde_json::to_vec(value),
            Self::Leader(value) => serde_json::to_vec(value),
            Self::Attachment(value) => serde_json::to_vec(value),
            Self::Coordination(value) => value.to_json(),
            Self::Acl(value) => value.to_json(),
        };
        encoded.expect("invariant: records have string keys only and always serialise")
    }

    /// Reads what [`Record::encode`] wrote under `key`.
    ///
    /// # Errors
    /// [`RecordError::Value`] if the bytes are not that kind of record, [`RecordError::Misplaced`] if they are another key's.
    pub fn decode(key: &RecordKey, bytes: &[u8]) -> Result<Self, RecordError> {
        let decoded = match key {
            RecordKey::Node(_) => serde_json::from_slice(bytes).map(Self::Node),
            RecordKey::Instance(_) => serde_json::from_slice(bytes).map(Self::Instance),
            RecordKey::Check(..) => serde_json::from_slice(bytes).map(Self::Check),
            RecordKey::Config(_) => {
                serde_json::from_slice(bytes).map(|entry: ConfigEntry| Self::Config(entry.obeyed()))
            }
            RecordKey::CaRoot(_) => serde_json::from_slice(bytes).map(Self::CaRoot),
            RecordKey::CaKey(_) => serde_json::from_slice(bytes).map(Self::CaKey),
            RecordKey::JoinToken(_) => serde_json::from_slice(bytes).map(Self::JoinToken),
            RecordKey::Enrolment(_) => serde_json::from_slice(bytes).map(Self::Enrolment),
            RecordKey::Fence(fence) => serde_json::from_slice(bytes).map(|()| Self::Fence(*fence)),
            RecordKey::VirtualAddress(_) => serde_json::from_slice(bytes).map(Self::VirtualAddress),
            RecordKey::Server(_) => serde_json::from_slice(bytes).map(Self::Server),
            RecordKey::Leader => serde_json::from_slice(bytes).map(Self::Leader),
            RecordKey::Attachment(_) => serde_json::from_slice(bytes).map(Self::Attachment),
            RecordKey::Coordination(key) => CoordinationRecord::from_json(key, bytes).map(Self::Coordination),
            RecordKey::Acl(key) => AclRecord::from_json(key, bytes).map(Self::Acl),
        };
        let record = decoded.map_err(|source| RecordError::Value { key: key.encode(), source })?;
        let content = record.key();
        if content != *key {
            return Err(RecordError::Misplaced { key: key.encode(), content: content.encode() });
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_the_round_trip() {
        for text in [
            "node/n1",
            "instance/n1/web:1",
            "check/n1/service:web-1",
            "config/service-intentions/*",
            "ca-root/aa:bb",
            "ca-key/aa:bb",
            "fence/authority",
            "join-token/00000000000000ab",
            "enrolment/node/n1",
            "enrolment/relay/r1",
            "fence/protocols",
            "virtual-address/240.1.2.3",
            "server/00000000000000ab",
            "leader/duties",
            "attachment/n1",
            "kv/a//b/",
            "session/6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11",
            "session-renewal/6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11",
            "lock-delay/a/b",
            "acl-token/6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11",
            "acl-policy/00000000-0000-0000-0000-000000000001",
            "acl-role/6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11",
            "acl-auth-method/k8s",
            "acl-binding-rule/6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11",
            "fence/acl-bootstrap",
        ] {
            assert_eq!(RecordKey::decode(text).expect(text).encode(), text);
        }
        for text in [
            "",
            "node",
            "node/",
            "other/x",
            "instance/n1",
            "config/unknown/x",
            "fence/other",
            "join-token/ab",
            "enrolment/n1",
            "leader/x",
            "kv/",
            "session/6F1C1B7E-6F2C-4CBB-9D5F-0F6F7F6A8A11",
        ] {
            assert!(RecordKey::decode(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_fence_has_no_content() {
        let fence = Record::Fence(Fence::Protocols);
        assert_eq!(Record::decode(&fence.key(), &fence.encode()).expect("readable"), fence);
        assert!(Record::decode(&fence.key(), b"{}").is_err());
    }
}
