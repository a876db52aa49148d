//! How current the catalog is: when it last had everything that anybody had been acknowledged.
//!
//! Once a second the store is asked for a barrier, which takes a quorum where it is shared, and the catalog is waited for to
//! come to it. So a server whose etcd member was cut off from the others, and still answers, does not pass for current.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use starling_model::{RecordKey, Revision};
use starling_store::{CommitError, Condition, Expected, Transaction, Write};
use starling_telemetry::{Counter, Histogram, Registry, exponential_buckets};
use tokio::time::Instant;

use crate::commit::{CommitFailure, store_key};
use crate::server::Server;

/// Between two questions.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Heartbeats between two questions whether writes are taken; while the last one was turned away each asks.
const PROBE_BEATS: u32 = 10;

/// Without contact for longer than this the store counts as lost: a question may take as long as an election.
const LOST_AFTER: Duration = Duration::from_secs(5);

/// How current a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Currency {
    /// For how long it may have missed something; zero where nobody else writes.
    pub last_contact: Duration,
    /// Whether writes have somebody to go to.
    pub knows_leader: bool,
    /// Whether they are also accepted there, as far as is known: not while etcd is out of space, or forbids them.
    pub takes_writes: bool,
}

/// When the store was last known to be there.
pub(crate) struct Contact {
    at: Mutex<Instant>,
    /// Whether the last transaction was turned away, whatever is read.
    is_turned_away: AtomicBool,
    commits: Histogram,
    barriers: Histogram,
    lags: Histogram,
    failures: Counter,
}

impl Contact {
    pub(crate) fn new(registry: &Registry) -> Arc<Self> {
        // From half a millisecond, which a fast disk takes, to 16 s, past every limit.
        let seconds = |name, help| registry.register(name, help, Histogram::new(exponential_buckets(0.0005, 2.0, 16)));
        let contact = Arc::new(Self {
            at: Mutex::new(Instant::now()),
            is_turned_away: AtomicBool::new(false),
            commits: seconds(
                "store_commit_seconds",
                "Time that the store took for a transaction, those that a condition stopped included",
            ),
            barriers: seconds(
                "store_read_seconds",
                "Time that the store took to say how far it is, asked every second",
            ),
            lags: seconds(
                "store_watch_lag_seconds",
                "Time that the catalog then took to come to where the store said that it is",
            ),
            failures: registry.register(
                "store_failures",
                "Transactions that the store turned away or did not answer, and questions after which the catalog was not current",
                Counter::default(),
            ),
        });
        let asked = Arc::downgrade(&contact);
        registry.register_asked(
            "store_contact_age_seconds",
            "For how long the catalog may lack what others were acknowledged: since it last had everything",
            move || asked.upgrade().map_or(0.0, |contact| contact.age().as_secs_f64()),
        );
        contact
    }

    /// A transaction ended like this, after that time.
    fn committed(&self, took: Duration, outcome: Result<(), &CommitError>) {
        let is_turned_away = match outcome {
            Ok(()) | Err(CommitError::Conflict { .. }) => false,
            // The store was not asked.
            Err(CommitError::Empty | CommitError::DuplicateKey { .. } | CommitError::TooLarge { .. }) => return,
            Err(
                CommitError::Refused(_) | CommitError::Unavailable(_) | CommitError::Failed(_) | CommitError::Closed,
            ) => true,
        };
        if is_turned_away {
            self.failures.inc();
        } else {
            self.commits.observe(took.as_secs_f64());
        }
        self.is_turned_away.store(is_turned_away, Ordering::Release);
    }

    fn is_turned_away(&self) -> bool {
        self.is_turned_away.load(Ordering::Acquire)
    }

    fn had_everything_at(&self, asked: Instant) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        *at = asked.max(*at);
    }

    fn age(&self) -> Duration {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// Stays in contact until the server is dropped.
pub(crate) async fn keep(server: Weak<Server>) {
    for beat in 0_u32.. {
        let Some(server) = server.upgrade() else { return };
        // What fails is counted, and seen by the time that passes.
        let is_there = server.catch_up().await.is_ok();
        if is_there && (server.contact().is_turned_away() || beat.is_multiple_of(PROBE_BEATS)) {
            server.probe().await;
        }
        drop(server);
        tokio::time::sleep(HEARTBEAT).await;
    }
}

impl Server {
    /// Commits a transaction, and remembers whether the store took it.
    pub(crate) async fn store_transaction(
        &self,
        transaction: Transaction,
    ) -> Result<starling_store::Revision, CommitError> {
        let begun = Instant::now();
        let outcome = self.store().commit(transaction).await;
        self.contact().committed(begun.elapsed(), outcome.as_ref().map(|_| ()));
        outcome
    }

    /// Asks the store whether it takes writes, by one whose condition cannot hold: etcd judges its space and its permissions
    /// first.
    async fn probe(&self) {
        let Some(id) = self.id() else { return };
        let key = store_key(&RecordKey::Server(id));
        let never = Condition { key: key.clone(), expected: Expected::ModifiedAt(starling_store::Revision(u64::MAX)) };
        let write = Write::Put { key, value: Bytes::new(), lease: None };
        // Told by what is remembered of it.
        let _ = self.store_transaction(Transaction { conditions: vec![never], writes: vec![write] }).await;
    }

    /// Returns once the catalog has everything that was acknowledged, by whichever server, before this was called.
    ///
    /// # Errors
    /// [`CommitFailure::Cut`] if the store does not say how far it is, [`CommitFailure::Behind`] or
    /// [`CommitFailure::Halted`] if the catalog does not come to it.
    pub async fn catch_up(&self) -> Result<(), CommitFailure> {
        let (asked, held) = (Instant::now(), self.snapshot().revision());
        let contact = self.contact();
        let revision = match self.store().barrier().await {
            Ok(revision) => Revision(revision.0),
            Err(error) => {
                contact.failures.inc();
                return Err(CommitFailure::Cut(error));
            }
        };
        contact.barriers.observe(asked.elapsed().as_secs_f64());
        if revision < held {
            // It would wait for what is new there until that is past what was taken back, and serve neither.
            let reason: Arc<str> = format!(
                "the store is at revision {revision}, and {held} was there before: it was set back; start this server anew, and \
                 restore etcd with --bump-revision"
            )
            .into();
            self.halt(Arc::clone(&reason));
            return Err(CommitFailure::Halted(reason));
        }
        let said = Instant::now();
        if let Err(behind) = self.published(revision).await {
            contact.failures.inc();
            return Err(behind);
        }
        contact.lags.observe(said.elapsed().as_secs_f64());
        contact.had_everything_at(asked);
        Ok(())
    }

    /// For how long the catalog may have missed something; zero where nobody else writes.
    pub(crate) fn last_contact(&self) -> Duration {
        self.currency().last_contact
    }

    /// How current this server is.
    #[must_use]
    pub fn currency(&self) -> Currency {
        if self.id().is_none() {
            let follows = !self.is_halted();
            return Currency { last_contact: Duration::ZERO, knows_leader: follows, takes_writes: follows };
        }
        let age = self.contact().age();
        let is_led = self.snapshot().leader().is_some();
        let knows_leader = is_led && age < LOST_AFTER && !self.is_halted();
        Currency { last_contact: age, knows_leader, takes_writes: knows_leader && !self.contact().is_turned_away() }
    }
}
