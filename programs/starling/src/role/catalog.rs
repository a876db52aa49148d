//! The server as the HTTP API and DNS see it.

mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use starling_agent::Proxies;
use starling_catalog::{
    Barrier, ChangeReport, Command, Earlier, NewJoinToken, NodeReport, ProxyReport, RotationWaits, Snapshot, Subject,
    Until,
};
use starling_http_api::{
    AuthorityChange, AuthorityChanged, Bearer, CatalogPort, CommitFailure, Committed, Currency, DiagnosticRow,
    IncomingSnapshot, Leaving, LostServer, MeshFacts, OthersSay, OutgoingSnapshot, SnapshotFailure, StoreMember,
};
use starling_identity::{JoinToken, JoinTokenTtlError};
use starling_model::{InstanceKey, Node, NodeName, Revision, ServerId, ServerRecord, UnixSeconds, Versioned};
use starling_server::{CommitFailure as Failure, Incoming, Server, Unmade};
use starling_telemetry::{LogFormat, Registry};
use tokio::sync::Semaphore;

use super::peers::Peers;

/// Names of each kind that each receipt in a list gives.
const LISTED_NAMES_MAX: usize = 100;

/// The catalog behind the doors of this process.
pub(crate) struct Catalog {
    pub(crate) server: Arc<Server>,
    pub(crate) peers: Arc<Peers>,
    /// The proxies of the agent in this process, if there is one.
    pub(crate) proxies: Option<Proxies>,
    pub(crate) registry: Registry,
    pub(crate) facts: MeshFacts,
    /// One snapshot at a time is received.
    pub(crate) receiving: Arc<Semaphore>,
}

#[async_trait]
impl CatalogPort for Catalog {
    fn snapshot(&self) -> Arc<Snapshot> {
        self.server.snapshot()
    }

    async fn wait(&self, subjects: &[Subject], after: Revision, timeout: Duration) -> Arc<Snapshot> {
        self.server.wait(subjects, after, timeout).await
    }

    async fn catch_up(&self) -> Result<(), CommitFailure> {
        self.server.catch_up().await.map_err(failed)
    }

    fn own_server(&self) -> Option<ServerId> {
        self.server.id()
    }

    fn lost_servers(&self) -> Vec<LostServer> {
        let lost = self.server.lost_servers().into_iter();
        lost.map(|starling_server::LostServer { name, http, gone_for }| LostServer { name, http, gone_for }).collect()
    }

    fn left_nodes(&self) -> Vec<Node> {
        self.server.left_nodes()
    }

    fn forget_left_node(&self, node: &NodeName) -> bool {
        self.server.forget_left_node(node)
    }

    async fn delete_quarantined(&self, key: &str) -> Result<Option<Revision>, CommitFailure> {
        self.server.delete_quarantined(key).await.map_err(failed)
    }

    async fn store_members(&self) -> Vec<StoreMember> {
        let members = self.server.store_members().await.into_iter();
        let form = |starling_server::StoreMember { address, leads, version, bytes, trouble }| StoreMember {
            address,
            leads,
            version,
            bytes,
            trouble,
        };
        members.map(form).collect()
    }

    fn has_halted(&self) -> bool {
        self.server.is_halted()
    }

    fn currency(&self) -> Currency {
        let starling_server::Currency { last_contact, knows_leader, takes_writes } = self.server.currency();
        Currency { last_contact, knows_leader, takes_writes }
    }

    async fn transact(&self, bearer: &Bearer, command: Command) -> Result<Committed, CommitFailure> {
        let made = self.server.transact(&command, |snapshot| bearer.may(&command, snapshot)).await;
        let (revision, decided_on) = made.map_err(|unmade| match unmade {
            Unmade::Denied(denied) => CommitFailure::Denied(denied),
            Unmade::Failed(failure) => failed(failure),
        })?;
        Ok(Committed { revision, decided_on })
    }

    async fn create_join_token(&self, wanted: NewJoinToken) -> Result<(JoinToken, UnixSeconds), CommitFailure> {
        self.server.create_join_token(wanted).await.map_err(|error| match error.downcast::<Failure>() {
            Ok(failure) => failed(failure),
            Err(error) if error.is::<JoinTokenTtlError>() => CommitFailure::Invalid(error.to_string()),
            Err(error) => CommitFailure::Unavailable(format!("{error:#}")),
        })
    }

    async fn change_authority(&self, change: AuthorityChange) -> Result<AuthorityChanged, CommitFailure> {
        let changed = match change {
            AuthorityChange::Rotate { renew_within_s, to_vault } => {
                let trusted = self.server.rotate_authority(renew_within_s, to_vault).await;
                trusted.map(|(root, revision)| AuthorityChanged::Trusted { root: root.id, revision })
            }
            AuthorityChange::Import { root_pem, key, renew_within_s } => {
                let trusted = self.server.import_authority(&root_pem, &key, renew_within_s).await;
                trusted.map(|(root, revision)| AuthorityChanged::Trusted { root: root.id, revision })
            }
            AuthorityChange::Take { certificates_pem, key, renew_within_s, no_leaf_beside } => {
                let taken = self.server.take_authority(&certificates_pem, key.reveal(), renew_within_s, no_leaf_beside);
                let trusted = taken.await;
                trusted.map(|(root, revision)| AuthorityChanged::Trusted { root: root.id, revision })
            }
            AuthorityChange::Proceed => {
                let gone_on = self.server.proceed_with_rotation().await;
                gone_on.map(|(root, waits, revision)| {
                    let RotationWaits { nodes, unnamed, relays, servers: _ } = waits;
                    AuthorityChanged::GivenUp { root, nodes, unnamed, relays, revision }
                })
            }
            AuthorityChange::Reseal => self.server.reseal_authority().await.map(AuthorityChanged::Resealed),
        };
        changed.map_err(|error| match error.downcast::<Failure>() {
            Ok(failure) => failed(failure),
            Err(error) => CommitFailure::Invalid(format!("{error:#}")),
        })
    }

    fn rotation_waits_for(&self) -> RotationWaits {
        self.server.rotation_waits_for()
    }

    async fn change(&self, revision: Revision, wait: Duration, names: usize) -> Option<ChangeReport> {
        self.peers.change(revision, wait, names).await
    }

    async fn own_part_of_change(&self, revision: Revision, earlier: &Earlier, wait: Duration) -> Option<ChangeReport> {
        self.server.part_of_change(revision, earlier, wait, usize::MAX).await
    }

    async fn until(&self, revision: Revision, until: &Until, wait: Duration) -> Option<Barrier> {
        match self.server.id() {
            None => self.server.until(revision, until, wait).await,
            Some(_) => self.peers.until(revision, until, wait).await,
        }
    }

    async fn changes(&self, most: usize) -> (Vec<ChangeReport>, Vec<String>) {
        self.peers.changes(self.own_part_of_changes(most), most, LISTED_NAMES_MAX).await
    }

    async fn others_say(&self, target: &str) -> OthersSay {
        let (answers, unheard) = self.peers.all_say(target).await;
        OthersSay { answers: answers.into_iter().map(|(_, answer)| answer).collect(), unheard }
    }

    fn own_part_of_changes(&self, most: usize) -> Vec<ChangeReport> {
        let report = |revision| self.server.report(revision, LISTED_NAMES_MAX);
        self.server.changes().into_iter().take(most).filter_map(report).collect()
    }

    fn proxies(&self) -> Vec<(InstanceKey, ProxyReport)> {
        self.server.proxies()
    }

    fn nodes(&self) -> Vec<(NodeReport, Duration)> {
        self.server.nodes()
    }

    fn diagnostics(&self) -> Vec<DiagnosticRow> {
        self.proxies.as_ref().map(rows).unwrap_or_default()
    }

    fn authority(&self) -> MeshFacts {
        let snapshot = self.server.snapshot();
        let own = self.facts.clone();
        let (leader_address, peer_addresses) = match self.server.id() {
            None => (own.leader_address, own.peer_addresses),
            Some(_) => {
                let leader = snapshot.leader().and_then(|leader| snapshot.server(leader.value.server));
                let leader = leader.filter(|_| self.server.currency().knows_leader);
                let http = |server: &Arc<Versioned<ServerRecord>>| server.value.http.clone();
                (leader.map(http).unwrap_or_default(), snapshot.servers().map(http).collect())
            }
        };
        MeshFacts { leader_address, peer_addresses, ..own }
    }

    fn metrics_text(&self) -> String {
        self.registry.encode()
    }

    fn log_lines(&self, level: tracing::Level, json: bool) -> Option<tokio::sync::mpsc::Receiver<String>> {
        starling_telemetry::follow(level, if json { LogFormat::Json } else { LogFormat::Text })
    }

    async fn save_snapshot(&self) -> Result<OutgoingSnapshot, SnapshotFailure> {
        snapshot::save(&self.server).await
    }

    fn receive_snapshot(&self) -> Result<Box<dyn IncomingSnapshot>, SnapshotFailure> {
        let own_node = self.proxies.is_some().then(|| self.facts.node_name.clone());
        let server = Arc::clone(&self.server);
        let place = Arc::clone(&self.receiving).try_acquire_owned();
        let place = place.map_err(|_| SnapshotFailure::Busy(snapshot::BUSY.to_owned()))?;
        Ok(Box::new(snapshot::Receiving { server, own_node, incoming: Incoming::default(), place }))
    }

    fn leaving(&self, begin: bool) -> Option<Leaving> {
        self.server.id()?;
        let starling_server::Leaving { begun, attached, standby, done } =
            if begin { self.server.leave() } else { self.server.leaving() };
        Some(Leaving { begun, attached, standby, done })
    }
}

/// What is wrong with what the proxies of one agent are planned from.
pub(crate) fn rows(proxies: &Proxies) -> Vec<DiagnosticRow> {
    let row = |diagnostic: starling_plan::Diagnostic| DiagnosticRow {
        object: diagnostic.object.to_string(),
        field: diagnostic.field,
        reason: diagnostic.reason,
        fix: diagnostic.fix,
    };
    proxies.diagnostics().into_iter().map(row).collect()
}

fn failed(failure: Failure) -> CommitFailure {
    match failure {
        Failure::Refused(refusal) => CommitFailure::Refused(refusal),
        invalid @ Failure::Invalid(_) => CommitFailure::Invalid(format!("{:#}", anyhow::Error::from(invalid))),
        unavailable @ (Failure::Unavailable(_) | Failure::Behind | Failure::Cut(_)) => {
            CommitFailure::NoLeader(format!("{:#}", anyhow::Error::from(unavailable)))
        }
        other @ (Failure::Contended | Failure::Gated { .. } | Failure::Halted(_) | Failure::Store(_)) => {
            CommitFailure::Unavailable(format!("{:#}", anyhow::Error::from(other)))
        }
    }
}
