//! Who is of the mesh, in the form in which Consul's agents know one another by gossip. Here the catalog says it: of servers, and of
//! nodes with agents.

use std::sync::Arc;

use serde_json::{Value, json};
use starling_catalog::Snapshot;
use starling_model::{CheckStatus, LIVENESS_CHECK, Node, NodeName, Resource};

use super::agent::CONSUL_VERSION;
use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::router::{Api, Outcome};

/// Where Consul's agents gossip; clients expect a port, nothing here listens on it.
pub(super) const SERF_PORT: u16 = 8301;

/// The same among servers of all datacentres.
const SERF_WAN_PORT: u16 = 8302;

/// Serf's numbers of what becomes of a member.
#[derive(Clone, Copy)]
enum Status {
    Alive = 1,
    Leaving = 2,
    Left = 3,
    Failed = 4,
}

struct Member {
    name: NodeName,
    address: String,
    id: String,
    is_server: bool,
    status: Status,
}

impl Member {
    fn of_node(node: &Node, status: Status) -> Self {
        Self { name: node.name.clone(), address: node.address.clone(), id: node.id.clone(), is_server: false, status }
    }

    fn form(&self, datacenter: &str, is_wan: bool) -> Value {
        let name = if is_wan { format!("{}.{datacenter}", self.name) } else { self.name.to_string() };
        json!({
            "Name": name,
            "Addr": self.address,
            "Port": if is_wan { SERF_WAN_PORT } else { SERF_PORT },
            "Tags": {
                "dc": datacenter,
                "id": self.id,
                "role": if self.is_server { "consul" } else { "node" },
                "build": format!("{CONSUL_VERSION}:starling"),
            },
            "Status": self.status as u8,
            "ProtocolMin": 1,
            "ProtocolMax": 5,
            "ProtocolCur": 2,
            "DelegateMin": 2,
            "DelegateMax": 5,
            "DelegateCur": 4,
        })
    }
}

/// Who answers.
fn own_member(api: &Api) -> Member {
    let facts = api.catalog.authority();
    let (name, address, id) = (facts.node_name, facts.node_address, facts.node_id);
    Member { name, address, id, is_server: api.is_server(), status: Status::Alive }
}

/// The same in Consul's form.
pub(super) fn own(api: &Api) -> Value {
    own_member(api).form(api.catalog.authority().datacenter.as_str(), false)
}

pub(super) async fn members(api: Arc<Api>, call: Call) -> Outcome {
    let is_wan = call.query.switch("wan")?;
    let datacenter = api.catalog.authority().datacenter;
    let mut members = if api.is_server() { all(&api) } else { while_nobody_is_reached(&api, &call).await? };
    members.retain(|member| !is_wan || member.is_server);
    Ok(Answer::json(members.iter().map(|member| member.form(datacenter.as_str(), is_wan)).collect()))
}

/// The agent alone, if it may be seen: a server did not judge this.
async fn while_nobody_is_reached(api: &Api, call: &Call) -> Result<Vec<Member>, ApiError> {
    let bearer = api.catalog.bearer(api.token(&call.query, &call.headers).as_deref()).await?;
    let own = own_member(api);
    Ok(if bearer.reads(Resource::Node, own.name.as_str()) { vec![own] } else { Vec::new() })
}

/// All of which this server knows, by name; of a server and a node of one name, the server.
fn all(api: &Api) -> Vec<Member> {
    let snapshot = api.catalog.snapshot();
    let servers = snapshot.servers().map(|server| {
        let server = &server.value;
        let status = if server.leaving { Status::Leaving } else { Status::Alive };
        of_server(server.name.clone(), &server.http, server.id.to_string(), status)
    });
    let lost = api.catalog.lost_servers();
    let lost = lost.into_iter().map(|lost| of_server(lost.name, &lost.http, String::new(), Status::Failed));
    // Where there are several, their records say who is there.
    let own = api.catalog.own_server().is_none().then(|| own_member(api));
    let left = api.catalog.left_nodes();
    let left = left.iter().map(|node| Member::of_node(node, Status::Left));
    let mut members: Vec<Member> = own.into_iter().chain(servers).chain(lost).chain(nodes(&snapshot)).collect();
    members.extend(left);
    members.sort_by(|one, other| one.name.cmp(&other.name));
    members.dedup_by(|later, first| later.name == first.name);
    members
}

fn of_server(name: NodeName, http: &str, id: String, status: Status) -> Member {
    let host = http.rsplit_once(':').map_or(http, |(host, _)| host);
    let address = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Member { name, address, id, is_server: true, status }
}

/// Nodes of which it is said whether their agents are there.
fn nodes(snapshot: &Snapshot) -> Vec<Member> {
    let liveness = LIVENESS_CHECK.parse().expect("invariant: the name of a check");
    let member = |node: &Node| {
        let check = snapshot.check(&node.name, &liveness)?;
        let status = if check.value.status == CheckStatus::Critical { Status::Failed } else { Status::Alive };
        Some(Member::of_node(node, status))
    };
    snapshot.nodes().filter_map(|node| member(&node.value)).collect()
}
