//! What the API needs from the programs it runs in: a catalog to read and write, and an agent.

mod snapshot;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use starling_catalog::{
    Barrier, ChangeReport, Command, Earlier, NewJoinToken, NodeReport, ProxyReport, Refusal, RotationWaits, Snapshot,
    Subject, Until,
};
use starling_identity::JoinToken;
use starling_model::{
    AclSecret, Action, CaKeyRecord, Check, CheckId, CheckStatus, Datacenter, InstanceId, InstanceKey, Node, NodeName,
    Revision, ServerId, ServiceInstance, ServiceName, ServiceRegistration, TrustDomain, UnixSeconds,
};

use tokio::sync::mpsc;

use crate::acl::{Bearer, BearerFailure, Denied, bearer_in};
use crate::parse::CheckRegistration;

pub use snapshot::{IncomingSnapshot, OutgoingSnapshot, RestoreReport, SnapshotFailure};

/// The catalog, its store and what is known of the proxies.
#[async_trait]
pub trait CatalogPort: Send + Sync + 'static {
    /// The catalog as it is now.
    fn snapshot(&self) -> Arc<Snapshot>;

    /// Returns when one of the subjects has changed after `after`, or when the time is up; gives the catalog as it is
    /// then. Without subjects only the time ends it. Must be safe to drop at any moment, since clients leave.
    async fn wait(&self, subjects: &[Subject], after: Revision, timeout: Duration) -> Arc<Snapshot>;

    /// Returns once the catalog has everything that was acknowledged, by whichever server, before this was called.
    ///
    /// # Errors
    /// [`CommitFailure::NoLeader`] if that cannot be found out now.
    async fn catch_up(&self) -> Result<(), CommitFailure>;

    /// Which of several servers answers; `None` where there is one.
    fn own_server(&self) -> Option<ServerId>;

    /// Whether the catalog follows its store no longer, and never will.
    fn has_halted(&self) -> bool;

    /// How current the catalog is.
    fn currency(&self) -> Currency;

    /// Servers that ended without leaving a while ago and are not back.
    fn lost_servers(&self) -> Vec<LostServer> {
        Vec::new()
    }

    /// Nodes with agents that have left the mesh and are not back, as far as that is remembered.
    fn left_nodes(&self) -> Vec<Node> {
        Vec::new()
    }

    /// Forgets one of them; whether it was remembered.
    fn forget_left_node(&self, node: &NodeName) -> bool {
        let _ = node;
        false
    }

    /// Deletes a quarantined record from the store; `None` if there is none under `key`.
    ///
    /// # Errors
    /// [`CommitFailure`] if the record changed meanwhile, or the store takes no write.
    async fn delete_quarantined(&self, key: &str) -> Result<Option<Revision>, CommitFailure> {
        let _ = key;
        Ok(None)
    }

    /// How it stands with each process that keeps a shared store. Takes some seconds where one does not answer.
    async fn store_members(&self) -> Vec<StoreMember> {
        Vec::new()
    }

    /// Judges, decides and commits a command, all on one state of the catalog; durable when it returns. A command that changes
    /// nothing answers the catalog's revision.
    ///
    /// # Errors
    /// [`CommitFailure`] if the bearer may not, or it is refused, or cannot be stored.
    async fn transact(&self, bearer: &Bearer, command: Command) -> Result<Committed, CommitFailure>;

    /// The same on behalf of the mesh itself, for who needs no more than the revision.
    ///
    /// # Errors
    /// As [`CatalogPort::transact`].
    async fn commit(&self, command: Command) -> Result<Revision, CommitFailure> {
        Ok(self.transact(&Bearer::unrestricted(), command).await?.revision)
    }

    /// Who shows this token, or none.
    ///
    /// # Errors
    /// [`BearerFailure`] if there is no such token, or that cannot be found out.
    async fn bearer(&self, secret: Option<&str>) -> Result<Bearer, BearerFailure> {
        bearer_in(&self.snapshot(), &self.authority(), secret)
    }

    /// Makes a join token; with it, when it expires. Its text is given out once, from what this answers.
    ///
    /// # Errors
    /// [`CommitFailure`] if its lifetime is outside the limits, or it cannot be stored.
    async fn create_join_token(&self, wanted: NewJoinToken) -> Result<(JoinToken, UnixSeconds), CommitFailure>;

    /// Changes what signs; what it has come to.
    ///
    /// # Errors
    /// [`CommitFailure`] if it is refused, or cannot be stored; also where there is no server behind this.
    async fn change_authority(&self, change: AuthorityChange) -> Result<AuthorityChanged, CommitFailure> {
        let _ = change;
        Err(CommitFailure::Invalid("only a server changes the CA".to_owned()))
    }

    /// For what a rotation of the CA waits.
    fn rotation_waits_for(&self) -> RotationWaits {
        RotationWaits::default()
    }

    /// The receipt of a change, once nothing is outstanding or the time is up, with at most `names` names of each kind;
    /// `None` if it is not remembered.
    async fn change(&self, revision: Revision, wait: Duration, names: usize) -> Option<ChangeReport>;

    /// The same, of the nodes alone that are attached to the server that is asked, with all names. Another server may know that
    /// the command has `earlier` transactions.
    async fn own_part_of_change(&self, revision: Revision, earlier: &Earlier, wait: Duration) -> Option<ChangeReport>;

    /// How it stands with a barrier behind a change, once that is decided or the time is up; `None` if the change is not
    /// remembered. Must be safe to drop.
    async fn until(&self, revision: Revision, until: &Until, wait: Duration) -> Option<Barrier>;

    /// The remembered changes by what all servers know, newest first, but no more than `most`; and the servers that were not
    /// heard.
    async fn changes(&self, most: usize) -> (Vec<ChangeReport>, Vec<String>) {
        (self.own_part_of_changes(most), Vec::new())
    }

    /// The same by what this server knows of its own nodes.
    fn own_part_of_changes(&self, most: usize) -> Vec<ChangeReport>;

    /// What the other servers answer to a GET of `target`; nothing where there is no other.
    async fn others_say(&self, target: &str) -> OthersSay {
        let _ = target;
        OthersSay::default()
    }

    /// Every proxy known here.
    fn proxies(&self) -> Vec<(InstanceKey, ProxyReport)>;

    /// Every node from which reports come here, by name; with each for how long the oldest change waits that it owes, zero if
    /// it owes none.
    fn nodes(&self) -> Vec<(NodeReport, Duration)>;

    /// What is wrong with what users wrote.
    fn diagnostics(&self) -> Vec<DiagnosticRow>;

    /// What holds for the mesh and this server.
    fn authority(&self) -> MeshFacts;

    /// Every metric in the OpenMetrics text form.
    fn metrics_text(&self) -> String;

    /// What the process logs from now on, up to `level`, as text or as JSON; `None` if as many listen as may.
    fn log_lines(&self, level: tracing::Level, json: bool) -> Option<mpsc::Receiver<String>> {
        let _ = (level, json);
        None
    }

    /// Everything that was acknowledged before, as a snapshot file.
    ///
    /// # Errors
    /// [`SnapshotFailure`]; [`SnapshotFailure::NotHere`] where the catalog is not kept.
    async fn save_snapshot(&self) -> Result<OutgoingSnapshot, SnapshotFailure> {
        Err(SnapshotFailure::NotHere)
    }

    /// Begins to take a snapshot file that the catalog is to be set back to.
    ///
    /// # Errors
    /// [`SnapshotFailure::NotHere`] where the catalog is not kept.
    fn receive_snapshot(&self) -> Result<Box<dyn IncomingSnapshot>, SnapshotFailure> {
        Err(SnapshotFailure::NotHere)
    }

    /// How far this server is with leaving, which it begins with if it is to; `None` if it is none of several.
    fn leaving(&self, begin: bool) -> Option<Leaving>;
}

/// A command that was committed.
#[derive(Debug, Clone)]
pub struct Committed {
    /// When.
    pub revision: Revision,
    /// On what it was decided: nothing that it depends on was changed between the two.
    pub decided_on: Arc<Snapshot>,
}

/// How far a server is with leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leaving {
    /// Whether it has begun.
    pub begun: bool,
    /// Agents that are attached to it.
    pub attached: u32,
    /// Agents that have a stream in reserve here.
    pub standby: u32,
    /// Whether it has left, and ends.
    pub done: bool,
}

/// What is to become of the CA.
#[derive(Debug, Clone, PartialEq)]
pub enum AuthorityChange {
    /// Another root.
    Rotate {
        /// Seconds over which leaves are renewed once it signs; 0 for the usual time.
        renew_within_s: u32,
        /// Whether a Vault is to sign.
        to_vault: bool,
    },
    /// A CA from elsewhere.
    Import {
        /// Its root, in PEM.
        root_pem: String,
        /// What signs under it, the key sealed.
        key: CaKeyRecord,
        /// As for a rotation.
        renew_within_s: u32,
    },
    /// A CA from elsewhere whose key comes as it is.
    Take {
        /// The certificate that signs, and those between it and its root, which ends them; in PEM.
        certificates_pem: String,
        /// The key, in PEM.
        key: PrivateKeyText,
        /// As for a rotation.
        renew_within_s: u32,
        /// Whether the agent of this process has no leaf.
        no_leaf_beside: bool,
    },
    /// A rotation goes on without the nodes for which it waits.
    Proceed,
    /// Every key sealed anew, with the seal key of the moment.
    Reseal,
}

/// What has become of the CA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthorityChanged {
    /// This root is trusted.
    Trusted {
        /// Its identifier.
        root: String,
        /// When.
        revision: Revision,
    },
    /// The rotation goes on without these nodes and relays.
    GivenUp {
        /// Its root.
        root: String,
        /// The nodes.
        nodes: BTreeSet<NodeName>,
        /// How many more that no server names.
        unnamed: usize,
        /// The relays.
        relays: BTreeSet<NodeName>,
        /// When.
        revision: Revision,
    },
    /// So many keys are sealed anew.
    Resealed(usize),
}

/// What other servers answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OthersSay {
    /// The answers.
    pub answers: Vec<serde_json::Value>,
    /// The servers that gave none, by name.
    pub unheard: Vec<String>,
}

/// A server that ended without leaving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostServer {
    /// Its name.
    pub name: NodeName,
    /// Where its HTTP API was.
    pub http: String,
    /// For how long it is gone, as far as this server has seen.
    pub gone_for: Duration,
}

/// One of the processes that keep a shared store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreMember {
    /// Where it is asked, `HOST:PORT`.
    pub address: String,
    /// Whether it leads.
    pub leads: bool,
    /// Its release; empty where it did not answer.
    pub version: String,
    /// Bytes of its data.
    pub bytes: u64,
    /// Why it is of no use now, or what it complains of.
    pub trouble: Option<String>,
}

/// How current what is answered is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Currency {
    /// For how long it may lack what others were acknowledged.
    pub last_contact: Duration,
    /// Whether writes have somebody to go to.
    pub knows_leader: bool,
    /// Whether they are also accepted there.
    pub takes_writes: bool,
}

/// Why a command was not committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitFailure {
    /// It breaks a rule.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Whoever asks for it may not.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// It can never be stored, for this reason; nothing was changed.
    #[error("{0}")]
    Invalid(String),
    /// The store that servers share cannot be written to now. Begins with what Consul says then, which clients look for.
    #[error("{0}")]
    NoLeader(String),
    /// The store cannot take it now.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}

/// A user's mistake that stands in the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiagnosticRow {
    /// The object: `service-defaults/web`, `node/instance`.
    pub object: String,
    /// The field's path in it.
    pub field: String,
    /// What is wrong.
    pub reason: String,
    /// What to do.
    pub fix: String,
}

/// What holds for the mesh and for the server that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshFacts {
    /// The datacentre.
    pub datacenter: Datacenter,
    /// The trust domain of every identity.
    pub trust_domain: TrustDomain,
    /// What happens where no intention decides.
    pub default_intention_action: Action,
    /// Whether access is controlled, and what holds then where no rule does.
    pub acl_default: Option<Action>,
    /// `host:port` of the server that writes; empty while there is none.
    pub leader_address: String,
    /// `host:port` of every server.
    pub peer_addresses: Vec<String>,
    /// Starling's version.
    pub version: String,
    /// The node of the agent that answers.
    pub node_name: NodeName,
    /// Its UUID.
    pub node_id: String,
    /// The address it is reached at.
    pub node_address: String,
    /// Port of xDS in plaintext; `None` where it is not served.
    pub grpc_port: Option<u16>,
    /// Port of xDS over mutual TLS; `None` where it is not served.
    pub grpc_tls_port: Option<u16>,
    /// Port of DNS; `None` where it is not served.
    pub dns_port: Option<u16>,
    /// Envoy versions that are tested, newest first.
    pub envoy_versions: Vec<String>,
    /// Whether the operator has turned off what Consul calls Connect: nobody is given roots or leaves.
    pub connect_off: bool,
    /// Whether answers say that addresses of other datacentres are the ones to be reached from here
    /// (`translate_wan_addrs`). There are none, so nothing else comes of it.
    pub translates_addresses: bool,
}

/// The agent on this node.
#[async_trait]
pub trait AgentPort: Send + Sync + 'static {
    /// Registers a service, its sidecar and its checks; the same again changes nothing.
    ///
    /// With `replace_existing_checks`, checks of the service that are not in the registration are removed.
    ///
    /// # Errors
    /// [`AgentFailure`] if it contradicts what is registered, or cannot be stored.
    async fn register_service(
        &self,
        registration: ServiceRegistration,
        replace_existing_checks: bool,
    ) -> Result<Revision, AgentFailure>;

    /// Removes a service with its checks and its nested sidecar.
    ///
    /// # Errors
    /// [`AgentFailure::NotFound`] if it is not registered here.
    async fn deregister_service(&self, id: &InstanceId) -> Result<Revision, AgentFailure>;

    /// Registers a check.
    ///
    /// # Errors
    /// [`AgentFailure`] if its service is not registered here, or it may not run.
    async fn register_check(&self, registration: CheckRegistration) -> Result<Revision, AgentFailure>;

    /// Removes a check.
    ///
    /// # Errors
    /// [`AgentFailure::NotFound`] if it is not registered here.
    async fn deregister_check(&self, id: &CheckId) -> Result<Revision, AgentFailure>;

    /// Takes the report of an application for a TTL check.
    ///
    /// # Errors
    /// [`AgentFailure::NotFound`] if there is no such check, [`AgentFailure::BadRequest`] if it is of another kind.
    async fn update_check(&self, id: &CheckId, status: CheckStatus, output: String) -> Result<Revision, AgentFailure>;

    /// The services registered here, sidecars included, by identifier.
    fn services(&self) -> Vec<ServiceInstance>;

    /// One service registered here.
    fn service(&self, id: &InstanceId) -> Option<ServiceInstance>;

    /// The checks registered here, by identifier.
    fn checks(&self) -> Vec<Check>;

    /// A number that rises with every change to what is registered here.
    fn generation(&self) -> u64;

    /// Returns when [`AgentPort::generation`] is past `after`, or when the time is up. Must be safe to drop.
    async fn wait_generation(&self, after: u64, timeout: Duration);

    /// The leaf certificate of a service, once it is newer than `after` or the time is up. Must be safe to drop.
    ///
    /// # Errors
    /// [`AgentFailure`] if none can be had.
    async fn leaf(&self, service: &ServiceName, after: Revision, timeout: Duration) -> Result<Leaf, AgentFailure>;

    /// Has every leaf of this node issued anew, with a new key.
    fn rotate_leaves(&self);

    /// Whether there is no leaf of this node, nor has been since its data directory was begun, as far as is known.
    fn has_no_leaf(&self) -> bool {
        false
    }

    /// Reads its files anew, and registers what they define now; what they define no more goes. Answers with the settings that were
    /// changed there, and count from the next start.
    ///
    /// # Errors
    /// [`AgentFailure`] if a file cannot be read or says what cannot be; nothing is changed then.
    async fn reload(&self) -> Result<Vec<String>, AgentFailure> {
        let reason = "this agent was started without definition files that it could read anew".to_owned();
        Err(AgentFailure::BadRequest { path: "reload".to_owned(), reason })
    }

    /// Takes its node out of the mesh, and ends the process soon after. What is registered is kept for a later start. Where no server
    /// is reached it ends all the same.
    ///
    /// # Errors
    /// [`AgentFailure`] if it is not its own to leave.
    async fn leave(&self) -> Result<(), AgentFailure> {
        let reason = "this agent is part of a server".to_owned();
        Err(AgentFailure::BadRequest { path: "leave".to_owned(), reason })
    }

    /// The token of those who ask this agent without one.
    fn default_token(&self) -> Option<AclSecret> {
        None
    }

    /// Changes it; until the process ends.
    fn set_default_token(&self, token: Option<AclSecret>) {
        let _ = token;
    }

    /// The token of those who ask this agent over DNS; without one, the default token counts.
    fn dns_token(&self) -> Option<AclSecret> {
        None
    }

    /// Changes it; until the process ends.
    fn set_dns_token(&self, token: Option<AclSecret>) {
        let _ = token;
    }

    /// Rises when one of its tokens changes.
    fn tokens_version(&self) -> u64 {
        0
    }
}

/// Why the agent did not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentFailure {
    /// The request is wrong.
    #[error("{path}: {reason}")]
    BadRequest {
        /// The field's path.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What it speaks of is not here.
    #[error("not found")]
    NotFound,
    /// It may be right, but not now.
    #[error("{0}")]
    Internal(String),
}

/// A leaf certificate with its private key, for applications that speak mesh TLS themselves.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// Serial number, hex pairs with colons.
    pub serial_number: String,
    /// The certificate, and those between it and the root, in PEM.
    pub certificate_pem: String,
    /// Its private key.
    pub private_key_pem: PrivateKeyText,
    /// The service it names.
    pub service: ServiceName,
    /// Its SPIFFE ID.
    pub uri: String,
    /// Not valid before.
    pub valid_after: UnixSeconds,
    /// Not valid after.
    pub valid_before: UnixSeconds,
    /// When the first leaf of this service was made here; Consul's `CreateIndex`.
    pub created: Revision,
    /// When this one was made; Consul's `ModifyIndex`, never 0.
    pub modified: Revision,
}

/// A private key in PEM, kept out of logs.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKeyText(String);

impl PrivateKeyText {
    /// Wraps a key.
    #[must_use]
    pub fn new(pem: String) -> Self {
        Self(pem)
    }

    /// The key, for the one answer that gives it out, or for whoever signs with it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for PrivateKeyText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrivateKeyText(hidden)")
    }
}
