//! The metrics of this agent's streams from servers.

use std::sync::Arc;

use starling_agent::remote::RemoteNode;
use starling_agent::remote::uplink::{Figures, GAP_BUCKETS_S};
use starling_telemetry::{Measure, MeasureFamily, Measurement, Registry};

pub(super) fn register(registry: &Registry, node: &Arc<RemoteNode>) {
    let node = Arc::downgrade(node);
    registry.register_measured(move || node.upgrade().map(|node| families(&node.streams())).unwrap_or_default());
}

fn families(figures: &Figures) -> Vec<MeasureFamily> {
    let bounds = GAP_BUCKETS_S.into_iter().chain([f64::INFINITY]);
    let gaps = Measure::Histogram { sum: figures.gaps_sum_s, buckets: bounds.zip(figures.gaps).collect() };
    let open = |is_open: bool| Measure::Gauge(f64::from(u8::from(is_open)));
    let by = |label, value: &str, measure| Measurement { labels: vec![(label, value.to_owned())], measure };
    let family = |name, help, series| MeasureFamily { name, help, series };
    vec![
        family(
            "agent_streams",
            "Streams from servers that are open and have told everything, by what they are for",
            vec![by("role", "primary", open(figures.primary)), by("role", "standby", open(figures.standby))],
        ),
        family(
            "agent_stream_promotions",
            "Streams in reserve that took the place of one that was lost",
            vec![Measurement { labels: Vec::new(), measure: Measure::Counter(figures.promotions) }],
        ),
        family(
            "agent_stream_moves",
            "Moves to another server that a server wished, by what came of them",
            vec![
                by("result", "done", Measure::Counter(figures.moves)),
                by("result", "failed", Measure::Counter(figures.moves_failed)),
            ],
        ),
        family(
            "agent_without_primary_seconds",
            "How long this node was without a server that it is attached to",
            vec![Measurement { labels: Vec::new(), measure: gaps }],
        ),
    ]
}
