//! `starling status`: whether every proxy does what it should, and if not, why.

use anyhow::Context;
use comfy_table::Cell;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};
use crate::receipt::milliseconds;

/// Show the leader, the revision, and what each node and proxy has applied or refused
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Deserialize)]
struct Nodes {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    node: String,
    connected: bool,
    /// Whether it was away for longer than its grace: it has left every endpoint set.
    #[serde(default)]
    lost: bool,
    applied_through: u64,
    lag: u64,
    staleness_us: u64,
    refused: Vec<RefusedAtNode>,
}

/// What a proxy of a node refuses, as its agent reports it.
#[derive(Debug, Deserialize)]
struct RefusedAtNode {
    proxy: String,
    #[serde(flatten)]
    refused: Refused,
}

#[derive(Debug, Deserialize)]
struct Proxies {
    revision: u64,
    proxies: Vec<Proxy>,
}

#[derive(Debug, Deserialize)]
struct Proxy {
    node: String,
    id: String,
    service: Option<String>,
    connected: bool,
    applied_through: u64,
    /// How many recent changes it has yet to apply. The distance between revisions would not do: what does not concern a
    /// proxy does not move it.
    lag: u64,
    refused: Option<Refused>,
}

#[derive(Debug, Deserialize)]
struct Refused {
    revision: u64,
    type_url: String,
    resources: Vec<String>,
    reason: String,
}

#[derive(Debug, Deserialize)]
struct Diagnostic {
    object: String,
    field: String,
    reason: String,
    fix: String,
}

pub(crate) async fn run(args: StatusArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let cannot = "cannot read the status";
    let leader: String = client.read(Call::get("/v1/status/leader")).await.context(cannot)?;
    let nodes: Value = client.read(Call::get("/starling/v1/nodes")).await.context(cannot)?;
    let proxies: Value = client.read(Call::get("/starling/v1/proxies")).await.context(cannot)?;
    let diagnostics: Value = client.read(Call::get("/starling/v1/diagnostics")).await.context(cannot)?;
    let diagnostics = diagnostics["diagnostics"].clone();
    if args.output.format == Format::Json {
        print::json(&json!({
            "leader": leader,
            "revision": proxies["revision"],
            "nodes": nodes["nodes"],
            "proxies": proxies["proxies"],
            "diagnostics": diagnostics,
        }))?;
        return Ok(Outcome::Done);
    }
    let unknown = "the API answers in another form than this command knows";
    let Nodes { nodes } = Nodes::deserialize(&nodes).context(unknown)?;
    show(&leader, &nodes, Proxies::deserialize(&proxies).context(unknown)?)?;
    for diagnostic in Vec::<Diagnostic>::deserialize(&diagnostics).context(unknown)? {
        let Diagnostic { object, field, reason, fix } = diagnostic;
        let field = if field.is_empty() { field } else { format!("{field}: ") };
        print::line(&format!("\n{object}: {field}{reason}\n  {fix}"))?;
    }
    Ok(Outcome::Done)
}

fn show(leader: &str, nodes: &[Node], answer: Proxies) -> anyhow::Result<()> {
    let Proxies { revision, proxies } = answer;
    let leader = if leader.is_empty() { "none" } else { leader };
    print::line(&format!("Leader    {leader}\nRevision  {revision}"))?;
    let connected = nodes.iter().filter(|node| node.connected).count();
    let lost = nodes.iter().filter(|node| node.lost).count();
    let lost = if lost > 0 { format!(", {lost} lost") } else { String::new() };
    print::line(&format!("Nodes     {}, {connected} connected{lost}", nodes.len()))?;
    let connected = proxies.iter().filter(|proxy| proxy.connected).count();
    // Those that are not attached to the process that is asked report through the agents of their nodes.
    if !proxies.is_empty() || nodes.is_empty() {
        print::line(&format!("Proxies   {}, {connected} connected", proxies.len()))?;
    }
    show_nodes(nodes)?;
    show_proxies(&proxies)
}

fn show_nodes(nodes: &[Node]) -> anyhow::Result<()> {
    if nodes.is_empty() {
        return Ok(());
    }
    let mut table = print::table(&["Node", "Connected", "Applied", "Lag", "Stale for", "State"]);
    for node in nodes {
        table.add_row([
            Cell::new(&node.node),
            yes_or_no(node.connected),
            Cell::new(node.applied_through),
            Cell::new(node.lag),
            Cell::new(milliseconds((node.staleness_us > 0).then_some(node.staleness_us))),
            if node.lost { print::bad("lost") } else { state(!node.refused.is_empty(), node.connected, node.lag) },
        ]);
    }
    print::line("")?;
    print::rows(&table)?;
    let mut refused = nodes.iter().flat_map(|node| &node.refused);
    refused.try_for_each(|RefusedAtNode { proxy, refused }| show_refusal(proxy, refused))
}

fn show_proxies(proxies: &[Proxy]) -> anyhow::Result<()> {
    if proxies.is_empty() {
        return Ok(());
    }
    let mut table = print::table(&["Proxy", "Service", "Node", "Connected", "Applied", "Lag", "State"]);
    for proxy in proxies {
        table.add_row([
            Cell::new(&proxy.id),
            Cell::new(proxy.service.as_deref().unwrap_or("-")),
            Cell::new(&proxy.node),
            yes_or_no(proxy.connected),
            Cell::new(proxy.applied_through),
            Cell::new(proxy.lag),
            state(proxy.refused.is_some(), proxy.connected, proxy.lag),
        ]);
    }
    print::line("")?;
    print::rows(&table)?;
    // Envoy's words are long; they would tear the table apart.
    for proxy in proxies {
        if let Some(refused) = &proxy.refused {
            show_refusal(&proxy.id, refused)?;
        }
    }
    Ok(())
}

fn show_refusal(proxy: &str, refused: &Refused) -> anyhow::Result<()> {
    let Refused { revision, type_url, resources, reason } = refused;
    let kind = type_url.rsplit('.').next().unwrap_or(type_url);
    let resources = resources.join(", ");
    print::line(&format!("\n{proxy} refused revision {revision}, {kind} {resources}:\n  {reason}"))
}

fn yes_or_no(connected: bool) -> Cell {
    if connected { print::good("yes") } else { print::bad("no") }
}

fn state(refuses: bool, connected: bool, lag: u64) -> Cell {
    if refuses {
        print::bad("refused")
    } else if !connected {
        print::bad("away")
    } else if lag > 0 {
        print::unsettled("behind")
    } else {
        print::good("current")
    }
}
