//! How fast changes arrive, as metrics.

use std::sync::{Arc, Weak};

use starling_catalog::Progress;
use starling_catalog::receipts::Mark;
use starling_telemetry::{Family, Histogram, Registry, exponential_buckets};

use crate::hub::Hub;

/// Nodes that have a series of their own, the stalest first: more are an outage, of which the two metrics of all say enough,
/// and a fleet must not fill the memory of whoever collects them.
const STALE_NODES_MAX: usize = 1_000;

type Share = [(&'static str, &'static str); 1];

/// Time from the commit of a change until a share of those whom it concerns had applied it.
pub(crate) struct Convergence {
    half: Histogram,
    most: Histogram,
    all: Histogram,
}

impl Convergence {
    pub(crate) fn new(registry: &Registry) -> Self {
        // From a change on one node to one that waits for a node that is away: 1 ms to 33 s.
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 16));
        let help = "Seconds from the commit of a change until this share of those whom it concerns had applied it";
        let seconds = Family::<Share, Histogram>::new_with_constructor(buckets);
        let seconds = registry.register("change_convergence_seconds", help, seconds);
        let share = |quantile| seconds.get_or_create_owned(&[("quantile", quantile)]);
        Self { half: share("0.5"), most: share("0.99"), all: share("1") }
    }

    /// Counts the marks that changes have reached.
    pub(crate) fn observe(&self, progress: &[Progress]) {
        for progress in progress {
            let Progress::Reached { mark, after_us, .. } = progress else { continue };
            let histogram = match mark {
                Mark::Half => &self.half,
                Mark::Most => &self.most,
                Mark::All => &self.all,
            };
            histogram.observe(std::time::Duration::from_micros(*after_us).as_secs_f64());
        }
    }
}

/// Registers who is behind and how far, which is looked up when the metrics are read.
pub(crate) fn register_staleness(registry: &Registry, hub: &Arc<Hub>) {
    let asked = |of: fn(&Hub) -> f64| {
        let hub: Weak<Hub> = Arc::downgrade(hub);
        move || hub.upgrade().map_or(0.0, |hub| of(&hub))
    };
    let help =
        "Seconds since the oldest change was committed that a node or proxy has yet to apply, 0 if there is none";
    registry.register_asked("staleness_seconds_max", help, asked(|hub| hub.staleness().as_secs_f64()));
    let help = "Nodes and proxies that have yet to apply a change that concerns them";
    #[expect(clippy::cast_precision_loss, reason = "a fleet has fewer nodes than a double has whole numbers")]
    registry.register_asked("reporters_behind", help, asked(|hub| hub.behind() as f64));
    let help = "Seconds since the oldest change was committed that this node has yet to apply; of at most 1000 that are \
                behind, the stalest first";
    let hub = Arc::downgrade(hub);
    registry.register_asked_each("node_staleness_seconds", help, "node", move || {
        let stalest = hub.upgrade().map(|hub| hub.stalest(STALE_NODES_MAX)).unwrap_or_default();
        stalest.into_iter().map(|(node, stale_for)| (node.to_string(), stale_for.as_secs_f64())).collect()
    });
}
