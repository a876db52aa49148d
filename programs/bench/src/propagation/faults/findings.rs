//! What a run under hard conditions found, for people: a few lines, and the bars.

use crate::fleet_report::{BadNetwork, Faults, SlowReaders};
use crate::report::Bar;
use crate::table;

/// Percent of the p99 that the others have without slow readers.
const P99_BAR_PERCENT: f64 = 110.0;

/// Megabytes by which a server's memory may grow anyhow: the frames that it remembers of a service that is never at rest,
/// and what its allocator keeps.
const MEMORY_BAR_MB: f64 = 8.0;

/// Megabytes for each slow reader: what its stream may hold in TLS, in HTTP/2 and in what was taken for it.
const MEMORY_BAR_MB_EACH: f64 = 0.128;

/// Milliseconds, under loss and resets.
const NETWORK_P99_BAR_MS: f64 = 1000.0;
const NETWORK_MAX_BAR_MS: f64 = 4000.0;

/// The promises about what was done.
pub(in crate::propagation) fn bars(faults: &Faults) -> Vec<Bar> {
    let Faults { slow_readers, bad_network } = faults;
    let mut bars = Vec::new();
    if let Some(slow) = slow_readers {
        let memory_bar = MEMORY_BAR_MB + MEMORY_BAR_MB_EACH * f64::from(slow.nodes);
        let not_behind = slow.nodes.saturating_sub(slow.behind_min);
        bars.extend([
            Bar::new(
                "others' p99 beside slow readers, % of without",
                P99_BAR_PERCENT,
                slow.p99_ratio.map(|it| it * 100.0),
            ),
            Bar::new(
                "memory of the server beside slow readers, MB more",
                memory_bar,
                Some(slow.memory_grown_bytes() / 1e6),
            ),
            Bar::new("slow readers given up as dead", 0.0, Some(f64::from(slow.connections_lost))),
            Bar::new("slow readers that were not behind", 0.0, Some(f64::from(not_behind))),
            Bar::new(
                "slow readers without the newest state",
                0.0,
                Some(f64::from(slow.nodes.saturating_sub(slow.caught_up))),
            ),
        ]);
    }
    if let Some(network) = bad_network {
        bars.extend([
            Bar::new("p99 under loss and resets, ms", NETWORK_P99_BAR_MS, network.p99_ms),
            Bar::new("max under loss and resets, ms", NETWORK_MAX_BAR_MS, network.max_ms),
        ]);
    }
    bars
}

/// What was done, and what came of it beside latencies.
pub(in crate::propagation) fn lines(faults: &Faults) -> Vec<String> {
    let Faults { slow_readers, bad_network } = faults;
    slow_readers.iter().map(slow_line).chain(bad_network.iter().map(network_line)).collect()
}

fn slow_line(slow: &SlowReaders) -> String {
    let SlowReaders { nodes, bytes_per_second, behind_min, connections_lost, caught_up, .. } = slow;
    let milliseconds = |ms: Option<f64>| ms.map_or_else(|| "nothing".to_owned(), table::milliseconds);
    let at_last = slow.caught_up_seconds.map_or_else(String::new, |seconds| format!(" after {seconds:.1} s"));
    format!(
        "slow readers: {nodes} at {bytes_per_second} bytes a second, at least {behind_min} behind, {connections_lost} of \
         their connections lost; others' p99 {} ms, without them {} ms; server {} at most, before them {}, and {} in its \
         sockets; {caught_up} had the newest state in the end{at_last}",
        milliseconds(slow.p99_ms_with),
        milliseconds(slow.p99_ms_without),
        table::mebibytes(slow.server_rss_bytes_peak),
        table::mebibytes(slow.server_rss_bytes_before),
        table::mebibytes(slow.unsent_bytes_max),
    )
}

fn network_line(network: &BadNetwork) -> String {
    let BadNetwork { loss_percent, packets_lost, resets_percent, connections_reset, .. } = network;
    format!(
        "network: {loss_percent} % of the packets lost, {packets_lost} in all; {resets_percent} % of the connections reset \
         during each change, {connections_reset} in all"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet_report::example_of_faults;

    fn missed(faults: &Faults) -> Vec<&'static str> {
        bars(faults).into_iter().filter(|bar| !bar.met).map(|bar| bar.name).collect()
    }

    fn slow(change: impl FnOnce(&mut SlowReaders)) -> Faults {
        let mut faults = example_of_faults();
        change(faults.slow_readers.as_mut().unwrap());
        faults
    }

    #[test]
    fn each_promise_can_be_missed() {
        assert_eq!(missed(&example_of_faults()), [""; 0]);
        for (faults, bar) in [
            (slow(|it| it.p99_ratio = Some(1.11)), "others' p99 beside slow readers, % of without"),
            (slow(|it| it.server_rss_bytes_peak += 100 << 20), "memory of the server beside slow readers, MB more"),
            (slow(|it| it.connections_lost = 1), "slow readers given up as dead"),
            (slow(|it| it.behind_min -= 1), "slow readers that were not behind"),
            (slow(|it| it.caught_up -= 1), "slow readers without the newest state"),
        ] {
            assert_eq!(missed(&faults), [bar]);
        }
        let mut faults = example_of_faults();
        let network = faults.bad_network.as_mut().unwrap();
        (network.p99_ms, network.max_ms) = (Some(1000.1), None);
        assert_eq!(missed(&faults), ["p99 under loss and resets, ms", "max under loss and resets, ms"]);
    }

    #[test]
    fn only_what_was_done_is_told() {
        let whole = lines(&example_of_faults());
        assert!(
            whole[0].contains("100 at 1024 bytes a second") && whole[0].contains("in the end after 41.5 s"),
            "{whole:?}"
        );
        assert!(whole[1].contains("1 % of the packets lost, 1234 in all"), "{whole:?}");
        let faults = Faults { slow_readers: None, ..example_of_faults() };
        assert_eq!(lines(&faults), whole[1..]);
        assert_eq!(bars(&faults).len(), 2);
    }
}
