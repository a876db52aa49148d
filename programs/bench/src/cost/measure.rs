//! One measurement: a load through one variant, and what the proxies and the machine used while it was steady.

use std::time::{Duration, Instant};

use super::churn;
use super::report::{MachineUsage, Mode, Point, ProxyKind, ProxyUsage, Quantiles, Round};
use super::statistics::Latencies;
use crate::cgroup::Cgroup;
use crate::histogram::Distribution;
use crate::load::{Arrivals, Failure, Length, Load, Outcome, Pace, Running, Summary};
use crate::process;

/// The share of a measurement after which what was used is looked at: near the end, and before anything ends.
const LOOKED_AT: f64 = 0.9;

/// How much later than it was the generator tells how many requests are done.
const TOLD_WITHIN: Duration = Duration::from_millis(100);

/// Below this share of the requests that came, answers do not keep up with them, and latencies grow for as long as the run
/// lasts: they would say how long it was, and nothing of the mesh.
const KEPT_UP: f64 = 0.95;

/// How a round that is void for that begins to say so.
pub(super) const BEHIND: &str = "answers did not keep up";

/// Between two looks at whether the warm-up is over.
const GLANCE: Duration = Duration::from_millis(5);

/// Connections are opened, and warmed up, within this beside the warm-up itself.
const OPENED_WITHIN: Duration = Duration::from_secs(5);

/// Whose proxies, and which of them.
#[derive(Debug, Clone)]
pub(super) struct Variant {
    pub(super) proxy: ProxyKind,
    pub(super) mode: Mode,
    /// Whom to call, and with what.
    pub(super) load: Load,
    pub(super) processes: Processes,
}

/// The processes of the proxies on the way, where they are ours.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Processes {
    pub(super) caller: Option<u32>,
    pub(super) service: Option<u32>,
}

/// What is looked at while a load is under way.
#[derive(Debug, Clone, Copy)]
struct Proxies<'a> {
    processes: Processes,
    /// The groups of those that are limited.
    limited: &'a [&'a Cgroup],
}

/// How a measurement goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    pub(super) warm_up: Duration,
    /// Where it does not go by requests.
    pub(super) length: Duration,
    /// Longest wait for an answer.
    pub(super) timeout: Duration,
    pub(super) threads: u32,
}

/// What a measurement found.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    pub(super) round: Round,
    pub(super) latencies: Latencies,
}

/// CPU time that was used up to a moment.
struct Account {
    at: Instant,
    proxies: Option<Duration>,
    machine: Option<Duration>,
    /// Of limited proxies.
    throttled: Option<Duration>,
}

/// Between two accounts.
struct Used {
    proxy_cores: Option<f64>,
    machine_cores: Option<f64>,
    resident: Resident,
    throttled: Option<Duration>,
}

/// Resident memory, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Resident {
    caller: Option<u64>,
    service: Option<u64>,
}

/// Measures a variant at a point, at which some proxies are limited, as the round's measurement number `place`.
///
/// # Errors
/// When connections cannot be opened.
pub(super) async fn measure(
    variant: &Variant,
    limited: &[&Cgroup],
    point: Point,
    timing: Timing,
    (number, place): (u32, u32),
) -> anyhow::Result<Measured> {
    let Timing { warm_up, length, timeout, threads } = timing;
    let pace = point.rate.map_or(Pace::Closed, |rate| Pace::Open { rate, arrivals: Arrivals::Constant });
    let connections = point.connections;
    let length = point.requests.map_or(Length::Time(length), Length::Requests);
    let keep_each = point.changes_per_second.is_some();
    let load = Load { connections, pace, length, warm_up, timeout, threads, keep_each, ..variant.load.clone() };
    let mut running = Running::start(load);
    let proxies = Proxies { processes: variant.processes, limited };
    let Watched { used, ended } = match point.requests {
        Some(_) => watch_all(&mut running, proxies, warm_up, connections).await,
        None => watch(&mut running, proxies, timing).await,
    };
    let outcome = match ended {
        Some(outcome) => outcome?,
        None => running.outcome().await?,
    };
    Ok(found(&outcome, used.as_ref(), variant.processes, (number, place)))
}

struct Watched {
    used: Option<Used>,
    /// What came of the run, if it is over.
    ended: Option<anyhow::Result<Outcome>>,
}

/// Watches a run from when it counts until near its end.
async fn watch(running: &mut Running, proxies: Proxies<'_>, timing: Timing) -> Watched {
    let latest = Instant::now() + timing.warm_up + OPENED_WITHIN;
    let early = |outcome| Watched { used: None, ended: Some(outcome) };
    while running.done() == 0 && Instant::now() < latest {
        if let Ok(outcome) = tokio::time::timeout(GLANCE, running.outcome()).await {
            return early(outcome);
        }
    }
    let before = Account::now(proxies);
    // The beginning was noticed late by as much.
    let until = timing.length.mul_f64(LOOKED_AT).saturating_sub(2 * TOLD_WITHIN).max(timing.length.mul_f64(0.25));
    if let Ok(outcome) = tokio::time::timeout(until, running.outcome()).await {
        return early(outcome);
    }
    Watched { used: Some(before.until_now(proxies)), ended: None }
}

/// Watches a run of so many requests from when they count until the last is over, however long that takes. It is given up when
/// as many have failed as there are connections: it cannot count, and with a mesh that answers nobody it would last for hours.
async fn watch_all(running: &mut Running, proxies: Proxies<'_>, warm_up: Duration, connections: u32) -> Watched {
    let early = |outcome| Watched { used: None, ended: Some(outcome) };
    let counted_from = loop {
        if let Some(begun) = running.begun() {
            break begun + warm_up;
        }
        if let Ok(outcome) = tokio::time::timeout(GLANCE, running.outcome()).await {
            return early(outcome);
        }
    };
    if let Ok(outcome) = tokio::time::timeout_at(counted_from.into(), running.outcome()).await {
        return early(outcome);
    }
    let before = Account::now(proxies);
    let mut resident = proxies.resident();
    let outcome = loop {
        if let Ok(outcome) = tokio::time::timeout(TOLD_WITHIN, running.outcome()).await {
            break outcome;
        }
        // As late as it can be while there are connections.
        resident = proxies.resident();
        if running.failed() >= u64::from(connections) {
            running.stop();
        }
    };
    let used = Used { resident, ..before.until_now(proxies) };
    Watched { used: Some(used), ended: Some(outcome) }
}

impl Proxies<'_> {
    fn cpu_time(&self) -> Option<Duration> {
        let pids = [self.processes.caller, self.processes.service];
        let is_ours = pids.iter().any(Option::is_some);
        let of = |pid: u32| process::cpu_time_of_threads(pid).ok();
        is_ours.then(|| pids.into_iter().flatten().map(of).sum::<Option<Duration>>()).flatten()
    }

    fn resident(&self) -> Resident {
        let of = |pid: Option<u32>| process::resident(pid?).ok();
        Resident { caller: of(self.processes.caller), service: of(self.processes.service) }
    }

    fn throttled(&self) -> Option<Duration> {
        let of = |group: &&Cgroup| group.throttled().ok();
        (!self.limited.is_empty()).then(|| self.limited.iter().map(of).sum::<Option<Duration>>()).flatten()
    }
}

impl Account {
    fn now(proxies: Proxies<'_>) -> Self {
        Self {
            at: Instant::now(),
            proxies: proxies.cpu_time(),
            machine: process::machine_cpu_time().ok(),
            throttled: proxies.throttled(),
        }
    }

    fn until_now(&self, proxies: Proxies<'_>) -> Used {
        let now = Self::now(proxies);
        let seconds = now.at.duration_since(self.at).as_secs_f64();
        let between = |before: Option<Duration>, after: Option<Duration>| Some(after?.saturating_sub(before?));
        let cores = |before, after| Some(between(before, after)?.as_secs_f64() / seconds);
        Used {
            proxy_cores: cores(self.proxies, now.proxies),
            machine_cores: cores(self.machine, now.machine),
            resident: proxies.resident(),
            throttled: between(self.throttled, now.throttled),
        }
    }
}

fn found(outcome: &Outcome, used: Option<&Used>, processes: Processes, (number, place): (u32, u32)) -> Measured {
    let summary = Summary::of(outcome);
    // The rate is steady, or the time that of all requests, so that cores in it are the time of a request.
    let by_request = |cores: f64| (summary.rate > 0.0).then(|| rounded(cores * 1e6 / summary.rate));
    let has_proxies = processes.caller.is_some() || processes.service.is_some();
    let proxies = used.filter(|_| has_proxies).and_then(|used| {
        let cores = used.proxy_cores?;
        Some(ProxyUsage {
            cpu_us_per_request: by_request(cores),
            cores: rounded(cores),
            caller_resident_mb: used.resident.caller.map(megabytes),
            service_resident_mb: used.resident.service.map(megabytes),
        })
    });
    let machine = used.and_then(|used| {
        let cores = used.machine_cores?;
        Some(MachineUsage { cpu_us_per_request: by_request(cores), cores: rounded(cores) })
    });
    let churn = outcome.tally.each.as_deref().and_then(churn::findings);
    // While a mesh changes, errors are what is looked for.
    let errors_count = churn.is_some() && summary.latency_ms.is_some();
    let failed = || failed(&summary).filter(|_| !errors_count);
    // A generator that is late sends late, and so looks like a mesh that is behind; one that is behind leaves requests
    // without an answer, which looks like errors.
    let void = summary.void.clone().or_else(|| behind(outcome)).or_else(failed);
    let round = Round {
        number,
        place,
        latency_ms: quantiles(&outcome.tally.latency),
        requests: summary.requests,
        rate: rounded(summary.rate),
        errors: summary.errors,
        status: summary.status.clone(),
        failures: summary.failures.clone(),
        slip_p99_ms: summary.slip_ms.map(|slip| slip.p99),
        proxies,
        throttled_seconds: used.and_then(|used| used.throttled).map(|throttled| rounded(throttled.as_secs_f64())),
        churn,
        machine,
        void,
    };
    Measured { round, latencies: summary.histogram_us }
}

/// Why a run says nothing in which requests came faster than they were answered, if they did.
#[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 requests")]
fn behind(outcome: &Outcome) -> Option<String> {
    let Outcome { tally, elapsed } = outcome;
    let without =
        [Failure::TimedOut, Failure::NeverSent].map(|failure| tally.failures.get(&failure.to_string()).copied());
    let left = tally.late + without.into_iter().flatten().sum::<u64>();
    let (requests, left) = (tally.requests() as f64, left as f64);
    (left > (1.0 - KEPT_UP) * requests).then(|| {
        let a_second = |count: f64| count / elapsed.as_secs_f64().max(1e-9);
        format!(
            "{BEHIND}: {:.0} requests a second came, {:.0} were answered",
            a_second(requests),
            a_second(requests - left)
        )
    })
}

/// Why a run says nothing, if it does not: a mesh that answers with errors is fast at it.
fn failed(summary: &Summary) -> Option<String> {
    let (failure, _) = summary.failures.iter().max_by_key(|(_, count)| **count)?;
    Some(format!("{} of {} requests failed: {failure}", summary.errors, summary.requests))
}

/// The figures of a distribution; `None` of nothing.
pub(super) fn quantiles(latency: &Distribution) -> Option<Quantiles> {
    Some(Quantiles {
        mean: latency.mean()?,
        p50: latency.at(0.50)?,
        p90: latency.at(0.90)?,
        p99: latency.at(0.99)?,
        p999: latency.at(0.999)?,
        max: latency.at(1.0)?,
    })
}

#[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 bytes")]
fn megabytes(bytes: u64) -> f64 {
    rounded(bytes as f64 / 1e6)
}

/// Three decimals.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_do_not_keep_up_with_requests_void_a_run() {
        let outcome = |late, never_sent: u32| {
            let latency = (never_sent..1000).map(|_| Duration::from_millis(1)).collect();
            let never_sent = u64::from(never_sent);
            let failures = [(Failure::NeverSent.to_string(), never_sent)].into();
            let tally =
                crate::load::Tally { late, latency, errors: never_sent, failures, ..crate::load::Tally::default() };
            Outcome { tally, elapsed: Duration::from_secs(1) }
        };
        // What is on its way at the end is not held against it.
        assert_eq!((behind(&outcome(0, 0)), behind(&outcome(40, 0))), (None, None));
        let text = behind(&outcome(100, 100)).unwrap();
        assert!(text.contains("1000 requests a second came, 800 were answered"), "{text}");
    }

    #[test]
    fn a_run_with_errors_says_nothing_however_fast_it_was() {
        let outcome = Outcome { tally: crate::load::Tally::default(), elapsed: Duration::from_secs(1) };
        assert_eq!(Summary::of(&outcome).void.as_deref(), Some("no request was sent"));
        let mut broken = outcome;
        broken.tally.errors = 3;
        broken.tally.failures.extend([("status 503".to_owned(), 2), ("not answered in time".to_owned(), 1)]);
        assert_eq!(failed(&Summary::of(&broken)).as_deref(), Some("3 of 3 requests failed: status 503"));
    }
}
