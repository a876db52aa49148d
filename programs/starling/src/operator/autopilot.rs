//! `starling operator autopilot`: settings of Consul's autopilot, which are kept and do nothing, and how the servers fare.

use std::time::Duration;

use serde_json::{Value, json};

use super::text;
use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::{Outcome, usage};
use crate::print::{self, Format, OutputArgs};
use crate::receipt::duration;

const CONFIGURATION: &str = "/v1/operator/autopilot/configuration";

/// Show how the servers fare, and keep the settings of Consul's autopilot
#[derive(Debug, clap::Args)]
pub(super) struct AutopilotArgs {
    #[command(subcommand)]
    command: AutopilotCommand,
}

#[derive(Debug, clap::Subcommand)]
enum AutopilotCommand {
    /// Print the settings
    GetConfig(ShowArgs),
    SetConfig(Box<SetArgs>),
    /// Print how each server fares
    State(ShowArgs),
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Change settings; they are kept, and nothing acts on them: a server that ended is gone once the store has lost it
#[derive(Debug, clap::Args)]
struct SetArgs {
    /// Whether dead servers are removed
    #[arg(long, value_name = "BOOL")]
    cleanup_dead_servers: Option<bool>,

    /// How long a server may be without contact, such as 200ms
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    last_contact_threshold: Option<Duration>,

    /// How far a server may be behind
    #[arg(long, value_name = "N")]
    max_trailing_logs: Option<u64>,

    /// Servers that are kept at least
    #[arg(long, value_name = "N")]
    min_quorum: Option<u64>,

    /// How long a server is well before it counts, such as 10s
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    server_stabilization_time: Option<Duration>,

    /// Of Consul Enterprise
    #[arg(long, value_name = "TAG")]
    redundancy_zone_tag: Option<String>,

    /// Of Consul Enterprise
    #[arg(long, value_name = "BOOL")]
    disable_upgrade_migration: Option<bool>,

    /// Of Consul Enterprise
    #[arg(long, value_name = "TAG")]
    upgrade_version_tag: Option<String>,

    /// Only if nobody else has written since --modify-index
    #[arg(long, requires = "modify_index")]
    cas: bool,

    /// The index of the settings that are replaced
    #[arg(long, value_name = "INDEX")]
    modify_index: Option<u64>,

    #[command(flatten)]
    api: ApiArgs,
}

pub(super) async fn run(args: AutopilotArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        AutopilotCommand::GetConfig(args) => configuration(&args, surroundings).await,
        AutopilotCommand::SetConfig(args) => set(*args, surroundings).await,
        AutopilotCommand::State(args) => state(&args, surroundings).await,
    }
}

async fn configuration(args: &ShowArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let found: Value = surroundings.client(&args.api)?.read(Call::get(CONFIGURATION)).await?;
    if args.output.format == Format::Json {
        print::json(&found)?;
        return Ok(Outcome::Done);
    }
    for name in [
        "CleanupDeadServers",
        "LastContactThreshold",
        "MaxTrailingLogs",
        "MinQuorum",
        "ServerStabilizationTime",
        "RedundancyZoneTag",
        "DisableUpgradeMigration",
        "UpgradeVersionTag",
    ] {
        let value = if name.ends_with("Tag") { found[name].to_string() } else { text(&found[name]) };
        print::line(&format!("{name} = {value}"))?;
    }
    Ok(Outcome::Done)
}

async fn set(args: SetArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let milliseconds = |given: Option<Duration>| given.map(|given| format!("{}ms", given.as_millis()));
    let given = [
        ("CleanupDeadServers", args.cleanup_dead_servers.map(Value::from)),
        ("LastContactThreshold", milliseconds(args.last_contact_threshold).map(Value::from)),
        ("MaxTrailingLogs", args.max_trailing_logs.map(Value::from)),
        ("MinQuorum", args.min_quorum.map(Value::from)),
        ("ServerStabilizationTime", milliseconds(args.server_stabilization_time).map(Value::from)),
        ("RedundancyZoneTag", args.redundancy_zone_tag.map(Value::from)),
        ("DisableUpgradeMigration", args.disable_upgrade_migration.map(Value::from)),
        ("UpgradeVersionTag", args.upgrade_version_tag.map(Value::from)),
    ];
    if given.iter().all(|(_, value)| value.is_none()) {
        return Err(usage("there is nothing to change: name a setting, such as --max-trailing-logs"));
    }
    let mut settings: Value = client.read(Call::get(CONFIGURATION)).await?;
    // Without --cas somebody else who writes between both of these is still not undone.
    let index = args.modify_index.filter(|_| args.cas).or_else(|| settings["ModifyIndex"].as_u64());
    for (name, value) in given {
        if let Some(value) = value {
            settings[name] = value;
        }
    }
    let call = index.iter().fold(Call::put(CONFIGURATION), |call, index| call.query("cas", &index.to_string()));
    if client.read::<bool>(call.json(&settings)).await? {
        print::line("Configuration updated!")?;
        return Ok(Outcome::Done);
    }
    print::note("error: somebody else has written the settings meanwhile; look at them again");
    Ok(Outcome::No)
}

async fn state(args: &ShowArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let found: Value = surroundings.client(&args.api)?.read(Call::get("/v1/operator/autopilot/state")).await?;
    if args.output.format == Format::Json {
        print::json(&found)?;
        return Ok(Outcome::Done);
    }
    for (name, field) in [
        ("Healthy", "Healthy"),
        ("Failure Tolerance", "FailureTolerance"),
        ("Optimistic Failure Tolerance", "OptimisticFailureTolerance"),
        ("Leader", "Leader"),
    ] {
        print::line(&format!("{:<30}{}", format!("{name}:"), text(&found[field])))?;
    }
    print::line("Voters:")?;
    for voter in found["Voters"].as_array().into_iter().flatten() {
        print::line(&format!("   {}", text(voter)))?;
    }
    print::line("Servers:")?;
    for (id, server) in found["Servers"].as_object().into_iter().flatten() {
        print::line(&format!("   {id}"))?;
        for (name, field) in [
            ("Name", "Name"),
            ("Address", "Address"),
            ("Version", "Version"),
            ("Status", "Status"),
            ("Node Type", "NodeType"),
            ("Node Status", "NodeStatus"),
            ("Healthy", "Healthy"),
            ("Last Contact", "LastContact"),
            ("Last Term", "LastTerm"),
            ("Last Index", "LastIndex"),
        ] {
            print::line(&format!("      {:<16}{}", format!("{name}:"), text(&server[field])))?;
        }
        print::line(&format!(
            "      {:<16}{}",
            "Meta:",
            if server["Meta"] == json!({}) { String::new() } else { text(&server["Meta"]) }
        ))?;
    }
    Ok(Outcome::Done)
}
