//! Commands about enrolments: whose a name is, for how long, and what its holder may register.

use starling_model::{
    Change, Enrolment, Holder, JoinTokenId, KeyFingerprint, Member, NodeName, Record, RecordKey, Revision,
    ServiceInstance, ServiceName, ServicePattern, UnixSeconds,
};

use super::{Decision, decide_deregister_node};
use crate::snapshot::Snapshot;

/// Enrolments at once, of evicted and released names too: three times the nodes of the largest fleet. Each takes about 500 bytes.
pub const ENROLMENTS_MAX: usize = 1_000_000;

/// What an entry point asks for about enrolments.
#[derive(Debug, Clone, PartialEq)]
pub enum EnrolmentCommand {
    /// Enrols a member that joined before enrolments were kept, by the key that its connection shows.
    Show {
        /// Who.
        member: Member,
        /// The key of its certificate.
        key: KeyFingerprint,
        /// When.
        now: UnixSeconds,
    },
    /// Records the key of a certificate that is about to be issued in place of the one that was shown.
    Renew {
        /// Who.
        member: Member,
        /// The key of the certificate that it has; `None` where a relay asks for the member.
        shown: Option<KeyFingerprint>,
        /// The key of the one that it will have.
        key: KeyFingerprint,
        /// When.
        now: UnixSeconds,
    },
    /// Puts a member out of the mesh: its keys count for nothing, and a node's records go.
    Evict {
        /// Who.
        member: Member,
        /// When.
        now: UnixSeconds,
    },
    /// Lets another key take the name of a member that lost its own. The member's keys count for nothing.
    Release {
        /// Who.
        member: Member,
        /// When.
        now: UnixSeconds,
    },
}

/// Why a member is not let in, or a command about it is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnrolmentRefusal {
    /// It was evicted.
    #[error(
        "{0} was evicted; to let it in again, remove agent/identity from its data directory and start it with a new join \
         token (`starling token create --join`)"
    )]
    Evicted(Member),
    /// Its name was released for another.
    #[error(
        "the name of {0} was released by an operator; remove agent/identity from its data directory and start it with a \
         join token (`starling token create --join`)"
    )]
    Released(Member),
    /// Another key holds the name.
    #[error("{0} is held by another key; an operator frees the name with `starling node release`")]
    OtherKey(Member),
    /// The name has records, and the one who joins shows another key than its holder.
    #[error(
        "{0} is held by another key and has records in the catalog; join from its own data directory, or free the name \
         with `starling node release`"
    )]
    Held(Member),
    /// A join token that is older than the eviction was used.
    #[error(
        "join token {token} is older than the eviction of {member}; make a new one with `starling token create --join`"
    )]
    TokenBeforeEviction {
        /// The token.
        token: JoinTokenId,
        /// Who was evicted.
        member: Member,
    },
    /// The node may not register the service.
    #[error(
        "node {node} may not register service {service}: {}; join the node again with a token of \
         `starling token create --join --services {service}`",
        covered(covered_services.as_deref())
    )]
    NotCovered {
        /// The node.
        node: NodeName,
        /// The service.
        service: ServiceName,
        /// What its join token covers; `None` if the token named no services.
        covered_services: Option<Vec<ServicePattern>>,
    },
    /// There is no such member.
    #[error("unknown {0}")]
    Unknown(Member),
    /// The limit is reached.
    #[error("there are {ENROLMENTS_MAX} enrolments, which is the limit")]
    TooMany,
}

fn covered(services: Option<&[ServicePattern]>) -> String {
    let Some(services) = services else { return "its join token names no services".to_owned() };
    let names: Vec<_> = services.iter().map(ServicePattern::to_string).collect();
    format!("its join token covers {}", if names.is_empty() { "none".to_owned() } else { names.join(", ") })
}

/// What a node may register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registers {
    /// Anything: its agent lives in a server's own process.
    Anything,
    /// What its join token covers; anything, too, where the token named no services and nothing controls access.
    AnythingUnlessNamed,
    /// What its join token covers; nothing where the token named no services.
    Named,
}

impl Snapshot {
    /// Whether a member is let in with a key; `None` where a relay speaks for it, and nobody sees its key.
    ///
    /// A member without an enrolment is: it joined before enrolments were kept. An eviction leaves one behind.
    ///
    /// # Errors
    /// [`EnrolmentRefusal`] if the name is held by another key, or by none.
    pub fn admit(&self, member: &Member, key: Option<&KeyFingerprint>) -> Result<(), EnrolmentRefusal> {
        let Some(enrolment) = self.enrolment(member).map(|enrolment| &enrolment.value) else { return Ok(()) };
        let is_held = match key {
            Some(key) => enrolment.is_held_by(key),
            None => matches!(enrolment.holder, Holder::Key { .. }),
        };
        if is_held { Ok(()) } else { Err(not_held(enrolment)) }
    }

    /// Whether a node may register a service, and have certificates for it.
    ///
    /// # Errors
    /// [`EnrolmentRefusal::NotCovered`] if its join token does not cover the service.
    pub fn may_register(
        &self,
        node: &NodeName,
        service: &ServiceName,
        registers: Registers,
    ) -> Result<(), EnrolmentRefusal> {
        if registers == Registers::Anything {
            return Ok(());
        }
        let enrolment = self.enrolment(&Member::Node(node.clone())).map(|enrolment| &enrolment.value);
        let services = enrolment.and_then(|enrolment| enrolment.services.as_ref());
        // A node that joined before tokens named services keeps those that it has.
        let keeps = || {
            enrolment.is_none_or(|enrolment| enrolment.join_token.is_none())
                && self.instances_on(node).any(|it| it.value.identity() == service || it.value.name == *service)
        };
        let covers = match services {
            Some(patterns) => patterns.iter().any(|pattern| pattern.covers(service)),
            None => registers == Registers::AnythingUnlessNamed || keeps(),
        };
        let refused = || EnrolmentRefusal::NotCovered {
            node: node.clone(),
            service: service.clone(),
            covered_services: services.cloned(),
        };
        if covers { Ok(()) } else { Err(refused()) }
    }

    /// [`Snapshot::may_register`] of an instance: of the identity that it has, and of the name under which others find it.
    pub(super) fn may_register_instance(
        &self,
        instance: &ServiceInstance,
        registers: Registers,
    ) -> Result<(), EnrolmentRefusal> {
        let identity = instance.identity();
        self.may_register(&instance.key.node, identity, registers)?;
        // The name that Consul gives a sidecar says nothing that its service does not.
        if instance.name.as_str().strip_suffix("-sidecar-proxy") == Some(identity.as_str()) {
            return Ok(());
        }
        self.may_register(&instance.key.node, &instance.name, registers)
    }
}

fn not_held(enrolment: &Enrolment) -> EnrolmentRefusal {
    let member = enrolment.member.clone();
    match enrolment.holder {
        Holder::Key { .. } => EnrolmentRefusal::OtherKey(member),
        Holder::Evicted => EnrolmentRefusal::Evicted(member),
        Holder::Released => EnrolmentRefusal::Released(member),
    }
}

/// A party that has shown a join token, as it is to be enrolled.
pub(super) struct Joining<'a> {
    pub(super) member: Member,
    pub(super) key: KeyFingerprint,
    pub(super) token: JoinTokenId,
    /// When the token was made.
    pub(super) token_made: Revision,
    pub(super) services: Option<&'a Vec<ServicePattern>>,
    /// Whether a living party has the name.
    pub(super) is_taken: bool,
    pub(super) now: UnixSeconds,
}

/// Whether the one who joins shows the key of the name's holder.
pub(super) fn is_holder(snapshot: &Snapshot, member: &Member, key: &KeyFingerprint) -> bool {
    snapshot.enrolment(member).is_some_and(|enrolment| enrolment.value.is_held_by(key))
}

/// Gives the name to the one who joins.
pub(super) fn enrol(
    snapshot: &Snapshot,
    joining: Joining<'_>,
    decision: &mut Decision,
) -> Result<(), EnrolmentRefusal> {
    let Joining { member, key, token, token_made, services, is_taken, now } = joining;
    let before = snapshot.enrolment(&member);
    let (mut epoch, mut since) = (1, now);
    if let Some(before) = before {
        let has_records = matches!(&member, Member::Node(node) if snapshot.node(node).is_some());
        (epoch, since) = match &before.value.holder {
            _ if before.value.is_held_by(&key) => (before.value.epoch, before.value.since),
            Holder::Key { .. } if is_taken || has_records => return Err(EnrolmentRefusal::Held(member)),
            Holder::Evicted if token_made <= before.modified => {
                return Err(EnrolmentRefusal::TokenBeforeEviction { token, member });
            }
            Holder::Key { .. } | Holder::Evicted | Holder::Released => (before.value.epoch + 1, now),
        };
    } else if snapshot.enrolments.len() >= ENROLMENTS_MAX {
        return Err(EnrolmentRefusal::TooMany);
    }
    decision.see(snapshot, RecordKey::Enrolment(member.clone()));
    let holder = Holder::Key { current: key, previous: Vec::new() };
    let (services, join_token) = (services.cloned(), Some(token));
    decision.put(snapshot, Record::Enrolment(Enrolment { member, epoch, holder, services, join_token, since }));
    Ok(())
}

pub(super) fn decide(
    snapshot: &Snapshot,
    command: &EnrolmentCommand,
    decision: &mut Decision,
) -> Result<(), EnrolmentRefusal> {
    match command {
        EnrolmentCommand::Show { member, key, now } => decide_show(snapshot, member, key, *now, decision),
        EnrolmentCommand::Renew { member, shown, key, now } => {
            decide_renew(snapshot, member, shown.as_ref(), *key, *now, decision)
        }
        EnrolmentCommand::Evict { member, now } => free(snapshot, member, Holder::Evicted, *now, decision),
        EnrolmentCommand::Release { member, now } => free(snapshot, member, Holder::Released, *now, decision),
    }
}

fn decide_show(
    snapshot: &Snapshot,
    member: &Member,
    key: &KeyFingerprint,
    now: UnixSeconds,
    decision: &mut Decision,
) -> Result<(), EnrolmentRefusal> {
    snapshot.admit(member, Some(key))?;
    if snapshot.enrolment(member).is_none() {
        put(snapshot, first(member, *key, now), decision);
    }
    Ok(())
}

fn decide_renew(
    snapshot: &Snapshot,
    member: &Member,
    shown: Option<&KeyFingerprint>,
    key: KeyFingerprint,
    now: UnixSeconds,
    decision: &mut Decision,
) -> Result<(), EnrolmentRefusal> {
    snapshot.admit(member, shown)?;
    let before = snapshot.enrolment(member).map(|enrolment| enrolment.value.clone());
    let mut enrolment = before.unwrap_or_else(|| first(member, shown.copied().unwrap_or(key), now));
    enrolment.renew(key, shown);
    put(snapshot, enrolment, decision);
    Ok(())
}

/// Lets the holder of a node's name write its records, unless an eviction comes in between.
pub(super) fn admit_writer(
    snapshot: &Snapshot,
    node: &NodeName,
    key: Option<&KeyFingerprint>,
    registers: Registers,
    decision: &mut Decision,
) -> Result<(), EnrolmentRefusal> {
    if registers == Registers::Anything {
        return Ok(());
    }
    let member = Member::Node(node.clone());
    snapshot.admit(&member, key)?;
    decision.see(snapshot, RecordKey::Enrolment(member));
    Ok(())
}

/// The enrolment of a member that joined before enrolments were kept.
fn first(member: &Member, key: KeyFingerprint, now: UnixSeconds) -> Enrolment {
    let holder = Holder::Key { current: key, previous: Vec::new() };
    Enrolment { member: member.clone(), epoch: 1, holder, services: None, join_token: None, since: now }
}

fn put(snapshot: &Snapshot, enrolment: Enrolment, decision: &mut Decision) {
    decision.see(snapshot, RecordKey::Enrolment(enrolment.member.clone()));
    decision.put(snapshot, Record::Enrolment(enrolment));
}

/// Takes the name from its holder.
fn free(
    snapshot: &Snapshot,
    member: &Member,
    holder: Holder,
    now: UnixSeconds,
    decision: &mut Decision,
) -> Result<(), EnrolmentRefusal> {
    let before = snapshot.enrolment(member).map(|enrolment| &enrolment.value);
    let is_registered = matches!(member, Member::Node(node) if snapshot.node(node).is_some());
    if before.is_none() && !is_registered {
        return Err(EnrolmentRefusal::Unknown(member.clone()));
    }
    // A second removal of what is left of the node's records raises nothing more.
    let is_free = before.is_some_and(|before| before.holder == holder);
    if !is_free {
        let epoch = before.map_or(0, |before| before.epoch) + 1;
        let (services, join_token) =
            before.map(|before| (before.services.clone(), before.join_token)).unwrap_or_default();
        let member = member.clone();
        put(snapshot, Enrolment { member, epoch, holder: holder.clone(), services, join_token, since: now }, decision);
    }
    if let (Member::Node(node), Holder::Evicted) = (member, &holder) {
        decide_deregister_node(snapshot, node, decision);
    }
    Ok(())
}

/// The join token by which a member joined, if it is reusable: an evicted one could come back with it under another name.
#[must_use]
pub fn reusable_token_of(snapshot: &Snapshot, member: &Member) -> Option<JoinTokenId> {
    let id = snapshot.enrolment(member)?.value.join_token?;
    let token = snapshot.join_token(&id)?;
    matches!(token.value.uses, starling_model::JoinTokenUses::Reusable).then_some(id)
}

/// The enrolments that these changes write.
pub fn written_enrolments(changes: &[Change]) -> impl Iterator<Item = &Enrolment> {
    changes.iter().filter_map(|change| match change {
        Change::Put(Record::Enrolment(enrolment)) => Some(enrolment),
        Change::Put(_) | Change::Delete(_) => None,
    })
}
