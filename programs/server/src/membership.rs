//! A server among those that share its store: its record, kept by a lease, and whether it leads.
//!
//! The record of a server that ends goes with its lease, and that of a leader likewise; everyone hears of it by the watch of
//! the store, in the order of commits. Whoever finds no leader tries to become it; the store lets one. What a leader writes
//! as such has the condition that it still leads, so one that was frozen meanwhile writes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use starling_catalog::Snapshot;
use starling_model::{
    Change, Fence, LeaderRecord, Node, NodeName, RECORD_LEVEL, Record, RecordKey, ServerId, ServerRecord,
};
use starling_store::{CommitError, Expected, Lease, LeaseId, StoreMember, Transaction};
use tokio::sync::{Notify, watch};

use crate::commit::store_key;
use crate::departed::Departed;
use crate::server::{Server, now};

/// How long after its end a server's record goes.
pub const LEASE_TTL: Duration = Duration::from_secs(5);

/// How long a server that was lost is spoken of: by then whoever was called has seen it, or it is not meant to come back.
const LOST_TOLD: Duration = Duration::from_secs(3600);

/// Lost servers that are remembered; names are the operator's, and come from their machines.
const LOST_MAX: usize = 64;

/// Pause before what failed is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// How other servers and agents are to reach a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// The server's name.
    pub name: NodeName,
    /// Where its HTTP API is, `HOST:PORT`.
    pub http: String,
    /// Where agents reach it, `HOST:PORT`.
    pub agents: String,
}

impl Advertised {
    /// One that nobody need reach, as it shares its store with nobody.
    ///
    /// # Panics
    /// Never: the name is a name.
    #[must_use]
    pub fn to_nobody() -> Self {
        let name = NodeName::new("server").expect("invariant: a name");
        Self { name, http: String::new(), agents: String::new() }
    }
}

/// A server that ended without leaving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostServer {
    /// Its name.
    pub name: NodeName,
    /// Where its HTTP API was, `HOST:PORT`.
    pub http: String,
    /// For how long it is gone.
    pub gone_for: Duration,
}

/// Whether a server shares its store, and what it says of itself there.
pub(crate) struct Membership {
    /// `None` if the store is its own.
    me: Option<ServerRecord>,
    leaving: AtomicBool,
    /// Something among members is not as it was, here or in the catalog.
    changed: Notify,
    /// Set once its record is to go.
    resigning: watch::Sender<bool>,
    resigned: watch::Sender<bool>,
    lost: Mutex<Vec<Lost>>,
    departed: Departed,
}

/// A server whose record went with its lease.
struct Lost {
    record: ServerRecord,
    at: Instant,
}

impl Membership {
    /// The only server of its store: it leads.
    pub(crate) fn alone() -> Self {
        Self::of(None)
    }

    /// One of several.
    pub(crate) fn among(advertised: &Advertised) -> Self {
        let Advertised { name, http, agents } = advertised.clone();
        let (id, since) = (ServerId::from_random(fastrand::u64(..)), now());
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self::of(Some(ServerRecord { id, name, http, agents, version, since, leaving: false, level: RECORD_LEVEL }))
    }

    fn of(me: Option<ServerRecord>) -> Self {
        Self {
            me,
            leaving: AtomicBool::new(false),
            changed: Notify::new(),
            resigning: watch::Sender::new(false),
            resigned: watch::Sender::new(false),
            lost: Mutex::default(),
            departed: Departed::default(),
        }
    }

    /// Those who are there, and those who are no more though they had not said that they would leave.
    fn note_lost(&self, before: &Snapshot, after: &Snapshot) {
        let at = Instant::now();
        let gone = before.servers().filter(|server| after.server(server.value.id).is_none());
        let fell = gone.filter(|server| !server.value.leaving);
        // A panic while holding the lock leaves a plain list.
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.extend(fell.map(|server| Lost { record: server.value.clone(), at }));
        lost.retain(|lost| !after.servers().any(|server| is_back(&lost.record, &server.value)));
        let surplus = lost.len().saturating_sub(LOST_MAX);
        lost.drain(..surplus);
    }

    /// Which server this is; `None` if it is alone.
    pub(crate) fn id(&self) -> Option<ServerId> {
        self.me.as_ref().map(|me| me.id)
    }

    /// Returns once its record is to go.
    async fn resigning(&self) {
        let mut resigning = self.resigning.subscribe();
        // The sender lives as long as self, so this is reached in no other way.
        let _ = resigning.wait_for(|resigning| *resigning).await;
    }

    /// The record as it is to be.
    fn record(&self) -> Option<ServerRecord> {
        let leaving = self.leaving.load(Ordering::Acquire);
        self.me.clone().map(|me| ServerRecord { leaving, ..me })
    }
}

/// Sees to it that this server is known to the others, and that there is a leader, until the server is dropped.
pub(crate) async fn run(server: Weak<Server>) {
    loop {
        let Some(strong) = server.upgrade() else { return };
        let membership = Arc::clone(strong.membership());
        let taken_out = tokio::select! {
            taken_out = strong.store().lease(LEASE_TTL) => taken_out,
            () = membership.resigning() => {
                membership.resigned.send_replace(true);
                return;
            }
        };
        drop(strong);
        match taken_out {
            Ok(None) => return,
            Ok(Some(lease)) => {
                if stay(&server, lease).await {
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "no lease is to be had yet"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Whether `server` is one that was lost, started again: under another identifier, where it was, or under its name.
fn is_back(lost: &ServerRecord, server: &ServerRecord) -> bool {
    server.http == lost.http || (server.name == lost.name && server.since > lost.since)
}

/// Keeps what is written under `lease` as it is to be until that ends; answers whether the server has resigned.
async fn stay(server: &Weak<Server>, lease: Lease) -> bool {
    loop {
        let Some(strong) = server.upgrade() else { return true };
        let wrong = strong.enter(lease.id()).await;
        if let Err(error) = &wrong {
            tracing::debug!(%error, "the server's record could not be written yet");
        }
        let membership = Arc::clone(strong.membership());
        drop(strong);
        tokio::select! {
            () = lease.ended() => {
                tracing::warn!("this server was away from its store for too long: it is entered among the servers anew");
                return false;
            }
            () = membership.changed.notified() => {}
            () = membership.resigning() => {
                // One that goes without a word counts as lost.
                if let Some(server) = server.upgrade() {
                    let _ = tokio::time::timeout(LEASE_TTL / 2, server.enter(lease.id())).await;
                }
                lease.revoke(LEASE_TTL).await;
                membership.resigned.send_replace(true);
                return true;
            }
            () = tokio::time::sleep(RETRY), if wrong.is_err() => {}
        }
    }
}

impl Server {
    /// Which of the servers that share the store this is; `None` if it is the only one.
    #[must_use]
    pub fn id(&self) -> Option<ServerId> {
        self.membership().id()
    }

    /// What this server is called among those that share its store.
    #[must_use]
    pub fn name(&self) -> &NodeName {
        &self.config().advertised.name
    }

    /// Servers that have ended without leaving within the last hour, as far as this one was there, and that are not back.
    #[must_use]
    pub fn lost_servers(&self) -> Vec<LostServer> {
        let lost = self.membership().lost.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = lost.iter().map(|lost| (&lost.record, lost.at.elapsed())).filter(|(_, gone)| *gone < LOST_TOLD);
        let form = |(record, gone_for): (&ServerRecord, Duration)| LostServer {
            name: record.name.clone(),
            http: record.http.clone(),
            gone_for,
        };
        recent.map(form).collect()
    }

    /// Nodes that have left the mesh, or were taken out of it, and are not back, as far as this server was there.
    #[must_use]
    pub fn left_nodes(&self) -> Vec<Node> {
        self.membership().departed.all()
    }

    /// Forgets one of them; whether it was remembered.
    pub fn forget_left_node(&self, node: &NodeName) -> bool {
        self.membership().departed.forget(node)
    }

    /// How it stands with each process that keeps the store, where it is shared.
    pub async fn store_members(&self) -> Vec<StoreMember> {
        self.store().members().await
    }

    /// Whether this server has the duties of which there is only one. Whatever it writes as such must have the condition
    /// that it still leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.id().is_none_or(|me| self.snapshot().is_led_by(me))
    }

    /// Tells everyone that this server is about to end: nobody is to come to it any more, and another leads.
    pub fn announce_leaving(&self) {
        self.membership().leaving.store(true, Ordering::Release);
        self.membership().changed.notify_one();
    }

    /// Takes this server's record away, and returns when that is done or cannot be: nobody waits for its lease to end then.
    pub async fn resign(&self) {
        if self.id().is_none() {
            return;
        }
        self.membership().resigning.send_replace(true);
        let mut resigned = self.membership().resigned.subscribe();
        // The lease ends by itself otherwise.
        let _ = tokio::time::timeout(LEASE_TTL, resigned.wait_for(|resigned| *resigned)).await;
    }

    /// Enters this server among the others, and as their leader if there is none.
    async fn enter(&self, lease: LeaseId) -> Result<(), CommitError> {
        let Some(me) = self.membership().record() else { return Ok(()) };
        let snapshot = self.snapshot();
        if snapshot.server(me.id).is_none_or(|known| known.value != me) {
            let record = Record::Server(me.clone());
            // A root signs once all servers have said how it stands with their nodes: whoever decides that does not know of this one
            // yet, and is to decide anew.
            let fence = Record::Fence(Fence::Authority);
            let entry = Transaction::new().put_leased(store_key(&record.key()), record.encode(), lease);
            let entry = entry.put(store_key(&fence.key()), fence.encode());
            let revision = self.store().commit(entry).await?;
            tracing::info!(server = %me.id, name = %me.name, %revision, leaving = me.leaving, "entered among the servers");
        }
        match snapshot.leader() {
            None if !me.leaving => self.take_the_lead(me.id, lease).await,
            Some(leader) if me.leaving && leader.value.server == me.id => {
                let key = store_key(&RecordKey::Leader);
                let still = Expected::ModifiedAt(starling_store::Revision(leader.modified.0));
                let handed_over = Transaction::new().require(key.clone(), still).delete(key);
                unless_beaten(self.store().commit(handed_over).await)
            }
            Some(_) | None => Ok(()),
        }
    }

    async fn take_the_lead(&self, me: ServerId, lease: LeaseId) -> Result<(), CommitError> {
        let record = Record::Leader(LeaderRecord { server: me });
        let key = store_key(&record.key());
        // An unreadable record of a leader is replaced.
        let unreadable = self.snapshot().quarantined_at(&record.key()).map(|record| record.modified);
        let expected = unreadable.map_or(Expected::Absent, |at| Expected::ModifiedAt(starling_store::Revision(at.0)));
        let claim = Transaction::new().require(key.clone(), expected);
        unless_beaten(self.store().commit(claim.put_leased(key, record.encode(), lease)).await)
    }

    /// The catalog has changed: does what that entails for this server and the nodes that are its business.
    pub(crate) fn members_changed(&self, before: &Snapshot, after: &Snapshot, changes: &[Change]) {
        self.membership().departed.note(before, changes);
        let Some(me) = self.id() else { return };
        let mut changed = false;
        for change in changes {
            match change {
                Change::Put(Record::Server(_) | Record::Leader(_))
                | Change::Delete(RecordKey::Server(_) | RecordKey::Leader) => changed = true,
                Change::Put(Record::Attachment(attachment)) => {
                    self.agents().liveness().has_come_back();
                    let was_here = before.attachment(&attachment.node).is_some_and(|was| was.value.server == me);
                    if was_here && attachment.server != me {
                        self.agents().supersede(&attachment.node);
                    }
                    // Written by one that has ended since: nobody would look after it.
                    if after.server(attachment.server).is_none() && after.is_led_by(me) {
                        self.agents().look_after(vec![attachment.node.clone()]);
                    }
                }
                // Another took it for lost while this server was cut off.
                Change::Delete(RecordKey::Attachment(node)) if self.agents().is_attached(node) => {
                    self.agents().liveness().look_again(node.clone());
                }
                Change::Put(_) | Change::Delete(_) => {}
            }
        }
        if changed {
            self.follow_leader(me, before, after);
        }
    }

    fn follow_leader(&self, me: ServerId, before: &Snapshot, after: &Snapshot) {
        let (led, leads) = (before.is_led_by(me), after.is_led_by(me));
        let gone = before.servers().any(|server| after.server(server.value.id).is_none());
        if leads && (gone || !led) {
            self.agents().look_after(orphans(after));
        }
        if leads != led {
            tracing::info!(server = %me, leads, "leader");
        }
        self.membership().note_lost(before, after);
        self.membership().changed.notify_one();
    }
}

/// The nodes that count as alive and have no server that runs.
fn orphans(snapshot: &Snapshot) -> Vec<NodeName> {
    let unattached = crate::liveness::alive(snapshot).filter(|node| snapshot.attachment(node).is_none());
    snapshot.orphans().cloned().chain(unattached).collect()
}

/// Somebody else was faster: what the catalog says next decides.
fn unless_beaten(committed: Result<starling_store::Revision, CommitError>) -> Result<(), CommitError> {
    match committed {
        Ok(_) | Err(CommitError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
