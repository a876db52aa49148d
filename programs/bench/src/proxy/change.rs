//! One endpoint that comes and goes under load: what goes wrong, and whether latencies show it.

use std::time::{Duration, Instant};

use crate::api::Call;
use crate::cost::median;
use crate::histogram::milliseconds;
use crate::load::{Arrivals, Each, Load, Pace, Running};
use crate::plane::Plane;
use crate::plane::registrations::{Service, another_way, elsewhere, no_longer_elsewhere};

/// Requests a second.
const RATE: f64 = 10_000.0;

/// Connections they come over.
const CONNECTIONS: u32 = 64;

/// From one change to the next.
const BETWEEN: Duration = Duration::from_millis(500);

/// After a change, or at a time when nothing changes: how long is looked for the slowest request.
const WINDOW: Duration = Duration::from_millis(100);

/// The instance that comes and goes: the same sidecar under another name and address.
const FICKLE: &str = "bench-comes-and-goes";

/// What the changes did.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) errors: u64,
    /// How much slower the slowest request of a window is for a change, in milliseconds: medians over windows.
    pub(super) step_ms: f64,
    /// The slowest of all.
    pub(super) worst_ms: f64,
    /// Why the generator's figures say nothing, if they do not.
    pub(super) void: bool,
}

/// Changes an endpoint again and again while requests come.
///
/// # Errors
/// When a change is refused, or nothing can be reached.
pub(super) async fn under_load(plane: &Plane, length: Duration) -> anyhow::Result<Found> {
    let load = plane.load(Service::Http, 0)?;
    let pace = Pace::Open { rate: RATE, arrivals: Arrivals::Constant };
    let length = length.max(BETWEEN * 6);
    let load = Load {
        connections: CONNECTIONS,
        pace,
        length: crate::load::Length::Time(length),
        warm_up: Duration::from_secs(1),
        keep_each: true,
        ..load
    };
    let mut running = Running::start(load);
    let mut api = plane.server_api();
    let begun = Instant::now() + Duration::from_secs(1);
    let mut changes = Vec::new();
    let there = elsewhere(Service::Http.name(), FICKLE, another_way(plane.public(Service::Http)));
    let gone = no_longer_elsewhere(FICKLE);
    for (number, Call { method, target, body }) in (1_u32..).zip([&there, &gone].into_iter().cycle()) {
        let at = begun + BETWEEN * number;
        // An even number of changes: the next round begins where this one did.
        if at + BETWEEN > begun + length && number % 2 == 1 {
            break;
        }
        tokio::time::sleep_until(at.into()).await;
        changes.push(Instant::now());
        api.write(method.clone(), target, body).await?;
    }
    let outcome = running.outcome().await?;
    let each = outcome.tally.each.as_deref().unwrap_or_default();
    let slip = outcome.tally.slip.at(0.99).unwrap_or_default();
    Ok(Found {
        errors: outcome.tally.errors,
        step_ms: step(each, &changes),
        worst_ms: each.iter().filter_map(|each| each.latency).map(milliseconds).fold(0.0, f64::max),
        void: slip > crate::load::SLIP_P99_MS_MAX,
    })
}

/// The median over changes of the slowest request just after one, less the median of the slowest just before one.
fn step(each: &[Each], changes: &[Instant]) -> f64 {
    let slowest = |from: Instant| {
        let within = each.iter().filter(|each| each.due >= from && each.due < from + WINDOW);
        within.filter_map(|each| each.latency).map(milliseconds).reduce(f64::max)
    };
    let after = changes.iter().filter_map(|at| slowest(*at));
    let before = changes.iter().filter_map(|at| slowest(at.checked_sub(WINDOW * 2)?));
    match (median(after), median(before)) {
        (Some(after), Some(before)) => (after - before).max(0.0),
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_a_change_adds_to_the_slowest() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let changes = [at(500), at(1000), at(1500)];
        let slow =
            |ms: u64| changes.iter().any(|change| at(ms) >= *change && at(ms) < *change + Duration::from_millis(20));
        let with = |slow_ms: u64| -> Vec<Each> {
            let latency = |ms| Duration::from_millis(if slow(ms) { slow_ms } else { 2 });
            (0..2000).map(|ms| Each { due: at(ms), latency: Some(latency(ms)) }).collect()
        };
        assert_eq!(step(&with(30), &changes), 28.0);
        assert_eq!(step(&with(2), &changes), 0.0);
        assert_eq!(step(&[], &changes), f64::INFINITY);
    }
}
