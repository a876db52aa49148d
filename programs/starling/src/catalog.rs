//! `starling catalog`: what the catalog lists, with Consul's flags and output.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call, Client};
use crate::outcome::{Outcome, usage};
use crate::print;

/// Look into the catalog
#[derive(Debug, clap::Args)]
pub(crate) struct CatalogArgs {
    #[command(subcommand)]
    command: CatalogCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CatalogCommand {
    Datacenters(DatacentersArgs),
    Nodes(NodesArgs),
    Services(ServicesArgs),
}

/// List the datacentres
#[derive(Debug, clap::Args)]
struct DatacentersArgs {
    #[command(flatten)]
    api: ApiArgs,
}

/// List nodes, all or those that fit
#[derive(Debug, clap::Args)]
struct NodesArgs {
    /// Print all that is known of them
    #[arg(long)]
    detailed: bool,

    /// Only nodes with this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,

    /// Only nodes with this metadata; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    node_meta: Vec<String>,

    /// Only nodes of which this expression is true
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,

    /// The nearest to this node first
    #[arg(long, value_name = "NODE")]
    near: Option<String>,

    #[command(flatten)]
    api: ApiArgs,
}

/// List services, all or those that fit
#[derive(Debug, clap::Args)]
struct ServicesArgs {
    /// Only services on this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,

    /// Only services on nodes with this metadata; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    node_meta: Vec<String>,

    /// Print their tags, too
    #[arg(long)]
    tags: bool,

    #[command(flatten)]
    api: ApiArgs,
}

/// A node as lists of nodes and of a service's instances have it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    node: String,
    #[serde(rename = "ID", default)]
    id: String,
    address: String,
    datacenter: String,
    #[serde(default)]
    tagged_addresses: Option<BTreeMap<String, String>>,
    #[serde(alias = "NodeMeta", default)]
    meta: Option<BTreeMap<String, String>>,
}

pub(crate) async fn run(args: CatalogArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    match args.command {
        CatalogCommand::Datacenters(args) => {
            let names: Vec<String> = surroundings.client(&args.api)?.read(Call::get("/v1/catalog/datacenters")).await?;
            names.iter().try_for_each(|name| print::line(name))?;
        }
        CatalogCommand::Nodes(args) => nodes(&surroundings.client(&args.api)?, args).await?,
        CatalogCommand::Services(args) => services(&surroundings.client(&args.api)?, args).await?,
    }
    Ok(Outcome::Done)
}

/// With what is asked of metadata, which flags write with `=` and the API with `:`.
fn with_meta(call: Call, pairs: &[String]) -> anyhow::Result<Call> {
    pairs.iter().try_fold(call, |call, pair| match pair.split_once('=') {
        Some((key, value)) => Ok(call.query("node-meta", &format!("{key}:{value}"))),
        None => Err(usage(format!("--node-meta {pair:?} is not of the form KEY=VALUE"))),
    })
}

async fn nodes(client: &Client, args: NodesArgs) -> anyhow::Result<()> {
    let mut call = match &args.service {
        Some(service) => Call::get("/v1/catalog/service").segment(service),
        None => Call::get("/v1/catalog/nodes"),
    };
    call = with_meta(call, &args.node_meta)?;
    for (name, value) in [("filter", &args.filter), ("near", &args.near)] {
        call = value.iter().fold(call, |call, value| call.query(name, value));
    }
    let mut nodes: Vec<Node> = client.read(call).await?;
    // A node has as many rows as it has instances of the service.
    let mut known = std::collections::BTreeSet::new();
    nodes.retain(|node| known.insert(node.node.clone()));
    let headings: &[&str] = if args.detailed {
        &["Node", "ID", "Address", "DC", "TaggedAddresses", "Meta"]
    } else {
        &["Node", "ID", "Address", "DC"]
    };
    let mut table = print::table(headings);
    for Node { node, id, address, datacenter, tagged_addresses, meta } in nodes {
        // As much of it as tells nodes apart.
        let id = if args.detailed { id } else { id.chars().take(8).collect() };
        let mut row = vec![node, id, address, datacenter];
        if args.detailed {
            row.extend([pairs(tagged_addresses), pairs(meta)]);
        }
        table.add_row(row);
    }
    print::rows(&table)
}

fn pairs(map: Option<BTreeMap<String, String>>) -> String {
    let pairs: Vec<_> = map.unwrap_or_default().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join(", ")
}

async fn services(client: &Client, args: ServicesArgs) -> anyhow::Result<()> {
    let services: BTreeMap<String, Vec<String>> = match &args.node {
        Some(node) => on_node(client, node).await?,
        None => client.read(with_meta(Call::get("/v1/catalog/services"), &args.node_meta)?).await?,
    };
    if !args.tags {
        return services.keys().try_for_each(|name| print::line(name));
    }
    let mut table = print::table(&["Service", "Tags"]);
    for (name, tags) in services {
        table.add_row([name, tags.join(",")]);
    }
    print::rows(&table)
}

/// The services on a node, with all tags of their instances there.
async fn on_node(client: &Client, node: &str) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let answer: Value = client.read(Call::get("/v1/catalog/node").segment(node)).await?;
    let Some(instances) = answer["Services"].as_object() else {
        return Err(usage(format!("there is no node {node}; `starling catalog nodes` lists them")));
    };
    let mut services: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for instance in instances.values() {
        let tags = services.entry(instance["Service"].as_str().unwrap_or_default().to_owned()).or_default();
        tags.extend(instance["Tags"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
        tags.sort();
        tags.dedup();
    }
    Ok(services)
}
