//! The parts of the page about what was measured besides the workloads: traffic through Envoys, and growth.

use crate::fleet_report::{FleetReport, Growth, Probes, mean, time_to_all};
use crate::html::{Cell, NO_FIGURE, escape, milliseconds, plain, table};

/// When traffic changed; nothing, if there was none.
pub(super) fn traffic(report: &FleetReport) -> String {
    let Some(Probes { sent, late, failed }) = report.probes else { return String::new() };
    let header = ["kind", "changes", "first Envoy", "last Envoy", "last Envoy, longest"].map(plain);
    let rows: Vec<Vec<Cell>> = report
        .traffic()
        .into_iter()
        .map(|it| {
            let figures = [it.first, it.last, it.longest].map(|figure| plain(&milliseconds(figure)));
            [vec![plain(&escape(&it.kind)), plain(&it.changes.to_string())], figures.to_vec()].concat()
        })
        .collect();
    format!(
        "<h3>Milliseconds from the call until traffic through real Envoys had changed</h3>\n\
         <p>Medians over the changes of a kind. {sent} requests were sent meanwhile, {late} of them late; {failed} failed.</p>\n{}",
        table(&header, &rows)
    )
}

/// How cost grows with the fleet; nothing, if that was not measured.
pub(super) fn growth(report: &FleetReport) -> String {
    let Some(growth) = &report.growth else { return String::new() };
    let Growth { nodes, workloads, changes, server_cpu_ms_per_change, times_longer, times_cpu } = growth;
    let cpu = mean(report.changes.iter().map(|change| change.server_cpu_ms));
    let rows = [
        ["nodes", &nodes.to_string(), &report.nodes.to_string(), &ratio(u64::from(report.nodes), u64::from(*nodes))],
        [
            "workloads",
            &workloads.to_string(),
            &report.workloads.to_string(),
            &ratio(u64::from(report.workloads), *workloads),
        ],
        [
            "milliseconds until the last workload has a change",
            &milliseconds(time_to_all(changes)),
            &milliseconds(time_to_all(&report.changes)),
            &times(*times_longer),
        ],
        [
            "milliseconds of the servers' CPU for it",
            &milliseconds(Some(*server_cpu_ms_per_change)),
            &milliseconds(cpu),
            &times(*times_cpu),
        ],
    ]
    .map(|row| row.map(plain).to_vec());
    let header = ["what", "a tenth of the nodes", "all", "times"].map(plain);
    format!("<h3>Growth</h3>\n{}", table(&header, &rows))
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| NO_FIGURE.to_owned(), |ratio| format!("{ratio:.1}"))
}

#[expect(clippy::cast_precision_loss, reason = "one decimal of a ratio of counts in thousands")]
fn ratio(all: u64, few: u64) -> String {
    times((few > 0).then(|| all as f64 / few as f64))
}
