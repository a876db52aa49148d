//! `starling changes`: receipts, which say who has applied a change.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, bail};
use comfy_table::Cell;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;
use serde_json::Value;
use starling_http_api::parse::parse_duration;
use tokio::time::Instant;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

/// One wait at the API while a progress bar is live; the bar moves at least this often.
const STEP: Duration = Duration::from_millis(500);

/// Show the receipts of recent changes, or of one: who has applied it, who has not, who refused it and why
///
/// With --wait, exits 0 when every proxy concerned has applied the change, 1 if one refused it, and 4 if the time is
/// over and one has yet to apply it.
#[derive(Debug, clap::Args)]
pub(crate) struct ChangesArgs {
    /// The revision of the change; without it, all recent ones or, with --wait, the newest
    #[arg(value_name = "REV")]
    revision: Option<u64>,

    /// Wait until nothing is outstanding, at most this long (30s, 500ms, 2m)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "must be a number with a unit, such as 30s or 500ms".to_owned())
}

#[derive(Debug, Deserialize)]
struct Changes {
    changes: Vec<Receipt>,
}

#[derive(Debug, Deserialize)]
struct Receipt {
    revision: u64,
    settled: bool,
    affected: Vec<String>,
    applied: Vec<Applied>,
    pending: Vec<String>,
    rejected: Vec<Rejected>,
    latency_us: Latency,
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

#[derive(Debug, Deserialize)]
struct Latency {
    p50: Option<u64>,
    p99: Option<u64>,
    max: Option<u64>,
}

pub(crate) async fn run(args: ChangesArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let revision = match (args.revision, args.wait) {
        (Some(revision), _) => revision,
        (None, Some(_)) => newest(&client).await?,
        (None, None) => return list(&client, args.output.format).await,
    };
    let value = receipt(&client, revision, args.wait.unwrap_or_default()).await?;
    let receipt = understood(&value)?;
    match args.output.format {
        Format::Json => print::json(&value)?,
        Format::Table => show(&receipt)?,
    }
    Ok(match (&args.wait, receipt.rejected.is_empty(), receipt.settled) {
        (None, _, _) | (Some(_), true, true) => Outcome::Done,
        (Some(_), false, _) => Outcome::No,
        (Some(_), true, false) => Outcome::StillOutstanding,
    })
}

async fn all(client: &Client) -> anyhow::Result<Value> {
    client.read(Call::get("/starling/v1/changes")).await.context("cannot list the changes")
}

async fn newest(client: &Client) -> anyhow::Result<u64> {
    let changes = Changes::deserialize(all(client).await?).context("the API lists changes in an unknown form")?;
    match changes.changes.first() {
        Some(change) => Ok(change.revision),
        None => bail!("there is no change to wait for yet"),
    }
}

fn understood(value: &Value) -> anyhow::Result<Receipt> {
    Receipt::deserialize(value).context("the API gives receipts in an unknown form")
}

/// The receipt once nothing is outstanding or the time is over; shows the progress on a terminal meanwhile.
async fn receipt(client: &Client, revision: u64, wait: Duration) -> anyhow::Result<Value> {
    let ask = |wait: Duration| async move {
        let call = Call::get("/starling/v1/changes").segment(&revision.to_string());
        let call = if wait.is_zero() { call } else { call.wait(wait) };
        client.read::<Value>(call).await.with_context(|| format!("cannot read the receipt of change {revision}"))
    };
    if !std::io::stderr().is_terminal() {
        return ask(wait).await;
    }
    let (deadline, bar) = (Instant::now() + wait, progress(revision));
    let mut value = ask(Duration::ZERO).await?;
    loop {
        let receipt = understood(&value)?;
        bar.set_length(receipt.affected.len() as u64);
        bar.set_position((receipt.affected.len() - receipt.pending.len().min(receipt.affected.len())) as u64);
        let left = deadline.saturating_duration_since(Instant::now());
        if receipt.settled || left.is_zero() {
            bar.finish_and_clear();
            return Ok(value);
        }
        value = ask(left.min(STEP)).await?;
    }
}

fn progress(revision: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} proxies {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(format!("change {revision}"));
    bar
}

async fn list(client: &Client, format: Format) -> anyhow::Result<Outcome> {
    let value = all(client).await?;
    if format == Format::Json {
        print::json(&value)?;
        return Ok(Outcome::Done);
    }
    let Changes { changes } = Changes::deserialize(&value).context("the API lists changes in an unknown form")?;
    let headings = ["Revision", "Affected", "Applied", "Pending", "Rejected", "p50", "p99", "Max"];
    let mut table = print::table(&headings);
    for change in changes {
        let count = |count: usize, coloured: fn(usize) -> Cell| if count > 0 { coloured(count) } else { count.into() };
        let Latency { p50, p99, max } = change.latency_us;
        table.add_row([
            change.revision.into(),
            change.affected.len().into(),
            change.applied.len().into(),
            count(change.pending.len(), print::unsettled),
            count(change.rejected.len(), print::bad),
            milliseconds(p50).into(),
            milliseconds(p99).into(),
            Cell::new(milliseconds(max)),
        ]);
    }
    print::rows(&table)?;
    Ok(Outcome::Done)
}

fn show(receipt: &Receipt) -> anyhow::Result<()> {
    let Latency { p50, p99, max } = receipt.latency_us;
    print::line(&format!(
        "Change {}: {} affected, {} applied, {} pending, {} rejected",
        receipt.revision,
        receipt.affected.len(),
        receipt.applied.len(),
        receipt.pending.len(),
        receipt.rejected.len(),
    ))?;
    if max.is_some() {
        let (p50, p99, max) = (milliseconds(p50), milliseconds(p99), milliseconds(max));
        print::line(&format!("Latency: p50 {p50}, p99 {p99}, max {max}"))?;
    }
    let mut applied: Vec<&Applied> = receipt.applied.iter().collect();
    applied.sort_by_key(|applied| applied.latency_us);
    for Applied { proxy, latency_us } in applied {
        print::line(&format!("  applied   {proxy}  {}", milliseconds(Some(*latency_us))))?;
    }
    for proxy in &receipt.pending {
        print::line(&format!("  pending   {proxy}"))?;
    }
    for Rejected { proxy, reason } in &receipt.rejected {
        print::line(&format!("  rejected  {}: {reason}", proxy.as_deref().unwrap_or("-")))?;
    }
    Ok(())
}

/// Microseconds as milliseconds with one decimal.
fn milliseconds(us: Option<u64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| format!("{}.{} ms", us / 1000, us % 1000 / 100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_as_consul_writes_them() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration("soon").is_err());
    }

    #[test]
    fn latencies_are_shown_in_milliseconds() {
        assert_eq!(milliseconds(Some(12_345)), "12.3 ms");
        assert_eq!(milliseconds(Some(99)), "0.0 ms");
        assert_eq!(milliseconds(None), "-");
    }
}
