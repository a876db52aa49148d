//! Commands about the CA: which roots are trusted, which of them signs, and where its key is.
//!
//! Every one of them sees and rewrites the fence [`Fence::Authority`], so that two servers that decide on the same state do
//! not both prevail: not at the first start of two at once, nor in the steps of a rotation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling_model::{
    CaKeyRecord, CaRootRecord, Change, Fence, NodeName, Record, RecordKey, RootOverlap, TrustReport, UnixSeconds,
    Versioned,
};

use super::Decision;
use crate::snapshot::Snapshot;

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
    /// Trusts a root that is to sign once everybody trusts it.
    Introduce {
        /// The root.
        root: CaRootRecord,
        /// Its key.
        key: CaKeyRecord,
        /// When.
        now: UnixSeconds,
    },
    /// Asks the nodes once more whether they trust the coming root.
    AskAgain {
        /// The root.
        root: String,
    },
    /// A server says which of the nodes that are attached to it do not trust the coming root yet.
    Report {
        /// The root.
        root: String,
        /// The server; nothing but a name here.
        server: String,
        /// What it says.
        report: TrustReport,
    },
    /// Does not wait for these nodes any more.
    GiveUp {
        /// The root.
        root: String,
        /// The nodes.
        nodes: BTreeSet<NodeName>,
    },
    /// Signs under the coming root from now on. The one before it stays trusted as long as leaves under it are valid.
    Activate {
        /// The root.
        root: String,
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
        AuthorityCommand::Introduce { root, key, now } => introduce(snapshot, root, key, *now, decision)?,
        AuthorityCommand::AskAgain { root } => {
            let root = coming(snapshot, root)?;
            let overlap = match root.overlap.clone() {
                Some(RootOverlap::Coming { since, asked, given_up }) => {
                    Some(RootOverlap::Coming { since, asked: asked.saturating_add(1), given_up })
                }
                other => other,
            };
            decision.put(snapshot, Record::CaRoot(CaRootRecord { overlap, ..root.clone() }));
        }
        AuthorityCommand::Report { root, server, report } => {
            coming(snapshot, root)?;
            let key = snapshot.ca_key(root).ok_or_else(|| AuthorityRefusal::Unknown(root.clone()))?;
            let mut key = key.value.clone();
            // Of a server that is gone nothing is known any more.
            let runs = |id: &String| snapshot.servers().any(|server| server.value.id.to_string() == *id);
            key.trusted.retain(|id, _| id == server || runs(id));
            key.trusted.insert(server.clone(), report.clone());
            decision.put(snapshot, Record::CaKey(key));
        }
        AuthorityCommand::GiveUp { root, nodes } => {
            let root = coming(snapshot, root)?;
            let overlap = match root.overlap.clone() {
                Some(RootOverlap::Coming { since, asked, given_up }) => {
                    let given_up = given_up.into_iter().chain(nodes.iter().cloned()).collect();
                    Some(RootOverlap::Coming { since, asked, given_up })
                }
                other => other,
            };
            decision.put(snapshot, Record::CaRoot(CaRootRecord { overlap, ..root.clone() }));
        }
        AuthorityCommand::Activate { root, until } => {
            let root = coming(snapshot, root)?;
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
    let overlap = Some(RootOverlap::Coming { since: now, asked: 0, given_up: BTreeSet::new() });
    decision.put(snapshot, Record::CaRoot(CaRootRecord { active: false, overlap, ..root.clone() }));
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

impl Snapshot {
    /// The root that is to sign once everybody trusts it.
    #[must_use]
    pub fn coming_root(&self) -> Option<&Arc<Versioned<CaRootRecord>>> {
        self.roots.values().find(|root| matches!(root.value.overlap, Some(RootOverlap::Coming { .. })))
    }
}
