//! `starling info`: what the agent counts, with Consul's output.

use serde_json::Value;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

/// Print what the agent says of itself
#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: InfoArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let stats = client.read::<Value>(Call::get("/v1/agent/self")).await?["Stats"].take();
    if args.output.format == Format::Json {
        print::json(&stats)?;
        return Ok(Outcome::Done);
    }
    for (part, figures) in stats.as_object().into_iter().flatten() {
        print::line(&format!("{part}:"))?;
        for (name, figure) in figures.as_object().into_iter().flatten() {
            let text = figure.as_str().map_or_else(|| figure.to_string(), str::to_owned);
            print::line(&format!("\t{name} = {text}"))?;
        }
    }
    Ok(Outcome::Done)
}
