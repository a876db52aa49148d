//! Thousands of runs, each from its own seed. `STARLING_SIM_SEED` runs that one alone, `STARLING_SIM_SEEDS` says how many.

use starling_sim::run;

/// Runs of a test; what is rare comes up in a few in a hundred.
const SEEDS: u64 = 2_000;

/// The value of an environment variable, if it is set.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text:?}: {error}")))
}

/// Runs every second seed, so that two tests share the machine's cores.
#[track_caller]
fn every_second(first: u64) {
    let seeds: Vec<_> = match variable("STARLING_SIM_SEED") {
        Some(seed) => vec![seed].into_iter().filter(|seed| seed % 2 == first).collect(),
        None => (first..variable("STARLING_SIM_SEEDS").unwrap_or(2 * SEEDS)).step_by(2).collect(),
    };
    for seed in seeds {
        if let Err(failure) = run(seed) {
            panic!("{failure}\nagain with STARLING_SIM_SEED={seed} cargo test -p starling-sim");
        }
    }
}

#[test]
fn whatever_the_network_does_everyone_is_current_in_the_end() {
    every_second(0);
}

#[test]
fn whatever_else_the_network_does_everyone_is_current_in_the_end() {
    every_second(1);
}
