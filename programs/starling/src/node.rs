//! `starling node`: which nodes and relays hold their names, and how an operator takes a name from its holder.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};
use crate::receipt::{self, Receipt, WaitArgs};

/// Manage which nodes and relays are in the mesh
#[derive(Debug, clap::Args)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NodeCommand {
    List(ListArgs),
    Evict(EvictArgs),
    Release(ReleaseArgs),
}

/// List nodes and relays that joined, with their keys and the services that they may register
#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Put a node out of the mesh
///
/// Its connections close at every server within a second, its certificate is neither accepted nor renewed, and its
/// services leave the catalog. It comes back by a join token that is made afterwards.
#[derive(Debug, clap::Args)]
struct EvictArgs {
    /// Name of the node
    #[arg(value_name = "NAME")]
    name: String,

    /// Evict the relay of this name, not the node
    #[arg(long)]
    relay: bool,

    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Let another machine take the name of a node that lost its key
///
/// The old key counts for nothing any more. The node's records stay until the new one has joined.
#[derive(Debug, clap::Args)]
struct ReleaseArgs {
    /// Name of the node
    #[arg(value_name = "NAME")]
    name: String,

    /// Release the relay of this name, not the node
    #[arg(long)]
    relay: bool,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Deserialize)]
struct Listed {
    enrolments: Vec<Enrolment>,
}

#[derive(Debug, Deserialize)]
struct Enrolment {
    kind: String,
    name: String,
    status: String,
    epoch: u64,
    since: String,
    services: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct Evicted {
    revision: u64,
    reusable_join_token: Option<String>,
}

pub(crate) async fn run(args: NodeArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        NodeCommand::List(args) => list(args, surroundings).await,
        NodeCommand::Evict(args) => evict(args, surroundings).await,
        NodeCommand::Release(args) => {
            let answer: Value = surroundings.client(&args.api)?.read(member(args.relay, &args.name, "release")).await?;
            match args.output.format {
                Format::Json => print::json(&answer)?,
                Format::Table => print::line(&format!("Released {}: any join token lets another key in", args.name))?,
            }
            Ok(Outcome::Done)
        }
    }
}

/// A call about one member.
fn member(is_relay: bool, name: &str, what: &str) -> Call {
    Call::put(if is_relay { "/starling/v1/relays" } else { "/starling/v1/nodes" }).segment(name).segment(what)
}

async fn list(args: ListArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let call = Call::get("/starling/v1/enrolments");
    match args.output.format {
        Format::Json => print::json(&client.read::<Value>(call).await?)?,
        Format::Table => {
            let mut table = print::table(&["Name", "Kind", "Status", "Epoch", "Since", "Services"]);
            for Enrolment { kind, name, status, epoch, since, services } in
                client.read::<Listed>(call).await?.enrolments
            {
                let services = services.map_or_else(|| "-".to_owned(), |services| services.join(", "));
                table.add_row([name, kind, status, epoch.to_string(), since, services]);
            }
            print::rows(&table)?;
        }
    }
    Ok(Outcome::Done)
}

async fn evict(args: EvictArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let answer: Evicted = client.read(member(args.relay, &args.name, "evict")).await?;
    let (outcome, receipt) = wait(&client, &args, answer.revision).await?;
    match args.output.format {
        Format::Json => {
            let Evicted { revision, reusable_join_token } = &answer;
            print::json(
                &json!({"revision": revision, "reusable_join_token": reusable_join_token, "receipt": receipt}),
            )?;
        }
        Format::Table => {
            print::line(&format!("Evicted {} at revision {}", args.name, answer.revision))?;
            if let Some(token) = &answer.reusable_join_token {
                print::line(&format!(
                    "It joined with reusable join token {token}, by which it could join under another name; \
                     revoke it with `starling token revoke {token}`"
                ))?;
            }
        }
    }
    Ok(outcome)
}

/// Waits for the receipt of an eviction, if that was asked for.
async fn wait(client: &Client, args: &EvictArgs, revision: u64) -> anyhow::Result<(Outcome, Option<Value>)> {
    let Some(wait) = args.wait.wait() else { return Ok((Outcome::Done, None)) };
    let Some(value) = receipt::wait(client, revision, &args.wait.until(), wait).await? else {
        return Ok((Outcome::Done, None));
    };
    let receipt = Receipt::of(&value)?;
    if args.output.format == Format::Table {
        print::line(&receipt.summary())?;
        receipt.show_refusals()?;
    }
    Ok((receipt.outcome(), Some(value)))
}
