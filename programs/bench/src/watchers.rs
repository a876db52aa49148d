//! Scenario `watchers`: blocking queries parked on one server, and whom a change wakes.
//!
//! Most wait for a service of their own choice, some for every check there is, as fabio does. Services change one after another.
//! A change has to wake those who wait for that service, and those who wait for all, and nobody else; each is timed from the
//! moment at which the write was called. Whoever is woken parks again before the next change.
//!
//! Cost model: a watcher here is a task with a socket; all of them are in this process, so that what is found includes its own work.

mod crowd;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::value_parser;
use http::Method;
use serde::Serialize;
use serde_json::json;

use crate::api::Api;
use crate::fleet::Server;
use crate::machine::Machine;
use crate::mesh::folder;
use crate::percentiles::Percentiles;
use crate::process;
use crate::progress::Progress;
use crate::report::{Bar, OutputArgs, Versions};
use crate::table;
use crowd::{Crowd, Woken};

/// The report of this scenario.
const JSON_HELP: &str = "\
What --json writes: schema (starling-bench-watchers/1), services, watchers, on_all, changes, parked_s, bytes_per_watcher (resident
memory of the server, parked less before), wakes_ms (percentiles over all wakes, from the call of the write), wrong (wakes of
those whom the change does not concern), missed, cpu_ms_per_change (of the server), bars[], machine, versions.";

/// Names the shape of the report; the number goes up when something is taken away or means something else.
const SCHEMA: &str = "starling-bench-watchers/1";

/// From the call of a write to the answer of the 99th of 100 who are woken by it.
const WAKE_P99_MS_MAX: f64 = 300.0;

/// Of the server's memory, for each query that is parked.
const BYTES_PER_WATCHER_MAX: f64 = 20_000.0;

/// Time for all to be parked.
const PARK_WITHIN: Duration = Duration::from_secs(120);

/// Time for those whom a change concerns to be woken.
const WAKE_WITHIN: Duration = Duration::from_secs(10);

/// How long nobody else must be woken after a change, before the next.
const QUIET: Duration = Duration::from_millis(100);

/// Arguments of `starling bench watchers`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = JSON_HELP)]
pub(crate) struct Args {
    /// Queries that are parked
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=15_000))]
    watchers: u32,
    /// Of these, how many wait for every check, with ?consistent
    #[arg(long, default_value_t = 100, value_parser = value_parser!(u32).range(0..=1_000))]
    on_all: u32,
    /// Services, each on a node of its own, for which the others wait
    #[arg(long, default_value_t = 500, value_parser = value_parser!(u32).range(1..=10_000))]
    services: u32,
    /// Changes, one after another
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u32).range(1..=10_000))]
    changes: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Everything found.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Findings {
    schema: &'static str,
    services: u32,
    watchers: u32,
    on_all: u32,
    changes: u32,
    parked_s: f64,
    bytes_per_watcher: f64,
    wakes_ms: Option<Percentiles>,
    wrong: usize,
    missed: usize,
    cpu_ms_per_change: f64,
    bars: Vec<Bar>,
    machine: Machine,
    versions: Versions,
}

/// What changes brought about.
#[derive(Debug, Default)]
struct Tally {
    wakes_us: Vec<u64>,
    wrong: usize,
    missed: usize,
}

/// Runs the scenario.
///
/// # Errors
/// When the server cannot be brought up, or a query fails.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    args.output.verify()?;
    let directory = folder(args.output.keep)?;
    let server = Server::alone(directory.path()).await?;
    register(&server, args.services, &progress).await?;
    let before = settled_memory(&server).await?;
    let begun = Instant::now();
    let mut crowd = Crowd::park(server.http(), args.watchers, args.on_all, args.services);
    let mut phase = progress.phase("parking", u64::from(args.watchers));
    crowd.all_parked(PARK_WITHIN, || phase.step()).await?;
    drop(phase);
    let parked_s = begun.elapsed().as_secs_f64();
    let after = settled_memory(&server).await?;
    let cpu = server.cpu_time()?;
    let mut tally = Tally::default();
    let (mut api, mut phase) = (server.api(), progress.phase("changing", u64::from(args.changes)));
    for change in 0..args.changes {
        let service = change % args.services;
        let (called, woken) = one(&mut api, &mut crowd, service, change).await?;
        tally.count(&crowd, service, called, &woken);
        phase.step();
    }
    drop(phase);
    let cpu = server.cpu_time()?.saturating_sub(cpu);
    let findings = findings(&args, parked_s, after.saturating_sub(before), cpu, &tally);
    args.output.deliver(&findings, &findings.bars, || text(&findings))
}

/// Registers every service on a node of its own, with a check.
async fn register(server: &Server, services: u32, progress: &Progress) -> anyhow::Result<()> {
    let (mut api, mut phase) = (server.api(), progress.phase("registering", u64::from(services)));
    for number in 0..services {
        api.write(Method::PUT, "/v1/catalog/register", &registration(number, "passing", 0)).await?;
        phase.step();
    }
    Ok(())
}

fn registration(service: u32, status: &str, change: u32) -> serde_json::Value {
    let (node, name) = (format!("node-{service}"), crowd::name(service));
    json!({
        "Node": node, "Address": "192.0.2.1", "SkipNodeUpdate": false,
        "Service": {"Service": name, "Port": 80, "Tags": [format!("change-{change}")]},
        "Check": {"CheckID": format!("{name}-check"), "Name": "alive", "ServiceID": name, "Status": status},
    })
}

/// Changes a service, tags and check at once; when that was called, and who was woken until nobody was any more.
async fn one(api: &mut Api, crowd: &mut Crowd, service: u32, change: u32) -> anyhow::Result<(Instant, Vec<Woken>)> {
    let status = if change.is_multiple_of(2) { "warning" } else { "passing" };
    let concerned = crowd.concerned(service);
    let called = Instant::now();
    api.write(Method::PUT, "/v1/catalog/register", &registration(service, status, change + 1)).await?;
    let woken = crowd.woken(concerned, WAKE_WITHIN, QUIET).await?;
    crowd.all_parked(PARK_WITHIN, || {}).await?;
    Ok((called, woken))
}

impl Tally {
    fn count(&mut self, crowd: &Crowd, service: u32, called: Instant, woken: &[Woken]) {
        let right = woken.iter().filter(|woken| crowd.is_concerned(woken.watcher, service));
        let mut right: Vec<_> = right.map(|woken| (woken.watcher, woken.at)).collect();
        self.wrong += woken.len() - right.len();
        right.sort_unstable();
        right.dedup_by_key(|(watcher, _)| *watcher);
        self.missed += crowd.concerned(service) - right.len();
        let after = |(_, at): &(u32, Instant)| u64::try_from(at.duration_since(called).as_micros()).unwrap_or(u64::MAX);
        self.wakes_us.extend(right.iter().map(after));
    }
}

/// Resident memory once it no longer moves: what was allocated while many connected goes back to the system.
async fn settled_memory(server: &Server) -> anyhow::Result<u64> {
    let mut last = process::resident(server.pid())?;
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = process::resident(server.pid())?;
        if now.abs_diff(last) < 64 * 1024 {
            return Ok(now);
        }
        last = now;
    }
    Ok(last)
}

#[expect(clippy::cast_precision_loss, reason = "memory and counts are far below 2^52")]
fn findings(args: &Args, parked_s: f64, grown: u64, cpu: Duration, tally: &Tally) -> Findings {
    let bytes_per_watcher = grown as f64 / f64::from(args.watchers);
    let wakes_ms = Percentiles::of(&tally.wakes_us);
    let bars = vec![
        Bar::new("99 % of wakes, ms", WAKE_P99_MS_MAX, wakes_ms.map(|wakes| wakes.p99)),
        Bar::new("memory for a watcher, bytes", BYTES_PER_WATCHER_MAX, Some(bytes_per_watcher)),
        Bar::new("wakes of those whom a change does not concern", 0.0, Some(tally.wrong as f64)),
        Bar::new("watchers that were not woken", 0.0, Some(tally.missed as f64)),
    ];
    let Args { watchers, on_all, services, changes, .. } = *args;
    Findings {
        schema: SCHEMA,
        services,
        watchers,
        on_all,
        changes,
        parked_s,
        bytes_per_watcher,
        wakes_ms,
        wrong: tally.wrong,
        missed: tally.missed,
        cpu_ms_per_change: cpu.as_secs_f64() * 1000.0 / f64::from(changes),
        bars,
        machine: Machine::read(),
        versions: Versions::of(None),
    }
}

fn text(findings: &Findings) -> String {
    let Findings { services, watchers, on_all, changes, parked_s, cpu_ms_per_change, machine, versions, .. } = findings;
    let mut rows: Vec<Vec<String>> = findings
        .bars
        .iter()
        .map(|bar| {
            let measured = bar.measured.map_or_else(|| "–".to_owned(), |value| format!("{value:.1}"));
            vec![bar.name.to_owned(), measured, format!("≤ {:.0} {}", bar.limit, table::verdict(bar.met))]
        })
        .collect();
    if let Some(wakes) = &findings.wakes_ms {
        let all = format!("{:.1}; {:.1}; {:.1}", wakes.p50, wakes.p90, wakes.max);
        rows.push(vec!["half, 90 %, all of wakes, ms".to_owned(), all, String::new()]);
    }
    rows.push(vec!["server's CPU for a change, ms".to_owned(), format!("{cpu_ms_per_change:.1}"), String::new()]);
    format!(
        "{watchers} blocking queries ({on_all} of them on every check) on {services} services, {changes} changes; parked in \
         {parked_s:.1} s\n{}\n{}\n{}\n",
        table::render(&["", "found", "bar"], rows),
        machine.line(),
        versions.line()
    )
}
