//! Commands about which nodes are alive, and to which server each is attached.
//!
//! Where the store is shared a node is its server's: what that server says of it is written, under the condition that it is
//! still its own. A node whose server is gone is the leader's, as long as it leads.

use starling_model::{
    AttachmentRecord, Change, Check, CheckId, CheckStatus, LIVENESS_CHECK, LIVENESS_LOST, NodeName, Record, RecordKey,
    ServerId,
};

use super::{Decision, GUARDED_CHANGES_MAX};
use crate::snapshot::Snapshot;

/// Nodes in one [`LivenessCommand`]: each is written by at most two changes.
pub const LIVENESS_NODES_MAX: usize = (GUARDED_CHANGES_MAX - 8) / 2;

/// What a server says of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivenessCommand {
    /// The server that says so; `None` if there is no other.
    pub by: Option<ServerId>,
    /// The nodes, at most [`LIVENESS_NODES_MAX`].
    pub nodes: Vec<(NodeName, Said)>,
}

/// What is said of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// Its agent is attached to this server.
    Attached,
    /// Its agent is not attached to this server, and is waited for no longer.
    Lost,
}

/// Whose business a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// That of a server that runs; where there is only one, that one's.
    Of(Option<ServerId>),
    /// The leader's: the server that it was attached to is gone.
    Orphan,
    /// Nobody's: it is attached to no server.
    Nobody,
}

impl Snapshot {
    /// Whose business a node is, where the store is shared.
    #[must_use]
    pub fn charge(&self, node: &NodeName) -> Charge {
        match self.attachment(node).map(|attachment| attachment.value.server) {
            None => Charge::Nobody,
            Some(server) if self.server(server).is_some() => Charge::Of(Some(server)),
            Some(_) => Charge::Orphan,
        }
    }

    /// The nodes whose server is gone, by name.
    pub fn orphans(&self) -> impl Iterator<Item = &NodeName> {
        let attachments = self.attachments().map(|attachment| &attachment.value);
        attachments.filter(|attachment| self.server(attachment.server).is_none()).map(|attachment| &attachment.node)
    }

    /// Whether `server` leads.
    #[must_use]
    pub fn is_led_by(&self, server: ServerId) -> bool {
        self.leader().is_some_and(|leader| leader.value.server == server)
    }
}

pub(super) fn decide(snapshot: &Snapshot, command: &LivenessCommand, decision: &mut Decision) {
    let mut leads = false;
    for (node, said) in &command.nodes {
        let charge = command.by.map_or(Charge::Of(None), |_| snapshot.charge(node));
        match said {
            Said::Attached => {
                if let Some(server) = command.by {
                    // The last server to which it came has it: nothing need be seen.
                    let attachment = AttachmentRecord { node: node.clone(), server };
                    decision.put(snapshot, Record::Attachment(attachment));
                }
                check(snapshot, node, CheckStatus::Passing, decision);
            }
            Said::Lost if charge == Charge::Of(command.by) => lost(snapshot, node, decision),
            Said::Lost if is_leaders(snapshot, command.by, charge) => {
                leads = true;
                lost(snapshot, node, decision);
            }
            Said::Lost => {}
        }
    }
    if leads && !decision.changes.is_empty() {
        decision.see(snapshot, RecordKey::Leader);
    }
}

/// Whether a node that is nobody's is `server`'s to look after, since it leads.
fn is_leaders(snapshot: &Snapshot, server: Option<ServerId>, charge: Charge) -> bool {
    matches!(charge, Charge::Orphan | Charge::Nobody) && server.is_some_and(|server| snapshot.is_led_by(server))
}

fn lost(snapshot: &Snapshot, node: &NodeName, decision: &mut Decision) {
    let attachment = RecordKey::Attachment(node.clone());
    let before = decision.changes.len();
    decision.delete(snapshot, attachment.clone());
    check(snapshot, node, CheckStatus::Critical, decision);
    if decision.changes.len() > before {
        decision.see(snapshot, attachment);
    }
}

/// Of a node that is not in the catalog nothing is said.
fn check(snapshot: &Snapshot, node: &NodeName, status: CheckStatus, decision: &mut Decision) {
    let id = CheckId::new(LIVENESS_CHECK).expect("invariant: an identifier");
    let known = snapshot.check(node, &id).map(|check| check.value.status);
    if snapshot.node(node).is_none() || known == Some(status) {
        return;
    }
    let output = match status {
        CheckStatus::Passing | CheckStatus::Warning => "Agent alive and reachable",
        CheckStatus::Critical => LIVENESS_LOST,
    };
    let check = Check {
        node: node.clone(),
        id,
        name: "Agent liveness".to_owned(),
        status,
        notes: String::new(),
        output: output.to_owned(),
        service: None,
        kind: String::new(),
        interval: String::new(),
        timeout: String::new(),
        definition: starling_model::OpaqueSettings::default(),
    };
    decision.changes.push(Change::Put(Record::Check(check)));
    decision.see(snapshot, RecordKey::Node(node.clone()));
}
