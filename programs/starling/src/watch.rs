//! `starling watch`: runs a command whenever what is watched changes, with Consul's flags.
//!
//! A blocking query at a time: what was not changed wakes nobody, and a command is never run beside itself.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use serde_json::Value;
use tokio::io::AsyncWriteExt;

use crate::arguments::Surroundings;
use crate::child;
use crate::client::{ApiArgs, Call};
use crate::outcome::{Outcome, usage};
use crate::print;

/// How long one question waits for a change; then it is asked again.
const WAIT: Duration = Duration::from_secs(60);

/// Pause after the first failure; it grows with each that follows.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Run a command whenever something changes, with what it is now as JSON on standard input
///
/// Without a command, what there is now is printed, once.
#[derive(Debug, clap::Args)]
pub(crate) struct WatchArgs {
    /// What is watched
    #[arg(long, value_enum, value_name = "TYPE")]
    r#type: Kind,

    /// For key: the key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// For keyprefix: what keys begin with
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,

    /// For service, checks and connect_leaf: the service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,

    /// For service: instances with this tag; may be given several times
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,

    /// For service: only instances whose checks pass
    #[arg(long)]
    passingonly: bool,

    /// For checks: their state
    #[arg(long, value_name = "STATE", conflicts_with = "service")]
    state: Option<String>,

    /// For event: its name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Only what this expression is true of
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,

    /// Hand a command of one word to the shell
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    shell: bool,

    /// The command, with its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<String>,

    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Key,
    Keyprefix,
    Services,
    Nodes,
    Service,
    Checks,
    Event,
    #[value(name = "connect_roots")]
    ConnectRoots,
    #[value(name = "connect_leaf")]
    ConnectLeaf,
}

pub(crate) async fn run(args: WatchArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let call = call(&args)?;
    if args.command.is_empty() {
        print::json(&shaped(args.r#type, client.read_at(call).await?.0))?;
        return Ok(Outcome::Done);
    }
    let (mut index, mut last, mut pause) = (0, None, PAUSE);
    loop {
        let asked = if index == 0 { call.clone() } else { call.clone().query("index", &index.to_string()).wait(WAIT) };
        match client.read_at(asked).await {
            Ok((value, now)) => {
                // An index that went back is of a server that began anew.
                index = if now < index { 0 } else { now };
                pause = PAUSE;
                let value = shaped(args.r#type, value);
                if last.as_ref() != Some(&value) {
                    handle(&args, &value, now).await?;
                    last = Some(value);
                }
            }
            Err(error) => {
                print::note(&format!("warning: {error}; asked again in {} s", pause.as_secs()));
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

fn call(args: &WatchArgs) -> anyhow::Result<Call> {
    let needed = |flag: &str, value: &Option<String>| {
        value.clone().ok_or_else(|| usage(format!("--type {} needs --{flag}", name(args.r#type))))
    };
    let call = match args.r#type {
        Kind::Key => Call::get("/v1/kv").path(&needed("key", &args.key)?),
        Kind::Keyprefix => Call::get("/v1/kv").path(&needed("prefix", &args.prefix)?).query("recurse", "true"),
        Kind::Services => Call::get("/v1/catalog/services"),
        Kind::Nodes => Call::get("/v1/catalog/nodes"),
        Kind::Service => {
            let call = Call::get("/v1/health/service").segment(&needed("service", &args.service)?);
            let call = args.tag.iter().fold(call, |call, tag| call.query("tag", tag));
            if args.passingonly { call.query("passing", "1") } else { call }
        }
        Kind::Checks => match &args.service {
            Some(service) => Call::get("/v1/health/checks").segment(service),
            None => Call::get("/v1/health/state").segment(args.state.as_deref().unwrap_or("any")),
        },
        Kind::Event => args.name.iter().fold(Call::get("/v1/event/list"), |call, name| call.query("name", name)),
        Kind::ConnectRoots => Call::get("/v1/agent/connect/ca/roots"),
        Kind::ConnectLeaf => Call::get("/v1/agent/connect/ca/leaf").segment(&needed("service", &args.service)?),
    };
    Ok(args.filter.iter().fold(call, |call, filter| call.query("filter", filter)))
}

fn name(kind: Kind) -> String {
    kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// What a command is told: for one key its entry alone, where the API answers with a list.
fn shaped(kind: Kind, value: Value) -> Value {
    match (kind, value) {
        (Kind::Key, Value::Array(mut entries)) => entries.pop().unwrap_or_default(),
        (_, value) => value,
    }
}

async fn handle(args: &WatchArgs, value: &Value, index: u64) -> anyhow::Result<()> {
    let mut child = child::spawn(&args.command, args.shell, |command| {
        command.env("CONSUL_INDEX", index.to_string()).stdin(Stdio::piped())
    })?;
    if let Some(mut input) = child.stdin.take() {
        // One that does not read it closes it early, which is its right.
        let _ = input.write_all(format!("{value}\n").as_bytes()).await;
    }
    let status = child.wait().await.context("cannot wait for the command")?;
    if !status.success() {
        print::note(&format!("warning: the command ended with {status}"));
    }
    Ok(())
}
