//! `starling members`: the agents and servers that the API knows of, with Consul's output.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

/// List the members of the mesh that the agent knows
#[derive(Debug, clap::Args)]
pub(crate) struct MembersArgs {
    /// Print everything that is known of each
    #[arg(long)]
    detailed: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Member {
    name: String,
    addr: String,
    port: u16,
    status: i64,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

pub(crate) async fn run(args: MembersArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let call = Call::get("/v1/agent/members");
    if args.output.format == Format::Json {
        print::json(&client.read::<Value>(call).await?)?;
        return Ok(Outcome::Done);
    }
    let members: Vec<Member> = client.read(call).await?;
    let mut table = print::table(if args.detailed {
        &["Node", "Address", "Status", "Tags"]
    } else {
        &["Node", "Address", "Status", "Type", "Build", "DC"]
    });
    for Member { name, addr, port, status, tags } in members {
        let address = if addr.contains(':') { format!("[{addr}]:{port}") } else { format!("{addr}:{port}") };
        let tag = |name: &str| tags.get(name).cloned().unwrap_or_default();
        let status = status_of(status).to_owned();
        if args.detailed {
            let tags: Vec<_> = tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
            table.add_row([name, address, status, tags.join(",")]);
        } else {
            let kind = if tag("role") == "consul" { "server" } else { "client" }.to_owned();
            table.add_row([name, address, status, kind, tag("build"), tag("dc")]);
        }
    }
    print::rows(&table)?;
    Ok(Outcome::Done)
}

/// Source: the numbers of Serf's member states, which Consul's API passes on.
fn status_of(number: i64) -> &'static str {
    match number {
        1 => "alive",
        2 => "leaving",
        3 => "left",
        4 => "failed",
        _ => "none",
    }
}
