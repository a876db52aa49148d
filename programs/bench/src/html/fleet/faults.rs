//! The part of the page about hard conditions.

use super::mebibytes;
use crate::fleet_report::{BadNetwork, Faults, SlowReaders};
use crate::html::{Cell, NO_FIGURE, milliseconds, plain, table};

/// Nothing, if nothing was hard.
pub(super) fn section(faults: Option<&Faults>) -> String {
    let Some(Faults { slow_readers, bad_network }) = faults else { return String::new() };
    let rows: Vec<Vec<Cell>> =
        slow_readers.iter().flat_map(slow_rows).chain(bad_network.iter().flat_map(network_rows)).collect();
    format!("<h3>Hard conditions</h3>\n{}", table(&["what", "found"].map(plain), &rows))
}

fn row(what: &str, found: &str) -> Vec<Cell> {
    vec![plain(what), plain(found)]
}

fn slow_rows(slow: &SlowReaders) -> Vec<Vec<Cell>> {
    let ratio = slow.p99_ratio.map_or_else(|| NO_FIGURE.to_owned(), |ratio| format!("{ratio:.2}"));
    let seconds = slow.caught_up_seconds.map_or_else(|| NO_FIGURE.to_owned(), |seconds| format!("{seconds:.1} s"));
    let mib = |bytes: u64| format!("{:.1} MiB", mebibytes(bytes));
    vec![
        row("nodes that read slowly", &format!("{} at {} bytes a second", slow.nodes, slow.bytes_per_second)),
        row("99 % of all others without them, ms", &milliseconds(slow.p99_ms_without)),
        row("99 % of all others beside them, ms", &milliseconds(slow.p99_ms_with)),
        row("the latter by the former", &ratio),
        row("memory of the servers before them", &mib(slow.server_rss_bytes_before)),
        row("memory of the servers beside them, at most", &mib(slow.server_rss_bytes_peak)),
        row("waiting for them in the servers' sockets, at most", &mib(slow.unsent_bytes_max)),
        row("of them behind during a change, at least", &slow.behind_min.to_string()),
        row("connections of theirs lost", &slow.connections_lost.to_string()),
        row("of them with the newest state in the end", &format!("{} of {}", slow.caught_up, slow.nodes)),
        row("until the last of them had it", &seconds),
    ]
}

fn network_rows(network: &BadNetwork) -> Vec<Vec<Cell>> {
    let lost = format!("{} %, {} in all", network.loss_percent, network.packets_lost);
    let reset = format!("{} % during each change, {} in all", network.resets_percent, network.connections_reset);
    vec![
        row("packets lost", &lost),
        row("connections reset", &reset),
        row("99 % under these, ms", &milliseconds(network.p99_ms)),
        row("all under these, ms", &milliseconds(network.max_ms)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet_report::example_of_faults;

    #[test]
    fn a_section_has_what_was_done_and_found() {
        let text = section(Some(&example_of_faults()));
        for part in ["100 at 1024 bytes a second", "<td>1.05</td>", "41.5 s", "1 %, 1234 in all", "<td>2500.0</td>"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert_eq!(section(None), "");
    }
}
