//! What is counted. One worker writes its own cells; whoever reads adds them up.
//!
//! Cells belong to a direction of a service, not to a listener: they outlive what is served, and start from nothing only
//! with the process. Series are bounded by the services and upstreams of the node, and by named limits where others choose.
//! Cost model: an event costs one load and one store, and nothing is looked up: a listener holds its cells.

mod captured;
mod families;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use starling_model::ServiceName;
use starling_traffic::{CompiledPolicy, Verdict};

use crate::failure::Failure;
pub(crate) use captured::{CaptureCounts, Direction, Fate};

/// Upper bounds of the latency buckets, microseconds; a last one has no bound.
pub const LATENCY_BOUNDS_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];

/// Statuses of requests that are refused before anything is decided about them; any other counts as [`OTHER`].
pub const MALFORMED: [u16; 9] = [400, 405, 408, 413, 414, 417, 431, 501, 505];

/// Rules by which one direction of a service may be seen to deny; past these they count as [`OTHER`].
const DENYING_RULES_MAX: usize = 64;

/// What is past a limit.
pub const OTHER: &str = "other";

/// Directions of services that nobody serves any more and whose cells are kept; they are let go of together.
const FORMER_SIDES_MAX: usize = 1_024;

/// A cell with one writer.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    fn take(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(count), Ordering::Relaxed);
    }

    /// What it holds.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one worker counts of one direction of a service.
#[derive(Debug, Default)]
pub struct Counts {
    /// Responses by the hundreds of their status, from 1xx.
    pub responses: [Cell; 5],
    /// Requests that were broken off by the client, or within their response.
    pub broken: Cell,
    /// Requests refused before anything was decided about them, by status as in [`MALFORMED`].
    pub malformed: [Cell; MALFORMED.len() + 1],
    /// Requests and connections that failed on their way to a server, by reason.
    pub failures: [Cell; Failure::REASONS.len()],
    /// Requests and connections that no intention allows, by the rule that denied.
    pub denied: Mutex<BTreeMap<String, Arc<Cell>>>,
    /// Connections accepted.
    pub opened: Cell,
    /// Connections that stand.
    pub open: Cell,
    /// Connections refused for their number.
    pub overflowed: Cell,
    /// Handshakes with clients that failed.
    pub handshakes_failed: Cell,
    /// Handshakes with servers that failed.
    pub upstream_handshakes_failed: Cell,
    /// Servers that could not be connected to, failed handshakes included.
    pub connects_failed: Cell,
    /// Attempts after the first.
    pub retries: Cell,
    /// Endpoints found to be out of order and not called for a while.
    pub ejections: Cell,
    /// Bytes of bodies received from clients.
    pub received_bytes: Cell,
    /// Bytes of bodies sent to clients.
    pub sent_bytes: Cell,
    /// Requests by their time, by bucket.
    pub latency: [Cell; LATENCY_BOUNDS_US.len() + 1],
    /// Microseconds of all requests.
    pub latency_us: Cell,
}

/// One direction of a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SideKey {
    /// The service.
    pub service: ServiceName,
    /// The service that it calls; `None` for calls that it is sent.
    pub upstream: Option<ServiceName>,
}

/// The cells of each worker that has served a side, in no order: few of them, and many sides.
type Workers = Vec<(usize, Arc<Counts>)>;

/// Every cell of an engine, by side and worker. Workers come here when they begin to serve a side, never for a request.
#[derive(Debug, Default)]
pub struct Ledger {
    sides: Mutex<BTreeMap<SideKey, Workers>>,
    captured: Mutex<BTreeMap<ServiceName, Arc<CaptureCounts>>>,
}

impl Ledger {
    /// The cells of every worker, by side.
    #[must_use]
    pub fn read(&self) -> Vec<(SideKey, Vec<Arc<Counts>>)> {
        let sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        sides
            .iter()
            .map(|(key, workers)| (key.clone(), workers.iter().map(|(_, counts)| Arc::clone(counts)).collect()))
            .collect()
    }

    /// The cells of one worker for a side: those that it had before, if it had any.
    fn open(&self, key: SideKey, worker: usize) -> Arc<Counts> {
        let mut sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        let workers = sides.entry(key).or_default();
        let counts = match workers.iter().find(|(number, _)| *number == worker) {
            Some((_, counts)) => Arc::clone(counts),
            None => {
                let counts = Arc::<Counts>::default();
                workers.reserve_exact(1);
                workers.push((worker, Arc::clone(&counts)));
                counts
            }
        };
        let is_former = |workers: &Workers| workers.iter().all(|(_, counts)| Arc::strong_count(counts) == 1);
        if sides.values().filter(|workers| is_former(workers)).count() > FORMER_SIDES_MAX {
            sides.retain(|_, workers| !is_former(workers));
        }
        counts
    }
}

/// What one worker counts in.
pub(crate) struct WorkerMetrics {
    ledger: Arc<Ledger>,
    worker: usize,
}

impl WorkerMetrics {
    pub(crate) fn new(ledger: Arc<Ledger>, worker: usize) -> Self {
        Self { ledger, worker }
    }

    /// What is counted of the connections captured for `service`, by all workers together.
    pub(crate) fn captured(&self, service: &ServiceName) -> Arc<CaptureCounts> {
        let mut captured = self.ledger.captured.lock().unwrap_or_else(PoisonError::into_inner);
        if captured.len() > FORMER_SIDES_MAX {
            captured.retain(|_, counts| Arc::strong_count(counts) > 1);
        }
        Arc::clone(captured.entry(service.clone()).or_default())
    }

    /// The cells for calls of `service` to `upstream`, or for those that it is sent.
    pub(crate) fn side(&self, service: &ServiceName, upstream: Option<&ServiceName>) -> Rc<SideMetrics> {
        let key = SideKey { service: service.clone(), upstream: upstream.cloned() };
        Rc::new(SideMetrics { counts: self.ledger.open(key, self.worker), denying: RefCell::default() })
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ending {
    /// By a server, with this status.
    Answered(u16),
    /// By this proxy.
    Failed(Failure),
    Broken,
    /// A connection, by those who had it.
    Closed,
}

/// Cells of the rules of one policy that have denied something, by place; the first is for its default.
type Denying = (Option<Rc<CompiledPolicy>>, Vec<Option<Arc<Cell>>>);

/// A hold of the cells of one side.
pub struct SideMetrics {
    counts: Arc<Counts>,
    denying: RefCell<Denying>,
}

impl SideMetrics {
    pub(crate) fn finished(&self, ending: Ending, took: Duration, received: u64, sent: u64) {
        let counts = &self.counts;
        let status = match ending {
            Ending::Answered(status) => Some(status),
            Ending::Failed(failure) => {
                self.failed(failure);
                Some(failure.status())
            }
            Ending::Broken | Ending::Closed => None,
        };
        match status {
            Some(status) => counts.responses[usize::from(status / 100).clamp(1, 5) - 1].add(1),
            None => counts.broken.add(1),
        }
        counts.received_bytes.add(received);
        counts.sent_bytes.add(sent);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        counts.latency[LATENCY_BOUNDS_US.partition_point(|bound| *bound < micros)].add(1);
        counts.latency_us.add(micros);
    }

    /// A request or a connection did not reach a server.
    pub(crate) fn failed(&self, failure: Failure) {
        if let Some(place) = failure.place() {
            self.counts.failures[place].add(1);
        }
        if failure == Failure::NO_BODY {
            self.refused(failure.status());
        }
    }

    /// Refused before it was a request.
    pub(crate) fn refused(&self, status: u16) {
        let place = MALFORMED.iter().position(|it| *it == status).unwrap_or(MALFORMED.len());
        self.counts.malformed[place].add(1);
    }

    /// Denied by a policy; `source` is `None` for a peer that is no workload, of which no rule speaks.
    pub(crate) fn denied(
        &self,
        policy: &Rc<CompiledPolicy>,
        verdict: Option<&Verdict>,
        source: Option<&ServiceName>,
        destination: &ServiceName,
    ) {
        let (Some(verdict), Some(source)) = (verdict, source) else {
            return self.denying_cell("no workload").add(1);
        };
        let mut denying = self.denying.borrow_mut();
        let (of, cells) = &mut *denying;
        if !of.as_ref().is_some_and(|of| Rc::ptr_eq(of, policy)) {
            *of = Some(Rc::clone(policy));
            cells.clear();
        }
        let place = verdict.rule().map_or(0, |rule| rule + 1);
        if cells.len() <= place {
            cells.resize(place + 1, None);
        }
        let named = || match verdict.rule() {
            None => self.denying_cell("default"),
            Some(rule) => {
                let (source, destination) = policy.written(rule, source, destination);
                self.denying_cell(&format!("{source}→{destination}"))
            }
        };
        cells[place].get_or_insert_with(named).add(1);
    }

    fn denying_cell(&self, rule: &str) -> Arc<Cell> {
        let mut cells = self.counts.denied.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = cells.get(rule) {
            return Arc::clone(cell);
        }
        let name = if cells.len() < DENYING_RULES_MAX { rule } else { OTHER };
        Arc::clone(cells.entry(name.to_owned()).or_default())
    }

    pub(crate) fn moved(&self, received: u64, sent: u64) {
        self.counts.received_bytes.add(received);
        self.counts.sent_bytes.add(sent);
    }

    pub(crate) fn opened(&self) {
        self.counts.opened.add(1);
        self.counts.open.add(1);
    }

    pub(crate) fn closed(&self) {
        self.counts.open.take(1);
    }

    pub(crate) fn overflowed(&self) {
        self.counts.overflowed.add(1);
    }

    pub(crate) fn handshake_failed(&self) {
        self.counts.handshakes_failed.add(1);
    }

    pub(crate) fn upstream_handshake_failed(&self) {
        self.counts.upstream_handshakes_failed.add(1);
    }

    pub(crate) fn connect_failed(&self) {
        self.counts.connects_failed.add(1);
    }

    pub(crate) fn retried(&self) {
        self.counts.retries.add(1);
    }

    /// An endpoint was found to be out of order.
    pub fn ejected(&self) {
        self.counts.ejections.add(1);
    }
}
