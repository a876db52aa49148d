//! How current the catalog is: when it last had everything that anybody had been acknowledged.
//!
//! Once a second the store is asked for a barrier, which takes a quorum where it is shared, and the catalog is waited for to
//! come to it. So a server whose etcd member was cut off from the others, and still answers, does not pass for current.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use starling_model::Revision;
use starling_telemetry::{Counter, Histogram, Registry, exponential_buckets};
use tokio::time::Instant;

use crate::commit::CommitFailure;
use crate::server::Server;

/// Between two questions.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Without contact for longer than this the store counts as lost: a question may take as long as an election.
const LOST_AFTER: Duration = Duration::from_secs(5);

/// How current a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Currency {
    /// For how long it may have missed something; zero where nobody else writes.
    pub last_contact: Duration,
    /// Whether writes have somebody to go to.
    pub knows_leader: bool,
}

/// When the store was last known to be there.
pub(crate) struct Contact {
    at: Mutex<Instant>,
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
            commits: seconds(
                "store_commit_seconds",
                "Time that the store took for a transaction, refused ones included",
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
                "Transactions and questions that the store did not answer",
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

    /// A transaction was answered, or not, after that time.
    pub(crate) fn committed(&self, took: Duration, answered: bool) {
        if answered {
            self.commits.observe(took.as_secs_f64());
        } else {
            self.failures.inc();
        }
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
    loop {
        let Some(server) = server.upgrade() else { return };
        // What fails is counted, and seen by the time that passes.
        let _ = server.catch_up().await;
        drop(server);
        tokio::time::sleep(HEARTBEAT).await;
    }
}

impl Server {
    /// Returns once the catalog has everything that was acknowledged, by whichever server, before this was called.
    ///
    /// # Errors
    /// [`CommitFailure::Cut`] if the store does not say how far it is, [`CommitFailure::Behind`] or
    /// [`CommitFailure::Halted`] if the catalog does not come to it.
    pub async fn catch_up(&self) -> Result<(), CommitFailure> {
        let asked = Instant::now();
        let contact = self.contact();
        let revision = match self.store().barrier().await {
            Ok(revision) => Revision(revision.0),
            Err(error) => {
                contact.failures.inc();
                return Err(CommitFailure::Cut(error));
            }
        };
        contact.barriers.observe(asked.elapsed().as_secs_f64());
        let said = Instant::now();
        self.published(revision).await?;
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
            return Currency { last_contact: Duration::ZERO, knows_leader: !self.is_halted() };
        }
        let age = self.contact().age();
        let is_led = self.snapshot().leader().is_some();
        Currency { last_contact: age, knows_leader: is_led && age < LOST_AFTER && !self.is_halted() }
    }
}
