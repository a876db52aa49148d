//! `starling info`: what the agent counts, with Consul's output.

use serde_json::{Value, json};

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
    let mut stats = client.read::<Value>(Call::get("/v1/agent/self")).await?["Stats"].take();
    // Of the machine it says only to operators.
    if let Ok(host) = client.read::<Value>(Call::get("/v1/agent/host")).await {
        let figure = |name: &str| host["Host"][name].as_str().unwrap_or_default().to_owned();
        stats["runtime"] = json!({
            "arch": figure("kernelArch"),
            "cpu_count": host["CPU"].as_array().map_or(0, Vec::len).to_string(),
            "memory_available": host["Memory"]["available"].to_string(),
            "memory_total": host["Memory"]["total"].to_string(),
            "os": figure("os"),
        });
    }
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
