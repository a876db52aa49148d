//! `starling changes`: receipts, which say who has applied a change.

use anyhow::{Context, bail};
use comfy_table::Cell;
use serde::Deserialize;
use serde_json::Value;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};
use crate::receipt::{self, Latency, Receipt, WaitArgs, milliseconds};

/// Show the receipts of recent changes, or of one: who has applied it, who has not, who refused it and why
///
/// With --wait or --until, exits 0 when what was waited for holds, 1 if it never will because someone refused the
/// change, and 4 if the time is over and someone has yet to apply it.
#[derive(Debug, clap::Args)]
pub(crate) struct ChangesArgs {
    /// The revision of the change; without it, all recent ones or, when waiting, the newest
    #[arg(value_name = "REV")]
    revision: Option<u64>,

    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Deserialize)]
struct Changes {
    changes: Vec<Receipt>,
    #[serde(default)]
    unheard_servers: Vec<String>,
}

pub(crate) async fn run(args: ChangesArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let wait = args.wait.wait();
    let revision = match (args.revision, wait) {
        (Some(revision), _) => revision,
        (None, Some(_)) => newest(&client).await?,
        (None, None) => return list(&client, args.output.format).await,
    };
    let value = match wait {
        Some(wait) => receipt::wait(&client, revision, &args.wait.until(), wait).await?,
        None => None,
    };
    let value = match value {
        Some(value) => value,
        // One that is not remembered is asked for once more, for the reason.
        None => receipt::read(&client, revision).await?,
    };
    let receipt = Receipt::of(&value)?;
    match args.output.format {
        Format::Json => print::json(&value)?,
        Format::Table => receipt.show()?,
    }
    Ok(if wait.is_some() { receipt.outcome() } else { Outcome::Done })
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

async fn list(client: &Client, format: Format) -> anyhow::Result<Outcome> {
    let value = all(client).await?;
    if format == Format::Json {
        print::json(&value)?;
        return Ok(Outcome::Done);
    }
    let Changes { changes, unheard_servers } =
        Changes::deserialize(&value).context("the API lists changes in an unknown form")?;
    let headings = ["Revision", "Affected", "Applied", "Pending", "Rejected", "p50", "p99", "Max"];
    let mut table = print::table(&headings);
    for Receipt { revision, counts, latency_us: Latency { p50, p99, max }, .. } in changes {
        let count = |count: u64, coloured: fn(u64) -> Cell| if count > 0 { coloured(count) } else { count.into() };
        table.add_row([
            revision.into(),
            counts.affected.into(),
            counts.applied.into(),
            count(counts.pending, print::unsettled),
            count(counts.rejected, print::bad),
            milliseconds(p50).into(),
            milliseconds(p99).into(),
            Cell::new(milliseconds(max)),
        ]);
    }
    print::rows(&table)?;
    receipt::tell_unheard(&unheard_servers)?;
    Ok(Outcome::Done)
}
