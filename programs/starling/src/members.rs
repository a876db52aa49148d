//! `starling members`: the agents and servers that the API knows of, with Consul's output.

use std::collections::BTreeMap;

use anyhow::Context;
use regex::Regex;
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

    /// Those whose status matches: alive, leaving, left or failed
    #[arg(long, value_name = "REGEX", default_value = ".*", hide_default_value = true, value_parser = pattern)]
    status: Regex,

    /// Servers alone, by the names that they have among datacentres: there is one
    #[arg(long)]
    wan: bool,

    /// Only what this expression is true of
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,

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
    let call = if args.wan { call.query("wan", "true") } else { call };
    let call = args.filter.iter().fold(call, |call, filter| call.query("filter", filter));
    let mut members: Vec<Value> = client.read(call).await?;
    members.retain(|member| is_shown(member, &args));
    if members.is_empty() {
        print::note("error: no member is of that kind");
        return Ok(Outcome::No);
    }
    if args.output.format == Format::Json {
        print::json(&members)?;
        return Ok(Outcome::Done);
    }
    let members = members.into_iter().map(Member::deserialize).collect::<Result<Vec<_>, _>>();
    let members = members.context("the API lists members in an unknown form")?;
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

fn pattern(text: &str) -> Result<Regex, regex::Error> {
    // The whole word, as Consul has it.
    Regex::new(&format!("^(?:{text})$"))
}

fn is_shown(member: &Value, args: &MembersArgs) -> bool {
    let status = status_of(member["Status"].as_i64().unwrap_or_default());
    args.status.is_match(status) && (!args.wan || member["Tags"]["role"] == "consul")
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: MembersArgs,
    }

    #[test]
    fn members_are_chosen_by_their_status_and_their_part() {
        let shown = |flags: &[&str], status: i64, role: &str| {
            let args = Line::parse_from(["members"].iter().chain(flags)).args;
            is_shown(&json!({"Status": status, "Tags": {"role": role}}), &args)
        };
        assert!(shown(&[], 1, "node") && shown(&["--status", "alive"], 1, "node"));
        assert!(!shown(&["--status", "ali"], 1, "node"), "the whole word");
        assert!(shown(&["--status", "failed|left"], 3, "node") && !shown(&["--status", "failed|left"], 1, "node"));
        assert!(shown(&["--wan"], 1, "consul") && !shown(&["--wan"], 1, "node"));
    }
}
