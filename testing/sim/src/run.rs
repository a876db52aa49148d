//! A run from a seed, and of one that fails the fewest steps that fail alike.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::step::{Step, steps};
use crate::world::World;

/// Attempts at leaving steps out of a run that fails.
const SHORTENINGS_MAX: usize = 4_000;

/// A run that failed.
#[derive(Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What was wrong.
    pub reason: String,
    /// What led to it; nothing of it can be left out.
    pub steps: Vec<Step>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.reason)?;
        for step in &self.steps {
            writeln!(f, "  {step}")?;
        }
        write!(f, "  then everything heals")
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Runs what a seed says.
///
/// # Errors
/// [`Failure`], as short as it gets.
pub fn run(seed: u64) -> Result<(), Box<Failure>> {
    let steps = steps(seed);
    match attempt(&steps) {
        None => Ok(()),
        Some(reason) => {
            let (steps, reason) = shorten(steps, reason);
            Err(Box::new(Failure { seed, reason, steps }))
        }
    }
}

/// Why a run fails, if it does.
#[must_use]
pub fn attempt(steps: &[Step]) -> Option<String> {
    let run = AssertUnwindSafe(|| {
        let mut world = World::default();
        for (number, step) in steps.iter().enumerate() {
            world.take(step).map_err(|error| error.context(format!("at step {number}, {step}")))?;
        }
        world.heal()
    });
    match catch_unwind(run) {
        Ok(ran) => ran.err().map(|error| format!("{error:#}")),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Some(format!("panic: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("of no text")))
        }
    }
}

/// Leaves out what can be left out, in ever smaller portions.
fn shorten(mut steps: Vec<Step>, mut reason: String) -> (Vec<Step>, String) {
    let mut portion = steps.len().div_ceil(2);
    let mut attempts = 0;
    loop {
        let mut from = 0;
        let before = steps.len();
        while from < steps.len() && attempts < SHORTENINGS_MAX {
            attempts += 1;
            let mut fewer = steps.clone();
            fewer.drain(from..(from + portion).min(steps.len()));
            match attempt(&fewer) {
                Some(other) => (steps, reason) = (fewer, other),
                None => from += portion,
            }
        }
        if portion == 1 && (steps.len() == before || attempts >= SHORTENINGS_MAX) {
            return (steps, reason);
        }
        portion = portion.div_ceil(2).max(1);
    }
}
