//! `starling operator usage`: how much there is in the mesh.

use serde_json::Value;

use super::text;
use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

/// Say how much there is
#[derive(Debug, clap::Args)]
pub(super) struct UsageArgs {
    #[command(subcommand)]
    command: UsageCommand,
}

#[derive(Debug, clap::Subcommand)]
enum UsageCommand {
    Instances(InstancesArgs),
}

/// Say how many nodes, services and instances there are
#[derive(Debug, clap::Args)]
struct InstancesArgs {
    /// Those that Consul would count for its licence, alone
    #[arg(long, conflicts_with = "only_connect")]
    only_billable: bool,

    /// Those of the mesh, alone
    #[arg(long)]
    only_connect: bool,

    /// Of every datacentre: there is one
    #[arg(long)]
    all_datacenters: bool,

    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(super) async fn run(args: UsageArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let UsageCommand::Instances(args) = args.command;
    let found: Value = surroundings.client(&args.api)?.read(Call::get("/v1/operator/usage")).await?;
    let usage = &found["Usage"];
    if args.output.format == Format::Json {
        print::json(usage)?;
        return Ok(Outcome::Done);
    }
    for (datacenter, usage) in usage.as_object().into_iter().flatten() {
        if !args.only_connect {
            let billable = text(&usage["BillableServiceInstances"]);
            print::line(&format!("Billable Service Instances Total: {billable}"))?;
            print::line(&format!("{datacenter} Billable Service Instances: {billable}\n\nBillable Services"))?;
            let mut table = print::table(&["Services", "Service instances"]);
            table.add_row([text(&usage["Services"]), billable]);
            print::rows(&table)?;
            print::line("\nNodes")?;
            let mut table = print::table(&["Datacenter", "Count"]);
            table.add_row([datacenter.clone(), text(&usage["Nodes"])]);
            table.add_row(["Total".to_owned(), text(&usage["Nodes"])]);
            print::rows(&table)?;
        }
        if !args.only_billable {
            print::line(if args.only_connect { "Connect Services" } else { "\nConnect Services" })?;
            let mut table = print::table(&["Type", "Service instances"]);
            for (kind, count) in usage["ConnectServiceInstances"].as_object().into_iter().flatten() {
                table.add_row([kind.clone(), text(count)]);
            }
            print::rows(&table)?;
        }
    }
    // There is one datacentre.
    let _ = args.all_datacenters;
    Ok(Outcome::Done)
}
