//! How far a transfer is, where standard error is a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar, or nothing.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Of bytes, of how many is known or not.
    pub(crate) fn of_bytes(what: &'static str, all: Option<u64>) -> Self {
        let template = match all {
            Some(_) => "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}",
            None => "{msg} {bytes} {bytes_per_sec}",
        };
        Self::new(what, all, template)
    }

    /// Of records.
    pub(crate) fn of_records(what: &'static str) -> Self {
        Self::new(what, Some(0), "{msg} {bar:30} {pos}/{len} {elapsed}")
    }

    fn new(what: &'static str, all: Option<u64>, template: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(all, ProgressDrawTarget::stderr());
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(what);
            bar
        });
        Self(bar)
    }

    /// So many bytes.
    pub(crate) fn at(&self, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(done);
        }
    }

    /// So many of so many.
    pub(crate) fn set(&self, done: usize, all: usize) {
        if let Some(bar) = &self.0 {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        }
    }

    /// The end of it.
    pub(crate) fn done(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
