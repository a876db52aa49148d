//! `starling nodes`.

use serde::Deserialize;
use serde_json::Value;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

/// List the nodes of the mesh
#[derive(Debug, clap::Args)]
pub(crate) struct NodesArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    node: String,
    #[serde(rename = "ID")]
    id: String,
    address: String,
    datacenter: String,
}

pub(crate) async fn run(args: NodesArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let call = Call::get("/v1/catalog/nodes");
    match args.output.format {
        Format::Json => print::json(&client.read::<Value>(call).await?)?,
        Format::Table => {
            let mut table = print::table(&["Node", "ID", "Address", "DC"]);
            for Node { node, id, address, datacenter } in client.read::<Vec<Node>>(call).await? {
                table.add_row([node, id, address, datacenter]);
            }
            print::rows(&table)?;
        }
    }
    Ok(Outcome::Done)
}
