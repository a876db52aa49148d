//! Receipts as commands ask for them: waiting with a progress bar, telling how it ended, showing one.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;
use serde_json::Value;
use starling_catalog::Until;
use starling_http_api::parse::parse_duration;
use tokio::time::Instant;

use crate::client::{Call, Client};
use crate::outcome::Outcome;
use crate::print;

/// One wait at the API while a progress bar is live; the bar moves at least this often.
const STEP: Duration = Duration::from_millis(200);

/// How long is waited where nothing else is said; the API's own default for barriers.
const WAIT_DEFAULT: &str = "30s";

/// `--wait` and `--until`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WaitArgs {
    /// Wait until every node and proxy concerned has applied it, at most this long: 500ms, 2m [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration, num_args = 0..=1, default_missing_value = WAIT_DEFAULT)]
    wait: Option<Duration>,

    /// What to wait for: applied:all, applied:99%, or node=NAME [default: applied:all]; implies --wait
    #[arg(long, value_name = "BARRIER")]
    until: Option<Until>,
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "must be a number with a unit, such as 30s or 500ms".to_owned())
}

impl WaitArgs {
    /// How long to wait, if at all.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait.or_else(|| self.until.as_ref().and_then(|_| parse_duration(WAIT_DEFAULT)))
    }

    /// What to wait for.
    pub(crate) fn until(&self) -> Until {
        self.until.clone().unwrap_or(Until::AppliedAll)
    }
}

/// A receipt, as far as commands look at it.
#[derive(Debug, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) revision: u64,
    pub(crate) counts: Counts,
    pub(crate) latency_us: Latency,
    #[serde(default)]
    applied: Vec<Applied>,
    #[serde(default)]
    pending: Vec<String>,
    #[serde(default)]
    rejected: Vec<Rejected>,
    #[serde(default)]
    lost: Vec<String>,
    #[serde(default)]
    unheard_servers: Vec<String>,
    /// How it stands with what was waited for.
    until: Option<Standing>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Counts {
    pub(crate) affected: u64,
    pub(crate) applied: u64,
    pub(crate) pending: u64,
    pub(crate) rejected: u64,
    #[serde(default)]
    pub(crate) lost: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50: Option<u64>,
    pub(crate) p99: Option<u64>,
    pub(crate) max: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Applied {
    proxy: String,
    latency_us: u64,
}

#[derive(Debug, Deserialize)]
struct Rejected {
    proxy: Option<String>,
    reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Standing {
    Met,
    Timeout,
    Never,
    Unknown,
}

impl Receipt {
    /// A receipt as the API gives it.
    ///
    /// # Errors
    /// If the API gives something else.
    pub(crate) fn of(value: &Value) -> anyhow::Result<Self> {
        Self::deserialize(value).context("the API gives receipts in an unknown form")
    }

    /// How a command ends that has waited.
    pub(crate) fn outcome(&self) -> Outcome {
        match self.until {
            Some(Standing::Met) => Outcome::Done,
            Some(Standing::Never) => Outcome::No,
            Some(Standing::Timeout | Standing::Unknown) | None => Outcome::StillOutstanding,
        }
    }

    /// Its numbers in one line.
    pub(crate) fn summary(&self) -> String {
        let Counts { affected, applied, pending, rejected, lost } = self.counts;
        let lost = if lost > 0 { format!("; {lost} more lost") } else { String::new() };
        format!(
            "Change {}: {affected} affected, {applied} applied, {pending} pending, {rejected} rejected{lost}",
            self.revision
        )
    }

    /// Prints it, with the names that it gives.
    ///
    /// # Errors
    /// As [`print::line()`].
    pub(crate) fn show(&self) -> anyhow::Result<()> {
        print::line(&self.summary())?;
        let Latency { p50, p99, max } = self.latency_us;
        if max.is_some() {
            let (p50, p99, max) = (milliseconds(p50), milliseconds(p99), milliseconds(max));
            print::line(&format!("Latency: p50 {p50}, p99 {p99}, max {max}"))?;
        }
        for Applied { proxy, latency_us } in self.applied.iter().rev() {
            print::line(&format!("  applied   {proxy}  {}", milliseconds(Some(*latency_us))))?;
        }
        unnamed("applied", self.counts.applied, self.applied.len())?;
        for proxy in &self.pending {
            print::line(&format!("  pending   {proxy}"))?;
        }
        unnamed("pending", self.counts.pending, self.pending.len())?;
        for node in &self.lost {
            print::line(&format!("  lost      {node}"))?;
        }
        unnamed("lost", self.counts.lost, self.lost.len())?;
        self.show_refusals()?;
        tell_unheard(&self.unheard_servers)
    }

    /// Prints who has refused the change, and why.
    ///
    /// # Errors
    /// As [`print::line()`].
    pub(crate) fn show_refusals(&self) -> anyhow::Result<()> {
        for Rejected { proxy, reason } in &self.rejected {
            print::line(&format!("  rejected  {}: {reason}", proxy.as_deref().unwrap_or("-")))?;
        }
        Ok(())
    }
}

/// Tells of which servers it is not known what their nodes have done.
///
/// # Errors
/// As [`print::line()`].
pub(crate) fn tell_unheard(servers: &[String]) -> anyhow::Result<()> {
    if servers.is_empty() {
        return Ok(());
    }
    print::line(&format!("Not heard, so their nodes are missing here: {}", servers.join(", ")))
}

/// Tells that there are more than the API names.
fn unnamed(what: &str, count: u64, named: usize) -> anyhow::Result<()> {
    match count.saturating_sub(named as u64) {
        0 => Ok(()),
        more => print::line(&format!("  {what:<9} and {more} more")),
    }
}

/// Microseconds as milliseconds with one decimal.
pub(crate) fn milliseconds(us: Option<u64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| format!("{}.{} ms", us / 1000, us % 1000 / 100))
}

/// The receipt of a change as it stands.
///
/// # Errors
/// [`crate::client::ApiError`], also where the change is not remembered.
pub(crate) async fn read(client: &Client, revision: u64) -> anyhow::Result<Value> {
    client.read(call(revision)).await.with_context(|| cannot(revision))
}

/// The receipt of a change as soon as it is decided what was waited for, or the time is over; `None` if the change is not
/// remembered. Shows the progress meanwhile, where standard error is a terminal.
///
/// # Errors
/// [`crate::client::ApiError`].
pub(crate) async fn wait(
    client: &Client,
    revision: u64,
    until: &Until,
    wait: Duration,
) -> anyhow::Result<Option<Value>> {
    let ask = |names: Option<&'static str>, wait: Duration| async move {
        let call = call(revision).query("until", &until.to_string());
        let call = names.map_or(call.clone(), |names| call.query("names", names));
        client.find::<Value>(call.wait(wait)).await.with_context(|| cannot(revision))
    };
    let deadline = Instant::now() + wait;
    let bar = std::io::stderr().is_terminal().then(|| progress(revision));
    let mut left = wait;
    loop {
        let asked = if bar.is_some() { ask(Some("0"), left.min(STEP)).await } else { ask(None, left).await };
        let Some(value) = asked? else { return Ok(None) };
        let receipt = Receipt::of(&value)?;
        // An API that ends a wait before its time is asked again.
        left = deadline.saturating_duration_since(Instant::now());
        let is_over = receipt.outcome() != Outcome::StillOutstanding || left.is_zero();
        match &bar {
            None if is_over => return Ok(Some(value)),
            None => {}
            Some(bar) => {
                bar.set_length(receipt.counts.affected);
                bar.set_position(receipt.counts.applied + receipt.counts.rejected);
                if is_over {
                    bar.finish_and_clear();
                    return ask(None, Duration::ZERO).await;
                }
            }
        }
    }
}

fn call(revision: u64) -> Call {
    Call::get("/starling/v1/changes").segment(&revision.to_string())
}

fn cannot(revision: u64) -> String {
    format!("cannot read the receipt of change {revision}")
}

fn progress(revision: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(format!("change {revision}"));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_as_consul_writes_them() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration("soon").is_err());
        assert_eq!(parse_duration(WAIT_DEFAULT), Some(Duration::from_secs(30)));
    }

    #[test]
    fn latencies_are_shown_in_milliseconds() {
        assert_eq!(milliseconds(Some(12_345)), "12.3 ms");
        assert_eq!(milliseconds(Some(99)), "0.0 ms");
        assert_eq!(milliseconds(None), "-");
    }
}
