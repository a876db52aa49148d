//! The parts of the page about what a mesh costs: one for each scenario, whichever reports its figures are from.

pub(super) mod asked;
pub(super) mod churn;
mod cpu;
mod curve;
pub(super) mod figures;
pub(super) mod ingress;
pub(super) mod latency;
mod memory;
pub(super) mod throughput;

use super::{NO_FIGURE, Section, complaints, escape};
use crate::cost::report::{CostReport, CostScenario, Settings};
use crate::published::{Published, Study};
use asked::Asked;

/// A report under its title.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) title: &'a str,
    pub(super) report: &'a CostReport,
}

impl<'a> Run<'a> {
    pub(super) fn cells(&self, scenario: CostScenario) -> Vec<Asked<'a>> {
        let cells = self.report.cells.iter().filter(|cell| cell.scenario == scenario);
        cells.map(|cell| Asked::of(self.report, cell)).collect()
    }
}

/// Scenarios in the order of the page: where each is, and what it asks.
const SCENARIOS: [(CostScenario, &str, &str); 6] = [
    (CostScenario::Latency, "latency", "Latency that proxies add"),
    (CostScenario::Cpu, "cpu", "CPU time by rate"),
    (CostScenario::Throughput, "throughput", "Latency by load"),
    (CostScenario::Memory, "memory", "Memory of a proxy"),
    (CostScenario::Ingress, "ingress", "Ingress gateways under limits"),
    (CostScenario::Churn, "churn", "Traffic while the mesh changes"),
];

/// Where the page has a scenario.
pub(super) fn place(scenario: CostScenario) -> &'static str {
    SCENARIOS.iter().find(|(of, ..)| *of == scenario).map_or("", |(_, id, _)| id)
}

pub(super) fn sections(runs: &[Run], published: &Published) -> Vec<Section> {
    let section = |(scenario, id, title): (CostScenario, &str, &str)| {
        let with: Vec<&Run> = runs.iter().filter(|run| !run.cells(scenario).is_empty()).collect();
        let bodies = with.iter().map(|run| {
            let heading = if runs.len() > 1 { format!("<h3>{}</h3>\n", escape(run.title)) } else { String::new() };
            let (settings, missing) = (
                escape(&settings_line(run)),
                complaints("Not to be had, or not to be believed in full:", &run.report.missing),
            );
            let body = body(scenario, &run.cells(scenario), published);
            format!("{heading}<p class=\"settings\">{settings}</p>\n{missing}{body}")
        });
        let body = bodies.collect::<String>() + &studies(scenario, published);
        (!with.is_empty()).then(|| Section { id: id.to_owned(), title: title.to_owned(), body })
    };
    SCENARIOS.into_iter().filter_map(section).collect()
}

fn body(scenario: CostScenario, cells: &[Asked], published: &Published) -> String {
    match scenario {
        CostScenario::Latency => latency::body(cells, &published.sidecars),
        CostScenario::Cpu => cpu::body(cells, &published.sidecars),
        CostScenario::Throughput => throughput::body(cells),
        CostScenario::Memory => memory::body(cells, &published.sidecars),
        CostScenario::Ingress => ingress::body(cells, &published.ingress),
        CostScenario::Churn => churn::body(cells),
    }
}

/// What the published figures of a scenario were measured on; ours is in the line under each heading.
fn studies(scenario: CostScenario, published: &Published) -> String {
    let studies: Vec<&Study> = match scenario {
        CostScenario::Latency | CostScenario::Cpu | CostScenario::Memory => {
            published.sidecars.studies().map(|it| &it.study).to_vec()
        }
        CostScenario::Ingress => vec![&published.ingress.study],
        CostScenario::Throughput | CostScenario::Churn => Vec::new(),
    };
    studies.into_iter().map(super::study).collect()
}

/// Under what a report was measured.
fn settings_line(Run { report, .. }: &Run) -> String {
    let Settings { warm_up_seconds, protocol, payload_bytes, mtls, access_log, tracing, policies, workers, .. } =
        &report.settings;
    let with = |is: bool, what: &'static str| is.then_some(what);
    let policies = (*policies > 0).then(|| format!("{policies} policies"));
    let workers = workers
        .map(|workers| format!("{workers} worker {} for each proxy", if workers == 1 { "thread" } else { "threads" }));
    let further: Vec<String> = [with(*mtls, "mutual TLS"), with(*access_log, "access logs"), with(*tracing, "tracing")]
        .into_iter()
        .flatten()
        .map(str::to_owned)
        .chain(policies)
        .chain(workers)
        .map(|what| format!(", {what}"))
        .collect();
    format!(
        "{} after {warm_up_seconds} s of warm-up, in random order; {protocol}, {payload_bytes} \
         bytes each way{}. {}; everything on one machine: {}.",
        report.settings.rounds_line(),
        further.concat(),
        report.versions.line(),
        report.machine.line()
    )
}

/// How every report of what a mesh costs was measured; nothing, if there is none.
pub(super) fn origin(runs: &[Run]) -> Option<Section> {
    let of = |run: &Run| {
        let Run { title, report } = run;
        let problems: Vec<String> = report
            .cells
            .iter()
            .flat_map(|cell| cell.problems.iter().map(move |problem| format!("{}: {problem}", figures::named(cell))))
            .collect();
        let problems = if problems.is_empty() {
            String::new()
        } else {
            let (count, list) = (problems.len(), complaints("By measurement and round:", &problems));
            format!("<details>\n<summary>Measurements with problems: {count}</summary>\n{list}</details>\n")
        };
        let command = if report.command.is_empty() { NO_FIGURE.to_owned() } else { report.command.join(" ") };
        let Settings { generator_threads, seed, .. } = &report.settings;
        format!(
            "<h3>{}</h3>\n<p><code>{}</code></p>\n<p>{}</p>\n<p>Seed {seed}; threads of the generator: \
             {generator_threads}; schema {}.</p>\n{problems}",
            escape(title),
            escape(&command),
            escape(&settings_line(run)),
            escape(&report.schema)
        )
    };
    let body = runs.iter().map(of).collect();
    (!runs.is_empty()).then(|| Section { id: "origin".to_owned(), title: "How this was measured".to_owned(), body })
}

#[cfg(test)]
pub(super) mod tests;
