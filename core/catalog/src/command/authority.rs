//! Commands about the CA: which roots are trusted, which of them signs, and where its key is.
//!
//! Every one of them sees and rewrites the fence [`Fence::Authority`], so that two servers that decide on the same state do
//! not both prevail: not at the first start of two at once, nor in the steps of a rotation. Whether a root may sign is decided
//! here, so that what it was decided on is what the fence guards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use starling_model::{
    CaKeyPlace, CaKeyRecord, CaRootRecord, Change, CheckId, CheckStatus, Fence, LIVENESS_CHECK, NodeName, Record,
    RecordKey, Revision, RootOverlap, ServerId, TrustReport, UnixSeconds, Versioned,
};

use super::Decision;
use crate::snapshot::Snapshot;

/// Least time for which a root is trusted before it signs: what holds beside receipts, as an agent's trust in its servers,
/// follows within a second.
pub const OVERLAP_MIN: Duration = Duration::from_secs(3);

/// What is asked for about the CA.
#[derive(Debug, Clone, PartialEq)]
pub enum AuthorityCommand {
    /// The first root, which signs from now on; nothing happens if there is one.
    Found {
        /// The root.
        root: CaRootRecord,
        /// Its key, if that is to be in the store.
        key: Option<CaKeyRecord>,
    },
    /// Keeps the key of a root that is trusted, in place of what is kept of it.
    Keep(CaKeyRecord),
    /// Keeps the key of a root sealed anew, if it is still where it was taken from.
    Reseal {
        /// The root.
        root: String,
        /// From where it was taken.
        was: CaKeyPlace,
        /// The same key, sealed with another seal key.
        place: CaKeyPlace,
    },
    /// Trusts a root that is to sign once everybody trusts it.
    Introduce {
        /// The root.
        root: CaRootRecord,
        /// Its key.
        key: CaKeyRecord,
        /// When.
        now: UnixSeconds,
    },
    /// Signs under a root at once, in place of the one under which nobody has a leaf: there is nobody to wait for. Only where one server
    /// has the store to itself.
    Replace {
        /// The root.
        root: CaRootRecord,
        /// Its key.
        key: CaKeyRecord,
        /// When.
        now: UnixSeconds,
        /// The end of the last leaf under the one before it, if there is one after all: the server's own.
        until: UnixSeconds,
    },
    /// Asks the nodes once more whether they trust the coming root.
    AskAgain {
        /// The root.
        root: String,
    },
    /// A server says which of the nodes and relays that are attached to it do not trust the coming root yet.
    Report {
        /// The root.
        root: String,
        /// The server; nothing but a name here.
        server: String,
        /// What it says.
        report: TrustReport,
    },
    /// Does not wait for these nodes and relays any more.
    GiveUp {
        /// The root.
        root: String,
        /// The nodes.
        nodes: BTreeSet<NodeName>,
        /// How many more of those that no server names.
        unnamed: usize,
        /// The relays.
        relays: BTreeSet<NodeName>,
    },
    /// Signs under the coming root from now on, if every node trusts it that was not given up. The one before it stays
    /// trusted as long as leaves under it are valid.
    Activate {
        /// The root.
        root: String,
        /// The server that takes the step, which has to lead; `None` if there is no other.
        by: Option<ServerId>,
        /// When.
        now: UnixSeconds,
        /// The end of the last leaf under the one before it.
        until: UnixSeconds,
    },
    /// Trusts a root no more that has yet to sign, or that has signed before and whose time is over.
    Remove {
        /// The root.
        root: String,
        /// When; `None` removes one that has signed before its time is over.
        now: Option<UnixSeconds>,
    },
}

/// Why a command about the CA is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityRefusal {
    /// There is no such root.
    #[error("there is no root {0}; see `starling ca roots`")]
    Unknown(String),
    /// A rotation is under way.
    #[error(
        "the root {0} is being introduced already; wait for it (`starling ca status`), go on without the nodes that are \
         missing (`starling ca proceed`), or take it back (`starling ca remove {0}`)"
    )]
    UnderWay(String),
    /// The root is trusted already.
    #[error("the root {0} is trusted already")]
    Trusted(String),
    /// No rotation is under way.
    #[error("no root is being introduced; see `starling ca status`")]
    NotUnderWay,
    /// The key is another one than was sealed anew.
    #[error(
        "the key of the root {0} was written meanwhile; nothing was sealed anew of it, so do it again (`starling ca reseal`)"
    )]
    Rewritten(String),
    /// Not every node trusts the root, as far as is known.
    #[error("the root {0} does not sign yet: not every node trusts it; see `starling ca status`")]
    NotYet(String),
    /// The step is another server's.
    #[error("another server leads, and takes the steps of a rotation")]
    NotLeader,
    /// The root is of another mesh.
    #[error("the root is of trust domain {found}; this mesh is {wanted}")]
    TrustDomain {
        /// The root's.
        found: String,
        /// The mesh's.
        wanted: String,
    },
    /// The root signs.
    #[error("the root {0} signs leaves; introduce another first (`starling ca rotate`)")]
    Active(String),
    /// There are leaves under the root.
    #[error("leaves under the root {root} are valid until {} (unix seconds); --now breaks those that still use one", until.0)]
    InUse {
        /// The root.
        root: String,
        /// The end of the last leaf.
        until: UnixSeconds,
    },
}

pub(super) fn decide(
    snapshot: &Snapshot,
    command: &AuthorityCommand,
    decision: &mut Decision,
) -> Result<(), AuthorityRefusal> {
    match command {
        AuthorityCommand::Found { root, key } => {
            if snapshot.active_root().is_none() {
                decision.put(snapshot, Record::CaRoot(root.clone()));
                decision.changes.extend(key.clone().map(|key| Change::Put(Record::CaKey(key))));
            }
        }
        AuthorityCommand::Keep(key) => {
            known(snapshot, &key.root)?;
            decision.put(snapshot, Record::CaKey(key.clone()));
        }
        AuthorityCommand::Reseal { root, was, place } => {
            let key = snapshot.ca_key(root).map(|key| &key.value).filter(|key| key.place == *was);
            let key = key.ok_or_else(|| AuthorityRefusal::Rewritten(root.clone()))?;
            decision.put(snapshot, Record::CaKey(CaKeyRecord { place: place.clone(), ..key.clone() }));
        }
        AuthorityCommand::Introduce { root, key, now } => introduce(snapshot, root, key, *now, decision)?,
        AuthorityCommand::Replace { root, key, now, until } => {
            replace(snapshot, (root, key), *now, *until, decision)?;
        }
        AuthorityCommand::AskAgain { root } => {
            let mut root = coming(snapshot, root)?.clone();
            if let Some(RootOverlap::Coming { asked, .. }) = &mut root.overlap {
                *asked = asked.saturating_add(1);
            }
            decision.put(snapshot, Record::CaRoot(root));
        }
        AuthorityCommand::Report { root, server, report } => {
            coming(snapshot, root)?;
            let key = snapshot.ca_key(root).ok_or_else(|| AuthorityRefusal::Unknown(root.clone()))?;
            let mut key = key.value.clone();
            // Of a server that is gone nothing is known any more.
            let runs = |id: &String| snapshot.servers().any(|server| server.value.id.to_string() == *id);
            key.trusted.retain(|id, _| id == server || runs(id));
            let before = key.trusted.get(server).filter(|before| before.as_of == report.as_of);
            let unnamed_least = before.map_or(report.unnamed, |before| before.unnamed_least.min(report.unnamed));
            key.trusted.insert(server.clone(), TrustReport { unnamed_least, ..report.clone() });
            decision.put(snapshot, Record::CaKey(key));
        }
        AuthorityCommand::GiveUp { root, nodes, unnamed, relays } => {
            let mut root = coming(snapshot, root)?.clone();
            if let Some(RootOverlap::Coming { given_up, given_up_unnamed, given_up_relays, .. }) = &mut root.overlap {
                given_up.extend(nodes.iter().cloned());
                given_up_relays.extend(relays.iter().cloned());
                *given_up_unnamed = given_up_unnamed.saturating_add(*unnamed);
            }
            decision.put(snapshot, Record::CaRoot(root));
        }
        AuthorityCommand::Activate { root, by, now, until } => {
            let root = coming(snapshot, root)?;
            may_sign(snapshot, root, *by, *now, decision)?;
            let before = snapshot.roots().into_iter().map(|root| &root.value).filter(|root| root.active);
            for other in before {
                let overlap = Some(RootOverlap::Going { until: *until });
                decision.put(snapshot, Record::CaRoot(CaRootRecord { active: false, overlap, ..other.clone() }));
            }
            decision.put(snapshot, Record::CaRoot(CaRootRecord { active: true, overlap: None, ..root.clone() }));
            if let Some(key) = snapshot.ca_key(&root.id) {
                let trusted = BTreeMap::new();
                decision.put(snapshot, Record::CaKey(CaKeyRecord { trusted, ..key.value.clone() }));
            }
        }
        AuthorityCommand::Remove { root, now } => remove(snapshot, root, *now, decision)?,
    }
    if !decision.changes.is_empty() {
        decision.see(snapshot, RecordKey::Fence(Fence::Authority));
        decision.changes.push(Change::Put(Record::Fence(Fence::Authority)));
    }
    Ok(())
}

fn introduce(
    snapshot: &Snapshot,
    root: &CaRootRecord,
    key: &CaKeyRecord,
    now: UnixSeconds,
    decision: &mut Decision,
) -> Result<(), AuthorityRefusal> {
    if let Some(other) = snapshot.coming_root() {
        return Err(AuthorityRefusal::UnderWay(other.value.id.clone()));
    }
    // A root that has signed before may sign again, as for an intermediate under it that is new.
    if snapshot.active_root().is_some_and(|active| active.value.id == root.id) {
        return Err(AuthorityRefusal::Trusted(root.id.clone()));
    }
    if let Some(active) = snapshot.active_root()
        && active.value.trust_domain != root.trust_domain
    {
        let (found, wanted) = (root.trust_domain.to_string(), active.value.trust_domain.to_string());
        return Err(AuthorityRefusal::TrustDomain { found, wanted });
    }
    // Leaves under one that has signed before are valid as long as they were, whatever becomes of it now.
    let until = snapshot.roots.get(&root.id).and_then(|known| match known.value.overlap {
        Some(RootOverlap::Going { until }) => Some(until),
        Some(RootOverlap::Coming { .. }) | None => None,
    });
    let (given_up, given_up_unnamed, given_up_relays) = (BTreeSet::new(), 0, BTreeSet::new());
    let overlap =
        Some(RootOverlap::Coming { since: now, asked: 0, given_up, given_up_unnamed, given_up_relays, until });
    decision.put(snapshot, Record::CaRoot(CaRootRecord { active: false, overlap, ..root.clone() }));
    decision.put(snapshot, Record::CaKey(key.clone()));
    Ok(())
}

fn replace(
    snapshot: &Snapshot,
    (root, key): (&CaRootRecord, &CaKeyRecord),
    now: UnixSeconds,
    until: UnixSeconds,
    decision: &mut Decision,
) -> Result<(), AuthorityRefusal> {
    introduce(snapshot, root, key, now, decision)?;
    // There is another server of this store, or an agent is known to one.
    if snapshot.servers().next().is_some() || snapshot.attachments().next().is_some() {
        return Err(AuthorityRefusal::NotYet(root.id.clone()));
    }
    decision.changes.clear();
    for other in snapshot.roots().into_iter().map(|root| &root.value).filter(|root| root.active) {
        let overlap = Some(RootOverlap::Going { until });
        decision.put(snapshot, Record::CaRoot(CaRootRecord { active: false, overlap, ..other.clone() }));
    }
    decision.put(snapshot, Record::CaRoot(CaRootRecord { active: true, overlap: None, ..root.clone() }));
    decision.put(snapshot, Record::CaKey(key.clone()));
    Ok(())
}

fn remove(
    snapshot: &Snapshot,
    id: &str,
    now: Option<UnixSeconds>,
    decision: &mut Decision,
) -> Result<(), AuthorityRefusal> {
    let root = known(snapshot, id)?;
    if root.active {
        return Err(AuthorityRefusal::Active(id.to_owned()));
    }
    if let (Some(RootOverlap::Going { until }), Some(now)) = (&root.overlap, now)
        && now <= *until
    {
        return Err(AuthorityRefusal::InUse { root: id.to_owned(), until: *until });
    }
    if let (Some(RootOverlap::Coming { until: Some(until), .. }), Some(now)) = (&root.overlap, now)
        && now <= *until
    {
        // Taken back, it is what it was before it was to sign again.
        let overlap = Some(RootOverlap::Going { until: *until });
        decision.put(snapshot, Record::CaRoot(CaRootRecord { overlap, ..root.clone() }));
        return Ok(());
    }
    decision.delete(snapshot, RecordKey::CaRoot(id.to_owned()));
    decision.delete(snapshot, RecordKey::CaKey(id.to_owned()));
    Ok(())
}

fn known<'a>(snapshot: &'a Snapshot, id: &str) -> Result<&'a CaRootRecord, AuthorityRefusal> {
    let root = snapshot.roots.get(id).map(|root| &root.value);
    root.ok_or_else(|| AuthorityRefusal::Unknown(id.to_owned()))
}

fn coming<'a>(snapshot: &'a Snapshot, id: &str) -> Result<&'a CaRootRecord, AuthorityRefusal> {
    let root = snapshot.coming_root().map(|root| &root.value).filter(|root| root.id == id);
    root.ok_or(AuthorityRefusal::NotUnderWay)
}

/// Refuses that a root signs before everybody trusts it. Besides the fence, under which all that servers say of it is written,
/// it is seen who leads and which servers there are.
fn may_sign(
    snapshot: &Snapshot,
    root: &CaRootRecord,
    by: Option<ServerId>,
    now: UnixSeconds,
    decision: &mut Decision,
) -> Result<(), AuthorityRefusal> {
    if by.is_some_and(|server| !snapshot.is_led_by(server)) {
        return Err(AuthorityRefusal::NotLeader);
    }
    let since = match &root.overlap {
        Some(RootOverlap::Coming { since, .. }) => *since,
        Some(RootOverlap::Going { .. }) | None => return Err(AuthorityRefusal::NotUnderWay),
    };
    if now.since(since) < OVERLAP_MIN.as_secs() || !snapshot.rotation_waits(by).is_over() {
        return Err(AuthorityRefusal::NotYet(root.id.clone()));
    }
    if by.is_some() {
        decision.see(snapshot, RecordKey::Leader);
        for server in snapshot.servers() {
            decision.see(snapshot, RecordKey::Server(server.value.id));
        }
    }
    Ok(())
}

/// For what a rotation waits, by what the catalog says; without what was given up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RotationWaits {
    /// Servers that have yet to say how it stands with their nodes, as they report.
    pub servers: BTreeSet<String>,
    /// Nodes of which a server says that they do not trust the root, that have come to one since it last spoke, or whose server
    /// has ended.
    pub nodes: BTreeSet<NodeName>,
    /// How many more nodes servers have not named.
    pub unnamed: usize,
    /// Relays that have not said that they trust the root: agents that have a leaf under it are turned away there.
    pub relays: BTreeSet<NodeName>,
}

impl RotationWaits {
    /// Whether it waits for nothing.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.servers.is_empty() && self.nodes.is_empty() && self.unnamed == 0 && self.relays.is_empty()
    }
}

/// By what a server's word on its nodes is kept; there is one where the store is its own.
#[must_use]
pub fn reports_as(server: Option<ServerId>) -> String {
    server.map(|id| id.to_string()).unwrap_or_default()
}

impl Snapshot {
    /// For what a rotation waits, as `by` sees it, who is a server of those that share the store; nothing if there is none.
    ///
    /// Cost: the nodes.
    #[must_use]
    pub fn rotation_waits(&self, by: Option<ServerId>) -> RotationWaits {
        let mut waits = RotationWaits::default();
        let Some(coming) = self.coming_root() else { return waits };
        let Some(RootOverlap::Coming { given_up, given_up_unnamed, given_up_relays, .. }) = &coming.value.overlap
        else {
            return waits;
        };
        let said = self.ca_key(&coming.value.id).map(|key| &key.value.trusted);
        let report_of = |server: Option<ServerId>| {
            said.and_then(|said| said.get(&reports_as(server))).filter(|report| report.as_of == coming.modified)
        };
        let mut unnamed_least = 0_usize;
        let servers: BTreeSet<_> = by.into_iter().chain(self.servers().map(|server| server.value.id)).collect();
        let servers: Vec<_> = if by.is_none() { vec![None] } else { servers.into_iter().map(Some).collect() };
        for server in servers {
            match report_of(server) {
                Some(report) => {
                    waits.nodes.extend(report.missing.iter().cloned());
                    waits.relays.extend(report.relays.iter().cloned());
                    unnamed_least = unnamed_least.saturating_add(report.unnamed_least);
                    waits.unnamed = waits.unnamed.saturating_add(report.unnamed.saturating_sub(report.unnamed_least));
                }
                None => {
                    waits.servers.insert(reports_as(server));
                }
            }
        }
        if by.is_some() {
            let is_unspoken_of = |node: &&NodeName| {
                let Some(attachment) = self.attachment(node) else { return true };
                let server = attachment.value.server;
                // Of a node whose server has ended nobody speaks until it is elsewhere, or lost.
                let spoken = self.server(server).and_then(|_| report_of(Some(server)));
                spoken.is_none_or(|report| report.at < attachment.modified)
            };
            waits.nodes.extend(self.alive_nodes().filter(is_unspoken_of).cloned());
        }
        waits.nodes.retain(|node| !given_up.contains(node));
        waits.relays.retain(|relay| !given_up_relays.contains(relay));
        // Those who were given up are of those who have been missing all the time.
        waits.unnamed = waits.unnamed.saturating_add(unnamed_least.saturating_sub(*given_up_unnamed));
        waits
    }

    /// Whether a node has come to a server since that one spoke, by the catalog at `spoken`.
    #[must_use]
    pub fn has_come_since(&self, server: ServerId, spoken: Revision) -> bool {
        self.attachments().any(|attachment| attachment.value.server == server && attachment.modified > spoken)
    }

    /// The nodes that are not lost.
    fn alive_nodes(&self) -> impl Iterator<Item = &NodeName> {
        let liveness = CheckId::new(LIVENESS_CHECK).expect("invariant: an identifier");
        let is_alive = move |node: &&NodeName| {
            self.check(node, &liveness).is_some_and(|check| check.value.status != CheckStatus::Critical)
        };
        self.nodes().map(|node| &node.value.name).filter(is_alive)
    }

    /// The root that is to sign once everybody trusts it.
    #[must_use]
    pub fn coming_root(&self) -> Option<&Arc<Versioned<CaRootRecord>>> {
        self.roots.values().find(|root| matches!(root.value.overlap, Some(RootOverlap::Coming { .. })))
    }
}
