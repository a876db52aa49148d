//! Leaves: one certificate and key per service identity that a proxy of this node needs.
//!
//! Keys are born here and stay here, in memory and in files that only the agent's user reads. A leaf is renewed at a moment
//! of the middle third of its lifetime, and goes when nobody has asked for it by then.

mod kept;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use starling_identity::RenewalError;
use starling_model::{ServiceName, UnixSeconds};
use starling_tls::{KeyError, LeafKey, SecretPem};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::agent::WallClock;
use crate::link::{LinkError, ServerLink};
use kept::Kept;

/// Requests for certificates under way at once; a rotation asks for all of them, and they share calls.
const ISSUES_MAX: usize = 256;

/// Wait after the first failed renewal, doubled after each, and its ceiling.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The wall clock is read again at least this often, so that a clock that was set, or a machine that slept, is noticed.
const CLOCK_READ_INTERVAL: Duration = Duration::from_secs(30);

/// Least time between two renewals, should the server's clock be far behind.
const RENEWAL_GAP_MIN: Duration = Duration::from_millis(500);

/// A certificate with its key.
pub struct Leaf {
    /// The service whose identity it is.
    pub service: ServiceName,
    /// The leaf and its intermediates in PEM, leaf first, without the root.
    pub certificate_chain_pem: String,
    /// The private key, PKCS #8 in PEM.
    pub private_key_pem: SecretPem,
    /// The serial number, hexadecimal pairs with colons.
    pub serial: String,
    /// Not valid before.
    pub not_before: UnixSeconds,
    /// Not valid after.
    pub not_after: UnixSeconds,
    /// Counts the leaves of this service from 1.
    pub generation: u64,
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaf")
            .field("service", &self.service)
            .field("serial", &self.serial)
            .field("not_after", &self.not_after)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// Why there is no leaf.
#[derive(Debug, thiserror::Error)]
pub enum LeafError {
    /// No key could be made.
    #[error("cannot make a key")]
    Key(#[from] KeyError),
    /// The server did not sign.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// What the server signed is never valid.
    #[error("the server signed a certificate that is never valid")]
    Lifetime(#[from] RenewalError),
}

type Slot = Arc<tokio::sync::Mutex<Option<watch::Receiver<Arc<Leaf>>>>>;

/// The leaves of this node.
pub struct Leaves {
    shared: Arc<Shared>,
    renewals: Mutex<JoinSet<()>>,
}

/// How often leaves were to be issued before their time.
#[derive(Debug, Default)]
struct Rotations {
    of_all: u64,
    /// The time over which the last of them is spread.
    within: Duration,
    /// Only gateways are in it, and few.
    of_one: BTreeMap<ServiceName, u64>,
}

/// The rotations of one leaf, waited for.
struct Awaited {
    service: ServiceName,
    rotations: watch::Receiver<Rotations>,
    /// Those that the leaf of the moment was asked for after: of all leaves, and of this one alone.
    heeded: (u64, u64),
}

impl Awaited {
    fn of(service: &ServiceName, rotations: watch::Receiver<Rotations>) -> Self {
        let heeded = rotations.borrow().of(service);
        Self { service: service.clone(), rotations, heeded }
    }

    /// How long this leaf waits of the time over which a rotation is spread. One of its own is not.
    fn place(&self) -> Duration {
        let rotations = self.rotations.borrow();
        let own = rotations.of(&self.service).1 != self.heeded.1;
        if own { Duration::ZERO } else { rotations.within.mul_f64(fastrand::f64()) }
    }

    /// A leaf is about to be asked for.
    fn heed(&mut self) {
        self.heeded = self.rotations.borrow_and_update().of(&self.service);
    }

    /// Waits for one that is not heeded yet.
    async fn changed(&mut self) {
        let Self { service, rotations, heeded } = self;
        // The sender lives as long as the leaves do.
        let _ = rotations.wait_for(|rotations| rotations.of(service) != *heeded).await;
    }
}

impl Rotations {
    fn of(&self, service: &ServiceName) -> (u64, u64) {
        (self.of_all, self.of_one.get(service).copied().unwrap_or(0))
    }
}

struct Shared {
    link: Arc<dyn ServerLink>,
    clock: WallClock,
    kept: Kept,
    slots: Mutex<BTreeMap<ServiceName, Slot>>,
    rotations: watch::Sender<Rotations>,
    permits: Semaphore,
}

impl fmt::Debug for Leaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaves").finish_non_exhaustive()
    }
}

impl Leaves {
    /// Leaves that are kept below `agent_dir`.
    pub(crate) fn new(link: Arc<dyn ServerLink>, clock: WallClock, agent_dir: &Path) -> Self {
        let shared = Shared {
            link,
            clock,
            kept: Kept::below(agent_dir),
            slots: Mutex::default(),
            rotations: watch::channel(Rotations::default()).0,
            permits: Semaphore::new(ISSUES_MAX),
        };
        Self { shared: Arc::new(shared), renewals: Mutex::default() }
    }

    /// The leaf of a service, issued now if there is none; the receiver sees every renewal.
    ///
    /// Everybody who asks for one service gets the same leaf. It is renewed for as long as a receiver is held.
    ///
    /// # Errors
    /// [`LeafError`] if a first leaf cannot be had; nothing is retried then.
    pub async fn leaf(&self, service: &ServiceName) -> Result<watch::Receiver<Arc<Leaf>>, LeafError> {
        let slot = Arc::clone(self.shared.lock_slots().entry(service.clone()).or_default());
        let mut held = slot.lock().await;
        if let Some(receiver) = held.as_ref() {
            return Ok(receiver.clone());
        }
        // Subscribed before asking: a rotation during the request renews what it brings.
        let rotations = Awaited::of(service, self.shared.rotations.subscribe());
        match self.shared.first(service).await {
            Ok(leaf) => {
                let (sender, receiver) = watch::channel(Arc::new(leaf));
                *held = Some(receiver.clone());
                let mut renewals = self.renewals.lock().unwrap_or_else(PoisonError::into_inner);
                while renewals.try_join_next().is_some() {}
                renewals.spawn(renew(Arc::clone(&self.shared), sender, Arc::clone(&slot), rotations));
                Ok(receiver)
            }
            Err(error) => {
                drop(held);
                self.shared.forget(service, &slot);
                Err(error)
            }
        }
    }

    /// Whether nobody has asked for a leaf, and none is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.lock_slots().is_empty() && self.shared.kept.is_empty()
    }

    /// Has every leaf issued anew, now.
    pub fn rotate(&self) {
        self.rotate_within(Duration::ZERO);
    }

    /// Has every leaf issued anew, each at some moment of the time that is given: a fleet whose root has changed does not
    /// ask as one.
    pub fn rotate_within(&self, within: Duration) {
        self.shared.rotations.send_modify(|rotations| {
            rotations.of_all += 1;
            rotations.within = within;
        });
    }

    /// Has the leaf of one service issued anew, because other names belong in it.
    pub fn rename(&self, service: &ServiceName) {
        self.shared.rotations.send_modify(|rotations| *rotations.of_one.entry(service.clone()).or_default() += 1);
    }
}

impl Shared {
    fn lock_slots(&self) -> MutexGuard<'_, BTreeMap<ServiceName, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a slot that is empty, unless somebody waits at it.
    fn forget(&self, service: &ServiceName, slot: &Slot) {
        let mut slots = self.lock_slots();
        // Slots are handed out under this lock only: two means the map and the caller.
        if Arc::strong_count(slot) == 2 && slots.get(service).is_some_and(|held| Arc::ptr_eq(held, slot)) {
            slots.remove(service);
        }
    }

    /// The leaf that was kept, or a new one.
    async fn first(&self, service: &ServiceName) -> Result<Leaf, LeafError> {
        match self.kept.read(service, (self.clock)()) {
            Some(leaf) => Ok(leaf),
            None => self.issue(service, 1).await,
        }
    }

    async fn issue(&self, service: &ServiceName, generation: u64) -> Result<Leaf, LeafError> {
        let _permit = self.permits.acquire().await;
        let key = LeafKey::generate()?;
        let issued = self.link.issue_leaf(service, key.csr_der()?).await?;
        starling_identity::renew_at(issued.not_before, issued.not_after, 0)?;
        let leaf = Leaf {
            service: service.clone(),
            certificate_chain_pem: issued.chain_pem,
            private_key_pem: key.private_key_pem()?,
            serial: issued.serial,
            not_before: issued.not_before,
            not_after: issued.not_after,
            generation,
        };
        self.kept.write(&leaf);
        Ok(leaf)
    }

    async fn wait_until(&self, moment: UnixSeconds) {
        loop {
            let left = Duration::from_secs(moment.since((self.clock)()));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(CLOCK_READ_INTERVAL)).await;
        }
    }

    /// The wait after a failure: doubled each time, spread, and short enough that several tries fit before expiry.
    fn pause(&self, failures: u32, not_after: UnixSeconds) -> Duration {
        let doubled = RETRY_FIRST.saturating_mul(1 << failures.min(16)).min(RETRY_MAX);
        let urgent = Duration::from_secs(not_after.since((self.clock)())) / 8;
        doubled.min(urgent.max(RETRY_FIRST)).mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

async fn renew(shared: Arc<Shared>, sender: watch::Sender<Arc<Leaf>>, slot: Slot, mut rotations: Awaited) {
    loop {
        let leaf = Arc::clone(&sender.borrow());
        let spread = fastrand::u64(..);
        let due = starling_identity::renew_at(leaf.not_before, leaf.not_after, spread).unwrap_or(leaf.not_after);
        tokio::select! {
            () = async { tokio::join!(shared.wait_until(due), tokio::time::sleep(RENEWAL_GAP_MIN)); } => {}
            () = async {
                rotations.changed().await;
                tokio::time::sleep(rotations.place()).await;
            } => {}
        }
        let mut failures = 0;
        loop {
            rotations.heed();
            if retire(&shared, &leaf.service, &sender, &slot).await {
                return;
            }
            match shared.issue(&leaf.service, leaf.generation + 1).await {
                Ok(renewed) => {
                    sender.send_replace(Arc::new(renewed));
                    break;
                }
                Err(error) => {
                    let wait = shared.pause(failures, leaf.not_after);
                    failures += 1;
                    tracing::warn!(service = %leaf.service, %error, ?wait, "cannot renew a certificate; trying again");
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = rotations.changed() => {}
                    }
                }
            }
        }
    }
}

/// Drops a leaf that nobody holds; whether it did.
async fn retire(shared: &Shared, service: &ServiceName, sender: &watch::Sender<Arc<Leaf>>, slot: &Slot) -> bool {
    let mut held = slot.lock().await;
    // The slot's own receiver is one of them.
    if sender.receiver_count() > 1 {
        return false;
    }
    *held = None;
    shared.kept.remove(service);
    drop(held);
    shared.forget(service, slot);
    true
}
