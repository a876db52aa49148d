//! What the run found, and the report made of it.

use std::time::Duration;

use serde::Serialize;

use super::changes::Changes;
use super::fleet::{Door, Fleet};
use crate::histogram::{Distribution, Summary, milliseconds};
use crate::machine::Machine;
use crate::process::Memory;
use crate::report::{Bar, Versions};
use crate::table;

/// What is promised: 1,000 services of 3 instances are registered in so many seconds. For another number of instances
/// the promise is in proportion.
const REGISTRATION_BAR_SECONDS: f64 = 2.0;

/// The number of instances that the promise is made for.
const REGISTRATION_BAR_INSTANCES: f64 = 3000.0;

/// Shown under `--help`: what is measured, and the report.
pub(super) const JSON_HELP: &str = "\
What is measured:
  Registration: every instance by a call of its own, of /v1/agent/service/register or of
  /v1/catalog/register as --through says, from several clients at once. Memory of the server:
  resident, empty, after registration, after all Envoys attached, and after the changes. A change:
  one instance is deregistered or registered again, through the same API; its time runs from the
  API's answer until the answer of /starling/v1/changes/REVISION?wait=, which comes when every
  Envoy concerned has applied it. CPU of the server per change is user and system time from /proc,
  both API calls included.

Report (--json, --report, -o json; memory in bytes):
  scenario       \"scale\"
  fleet          services, instances (of each), sidecars, upstreams (of each), attached (as Envoys)
  registration   through; instances; connections; seconds; per_second; call_ms with count, p50,
                 p90, p99, max
  bar            name, limit, measured, met
  server_memory  at_start, registered, attached, at_end, each with resident and proportional;
                 per_instance
  envoy_memory   count, resident_mean, resident_max, proportional_total; null without Envoys
  changes[]      watchers (Envoys that each change concerned); latency_ms (from the API's answer),
                 from_call_ms (from just before the call) and from_commit_ms (by the server's own
                 clock, to the last Envoy's report; null without watchers), each with count, p50,
                 p90, p99, max; server_cpu_ms (per change)
  machine        cpu, model, cores, memory (bytes), kernel, date
  versions       starling, build, envoy";

/// How registration went.
pub(super) struct Registration {
    pub(super) connections: usize,
    /// From the first call to the last answer.
    pub(super) took: Duration,
    /// Each call.
    pub(super) each: Distribution,
}

/// Memory of the server through the run.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerMemory {
    pub(super) at_start: Memory,
    pub(super) registered: Memory,
    pub(super) attached: Memory,
    pub(super) at_end: Memory,
}

/// Memory of the Envoys at the end of the run, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct EnvoyMemory {
    count: u64,
    resident_mean: u64,
    resident_max: u64,
    /// Of all together, pages that they share counted once.
    proportional_total: u64,
}

/// All of it.
pub(super) struct Findings {
    pub(super) registration: Registration,
    pub(super) server_memory: ServerMemory,
    pub(super) envoy_memory: Option<EnvoyMemory>,
    pub(super) changes: Vec<Changes>,
}

/// The report; [`JSON_HELP`] tells its fields.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    scenario: &'static str,
    fleet: FleetRow,
    pub(super) bar: Bar,
    registration: RegistrationRow,
    server_memory: ServerMemoryRow,
    envoy_memory: Option<EnvoyMemory>,
    changes: Vec<ChangesRow>,
    machine: Machine,
    versions: Versions,
}

#[derive(Debug, Serialize)]
struct FleetRow {
    services: u32,
    instances: u32,
    sidecars: u32,
    upstreams: u32,
    attached: u32,
}

#[derive(Debug, Serialize)]
struct RegistrationRow {
    through: Door,
    instances: u32,
    connections: usize,
    seconds: f64,
    per_second: f64,
    call_ms: Option<Summary>,
}

#[derive(Debug, Serialize)]
struct ServerMemoryRow {
    at_start: Memory,
    registered: Memory,
    attached: Memory,
    at_end: Memory,
    per_instance: u64,
}

#[derive(Debug, Serialize)]
struct ChangesRow {
    watchers: u32,
    latency_ms: Option<Summary>,
    from_call_ms: Option<Summary>,
    from_commit_ms: Option<Summary>,
    server_cpu_ms: f64,
}

impl EnvoyMemory {
    /// Sums up; `None` of no Envoy.
    pub(super) fn of(each: &[Memory]) -> Option<Self> {
        let count = u64::try_from(each.len()).ok()?;
        let resident = each.iter().map(|memory| memory.resident);
        Some(Self {
            count,
            resident_mean: resident.clone().sum::<u64>().checked_div(count)?,
            resident_max: resident.max()?,
            proportional_total: each.iter().map(|memory| memory.proportional).sum(),
        })
    }
}

impl Findings {
    /// Sums up.
    pub(super) fn report(&self, fleet: &Fleet, versions: Versions) -> Report {
        let Fleet { door, services, instances, sidecars, upstreams, attached } = *fleet;
        let all = services * instances;
        let seconds = self.registration.took.as_secs_f64();
        let limit = REGISTRATION_BAR_SECONDS * f64::from(all) / REGISTRATION_BAR_INSTANCES;
        let memory = self.server_memory;
        let grown = memory.registered.resident.saturating_sub(memory.at_start.resident);
        Report {
            scenario: "scale",
            fleet: FleetRow { services, instances, sidecars, upstreams, attached },
            bar: Bar::new("registration of all instances, s", limit, Some(seconds)),
            registration: RegistrationRow {
                through: door,
                instances: all,
                connections: self.registration.connections,
                seconds,
                per_second: f64::from(all) / seconds,
                call_ms: self.registration.each.summary(),
            },
            server_memory: ServerMemoryRow {
                at_start: memory.at_start,
                registered: memory.registered,
                attached: memory.attached,
                at_end: memory.at_end,
                per_instance: grown / u64::from(all),
            },
            envoy_memory: self.envoy_memory,
            changes: self.changes.iter().map(Changes::row).collect(),
            machine: Machine::read(),
            versions,
        }
    }
}

impl Changes {
    fn row(&self) -> ChangesRow {
        ChangesRow {
            watchers: self.watchers,
            latency_ms: self.from_answer.summary(),
            from_call_ms: self.from_call.summary(),
            from_commit_ms: self.from_commit.summary(),
            server_cpu_ms: milliseconds(self.cpu_each),
        }
    }
}

/// The report for people.
pub(super) fn table(report: &Report) -> String {
    let Report { fleet, registration, bar, versions, machine, .. } = report;
    let mut text = format!(
        "{} services of {} instances; {} sidecars of {} upstreams, {} of them attached\n\n",
        fleet.services, fleet.instances, fleet.sidecars, fleet.upstreams, fleet.attached
    );
    text.push_str(&format!(
        "registration through the {}: {} instances in {:.2} s ({:.0} a second, {} clients), bar {:.2} s: {}\n",
        registration.through,
        registration.instances,
        registration.seconds,
        registration.per_second,
        registration.connections,
        bar.limit,
        table::verdict(bar.met),
    ));
    if let Some(Summary { p50, p99, max, .. }) = registration.call_ms {
        let [p50, p99, max] = [p50, p99, max].map(table::milliseconds);
        text.push_str(&format!("  each call p50 {p50} ms, p99 {p99} ms, max {max} ms\n"));
    }
    text.push('\n');
    text.push_str(&memory_table(report));
    if !report.changes.is_empty() {
        text.push_str("\n\nOne change: milliseconds from the API's answer until all concerned have applied it\n\n");
        text.push_str(&changes_table(&report.changes));
    }
    text.push_str(&format!("\n\n{}\n{}", versions.line(), machine.line()));
    text
}

fn memory_table(report: &Report) -> String {
    let memory = &report.server_memory;
    let row = |name: &str, bytes: u64| vec![name.to_owned(), table::mebibytes(bytes)];
    let mut rows = vec![
        row("server, empty", memory.at_start.resident),
        row("server, all registered", memory.registered.resident),
        vec!["  for each instance".to_owned(), format!("{} B", memory.per_instance)],
        row("server, Envoys attached", memory.attached.resident),
        row("server, after the changes", memory.at_end.resident),
    ];
    if let Some(envoys) = &report.envoy_memory {
        rows.push(row("Envoy, mean", envoys.resident_mean));
        rows.push(row("Envoy, largest", envoys.resident_max));
        rows.push(row(&format!("all {} Envoys, shared once", envoys.count), envoys.proportional_total));
    }
    table::render(&["memory", "resident"], rows)
}

fn changes_table(changes: &[ChangesRow]) -> String {
    let rows = changes.iter().filter_map(|row| {
        let (latency, call) = (row.latency_ms?, row.from_call_ms?);
        let figures = [latency.p50, latency.p90, latency.p99, latency.max, call.p50, call.p99, row.server_cpu_ms];
        let mut cells = vec![row.watchers.to_string(), latency.count.to_string()];
        cells.extend(figures.map(table::milliseconds));
        Some(cells)
    });
    table::render(&["Envoys", "count", "p50", "p90", "p99", "max", "from call p50", "p99", "server CPU"], rows)
}

#[cfg(test)]
mod tests;
