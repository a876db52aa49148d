//! `starling services`: what there is, and registrations with the local agent.

mod list;
mod register;

use anyhow::Context;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::{Outcome, usage};
use crate::print;

/// List services with the health of their instances; register and deregister them
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ServicesArgs {
    #[command(subcommand)]
    command: Option<ServicesCommand>,
    #[command(flatten)]
    list: list::ListArgs,
}

#[derive(Debug, clap::Subcommand)]
enum ServicesCommand {
    /// List services with the health of their instances
    List(list::ListArgs),
    Register(Box<register::RegisterArgs>),
    /// Deregister services from the local agent, by ID or by the files that registered them
    Deregister(DeregisterArgs),
}

#[derive(Debug, clap::Args)]
struct DeregisterArgs {
    /// The files in which the services stand
    #[arg(value_name = "FILE", required_unless_present = "id", conflicts_with = "id")]
    files: Vec<String>,

    /// ID of the service
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: ServicesArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        None => list::run(args.list, surroundings).await,
        Some(ServicesCommand::List(args)) => list::run(args, surroundings).await,
        Some(ServicesCommand::Register(args)) => register::run(&surroundings.client(&args.api)?, *args).await,
        Some(ServicesCommand::Deregister(args)) => deregister(&surroundings.client(&args.api)?, args).await,
    }
}

async fn deregister(client: &Client, args: DeregisterArgs) -> anyhow::Result<Outcome> {
    let mut ids: Vec<String> = args.id.into_iter().collect();
    for service in register::from_files(client, &args.files).await? {
        ids.push(service.id);
    }
    for id in ids {
        if id.is_empty() {
            return Err(usage("--id must not be empty"));
        }
        let call = Call::put("/v1/agent/service/deregister").segment(&id);
        client.send(call).await.with_context(|| format!("cannot deregister service {id:?}"))?;
        print::line(&format!("Deregistered service: {id}"))?;
    }
    Ok(Outcome::Done)
}
