//! Commands about join tokens: what lets the agent of a new node in.
//!
//! A token is stored as the hash of its secret. It touches no subject: nothing that a proxy does depends on it.

use std::time::Duration;

use starling_model::{
    Change, JoinTokenDescription, JoinTokenId, JoinTokenRecord, JoinTokenUse, JoinTokenUses, KeyFingerprint, Member,
    NodeId, NodeName, Record, RecordKey, SecretHash, ServerId, ServicePattern, UnixSeconds,
};

use super::enrolment::{EnrolmentRefusal, Joining, enrol, is_holder};
use super::{Decision, GUARDED_CHANGES_MAX};
use crate::snapshot::Snapshot;

/// Join tokens that are not yet expired: one for each node of a large fleet, twice over. Each takes about 300 bytes.
pub const JOIN_TOKENS_MAX: usize = 20_000;

/// Expired tokens that go when one is made: as many as fit into the same transaction.
const SWEPT_MAX: usize = GUARDED_CHANGES_MAX - 1;

/// A join token to be made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewJoinToken {
    /// Whether it lets relays in, and no nodes.
    pub for_relays: bool,
    /// Whether it is good for any number of nodes, and not for one only.
    pub reusable: bool,
    /// How long it is good; `None` for the usual time.
    pub ttl: Option<Duration>,
    /// What it is for.
    pub description: Option<JoinTokenDescription>,
    /// The services that a node which joins by it may register; `None` leaves that to the mesh's default.
    pub services: Option<Vec<ServicePattern>>,
}

/// What a door asks for about join tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum JoinTokenCommand {
    /// Keeps a new token, and forgets tokens that had expired when it was made.
    Create(JoinTokenRecord),
    /// Uses a token for a node; a one-time token is used up by it.
    Use(JoinRequest),
    /// Forgets a token; nothing happens if it is not there. Who has joined by it stays.
    Revoke(JoinTokenId),
    /// Forgets tokens that expired [`KEPT_EXPIRED_S`] ago or earlier.
    Sweep {
        /// The server that does so, which has to lead; `None` if there is no other.
        by: Option<ServerId>,
        /// When.
        now: UnixSeconds,
    },
}

/// Seconds for which an expired token is kept at least, so that who comes late is told so, and not that there is none.
pub const KEPT_EXPIRED_S: u64 = 60 * 60;

/// An agent without a certificate asks for one.
#[derive(Debug, Clone, PartialEq)]
pub struct JoinRequest {
    /// Which token it shows.
    pub token: JoinTokenId,
    /// The hash of the secret that it shows.
    pub secret_hash: SecretHash,
    /// The node that it says it is.
    pub node: NodeName,
    /// The identifier that it says it has; empty if it has none.
    pub node_id: NodeId,
    /// Whether it says that it is a relay.
    pub relay: bool,
    /// The key that its certificate is to have.
    pub key: KeyFingerprint,
    /// Whose the name is already.
    pub holder: NameHolder,
    /// When it asks.
    pub now: UnixSeconds,
}

/// Whose a node name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameHolder {
    /// Nobody's, or a node's that was lost: it may be taken over.
    Nobody,
    /// That of a node which is away and waited for. That node alone, known by its identifier, may join by it.
    Away,
    /// That of a node whose agent is attached.
    Attached,
}

/// Why a command about join tokens is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinTokenRefusal {
    /// There is a token of this name; another must be drawn.
    #[error("there is a join token {0} already")]
    Exists(JoinTokenId),
    /// The limit is reached.
    #[error("there are {JOIN_TOKENS_MAX} join tokens; revoke some, or use reusable ones")]
    TooMany,
    /// There is no such token, or its secret is another: the two are not told apart, so that nobody can try out names.
    #[error("the join token is not known: it was never made here, was revoked, or expired long ago")]
    Unknown,
    /// Its time is over.
    #[error("join token {id} has expired; make another with `starling token create --join`")]
    Expired {
        /// The token.
        id: JoinTokenId,
        /// Since when.
        expired_at: UnixSeconds,
    },
    /// It was for one node, and that has joined.
    #[error("join token {id} was for one node and node {} has used it; make another for this one", used.node)]
    Used {
        /// The token.
        id: JoinTokenId,
        /// By whom and when.
        used: JoinTokenUse,
    },
    /// It lets in nodes, and a relay has shown it.
    #[error("join token {0} lets nodes in, not relays; make another with `starling token create --join --relay`")]
    NotForRelays(JoinTokenId),
    /// It lets in relays, and a node has shown it.
    #[error("join token {0} lets relays in, not nodes; make another with `starling token create --join`")]
    ForRelays(JoinTokenId),
    /// An agent of this name is there.
    #[error(
        "node name {node} is that of a living node{}; choose another name, or stop the agent that has it",
        registered_as(id)
    )]
    NodeTaken {
        /// The name.
        node: NodeName,
        /// The identifier under which that node is registered; empty if it is not or has none.
        id: NodeId,
    },
    /// An agent of this name was there a moment ago, and is waited for.
    #[error(
        "node name {node} is that of a node{} which is away for a moment; if it is the same machine, ask again once that \
         node counts as lost, or keep its node id; else choose another name",
        registered_as(id)
    )]
    NodeAway {
        /// The name.
        node: NodeName,
        /// The identifier under which that node is registered; empty if it is not or has none.
        id: NodeId,
    },
    /// The name is another's.
    #[error(transparent)]
    Enrolment(#[from] EnrolmentRefusal),
}

impl JoinRequest {
    /// Who joins.
    #[must_use]
    pub fn member(&self) -> Member {
        if self.relay { Member::Relay(self.node.clone()) } else { Member::Node(self.node.clone()) }
    }
}

fn registered_as(id: &str) -> String {
    if id.is_empty() { String::new() } else { format!(" (id {id})") }
}

pub(super) fn decide(
    snapshot: &Snapshot,
    command: &JoinTokenCommand,
    decision: &mut Decision,
) -> Result<(), JoinTokenRefusal> {
    match command {
        JoinTokenCommand::Create(token) => decide_create(snapshot, token, decision),
        JoinTokenCommand::Use(request) => decide_use(snapshot, request, decision),
        JoinTokenCommand::Revoke(id) => {
            decision.delete(snapshot, RecordKey::JoinToken(*id));
            Ok(())
        }
        JoinTokenCommand::Sweep { by, now } => {
            sweep(snapshot, *by, *now, decision);
            Ok(())
        }
    }
}

/// Whoever does not lead sweeps nothing, also if it did when it decided to.
fn sweep(snapshot: &Snapshot, by: Option<ServerId>, now: UnixSeconds, decision: &mut Decision) {
    if by.is_some_and(|server| !snapshot.is_led_by(server)) {
        return;
    }
    let is_due = |token: &JoinTokenRecord| token.expires_at.plus(KEPT_EXPIRED_S) <= now;
    let mut due = snapshot.join_tokens().filter(|token| is_due(&token.value));
    let swept = due.by_ref().take(SWEPT_MAX).map(|token| Change::Delete(RecordKey::JoinToken(token.value.id)));
    decision.changes.extend(swept);
    decision.again = due.next().is_some();
    if by.is_some() && !decision.changes.is_empty() {
        decision.see(snapshot, RecordKey::Leader);
    }
}

fn decide_create(
    snapshot: &Snapshot,
    token: &JoinTokenRecord,
    decision: &mut Decision,
) -> Result<(), JoinTokenRefusal> {
    if snapshot.join_token(&token.id).is_some() {
        return Err(JoinTokenRefusal::Exists(token.id));
    }
    decision.see(snapshot, RecordKey::JoinToken(token.id));
    decision.put(snapshot, Record::JoinToken(token.clone()));
    let expired = snapshot.join_tokens().filter(|other| other.value.expires_at <= token.created_at).take(SWEPT_MAX);
    decision.changes.extend(expired.map(|other| Change::Delete(RecordKey::JoinToken(other.value.id))));
    let swept = decision.changes.len() - 1;
    if snapshot.join_tokens.len() - swept >= JOIN_TOKENS_MAX { Err(JoinTokenRefusal::TooMany) } else { Ok(()) }
}

fn decide_use(snapshot: &Snapshot, request: &JoinRequest, decision: &mut Decision) -> Result<(), JoinTokenRefusal> {
    let stored = snapshot.join_token(&request.token);
    let Some(stored) = stored.filter(|stored| stored.value.secret_hash == request.secret_hash) else {
        return Err(JoinTokenRefusal::Unknown);
    };
    let token = &stored.value;
    if token.expires_at <= request.now {
        return Err(JoinTokenRefusal::Expired { id: token.id, expired_at: token.expires_at });
    }
    if let JoinTokenUses::OneTime { used: Some(used) } = &token.uses {
        return Err(JoinTokenRefusal::Used { id: token.id, used: used.clone() });
    }
    match (token.for_relays, request.relay) {
        (false, true) => return Err(JoinTokenRefusal::NotForRelays(token.id)),
        (true, false) => return Err(JoinTokenRefusal::ForRelays(token.id)),
        (true, true) | (false, false) => {}
    }
    let member = request.member();
    // The holder of a name proves by its key that it is the same machine, alive or not.
    if !is_holder(snapshot, &member, &request.key) {
        refuse_taken_name(snapshot, request)?;
    }
    let joining = Joining {
        member,
        key: request.key,
        token: token.id,
        token_made: stored.created,
        services: token.services.as_ref(),
        is_taken: request.holder != NameHolder::Nobody,
        now: request.now,
    };
    enrol(snapshot, joining, decision)?;
    // Also of a token that is not used up: one that is revoked meanwhile lets nobody in.
    decision.see(snapshot, RecordKey::JoinToken(token.id));
    if let JoinTokenUses::OneTime { used: None } = &token.uses {
        let used = Some(JoinTokenUse { node: request.node.clone(), at: request.now });
        decision.put(
            snapshot,
            Record::JoinToken(JoinTokenRecord { uses: JoinTokenUses::OneTime { used }, ..token.clone() }),
        );
    }
    Ok(())
}

/// Refuses the name of a living node, and that of one which is away to all but the node that is registered under it.
fn refuse_taken_name(snapshot: &Snapshot, request: &JoinRequest) -> Result<(), JoinTokenRefusal> {
    let id = snapshot.node(&request.node).map(|node| node.value.id.clone()).unwrap_or_default();
    match request.holder {
        NameHolder::Attached => Err(JoinTokenRefusal::NodeTaken { node: request.node.clone(), id }),
        NameHolder::Away if id.is_empty() || id != request.node_id => {
            Err(JoinTokenRefusal::NodeAway { node: request.node.clone(), id })
        }
        NameHolder::Away | NameHolder::Nobody => Ok(()),
    }
}
