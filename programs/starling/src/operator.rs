//! `starling operator`: what operators of Consul ask of its servers, with Consul's flags and output.
//!
//! Servers vote on nothing here: what Consul tells of raft and of autopilot is told of the servers that there are.

mod autopilot;
mod usage;

use serde_json::Value;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};
use crate::servers::{self, HealthArgs};

/// Look after the servers
#[derive(Debug, clap::Args)]
pub(crate) struct OperatorArgs {
    #[command(subcommand)]
    command: OperatorCommand,
}

#[derive(Debug, clap::Subcommand)]
enum OperatorCommand {
    Health(HealthArgs),
    Raft(RaftArgs),
    Autopilot(autopilot::AutopilotArgs),
    Usage(usage::UsageArgs),
}

/// Show the servers as Consul shows its raft
#[derive(Debug, clap::Args)]
struct RaftArgs {
    #[command(subcommand)]
    command: RaftCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RaftCommand {
    ListPeers(ListPeersArgs),
}

/// List the servers: which leads, and that each counts as a voter, since all of them write to the store
#[derive(Debug, clap::Args)]
struct ListPeersArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: OperatorArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        OperatorCommand::Health(args) => servers::health(args, surroundings).await,
        OperatorCommand::Raft(RaftArgs { command: RaftCommand::ListPeers(args) }) => peers(&args, surroundings).await,
        OperatorCommand::Autopilot(args) => autopilot::run(args, surroundings).await,
        OperatorCommand::Usage(args) => usage::run(args, surroundings).await,
    }
}

async fn peers(args: &ListPeersArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let found: Value = surroundings.client(&args.api)?.read(Call::get("/v1/operator/raft/configuration")).await?;
    if args.output.format == Format::Json {
        print::json(&found)?;
        return Ok(Outcome::Done);
    }
    let servers: Vec<&Value> = found["Servers"].as_array().into_iter().flatten().collect();
    let index = |server: &Value| server["LastIndex"].as_u64().unwrap_or_default();
    let leads = |server: &&&Value| server["Leader"] == true;
    let led = servers.iter().find(leads).map(|leader| index(leader));
    let headings = ["Node", "ID", "Address", "State", "Voter", "RaftProtocol", "Commit Index", "Trails Leader By"];
    let mut table = print::table(&headings);
    for server in &servers {
        let trails = match led {
            Some(led) if !leads(&server) => match led.saturating_sub(index(server)) {
                1 => "1 commit".to_owned(),
                many => format!("{many} commits"),
            },
            _ => "-".to_owned(),
        };
        let state = if leads(&server) { "leader" } else { "follower" }.to_owned();
        let row = [text(&server["Node"]), text(&server["ID"]), text(&server["Address"]), state, text(&server["Voter"])];
        let more = [text(&server["ProtocolVersion"]), index(server).to_string(), trails];
        table.add_row(row.into_iter().chain(more));
    }
    print::rows(&table)?;
    Ok(Outcome::Done)
}

/// A value of a form without quotes.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}
