//! What is asked of the agent that runs, by Consul's commands: `maint`, `event`, `monitor`, `reload`, `leave`, `force-leave`.

use hyper::body::Bytes;
use serde_json::Value;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::{Outcome, usage};
use crate::print::{self, Format, OutputArgs};

/// Put this node, or an instance on it, into maintenance, or take it out; without a flag, list what is
#[derive(Debug, clap::Args)]
pub(crate) struct MaintArgs {
    /// Put it into maintenance: nobody is led to it
    #[arg(long, conflicts_with = "disable")]
    enable: bool,

    /// Take it out
    #[arg(long)]
    disable: bool,

    /// Why; shown with its health
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// The ID of an instance; without it, the node
    #[arg(long, value_name = "ID")]
    service: Option<String>,

    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn maint(args: MaintArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    if !args.enable && !args.disable {
        if args.reason.is_some() || args.service.is_some() {
            return Err(usage("--reason and --service go with --enable or --disable"));
        }
        let checks: Value = client.read(Call::get("/v1/agent/checks")).await?;
        for (id, check) in checks.as_object().into_iter().flatten() {
            let notes = check["Notes"].as_str().unwrap_or_default();
            if id == "_node_maintenance" {
                print::line(&format!("Node:\n  Name:   {}\n  Reason: {notes}", text(check, "Node")))?;
            } else if let Some(service) = id.strip_prefix("_service_maintenance:") {
                print::line(&format!("Service:\n  ID:     {service}\n  Reason: {notes}"))?;
            }
        }
        return Ok(Outcome::Done);
    }
    let call = match &args.service {
        Some(id) => Call::put("/v1/agent/service/maintenance").segment(id),
        None => Call::put("/v1/agent/maintenance"),
    };
    let call = call.query("enable", if args.enable { "true" } else { "false" });
    let call = args.reason.iter().fold(call, |call, reason| call.query("reason", reason));
    client.send(call).await?;
    let what = args.service.as_ref().map_or("Node".to_owned(), |id| format!("Service {id:?}"));
    print::line(&format!("{what} is {} maintenance", if args.enable { "in" } else { "out of" }))?;
    Ok(Outcome::Done)
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

/// Tell all who listen that something has happened
#[derive(Debug, clap::Args)]
pub(crate) struct EventArgs {
    /// What it is called
    #[arg(long, value_name = "NAME")]
    name: String,

    /// For nodes whose names match alone
    #[arg(long, value_name = "REGEX")]
    node: Option<String>,

    /// For nodes with a service whose name matches alone
    #[arg(long, value_name = "REGEX")]
    service: Option<String>,

    /// And one with a tag that matches
    #[arg(long, value_name = "REGEX", requires = "service")]
    tag: Option<String>,

    /// What it carries
    #[arg(value_name = "PAYLOAD")]
    payload: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn event(args: EventArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let mut call = Call::put("/v1/event/fire").segment(&args.name);
    for (name, value) in [("node", &args.node), ("service", &args.service), ("tag", &args.tag)] {
        if let Some(value) = value {
            call = call.query(name, value);
        }
    }
    let payload = args.payload.unwrap_or_default();
    let fired: Value = surroundings.client(&args.api)?.read(call.body(Bytes::from(payload))).await?;
    match args.output.format {
        Format::Json => print::json(&fired)?,
        Format::Table => print::line(&format!("Event ID: {}", text(&fired, "ID")))?,
    }
    Ok(Outcome::Done)
}

/// Follow the agent's log, until interrupted
#[derive(Debug, clap::Args)]
pub(crate) struct MonitorArgs {
    /// trace, debug, info, warn or error; no deeper than the agent logs
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,

    /// Lines as JSON
    #[arg(long)]
    log_json: bool,

    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn monitor(args: MonitorArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let call = Call::get("/v1/agent/monitor").query("loglevel", &args.log_level);
    let call = if args.log_json { call.query("logjson", "true") } else { call };
    let mut output = std::io::stdout();
    let followed = client.follow(call, |piece| {
        use std::io::Write as _;
        output.write_all(piece).and_then(|()| output.flush()).map_err(|_| print::OutputClosed.into())
    });
    tokio::select! {
        followed = followed => followed?,
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(Outcome::Done)
}

/// Have the agent read its files anew
///
/// What they define counts at once. Settings that were changed are named, and count from its next start.
#[derive(Debug, clap::Args)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn reload(args: ReloadArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let body = surroundings.client(&args.api)?.send(Call::put("/v1/agent/reload")).await?;
    print::line("Configuration reload triggered")?;
    // Consul's answer, and that to a reload that is complete, has no body.
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    for setting in answer["FromNextStart"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        print::note(&format!("{setting}: was changed, and counts from the agent's next start"));
    }
    Ok(Outcome::Done)
}

/// Have the agent that is asked take its node out of the mesh and end; a server leaves if there is another
#[derive(Debug, clap::Args)]
pub(crate) struct LeaveArgs {
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn leave(args: LeaveArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    surroundings.client(&args.api)?.send(Call::put("/v1/agent/leave")).await?;
    print::line("Graceful leave begun")?;
    Ok(Outcome::Done)
}

/// Take out a node that is lost
#[derive(Debug, clap::Args)]
pub(crate) struct ForceLeaveArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node: String,

    /// Also remove it from the members that the server lists who is asked
    #[arg(long)]
    prune: bool,

    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn force_leave(args: ForceLeaveArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let call = Call::put("/v1/agent/force-leave").segment(&args.node);
    surroundings.client(&args.api)?.send(if args.prune { call.switch("prune") } else { call }).await?;
    Ok(Outcome::Done)
}
