//! `starling servers` and `starling operator health`: which servers there are, and whether all is well with them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

const SERVERS: &str = "/starling/v1/servers";

/// For longer than this a server that shares its store lacks what others were acknowledged, by the look of it.
const STALE: Duration = Duration::from_secs(5);

/// List the servers of the mesh
///
/// Which leads, how many nodes are attached to each, and whether the store takes writes, as the server sees it that is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct ServersArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

/// Look after the servers
#[derive(Debug, clap::Args)]
pub(crate) struct OperatorArgs {
    #[command(subcommand)]
    command: OperatorCommand,
}

#[derive(Debug, clap::Subcommand)]
enum OperatorCommand {
    Health(HealthArgs),
}

/// Say whether the servers and their store are well; exits with 1 if something is not
#[derive(Debug, clap::Args)]
struct HealthArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Deserialize)]
struct Listed {
    servers: Vec<Listing>,
    store: Store,
}

#[derive(Debug, Deserialize)]
struct Listing {
    name: String,
    http: String,
    agents: Option<String>,
    version: String,
    leaving: bool,
    leads: bool,
    nodes: usize,
}

#[derive(Debug, Deserialize)]
struct Store {
    shared: bool,
    takes_writes: bool,
    last_contact_ms: u64,
}

/// Something that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    good: bool,
    says: String,
}

pub(crate) async fn list(args: ServersArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    match args.output.format {
        Format::Json => print::json(&client.read::<Value>(Call::get(SERVERS)).await?)?,
        Format::Table => {
            let Listed { servers, store } = client.read(Call::get(SERVERS)).await?;
            let mut table = print::table(&["Server", "API", "Agents", "Nodes", "Version", "State"]);
            for server in servers {
                let state = match (server.leads, server.leaving) {
                    (_, true) => "leaving",
                    (true, false) => "leads",
                    (false, false) => "",
                };
                let agents = server.agents.unwrap_or_default();
                let nodes = server.nodes.to_string();
                table.add_row([server.name, server.http, agents, nodes, server.version, state.to_owned()]);
            }
            print::rows(&table)?;
            if !store.takes_writes {
                println!("The store takes no writes now; what is read may be {} ms old.", store.last_contact_ms);
            }
        }
    }
    Ok(Outcome::Done)
}

pub(crate) async fn operator(args: OperatorArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let OperatorCommand::Health(args) = args.command;
    let client = surroundings.client(&args.api)?;
    let findings = findings(&client.read(Call::get(SERVERS)).await?);
    let healthy = findings.iter().all(|finding| finding.good);
    match args.output.format {
        Format::Json => print::json(&json!({"healthy": healthy, "findings": findings}))?,
        Format::Table => {
            let mut table = print::table(&["", "What", "Finding"]);
            for Finding { what, good, says } in findings {
                table.add_row([if good { "ok" } else { "!" }.to_owned(), what.to_owned(), says]);
            }
            print::rows(&table)?;
        }
    }
    Ok(if healthy { Outcome::Done } else { Outcome::No })
}

fn findings(listed: &Listed) -> Vec<Finding> {
    let Listed { servers, store } = listed;
    let leaders = servers.iter().filter(|server| server.leads).count();
    let mut versions: Vec<_> = servers.iter().map(|server| server.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let leaving: Vec<_> = servers.iter().filter(|server| server.leaving).map(|server| server.name.as_str()).collect();
    let stays = servers.len() - leaving.len();
    let contact = Duration::from_millis(store.last_contact_ms);
    vec![
        Finding {
            what: "writes",
            good: store.takes_writes,
            says: if store.takes_writes { "taken" } else { "refused: the store has no leader or is not reached" }
                .to_owned(),
        },
        Finding {
            what: "currency",
            good: contact < STALE,
            says: format!("the server that answers had everything {} ms ago", store.last_contact_ms),
        },
        Finding { what: "leader", good: leaders == 1, says: format!("{leaders} of {} servers", servers.len()) },
        Finding {
            what: "failure",
            good: !store.shared || stays > 1,
            says: match (store.shared, stays) {
                (false, _) => "one server on its own store: nothing takes its place".to_owned(),
                (true, 1) => "one server: nothing takes its place".to_owned(),
                (true, many) => format!("{} of {many} servers may fail", many - 1),
            },
        },
        Finding { what: "versions", good: versions.len() == 1, says: versions.join(", ") },
        Finding {
            what: "leaving",
            good: leaving.is_empty(),
            says: if leaving.is_empty() { "none".to_owned() } else { leaving.join(", ") },
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(servers: Value, store: Value) -> Listed {
        serde_json::from_value(json!({"servers": servers, "store": store})).expect("the form of the API")
    }

    fn bad(listed: &Listed) -> Vec<&'static str> {
        findings(listed).iter().filter(|finding| !finding.good).map(|finding| finding.what).collect()
    }

    #[test]
    fn what_is_not_well_is_found() {
        let server = |name: &str, leads: bool, version: &str| {
            json!({"name": name, "http": "h:1", "agents": "h:2", "version": version, "leaving": false, "leads": leads,
                   "nodes": 3})
        };
        let good = json!({"shared": true, "takes_writes": true, "last_contact_ms": 900});
        let three = json!([server("a", true, "1"), server("b", false, "1"), server("c", false, "1")]);
        assert!(bad(&listed(three.clone(), good.clone())).is_empty());
        let cut = json!({"shared": true, "takes_writes": false, "last_contact_ms": 9_000});
        assert_eq!(bad(&listed(three, cut)), ["writes", "currency"]);
        assert_eq!(bad(&listed(json!([server("a", false, "1")]), good.clone())), ["leader", "failure"]);
        let mixed = json!([server("a", true, "1"), server("b", false, "2")]);
        assert_eq!(bad(&listed(mixed, good)), ["versions"]);
        let alone = json!({"shared": false, "takes_writes": true, "last_contact_ms": 0});
        assert!(bad(&listed(json!([server("a", true, "1")]), alone)).is_empty());
    }
}
