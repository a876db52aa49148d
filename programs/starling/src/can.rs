//! `starling can`: whether a call may pass, and which rule says so.

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

/// Ask whether a service may call another, and which rule decides
///
/// Without a path, method or header the question is about the connection; with one, about that request.
/// Exits 0 if allowed and 1 if denied.
#[derive(Debug, clap::Args)]
pub(crate) struct CanArgs {
    /// Who calls
    #[arg(value_name = "SRC")]
    source: String,

    /// Who is called
    #[arg(value_name = "DST")]
    destination: String,

    /// Path of the request
    #[arg(long, value_name = "PATH")]
    path: Option<String>,

    /// Method of the request [default: GET, once there is a path or a header]
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,

    /// Header of the request, 'NAME: VALUE'; may be given again
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Deserialize)]
struct Answer {
    allowed: bool,
    protocol: String,
    reason: String,
    #[serde(default)]
    notes: Vec<String>,
}

pub(crate) async fn run(args: CanArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let CanArgs { source, destination, .. } = &args;
    let value: Value = client
        .read(call(&args))
        .await
        .with_context(|| format!("cannot tell whether {source} may call {destination}"))?;
    let answer = Answer::deserialize(&value).context("the API answers in another form than this command knows")?;
    match args.output.format {
        Format::Json => print::json(&value)?,
        Format::Table => {
            let verdict = if answer.allowed { "Allowed" } else { "Denied" };
            print::line(&format!("{verdict}: {source} => {destination} ({}): {}", answer.protocol, answer.reason))?;
            for note in &answer.notes {
                print::line(&format!("note: {note}"))?;
            }
        }
    }
    Ok(if answer.allowed { Outcome::Done } else { Outcome::No })
}

fn call(args: &CanArgs) -> Call {
    let mut call = Call::get("/starling/v1/can").query("source", &args.source).query("destination", &args.destination);
    if let Some(path) = &args.path {
        call = call.query("path", path);
    }
    if let Some(method) = &args.method {
        call = call.query("method", method);
    }
    for header in &args.headers {
        call = call.query("header", header);
    }
    call
}
