//! How far a scenario is: a bar on a terminal, plain lines elsewhere; always on standard error.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// Lines that a counted phase prints where there is no terminal, so that a log stays short.
const PLAIN_LINES: u64 = 4;

/// Narrates a scenario.
pub(crate) struct Progress {
    terminal: bool,
}

/// A phase whose steps are counted; its bar goes when it is dropped.
pub(crate) struct Phase {
    text: String,
    done: u64,
    total: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Looks at what standard error is.
    pub(crate) fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal() }
    }

    /// Says what is being done now.
    pub(crate) fn say(&self, text: &str) {
        crate::said::note(text);
    }

    /// Begins a counted phase.
    pub(crate) fn phase(&self, text: impl Into<String>, total: u64) -> Phase {
        let text = text.into();
        let bar = self.terminal.then(|| {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}");
            let bar = ProgressBar::new(total).with_message(text.clone());
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Phase { text, done: 0, total, bar }
    }
}

impl Phase {
    /// One step is done.
    pub(crate) fn step(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        } else if is_milestone(self.done, self.total) {
            crate::said::note(&format!("{}: {} of {}", self.text, self.done, self.total));
        }
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            crate::said::note(&format!("{}: {} of {}", self.text, self.done, self.total));
        }
    }
}

/// Whether the step from `done - 1` to `done` completes another of the equal parts of `total`.
fn is_milestone(done: u64, total: u64) -> bool {
    let part = |count: u64| count.saturating_mul(PLAIN_LINES) / total.max(1);
    done > 0 && part(done) > part(done - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milestones(total: u64) -> Vec<u64> {
        (1..=total).filter(|done| is_milestone(*done, total)).collect()
    }

    #[test]
    fn a_phase_prints_a_few_lines_and_always_the_last() {
        assert_eq!(milestones(100), [25, 50, 75, 100]);
        assert_eq!(milestones(10), [3, 5, 8, 10]);
        assert_eq!(milestones(2), [1, 2]);
        assert_eq!(milestones(1), [1]);
    }
}
