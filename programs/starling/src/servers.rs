//! `starling servers` and `starling operator health`: which servers there are, and whether all is well with them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::arguments::Surroundings;
use crate::client::{ApiArgs, Call};
use crate::outcome::Outcome;
use crate::print::{self, Format, OutputArgs};

const SERVERS: &str = "/starling/v1/servers";
/// The same, and what each member of the store says of itself.
const SERVERS_AND_MEMBERS: &str = "/starling/v1/servers?members";

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

/// Say whether the servers and their store are well; exits with 1 if something is not
#[derive(Debug, clap::Args)]
pub(crate) struct HealthArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Deserialize)]
struct Listed {
    servers: Vec<Listing>,
    /// Empty from a server of an earlier release.
    #[serde(default)]
    lost: Vec<Lost>,
    store: Store,
}

#[derive(Debug, Deserialize)]
struct Lost {
    name: String,
    http: String,
    gone_s: u64,
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
    #[serde(default)]
    members: Vec<Member>,
}

#[derive(Debug, Deserialize)]
struct Member {
    address: String,
    leads: bool,
    bytes: u64,
    trouble: Option<String>,
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
            let Listed { servers, lost, store } = client.read(Call::get(SERVERS)).await?;
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
            for Lost { name, http, gone_s } in lost {
                print::line(&format!("{name} ({http}) ended {gone_s} s ago without leaving, and is not back."))?;
            }
            if !store.takes_writes {
                let age = store.last_contact_ms;
                print::line(&format!("The store takes no writes now; what is read may be {age} ms old."))?;
            }
        }
    }
    Ok(Outcome::Done)
}

pub(crate) async fn health(args: HealthArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let client = surroundings.client(&args.api)?;
    let findings = findings(&client.read(Call::get(SERVERS_AND_MEMBERS)).await?);
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
    let Listed { servers, lost, store } = listed;
    let leaders = servers.iter().filter(|server| server.leads).count();
    let mut versions: Vec<_> = servers.iter().map(|server| server.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let leaving: Vec<_> = servers.iter().filter(|server| server.leaving).map(|server| server.name.as_str()).collect();
    let contact = Duration::from_millis(store.last_contact_ms);
    let mut findings = vec![
        Finding {
            what: "writes",
            good: store.takes_writes,
            says: if store.takes_writes {
                "taken"
            } else {
                "refused: the store has no leader, is not reached or turns them away"
            }
            .to_owned(),
        },
        Finding {
            what: "currency",
            good: contact < STALE,
            says: format!("the server that answers had everything {} ms ago", store.last_contact_ms),
        },
        Finding { what: "leader", good: leaders == 1, says: format!("{leaders} of {} servers", servers.len()) },
        failure(store, servers.len() - leaving.len()),
        Finding { what: "versions", good: versions.len() == 1, says: versions.join(", ") },
        Finding {
            what: "leaving",
            good: leaving.is_empty(),
            says: if leaving.is_empty() { "none".to_owned() } else { leaving.join(", ") },
        },
    ];
    findings.extend(lost.iter().map(|Lost { name, http, gone_s }| Finding {
        what: "lost",
        good: false,
        says: format!("{name} ({http}) ended {gone_s} s ago without leaving, and is not back"),
    }));
    findings.extend(namesakes(servers));
    findings.extend(members(&store.members));
    findings
}

/// How many servers may fail while the mesh goes on taking writes.
fn failure(store: &Store, stays: usize) -> Finding {
    let (good, says) = match (store.shared, stays) {
        (false, _) => (true, "one server on its own store: nothing takes its place".to_owned()),
        (true, _) if !store.takes_writes => {
            (false, "the store takes no writes, whichever server is asked; traffic and reads go on".to_owned())
        }
        (true, 0 | 1) => (false, "one server: nothing takes its place".to_owned()),
        (true, many) => (true, format!("{} of {many} servers may fail", many - 1)),
    };
    Finding { what: "failure", good, says }
}

/// Servers that cannot be told apart by name.
fn namesakes(servers: &[Listing]) -> Option<Finding> {
    let is_twice = |name: &&str| servers.iter().filter(|server| server.name == *name).count() > 1;
    let mut names: Vec<_> = servers.iter().map(|server| server.name.as_str()).filter(is_twice).collect();
    names.dedup();
    let says = format!(
        "{} is the name of more than one server; unless one of them ended within the last 5 s, give each its own --node-name",
        names.join(", ")
    );
    (!names.is_empty()).then_some(Finding { what: "names", good: false, says })
}

/// What the members of the store say of themselves; nothing where it is not shared.
fn members(members: &[Member]) -> Vec<Finding> {
    let well = members.iter().filter(|member| member.trouble.is_none()).count();
    let needed = members.len() / 2 + 1;
    let leader = members.iter().find(|member| member.leads);
    let bytes = members.iter().map(|member| member.bytes).max().unwrap_or_default();
    let quorum = Finding {
        what: "etcd",
        good: well >= needed && leader.is_some(),
        says: match leader {
            Some(leader) => format!(
                "{well} of {} members are well and {needed} are needed: {} may fail; {} leads; {} MiB",
                members.len(),
                match well.saturating_sub(needed) {
                    0 => "no further one".to_owned(),
                    more => format!("{more} of them"),
                },
                leader.address,
                bytes.div_ceil(1 << 20)
            ),
            None => {
                format!("{well} of {} members are well, {needed} are needed, and none of them leads", members.len())
            }
        },
    };
    let troubled = members.iter().filter_map(|member| {
        let says = format!("{}: {}", member.address, member.trouble.as_ref()?);
        Some(Finding { what: "etcd", good: false, says })
    });
    if members.is_empty() { Vec::new() } else { std::iter::once(quorum).chain(troubled).collect() }
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
        assert_eq!(bad(&listed(three.clone(), cut)), ["writes", "currency", "failure"]);
        assert_eq!(bad(&listed(json!([server("a", false, "1")]), good.clone())), ["leader", "failure"]);
        assert_eq!(bad(&listed(json!([server("a", true, "1"), server("a", false, "1")]), good.clone())), ["names"]);
        let mixed = json!([server("a", true, "1"), server("b", false, "2")]);
        assert_eq!(bad(&listed(mixed, good.clone())), ["versions"]);
        let member = |address: &str, leads: bool, trouble: Option<&str>| json!({"address": address, "leads": leads, "version": "3.6.14", "bytes": 5, "trouble": trouble});
        let on_members = |members: Value| {
            let store = json!({"shared": true, "takes_writes": true, "last_contact_ms": 0, "members": members});
            bad(&listed(three.clone(), store))
        };
        let [well, led] = [member("m1", false, None), member("m2", true, None)];
        assert!(on_members(json!([well, led, member("m3", false, None)])).is_empty());
        assert_eq!(on_members(json!([well, led, member("m3", false, Some("gone"))])), ["etcd"], "the one that is gone");
        assert_eq!(on_members(json!([well, member("m2", false, Some("gone"))])), ["etcd", "etcd"], "and no quorum");
        let lost = json!({"servers": three, "lost": [{"name": "d", "http": "h:4", "gone_s": 7}], "store": good});
        let lost: Listed = serde_json::from_value(lost).expect("the form of the API");
        assert_eq!(bad(&lost), ["lost"]);
        let alone = json!({"shared": false, "takes_writes": true, "last_contact_ms": 0});
        assert!(bad(&listed(json!([server("a", true, "1")]), alone)).is_empty());
    }
}
