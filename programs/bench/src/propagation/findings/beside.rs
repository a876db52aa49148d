//! What was measured of a fleet besides its workloads, as lines for people.

use crate::fleet_report::{FleetReport, Further, Growth, Probes, time_to_all};
use crate::table;

/// Traffic, growth and further registrations, as far as they were measured.
pub(super) fn lines(report: &FleetReport) -> Vec<String> {
    let further = report.server.further.as_ref().map(further_line);
    traffic_lines(report)
        .into_iter()
        .chain(report.growth.as_ref().map(|growth| growth_line(growth, report)))
        .chain(further)
        .collect()
}

/// How often a change did not show in the traffic through an Envoy.
pub(super) fn unseen(report: &FleetReport) -> usize {
    let envoys =
        report.all_changes().filter_map(|change| change.traffic_ms.as_ref()).flat_map(|traffic| &traffic.envoys);
    envoys.filter(|moment| moment.is_none()).count()
}

fn traffic_lines(report: &FleetReport) -> Vec<String> {
    let (traffic, Some(Probes { sent, late, failed })) = (report.traffic(), report.probes) else { return Vec::new() };
    let rows = traffic.into_iter().map(|it| {
        let figures = [it.first, it.last, it.longest].map(milliseconds);
        [vec![it.kind, it.changes.to_string()], figures.to_vec()].concat()
    });
    vec![
        format!(
            "traffic through real Envoys, milliseconds from the call until it had changed; {sent} requests, {late} late, \
             {failed} failed:"
        ),
        table::render(&["kind", "changes", "first Envoy, median", "last Envoy, median", "longest"], rows),
    ]
}

fn growth_line(growth: &Growth, report: &FleetReport) -> String {
    let times = |ratio: Option<f64>| ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.1}"));
    format!(
        "growth: with {} nodes and {} workloads a change takes {} ms until the last, and {:.1} ms CPU of the server; with \
         {} nodes {} ms, {} times as long, and {} times the CPU",
        growth.nodes,
        growth.workloads,
        milliseconds(time_to_all(&growth.changes)),
        growth.server_cpu_ms_per_change,
        report.nodes,
        milliseconds(time_to_all(&report.changes)),
        times(growth.times_longer),
        times(growth.times_cpu),
    )
}

fn further_line(further: &Further) -> String {
    let Further { registrations, allocated_bytes_before, allocated_bytes_after, bytes_each } = further;
    format!(
        "{registrations} further registrations: server from {} in use to {}, {bytes_each:.0} bytes each",
        table::mebibytes(*allocated_bytes_before),
        table::mebibytes(*allocated_bytes_after)
    )
}

fn milliseconds(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), table::milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet_report::TrafficChange;
    use crate::fleet_report::tests::{example, example_with_everything};

    #[test]
    fn everything_that_was_measured_is_told() {
        let text = lines(&example_with_everything()).join("\n");
        for part in [
            "4321 requests, 7 late, 1 failed",
            "| deregistration |       2 |                30.0 |               35.2 |    35.2 |",
            "with 5 nodes and 100 workloads a change takes 20.0 ms until the last, and 12.0 ms CPU",
            "with 50 nodes 180.0 ms, 9.0 times as long, and 7.5 times the CPU",
            "10000 further registrations: server from 300.0 MiB in use to 310.0 MiB, 1049 bytes each",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn what_was_not_measured_is_not_told() {
        assert!(lines(&example()).is_empty());
        assert_eq!(unseen(&example()), 0);
    }

    #[test]
    fn traffic_that_did_not_change_is_counted_for_each_envoy() {
        let mut report = example_with_everything();
        assert_eq!(unseen(&report), 0);
        report.changes[0].traffic_ms = Some(TrafficChange::new(vec![None, Some(1.0), None]));
        report.growth.as_mut().unwrap().changes[0].traffic_ms = Some(TrafficChange::new(vec![None]));
        assert_eq!(unseen(&report), 3);
    }
}
