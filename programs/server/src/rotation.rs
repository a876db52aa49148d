//! Rotation of the CA: another root is trusted, then signs, and the one before it goes.
//!
//! How far a rotation has come stands in the catalog, so that any server goes on with it. Receipts are kept by each server
//! for the nodes that are attached to it, so each says there which of its own do not trust the root yet; the steps that
//! follow are the leader's. Each of them is decided on the catalog as the command is, and excludes every other (the fence of
//! [`AuthorityCommand`]), so that even two that both believe to lead take it once, and none on what holds no more.
//!
//! | Step | When |
//! |---|---|
//! | a root comes: it is trusted | an operator asks |
//! | it signs | every node that is not lost has applied that, and none refuses it; every relay goes by it |
//! | the one before it goes | the last leaf under it has ended |

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, bail};
use starling_catalog::{AuthorityCommand, Command, OVERLAP_MIN, RotationWaits, Snapshot, reports_as};
use starling_identity::IssuanceRules;
use starling_model::{CaKeyPlace, CaKeyRecord, CaRootRecord, NodeName, Revision, RootOverlap, TrustReport};
use starling_tls::CertificateAuthority;

use crate::liveness::{self, Presence};
use crate::server::{Server, now};
use crate::signer::{Signer, Signs};

/// Between two looks at how far it is.
const STEP: Duration = Duration::from_millis(500);

/// A server that is cut off from the store may sign under the root before for that long after another signs everywhere else.
/// Longer without contact it signs nothing: the root before may be gone before its leaves then.
pub(crate) const CUT_OFF_MAX: Duration = Duration::from_secs(60 * 60);

/// Nodes that a server names in the catalog, of those that do not trust a root yet, and relays.
const NAMES_SAID_MAX: usize = 1_000;

/// Names that a receipt is asked for: more nodes than there are.
const NAMES_MAX: usize = 1_000_000;

/// Takes the steps of rotations for as long as the server lives.
pub(crate) async fn run(server: Weak<Server>) {
    loop {
        tokio::time::sleep(STEP).await;
        let Some(server) = server.upgrade() else { return };
        let mut steps: Vec<_> = own_step(&server).into_iter().collect();
        if server.is_leader() {
            steps.extend(due(&server));
        }
        for command in steps {
            let (root, step) = described(&command);
            match server.commit(&Command::Authority(command)).await {
                Ok(_) => tracing::debug!(root, step, "a step of the CA's rotation"),
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    tracing::warn!(
                        root,
                        step,
                        error = format!("{error:#}"),
                        "a step of the CA's rotation was not taken"
                    );
                }
            }
        }
    }
}

fn described(command: &AuthorityCommand) -> (String, &'static str) {
    match command {
        AuthorityCommand::Report { root, .. } => {
            (root.clone(), "it is said which nodes and relays do not trust it yet")
        }
        AuthorityCommand::AskAgain { root } => (root.clone(), "the nodes are asked again whether they trust it"),
        AuthorityCommand::Activate { root, .. } => (root.clone(), "it signs from now on"),
        AuthorityCommand::Remove { root, .. } => (root.clone(), "it is trusted no more"),
        AuthorityCommand::GiveUp { root, .. } => (root.clone(), "nodes are given up"),
        AuthorityCommand::Found { root, .. } | AuthorityCommand::Introduce { root, .. } => {
            (root.id.clone(), "it is trusted")
        }
        AuthorityCommand::Replace { root, .. } => (root.id.clone(), "it signs at once: nobody has a leaf"),
        AuthorityCommand::Keep(key) => (key.root.clone(), "its key is kept"),
        AuthorityCommand::Reseal { root, .. } => (root.clone(), "its key is sealed anew"),
    }
}

/// What this server has to say of its own nodes, if that is news.
fn own_step(server: &Server) -> Option<AuthorityCommand> {
    let snapshot = server.snapshot();
    let coming = snapshot.coming_root()?;
    let root = coming.value.id.clone();
    // A receipt that is not remembered here is that of a time before this server.
    let Some(missing) = missing(server, &snapshot, coming.modified) else {
        return Some(AuthorityCommand::AskAgain { root });
    };
    let me = reports_as(server.id());
    let unnamed = missing.len().saturating_sub(NAMES_SAID_MAX);
    let missing = missing.into_iter().take(NAMES_SAID_MAX).collect();
    let is_given_up = |relay: &NodeName| match &coming.value.overlap {
        Some(RootOverlap::Coming { given_up_relays, .. }) => given_up_relays.contains(relay),
        Some(RootOverlap::Going { .. }) | None => false,
    };
    // Of very many some are named, and the others when those do, or are given up.
    let relays = server.agents().relays_without(&root).into_iter().filter(|relay| !is_given_up(relay));
    let relays = relays.take(NAMES_SAID_MAX).collect();
    let report = TrustReport {
        as_of: coming.modified,
        at: snapshot.revision(),
        missing,
        unnamed,
        unnamed_least: unnamed,
        relays,
    };
    let is_said = snapshot.ca_key(&root)?.value.trusted.get(&me).is_some_and(|said| {
        let has_come = server.id().is_some_and(|me| snapshot.has_come_since(me, said.at));
        let unnamed_least = said.unnamed_least.min(unnamed);
        !has_come && TrustReport { at: said.at, unnamed_least, ..report.clone() } == *said
    });
    (!is_said).then_some(AuthorityCommand::Report { root, server: me, report })
}

/// The steps that are due, which are the leader's.
fn due(server: &Server) -> Vec<AuthorityCommand> {
    let (snapshot, now) = (server.snapshot(), now());
    let gone = snapshot.roots().into_iter().map(|root| &root.value).filter(|root| match root.overlap {
        Some(RootOverlap::Going { until }) => until < now,
        Some(RootOverlap::Coming { .. }) | None => false,
    });
    let mut steps: Vec<_> =
        gone.map(|root| AuthorityCommand::Remove { root: root.id.clone(), now: Some(now) }).collect();
    // Decided anew when it is committed; asked for only when there is a prospect.
    if let Some(coming) = snapshot.coming_root()
        && let Some(RootOverlap::Coming { since, .. }) = &coming.value.overlap
        && now.since(*since) >= OVERLAP_MIN.as_secs()
        && snapshot.rotation_waits(server.id()).is_over()
    {
        let until = now.plus((IssuanceRules::default().leaf_ttl() + CUT_OFF_MAX).as_secs());
        steps.push(AuthorityCommand::Activate { root: coming.value.id.clone(), by: server.id(), now, until });
    }
    steps
}

/// The nodes attached here that do not trust a root yet: those that have yet to apply it, those that refuse it, and those
/// that are away and waited for. Lost ones are none of them. `None` if the receipt is not remembered.
fn missing(server: &Server, snapshot: &Snapshot, revision: Revision) -> Option<BTreeSet<NodeName>> {
    let report = server.report(revision, NAMES_MAX)?;
    let pending = report.pending.iter().map(|reporter| reporter.node().clone());
    let refused = report.rejected.iter().map(|(reporter, _)| reporter.node().clone());
    // What lives in this process has no stream: its proxies alone report.
    let is_elsewhere = |node: &NodeName| !server.agents().liveness().has_beside(node);
    let away = liveness::alive(snapshot).filter(is_elsewhere);
    let away = away.filter(|node| server.agents().presence(node) == Presence::WaitedFor);
    Some(pending.chain(refused).chain(away).collect())
}

/// Why a rotation is not begun.
#[derive(Debug, thiserror::Error)]
#[error(
    "the CA's key is in the data directory of this server; start it with --seal-key-file, and it moves to the store: then \
     other roots can come beside it"
)]
pub struct NotSealed;

impl Server {
    /// Makes another root, which signs once every node trusts it; the revision at which it is trusted. Leaves are then
    /// renewed over the time that is given, 0 for the usual one.
    ///
    /// # Errors
    /// [`NotSealed`], or [`CommitFailure`](crate::CommitFailure) inside if it is refused.
    pub async fn rotate_authority(
        &self,
        renew_within_s: u32,
        to_vault: bool,
    ) -> anyhow::Result<(CaRootRecord, Revision)> {
        let config = self.signer().config();
        let (root, key) = if to_vault {
            let vault = config.vault.as_ref().context("this server has no [ca.vault] in the file of --config")?;
            vault.root(self.trust_domain(), now()).await?
        } else {
            let seal = config.seal.as_ref().ok_or(NotSealed)?;
            let authority = CertificateAuthority::generate(self.trust_domain(), now())?;
            let authority = self.bridged(authority);
            (authority.root().clone(), authority.sealed(seal)?)
        };
        self.introduce(CaRootRecord { renew_within_s, ..root }, key).await
    }

    /// Takes a CA from elsewhere, whose key was sealed with a seal key of this server. It signs once every node trusts its
    /// root, or at once if that is the one that signs already.
    ///
    /// # Errors
    /// As [`Server::rotate_authority`], and if the key does not open or what it signs is not accepted.
    pub async fn import_authority(
        &self,
        root_pem: &str,
        key: &CaKeyRecord,
        renew_within_s: u32,
    ) -> anyhow::Result<(CaRootRecord, Revision)> {
        let seal = self.signer().config().seal.as_ref().ok_or(NotSealed)?;
        let authority = CertificateAuthority::unseal_import(root_pem, key, seal, self.trust_domain(), now())?;
        self.adopt(authority, renew_within_s).await
    }

    /// The same of a CA whose key comes as it is, by who may say so: the certificate that signs, those between it and its root, and the
    /// root, in PEM. Where `no_leaf_beside` is true, of the agent in this process, and nobody else has one either, it signs at once.
    ///
    /// # Errors
    /// As [`Server::import_authority`].
    pub async fn take_authority(
        &self,
        certificates_pem: &str,
        key_pem: &str,
        renew_within_s: u32,
        no_leaf_beside: bool,
    ) -> anyhow::Result<(CaRootRecord, Revision)> {
        let seal = self.signer().config().seal.as_ref().ok_or(NotSealed)?;
        let authority = CertificateAuthority::import(certificates_pem, key_pem, None, self.trust_domain(), now())?;
        let snapshot = self.snapshot();
        let is_new = snapshot.roots().iter().all(|known| known.value.id != authority.root().id);
        if !(no_leaf_beside && is_new && self.is_alone(&snapshot)) {
            return self.adopt(authority, renew_within_s).await;
        }
        let authority = self.bridged(authority);
        let (root, key) = (authority.root().clone(), authority.sealed(seal)?);
        let (root, now) = (CaRootRecord { renew_within_s, ..root }, now());
        let until = now.plus((IssuanceRules::default().leaf_ttl() + CUT_OFF_MAX).as_secs());
        let command = AuthorityCommand::Replace { root: root.clone(), key, now, until };
        let revision = self.commit(&Command::Authority(command)).await?;
        Ok((root, revision))
    }

    /// Whether nobody has anything of the CA, but perhaps the agent of this process: no agent and no relay is attached or waited for, and
    /// there is no other server.
    fn is_alone(&self, snapshot: &Snapshot) -> bool {
        let agents = self.agents();
        let is_elsewhere = |node: &NodeName| !agents.liveness().has_beside(node);
        let is_there = |node: &NodeName| is_elsewhere(node) && agents.presence(node) != Presence::Lost;
        self.id().is_none()
            && agents.attached() == 0
            && agents.standby() == 0
            && agents.relays_without("").is_empty()
            && !liveness::alive(snapshot).any(|node| is_there(&node))
    }

    async fn adopt(
        &self,
        authority: CertificateAuthority,
        renew_within_s: u32,
    ) -> anyhow::Result<(CaRootRecord, Revision)> {
        let seal = self.signer().config().seal.as_ref().ok_or(NotSealed)?;
        let authority = self.bridged(authority);
        let (root, key) = (authority.root().clone(), authority.sealed(seal)?);
        let signs = self.snapshot().active_root().is_some_and(|active| active.value.id == root.id);
        if signs {
            let revision = self.commit(&Command::Authority(AuthorityCommand::Keep(key))).await?;
            return Ok((root, revision));
        }
        self.introduce(CaRootRecord { renew_within_s, ..root }, key).await
    }

    async fn introduce(&self, root: CaRootRecord, key: CaKeyRecord) -> anyhow::Result<(CaRootRecord, Revision)> {
        let in_files =
            self.snapshot().active_root().is_some_and(|root| self.snapshot().ca_key(&root.value.id).is_none());
        if in_files {
            bail!(NotSealed);
        }
        let command = AuthorityCommand::Introduce { root: root.clone(), key, now: now() };
        let revision = self.commit(&Command::Authority(command)).await?;
        Ok((root, revision))
    }

    /// Seals every key anew that is sealed with another than the first of this server's seal keys; how many those were.
    ///
    /// # Errors
    /// [`NotSealed`], or if one of them cannot be opened or kept.
    pub async fn reseal_authority(&self) -> anyhow::Result<usize> {
        let seal = self.signer().config().seal.as_ref().ok_or(NotSealed)?;
        let snapshot = self.snapshot();
        let mut resealed = 0;
        for key in snapshot.ca_keys() {
            let CaKeyPlace::Sealed(sealed) = &key.value.place else { continue };
            if sealed.seal_key == seal.id() {
                continue;
            }
            let root = snapshot.roots().into_iter().find(|root| root.value.id == key.value.root);
            let root = root.with_context(|| format!("there is no root {}", key.value.root))?;
            let authority = CertificateAuthority::unseal(&root.value, &key.value, seal)?;
            let (was, place) = (key.value.place.clone(), authority.sealed(seal)?.place);
            let resealing = AuthorityCommand::Reseal { root: root.value.id.clone(), was, place };
            self.commit(&Command::Authority(resealing)).await?;
            resealed += 1;
        }
        Ok(resealed)
    }

    /// For what a rotation waits; nothing if there is no rotation.
    #[must_use]
    pub fn rotation_waits_for(&self) -> RotationWaits {
        self.snapshot().rotation_waits(self.id())
    }

    /// Goes on with a rotation without the nodes for which it waits; which root it is, and which nodes they are.
    ///
    /// # Errors
    /// [`CommitFailure`](crate::CommitFailure) inside if there is no rotation, or it cannot be stored.
    pub async fn proceed_with_rotation(&self) -> anyhow::Result<(String, RotationWaits, Revision)> {
        let snapshot = self.snapshot();
        let root = snapshot.coming_root().map(|root| root.value.id.clone()).unwrap_or_default();
        let waits = snapshot.rotation_waits(self.id());
        let (nodes, unnamed, relays) = (waits.nodes.clone(), waits.unnamed, waits.relays.clone());
        let command = AuthorityCommand::GiveUp { root: root.clone(), nodes, unnamed, relays };
        let revision = self.commit(&Command::Authority(command)).await?;
        Ok((root, waits, revision))
    }

    /// Certified by the root before it, for those who know only that; as it is where that one signs elsewhere.
    fn bridged(&self, authority: CertificateAuthority) -> CertificateAuthority {
        match &*self.signer().current() {
            Signer::Own(older) if older.root().id != authority.root().id => authority.bridged_from(older),
            Signer::Own(_) | Signer::Vault { .. } | Signer::Unable { .. } => authority,
        }
    }

    /// Moves when something else signs, for those who are to show a certificate under it.
    #[must_use]
    pub fn signer_changes(&self) -> tokio::sync::watch::Receiver<Signs> {
        self.signer().changes()
    }
}

/// What the task of rotations is given.
pub(crate) fn spawn(server: &Arc<Server>) {
    tokio::spawn(run(Arc::downgrade(server)));
}
