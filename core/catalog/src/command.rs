//! Commands: what a door asks for, decided against a snapshot.
//!
//! [`decide`] answers with the changes to commit and with what it has [`Seen`]; the store commits only if that still
//! holds, otherwise the caller decides again on the newer snapshot. A command that would change nothing decides to no
//! changes at all.
//!
//! What is seen is few records, however large the catalog is. A registration sees the node or instance that each record
//! relies on. A removal deletes these first and what relies on them after, so that once its first transaction is
//! committed nothing more can come to rely on them, and no instance is served without the checks that spoke against it;
//! what came before that, unseen, goes when the removal is decided [again](Decision::again). Writes that concern what
//! services speak share the fence [`Fence::Protocols`], since a rule about all of them hangs on it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use starling_model::{
    Change, Check, CheckId, ConfigEntry, ConfigEntryKey, Fence, InstanceId, InstanceKey, IntentionSubject,
    KeyFingerprint, Node, NodeName, Port, Record, RecordKey, Revision, ServiceInstance, ServiceName, SourceIntention,
};

use crate::snapshot::Snapshot;
use protocol::{check_entry, check_removal, concerns_protocols, says_protocols};

mod acl;
mod authority;
mod coordination;
mod enrolment;
mod ground;
mod intention;
mod join_token;
mod liveness;
mod prepared_query;
mod protocol;
mod transaction;
mod virtual_address;

pub use acl::{ACL_RECORDS_MAX, ACL_TOKENS_MAX, AclCommand, AclRefusal, LOGIN_TOKENS_MAX, METHOD_TOKENS_MAX};
pub use authority::{AuthorityCommand, AuthorityRefusal, OVERLAP_MIN, RotationWaits, reports_as};
pub use coordination::{
    CoordinationCommand, CoordinationRefusal, KvAnswer, KvFailure, KvOperation, KvWrite, SESSIONS_MAX,
    TXN_OPERATIONS_MAX, kv_answers,
};
pub use enrolment::{
    ENROLMENTS_MAX, EnrolmentCommand, EnrolmentRefusal, Registers, reusable_token_of, written_enrolments,
};
pub use ground::ground;
pub use intention::{IntentionById, IntentionRefusal};
pub use join_token::{
    JOIN_TOKENS_MAX, JoinRequest, JoinTokenCommand, JoinTokenRefusal, KEPT_EXPIRED_S, NameHolder, NewJoinToken,
};
pub use liveness::{Charge, LIVENESS_NODES_MAX, LivenessCommand, Said};
pub use prepared_query::PreparedQueryRefusal;
pub use transaction::{CheckWrite, Operation, OperationAnswer, OperationFailure, RecordOperation, transaction_answers};

/// Changes that one transaction of the store takes, and also conditions. What is seen is of the first so many changes of a
/// larger decision, each of which brings at most one condition; it guards all of its transactions.
pub const GUARDED_CHANGES_MAX: usize = 128;

/// What a door asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Registers a node with what runs on it, all at once. With no node record the node must be there.
    Register {
        /// The node everything is on.
        name: NodeName,
        /// Its record, if it is to be written.
        node: Option<Node>,
        /// Instances.
        instances: Vec<ServiceInstance>,
        /// Checks.
        checks: Vec<Check>,
    },
    /// Removes an instance and its checks; nothing happens if it is not there.
    DeregisterInstance(InstanceKey),
    /// Removes one check.
    DeregisterCheck(NodeName, CheckId),
    /// Removes a node and everything on it.
    DeregisterNode(NodeName),
    /// Changes that an agent made to its own node's records.
    Node {
        /// The node; every change must be to it.
        name: NodeName,
        /// What to change.
        changes: Vec<Change>,
        /// The key of the agent's certificate; `None` where a relay speaks for the node, or a server's own process.
        key: Option<KeyFingerprint>,
        /// Which services it may register.
        registers: Registers,
    },
    /// Writes a config entry.
    PutConfig {
        /// The entry.
        entry: ConfigEntry,
        /// Only if it was last modified at this revision; 0 means only if it is not there.
        cas: Option<Revision>,
    },
    /// Removes a config entry; nothing happens if it is not there.
    DeleteConfig {
        /// Which one.
        key: ConfigEntryKey,
        /// Only if it was last modified at this revision.
        cas: Option<Revision>,
    },
    /// Sets what one source may do at one destination.
    PutIntention {
        /// The destination.
        destination: IntentionSubject,
        /// Source and decision.
        intention: SourceIntention,
    },
    /// Removes one source from a destination; nothing happens if it is not there.
    DeleteIntention {
        /// The destination.
        destination: IntentionSubject,
        /// The source.
        source: IntentionSubject,
    },
    /// A single intention, named by its identifier.
    IntentionById(IntentionById),
    /// Changes what is trusted, or by what leaves are signed.
    Authority(AuthorityCommand),
    /// Makes, uses or revokes a join token.
    JoinToken(JoinTokenCommand),
    /// Changes whose a node's or relay's name is.
    Enrolment(EnrolmentCommand),
    /// Says of nodes whether they are alive.
    Liveness(LivenessCommand),
    /// Reads and writes entries of the key-value store, all or none, or makes, renews or ends sessions.
    Coordination(CoordinationCommand),
    /// Changes tokens, or what they may.
    Acl(AclCommand),
    /// Carries out operations on entries, nodes, instances and checks, all or none.
    Transaction(Vec<Operation>),
}

impl Command {
    /// Changes by an agent in a server's own process, which may register anything.
    #[must_use]
    pub fn of_node(name: NodeName, changes: Vec<Change>) -> Self {
        Self::Node { name, changes, key: None, registers: Registers::Anything }
    }
}

/// A record as it stood when a command was decided; `None` means it was not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Which record.
    pub key: RecordKey,
    /// When it was last modified.
    pub modified: Option<Revision>,
}

/// What to commit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decision {
    /// The changes; empty if the command changes nothing.
    pub changes: Vec<Change>,
    /// What must still hold when they are committed, but for what they change themselves; no more than
    /// [`GUARDED_CHANGES_MAX`].
    pub seen: Vec<Seen>,
    /// Whether the command is to be decided again when this is committed, on a snapshot that has it, until nothing is
    /// left to change: others may have added what is to be removed, too.
    pub again: bool,
}

/// Why a command is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The node is not registered.
    #[error("unknown node {0}")]
    UnknownNode(NodeName),
    /// A check names an instance that is not on the node.
    #[error("check {check} is for service id {service}, which is not registered on node {node}")]
    UnknownService {
        /// The check.
        check: CheckId,
        /// The instance it names.
        service: InstanceId,
        /// The node.
        node: NodeName,
    },
    /// The record was changed by somebody else, or is or is not there.
    #[error("check-and-set of {key} failed: it was last modified at {actual}, not at {expected}")]
    Cas {
        /// The config entry.
        key: String,
        /// What the caller expected; 0 for absent.
        expected: Revision,
        /// What is; 0 for absent.
        actual: Revision,
    },
    /// L7 permissions need a protocol whose requests can be told apart.
    #[error(
        "service-intentions/{service} has permissions on requests, but the protocol of {service} would be {protocol}; \
         write service-defaults/{service} with Protocol http, http2 or grpc, or remove the permissions"
    )]
    ProtocolConflict {
        /// The destination.
        service: ServiceName,
        /// What it would speak.
        protocol: &'static str,
    },
    /// Routers and splitters need a protocol whose requests can be told apart.
    #[error(
        "{kind}/{service} needs requests, but the protocol of {service} would be {protocol}; write \
         service-defaults/{service} with Protocol http, http2 or grpc, or remove {kind}/{service}"
    )]
    RoutingProtocol {
        /// The kind of the entry.
        kind: &'static str,
        /// Its service.
        service: ServiceName,
        /// What it would speak.
        protocol: &'static str,
    },
    /// An identifier stands twice in one registration.
    #[error("{kind} {id} is in the registration twice")]
    Duplicate {
        /// `service id` or `check`.
        kind: &'static str,
        /// The identifier.
        id: String,
    },
    /// Two sidecars would be reached at one port of one address.
    #[error("port {port} on node {node} is already that of sidecar {other}")]
    PortTaken {
        /// The port.
        port: Port,
        /// The node.
        node: NodeName,
        /// The sidecar that has it.
        other: InstanceId,
    },
    /// A change of a node command is to another node.
    #[error("node {node} may not change {key}")]
    ForeignRecord {
        /// The node that asked.
        node: NodeName,
        /// The record.
        key: String,
    },
    /// A rule about single intentions is broken.
    #[error(transparent)]
    Intention(#[from] IntentionRefusal),
    /// A rule about the CA is broken.
    #[error(transparent)]
    Authority(#[from] AuthorityRefusal),
    /// A rule about join tokens is broken.
    #[error(transparent)]
    JoinToken(#[from] JoinTokenRefusal),
    /// A name is not the caller's, or the caller may not register a service.
    #[error(transparent)]
    Enrolment(#[from] EnrolmentRefusal),
    /// A rule about entries or sessions is broken.
    #[error(transparent)]
    Coordination(#[from] CoordinationRefusal),
    /// A rule about access control is broken.
    #[error(transparent)]
    Acl(#[from] AclRefusal),
    /// A prepared query has the name of another, or there are as many as may be.
    #[error(transparent)]
    PreparedQuery(#[from] PreparedQueryRefusal),
    /// These operations of a transaction cannot be done; each with its place in it.
    #[error("{}", .0.first().map(|(_, failure)| failure.to_string()).unwrap_or_default())]
    Transaction(Vec<(usize, OperationFailure)>),
}

/// Decides a command against a snapshot.
///
/// # Errors
/// [`Refusal`] if the command breaks a rule; nothing is to be changed then.
pub fn decide(snapshot: &Snapshot, command: &Command) -> Result<Decision, Refusal> {
    decide_after(snapshot, command, None)
}

/// Decides it [again](Decision::again), as its first transaction was committed at `first`: what was made since then, by others who were
/// told that it is there, is left.
///
/// # Errors
/// As [`decide`].
pub fn decide_again(snapshot: &Snapshot, command: &Command, first: Revision) -> Result<Decision, Refusal> {
    decide_after(snapshot, command, Some(first))
}

fn decide_after(snapshot: &Snapshot, command: &Command, first: Option<Revision>) -> Result<Decision, Refusal> {
    let mut decision = Decision::default();
    match command {
        Command::Register { name, node, instances, checks } => {
            virtual_address::assign(snapshot, instances, &mut decision);
            decide_register(snapshot, name, node.as_ref(), instances, checks, &mut decision)?;
        }
        Command::DeregisterInstance(key) => decide_deregister_instance(snapshot, key, &mut decision),
        Command::DeregisterCheck(node, id) => {
            decision.delete(snapshot, RecordKey::Check(node.clone(), id.clone()));
        }
        Command::DeregisterNode(name) => decide_deregister_node(snapshot, name, &mut decision),
        Command::Node { name, changes, key, registers } => {
            let written = changes.iter().filter_map(|change| match change {
                Change::Put(Record::Instance(instance)) => Some(instance),
                Change::Put(_) | Change::Delete(_) => None,
            });
            virtual_address::assign(snapshot, written, &mut decision);
            enrolment::admit_writer(snapshot, name, key.as_ref(), *registers, &mut decision)?;
            decide_node(snapshot, name, changes, *registers, &mut decision)?;
        }
        Command::PutConfig { entry, cas } => {
            check_cas(snapshot, &entry.key(), *cas)?;
            check_entry(snapshot, entry)?;
            decision.put(snapshot, Record::Config(entry.clone()));
            decision.see(snapshot, RecordKey::Config(entry.key()));
            decision.fence(snapshot, concerns_protocols(entry));
            prepared_query::take_name(snapshot, entry, &mut decision)?;
        }
        Command::DeleteConfig { key, cas } => {
            check_cas(snapshot, key, *cas)?;
            check_removal(snapshot, key)?;
            decision.delete(snapshot, RecordKey::Config(key.clone()));
            decision.see(snapshot, RecordKey::Config(key.clone()));
            decision.fence(snapshot, says_protocols(key.kind));
        }
        Command::PutIntention { destination, intention } => {
            intention::decide_put(snapshot, destination, intention, &mut decision)?;
        }
        Command::DeleteIntention { destination, source } => {
            intention::decide_delete(snapshot, destination, source, &mut decision);
        }
        Command::IntentionById(command) => intention::decide_by_id(snapshot, command, &mut decision)?,
        Command::Authority(command) => authority::decide(snapshot, command, &mut decision)?,
        Command::JoinToken(command) => join_token::decide(snapshot, command, &mut decision)?,
        Command::Enrolment(command) => enrolment::decide(snapshot, command, &mut decision)?,
        Command::Liveness(command) => liveness::decide(snapshot, command, &mut decision),
        Command::Coordination(command) => coordination::decide(snapshot, command, &mut decision)?,
        Command::Acl(command) => acl::decide(snapshot, command, &mut decision)?,
        Command::Transaction(operations) => match first {
            None => transaction::decide(snapshot, operations, &mut decision)?,
            Some(_) => transaction::decide_rest(snapshot, operations, &mut decision),
        },
    }
    if let Some(first) = first {
        let is_older = |key: &RecordKey| snapshot.created(key).is_none_or(|created| created <= first);
        decision.changes.retain(|change| !matches!(change, Change::Delete(key) if !is_older(key)));
    }
    coordination::end_what_hangs_on(snapshot, &mut decision);
    Ok(decision)
}

impl Decision {
    fn put(&mut self, snapshot: &Snapshot, record: Record) {
        // A write of what a stand-in says replaces the unreadable record.
        if !snapshot.holds(&record) || snapshot.quarantined_at(&record.key()).is_some() {
            self.changes.push(Change::Put(record));
        }
    }

    fn delete(&mut self, snapshot: &Snapshot, key: RecordKey) {
        if snapshot.modified(&key).is_some() {
            self.changes.push(Change::Delete(key));
        }
    }

    fn see(&mut self, snapshot: &Snapshot, key: RecordKey) {
        let modified = snapshot.modified(&key);
        self.seen.push(Seen { key, modified });
    }

    /// Makes changes that concern what services speak exclude each other.
    fn fence(&mut self, snapshot: &Snapshot, concerned: bool) {
        if concerned && !self.changes.is_empty() {
            self.see(snapshot, RecordKey::Fence(Fence::Protocols));
            self.changes.push(Change::Put(Record::Fence(Fence::Protocols)));
        }
    }
}

fn decide_register(
    snapshot: &Snapshot,
    name: &NodeName,
    node: Option<&Node>,
    instances: &[ServiceInstance],
    checks: &[Check],
    decision: &mut Decision,
) -> Result<(), Refusal> {
    refuse_duplicates("service id", instances.iter().map(|instance| instance.key.id.as_str()))?;
    refuse_duplicates("check", checks.iter().map(|check| check.id.as_str()))?;
    match node {
        Some(node) => decision.put(snapshot, Record::Node(node.clone())),
        None if snapshot.node(name).is_none() => return Err(Refusal::UnknownNode(name.clone())),
        None => {}
    }
    for instance in instances {
        refuse_taken_port(snapshot, node, instance, instances, |_| false)?;
        decision.put(snapshot, Record::Instance(instance.clone()));
    }
    for check in checks {
        if let Some(service) = &check.service {
            let key = InstanceKey { node: name.clone(), id: service.id.clone() };
            let comes_along = instances.iter().any(|instance| instance.key == key);
            if !comes_along && snapshot.instance(&key).is_none() {
                let (check, service, node) = (check.id.clone(), key.id, key.node);
                return Err(Refusal::UnknownService { check, service, node });
            }
        }
        decision.put(snapshot, Record::Check(check.clone()));
    }
    decision.see_grounds(snapshot);
    Ok(())
}

fn refuse_duplicates<'a>(kind: &'static str, ids: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
    let mut known = BTreeSet::new();
    for id in ids {
        if !known.insert(id) {
            return Err(Refusal::Duplicate { kind, id: id.to_owned() });
        }
    }
    Ok(())
}

/// Refuses a sidecar where another one is reached already; one that stays where it is may stay. A registration of another
/// that is decided on the same state is not seen: callers would then reach either of the two.
fn refuse_taken_port(
    snapshot: &Snapshot,
    node: Option<&Node>,
    instance: &ServiceInstance,
    along: &[ServiceInstance],
    is_gone: impl Fn(&InstanceKey) -> bool,
) -> Result<(), Refusal> {
    let (Some(_), Some(port)) = (instance.sidecar(), instance.port) else { return Ok(()) };
    let name = &instance.key.node;
    let stays =
        |old: &ServiceInstance| old.sidecar().is_some() && (old.port, &old.address) == (Some(port), &instance.address);
    if snapshot.instance(&instance.key).is_some_and(|old| stays(&old.value)) {
        return Ok(());
    }
    let node = node.or_else(|| snapshot.node(name).map(|node| &node.value));
    let node_address = node.map_or("", |node| node.address.as_str());
    let stored = snapshot.sidecars_at(name, port).map(|other| &other.value);
    let stored = stored.filter(|other| !is_gone(&other.key) && along.iter().all(|newer| newer.key != other.key));
    let newer = along.iter().filter(|other| other.sidecar().is_some() && other.port == Some(port));
    let address = host_of(instance.reachable_address(node_address));
    let mut others = stored.chain(newer).filter(|other| other.key != instance.key);
    match others.find(|other| host_of(other.reachable_address(node_address)) == address) {
        Some(other) => Err(Refusal::PortTaken { port, node: name.clone(), other: other.key.id.clone() }),
        None => Ok(()),
    }
}

/// An address in the form in which equal ones are equal.
fn host_of(address: &str) -> String {
    address.parse::<IpAddr>().map_or_else(|_| address.to_ascii_lowercase(), |ip| ip.to_string())
}

fn decide_deregister_instance(snapshot: &Snapshot, key: &InstanceKey, decision: &mut Decision) {
    decision.see(snapshot, RecordKey::Instance(key.clone()));
    decision.delete(snapshot, RecordKey::Instance(key.clone()));
    for check in snapshot.own_checks_of(key) {
        decision.delete(snapshot, RecordKey::Check(key.node.clone(), check.value.id.clone()));
    }
    decision.again = !decision.changes.is_empty();
}

fn decide_deregister_node(snapshot: &Snapshot, name: &NodeName, decision: &mut Decision) {
    decision.see(snapshot, RecordKey::Node(name.clone()));
    decision.delete(snapshot, RecordKey::Node(name.clone()));
    for instance in snapshot.instances_on(name) {
        decision.delete(snapshot, RecordKey::Instance(instance.value.key.clone()));
    }
    for check in snapshot.checks_on(name) {
        decision.delete(snapshot, RecordKey::Check(name.clone(), check.value.id.clone()));
    }
    decision.again = !decision.changes.is_empty();
}

/// An agent is the authority for its node and puts back what others remove, so nothing of its records is seen.
fn decide_node(
    snapshot: &Snapshot,
    name: &NodeName,
    changes: &[Change],
    registers: Registers,
    decision: &mut Decision,
) -> Result<(), Refusal> {
    for change in changes {
        let key = change.key();
        if key.on_node().is_none_or(|of| of.node() != name) {
            return Err(Refusal::ForeignRecord { node: name.clone(), key: key.encode() });
        }
        match change {
            Change::Put(record) => {
                if let Record::Instance(instance) = record {
                    snapshot.may_register_instance(instance, registers)?;
                }
                decision.put(snapshot, record.clone());
            }
            Change::Delete(key) => decision.delete(snapshot, key.clone()),
        }
    }
    Ok(())
}

fn check_cas(snapshot: &Snapshot, key: &ConfigEntryKey, cas: Option<Revision>) -> Result<(), Refusal> {
    let Some(expected) = cas else { return Ok(()) };
    let actual = snapshot.config(key).map(|entry| entry.modified).unwrap_or_default();
    if actual == expected { Ok(()) } else { Err(Refusal::Cas { key: key.to_string(), expected, actual }) }
}
