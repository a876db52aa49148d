//! The route table: every path that is served, with the permission it needs and the body it may have.

mod acl;
mod agent;
mod agent_check;
mod authority;
mod catalog;
mod config;
mod connect;
pub(crate) mod coordinate;
mod discovery_chain;
mod enrolment;
mod event;
mod exported;
mod gateway;
mod health;
mod intention;
mod kv;
mod machine;
mod maintenance;
mod members;
mod membership;
mod monitor;
mod operator;
mod quarantine;
mod query;
mod servers;
mod session;
mod snapshot;
mod starling;
mod stats;
mod status;
mod token;
mod txn;

use std::time::SystemTime;

pub use agent::CONSUL_VERSION;

use crate::filter::Shape;
use crate::limits::BodyLimit;
use crate::relay::Answerer;
use crate::router::{Filtered, Permission, Route};

/// Every route.
#[must_use]
pub fn table() -> Vec<Route> {
    [
        agent_routes(),
        catalog_routes(),
        connect_routes(),
        coordination_routes(),
        operator_routes(),
        acl::table(),
        own_routes(),
    ]
    .concat()
}

/// Milliseconds since 1970, by the clock of this machine.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[rustfmt::skip]
fn agent_routes() -> Vec<Route> {
    use Answerer as A;
    use BodyLimit as B;
    use Filtered as F;
    use Permission as P;
    vec![
        Route::new("GET", "/v1/agent/self", P::AgentRead, A::Agent, B::NONE, "The agent: node, version, ports", |a, c| Box::pin(agent::own(a, c))),
        Route::new("GET", "/v1/agent/members", P::NodeRead, A::ServersElseAgent, B::NONE, "Servers, and nodes with agents, as alive, left or failed (`filter`); with `wan`, servers alone", |a, c| Box::pin(members::members(a, c))).filtered(F::All(Shape::MEMBERS)),
        Route::new("GET", "/v1/agent/services", P::ServiceRead, A::Agent, B::NONE, "Services registered with this agent (`filter`)", |a, c| Box::pin(agent::services(a, c))).filtered(F::All(Shape::SERVICES)),
        Route::new("GET", "/v1/agent/service/{id}", P::ServiceRead, A::Agent, B::NONE, "One service registered with this agent; waits by content hash (`hash`, `wait`)", |a, c| Box::pin(agent::service(a, c))),
        Route::new("PUT", "/v1/agent/service/register", P::ServiceWrite, A::Agent, B::REGISTRATION, "Register a service, its sidecar and its checks (`replace-existing-checks`)", |a, c| Box::pin(agent::register(a, c))),
        Route::new("PUT", "/v1/agent/service/deregister/{id}", P::ServiceWrite, A::Agent, B::NONE, "Remove a service, its sidecar and its checks", |a, c| Box::pin(agent::deregister(a, c))),
        Route::new("GET", "/v1/agent/health/service/name/{service}", P::ServiceRead, A::Agent, B::NONE, "Health of this agent's instances of a service, also as status code", |a, c| Box::pin(agent::health_by_name(a, c))),
        Route::new("GET", "/v1/agent/health/service/id/{id}", P::ServiceRead, A::Agent, B::NONE, "Health of one instance of this agent, also as status code", |a, c| Box::pin(agent::health_by_id(a, c))),
        Route::new("GET", "/v1/agent/checks", P::NodeRead, A::Agent, B::NONE, "Checks registered with this agent (`filter`)", |a, c| Box::pin(agent_check::checks(a, c))).filtered(F::All(Shape::CHECKS)),
        Route::new("PUT", "/v1/agent/check/register", P::ServiceWrite, A::Agent, B::REGISTRATION, "Register a check", |a, c| Box::pin(agent_check::register(a, c))),
        Route::new("PUT", "/v1/agent/check/deregister/{id}", P::ServiceWrite, A::Agent, B::NONE, "Remove a check", |a, c| Box::pin(agent_check::deregister(a, c))),
        Route::new("PUT", "/v1/agent/check/pass/{id}", P::ServiceWrite, A::Agent, B::NONE, "Report a TTL check as passing (`note`)", |a, c| Box::pin(agent_check::pass(a, c))),
        Route::new("PUT", "/v1/agent/check/warn/{id}", P::ServiceWrite, A::Agent, B::NONE, "Report a TTL check as warning (`note`)", |a, c| Box::pin(agent_check::warn(a, c))),
        Route::new("PUT", "/v1/agent/check/fail/{id}", P::ServiceWrite, A::Agent, B::NONE, "Report a TTL check as critical (`note`)", |a, c| Box::pin(agent_check::fail(a, c))),
        Route::new("PUT", "/v1/agent/check/update/{id}", P::ServiceWrite, A::Agent, B::CHECK_RESULT, "Report a TTL check with status and output", |a, c| Box::pin(agent_check::update(a, c))),
        Route::new("GET", "/v1/agent/connect/ca/roots", P::Public, A::ServersElseAgent, B::NONE, "Root certificates that the mesh trusts; blocking", |a, c| Box::pin(connect::roots(a, c))),
        Route::new("GET", "/v1/agent/connect/ca/leaf/{service}", P::ServiceWrite, A::Agent, B::NONE, "A leaf certificate with its private key; blocking", |a, c| Box::pin(connect::leaf(a, c))),
        Route::new("POST", "/v1/agent/connect/authorize", P::ServiceWrite, A::Servers, B::SMALL, "Whether a client certificate may connect to a service", |a, c| Box::pin(connect::authorize(a, c))),
        Route::new("GET", "/v1/agent/metrics", P::AgentRead, A::Agent, B::NONE, "Metrics, in Consul's JSON (`format=prometheus`: in text)", |a, c| Box::pin(machine::metrics(a, c))),
        Route::new("GET", "/v1/agent/host", P::OperatorRead, A::Agent, B::NONE, "The machine: memory, processors, kernel", |a, c| Box::pin(machine::host(a, c))),
        Route::new("GET", "/v1/agent/version", P::AgentRead, A::Agent, B::NONE, "The release of Consul whose API this is, and Starling's own", |a, c| Box::pin(machine::version(a, c))),
        Route::new("GET", "/v1/agent/metrics/stream", P::AgentRead, A::Agent, B::NONE, "The same every 10 seconds, an object a line", |a, c| Box::pin(machine::metrics_stream(a, c))),
        Route::new("GET", "/v1/agent/monitor", P::AgentRead, A::Agent, B::NONE, "The log as it is written, a line at a time (`loglevel`, no deeper than the process logs; `logjson`)", |a, c| Box::pin(monitor::monitor(a, c))),
        Route::new("PUT", "/v1/agent/maintenance", P::NodeWrite, A::Agent, B::NONE, "Put this node into maintenance, or take it out (`enable`, `reason`)", |a, c| Box::pin(maintenance::node(a, c))),
        Route::new("PUT", "/v1/agent/service/maintenance/{id}", P::ServiceWrite, A::Agent, B::NONE, "Put an instance into maintenance, or take it out (`enable`, `reason`)", |a, c| Box::pin(maintenance::service(a, c))),
        Route::new("PUT", "/v1/agent/reload", P::AgentWrite, A::Agent, B::NONE, "Read files anew: what they define, and no more what they do not; `FromNextStart` names changed settings", |a, c| Box::pin(agent::reload(a, c))),
        Route::new("PUT", "/v1/agent/token/{token}", P::AgentWrite, A::Agent, B::SMALL, "Give the agent a token of its own, until it ends", |a, c| Box::pin(membership::token(a, c))),
        Route::new("PUT", "/v1/agent/leave", P::AgentWrite, A::Agent, B::NONE, "Have this agent take its node out of the mesh and end, or this server leave, if there is another", |a, c| Box::pin(membership::leave(a, c))),
        Route::new("PUT", "/v1/agent/force-leave/{node}", P::OperatorWrite, A::OwnListeners, B::NONE, "Take out a node that is lost; with `prune`, the server that is asked forgets that it was there", |a, c| Box::pin(membership::force_leave(a, c))),
        Route::new("PUT", "/v1/agent/join/{address}", P::AgentWrite, A::Agent, B::NONE, "Refused, with how a node joins", |a, c| Box::pin(membership::join(a, c))),
    ]
}

#[rustfmt::skip]
fn catalog_routes() -> Vec<Route> {
    use Answerer as A;
    use BodyLimit as B;
    use Filtered as F;
    use Permission as P;
    vec![
        Route::new("PUT", "/v1/catalog/register", P::NodeWrite, A::Servers, B::REGISTRATION, "Register a node, a service and checks without an agent", |a, c| Box::pin(catalog::register(a, c))),
        Route::new("PUT", "/v1/catalog/deregister", P::NodeWrite, A::Servers, B::SMALL, "Remove a node, a service or a check without an agent", |a, c| Box::pin(catalog::deregister(a, c))),
        Route::new("GET", "/v1/catalog/datacenters", P::Public, A::Servers, B::NONE, "The datacentres: this one", |a, c| Box::pin(catalog::datacenters(a, c))),
        Route::new("GET", "/v1/catalog/nodes", P::NodeRead, A::Servers, B::NONE, "Nodes (`filter`, `node-meta`); blocking", |a, c| Box::pin(catalog::nodes(a, c))).filtered(F::All(Shape::NODES)),
        Route::new("GET", "/v1/catalog/services", P::ServiceRead, A::Servers, B::NONE, "Service names with their tags (`filter`); blocking", |a, c| Box::pin(catalog::services(a, c))).filtered(F::Source(Shape::CATALOG)),
        Route::new("GET", "/v1/catalog/service/{service}", P::ServiceRead, A::Servers, B::NONE, "Instances of a service (`filter`, `tag`, `node-meta`); blocking", |a, c| Box::pin(catalog::service(a, c))).filtered(F::All(Shape::CATALOG)),
        Route::new("GET", "/v1/catalog/connect/{service}", P::ServiceRead, A::Servers, B::NONE, "Where a service is reached in the mesh: its sidecars and native instances (`filter`); blocking", |a, c| Box::pin(catalog::connect(a, c))).filtered(F::All(Shape::CATALOG)),
        Route::new("GET", "/v1/catalog/node/{node}", P::NodeRead, A::Servers, B::NONE, "A node and its services, by identifier (`filter`); blocking", |a, c| Box::pin(catalog::node(a, c))).filtered(F::Services(Shape::SERVICES)),
        Route::new("GET", "/v1/catalog/node-services/{node}", P::NodeRead, A::Servers, B::NONE, "A node and its services, as a list (`filter`); blocking", |a, c| Box::pin(catalog::node_services(a, c))).filtered(F::Services(Shape::SERVICES)),
        Route::new("GET", "/v1/health/service/{service}", P::ServiceRead, A::Servers, B::NONE, "Instances of a service with their checks (`filter`, `passing`, `tag`, `node-meta`); blocking", |a, c| Box::pin(health::service(a, c))).filtered(F::All(Shape::HEALTH)),
        Route::new("GET", "/v1/health/connect/{service}", P::ServiceRead, A::Servers, B::NONE, "Sidecars and native instances of a service with their checks (`filter`, `passing`, `tag`, `node-meta`); blocking", |a, c| Box::pin(health::connect(a, c))).filtered(F::All(Shape::HEALTH)),
        Route::new("GET", "/v1/health/ingress/{service}", P::ServiceRead, A::Servers, B::NONE, "Instances of ingress gateways that let a service in, with their checks (`filter`, `passing`); blocking", |a, c| Box::pin(gateway::ingress(a, c))).filtered(F::All(Shape::HEALTH)),
        Route::new("GET", "/v1/catalog/gateway-services/{gateway}", P::ServiceRead, A::Servers, B::NONE, "Services behind an ingress or terminating gateway, by what was written; blocking", |a, c| Box::pin(gateway::services(a, c))),
        Route::new("GET", "/v1/health/checks/{service}", P::ServiceRead, A::Servers, B::NONE, "Checks of a service's instances (`filter`); blocking", |a, c| Box::pin(health::checks(a, c))).filtered(F::All(Shape::CHECKS)),
        Route::new("GET", "/v1/health/node/{node}", P::NodeRead, A::Servers, B::NONE, "Checks on a node (`filter`); blocking", |a, c| Box::pin(health::node(a, c))).filtered(F::All(Shape::CHECKS)),
        Route::new("GET", "/v1/health/state/{state}", P::NodeRead, A::Servers, B::NONE, "Checks with a status, or `any` (`filter`); blocking", |a, c| Box::pin(health::state(a, c))).filtered(F::All(Shape::CHECKS)),
        Route::new("GET", "/v1/status/leader", P::Public, A::Servers, B::NONE, "Address of the server that writes", |a, c| Box::pin(status::leader(a, c))),
        Route::new("GET", "/v1/status/peers", P::Public, A::Servers, B::NONE, "Addresses of every server", |a, c| Box::pin(status::peers(a, c))),
    ]
}

#[rustfmt::skip]
fn connect_routes() -> Vec<Route> {
    use Answerer as A;
    use BodyLimit as B;
    use Filtered as F;
    use Permission as P;
    vec![
        Route::new("GET", "/v1/connect/ca/roots", P::Public, A::ServersElseAgent, B::NONE, "Root certificates that the mesh trusts (`pem`); blocking", |a, c| Box::pin(connect::roots(a, c))),
        Route::new("GET", "/v1/connect/ca/configuration", P::OperatorRead, A::Servers, B::NONE, "How the CA is configured, in Consul's words", |a, c| Box::pin(authority::configuration::show(a, c))),
        Route::new("PUT", "/v1/connect/ca/configuration", P::OperatorWrite, A::OwnListeners, B::CERTIFICATES, "Bring a root with its key, which signs once everybody trusts it; whatever else cannot be obeyed is refused", |a, c| Box::pin(authority::configuration::set(a, c))),
        Route::new("GET", "/v1/connect/intentions", P::IntentionsRead, A::Servers, B::NONE, "Every intention (`filter`); blocking", |a, c| Box::pin(intention::list(a, c))).filtered(F::All(Shape::INTENTIONS)),
        Route::new("POST", "/v1/connect/intentions", P::IntentionsWrite, A::Servers, B::INTENTION, "Write an intention by the names in the body", |a, c| Box::pin(intention::create(a, c))),
        Route::new("GET", "/v1/connect/intentions/exact", P::IntentionsRead, A::Servers, B::NONE, "One intention (`source`, `destination`); blocking", |a, c| Box::pin(intention::read(a, c))),
        Route::new("PUT", "/v1/connect/intentions/exact", P::IntentionsWrite, A::Servers, B::INTENTION, "Write one intention (`source`, `destination`)", |a, c| Box::pin(intention::write(a, c))),
        Route::new("DELETE", "/v1/connect/intentions/exact", P::IntentionsWrite, A::Servers, B::NONE, "Remove one intention (`source`, `destination`)", |a, c| Box::pin(intention::delete(a, c))),
        Route::new("GET", "/v1/connect/intentions/match", P::IntentionsRead, A::Servers, B::NONE, "Intentions that cover a name (`by`, `name`), first the one that decides; blocking", |a, c| Box::pin(intention::matching(a, c))),
        Route::new("GET", "/v1/discovery-chain/{service}", P::ServiceRead, A::Servers, B::NONE, "What routers, splitters and resolvers make of a call of a service (`compile-dc`); blocking", |a, c| Box::pin(discovery_chain::read(a, c))),
        Route::new("POST", "/v1/discovery-chain/{service}", P::ServiceRead, A::Servers, B::SMALL, "The same with `OverrideProtocol` and `OverrideConnectTimeout`", |a, c| Box::pin(discovery_chain::read(a, c))),
        Route::new("GET", "/v1/connect/intentions/check", P::IntentionsRead, A::Servers, B::NONE, "Whether `source` may connect to `destination`", |a, c| Box::pin(intention::check(a, c))),
        Route::new("GET", "/v1/connect/intentions/{id}", P::IntentionsRead, A::Servers, B::NONE, "One intention by its identifier; blocking", |a, c| Box::pin(intention::read_by_id(a, c))),
        Route::new("PUT", "/v1/connect/intentions/{id}", P::IntentionsWrite, A::Servers, B::INTENTION, "Change an intention, and its names, by its identifier", |a, c| Box::pin(intention::write_by_id(a, c))),
        Route::new("DELETE", "/v1/connect/intentions/{id}", P::IntentionsWrite, A::Servers, B::NONE, "Remove an intention by its identifier", |a, c| Box::pin(intention::delete_by_id(a, c))),
        Route::new("PUT", "/v1/config", P::ConfigWrite, A::Servers, B::CONFIG_ENTRY, "Write a config entry (`cas`)", |a, c| Box::pin(config::write(a, c))),
        Route::new("GET", "/v1/config/{kind}", P::ConfigRead, A::Servers, B::NONE, "Config entries of a kind; blocking", |a, c| Box::pin(config::list(a, c))),
        Route::new("GET", "/v1/config/{kind}/{name}", P::ConfigRead, A::Servers, B::NONE, "One config entry; blocking", |a, c| Box::pin(config::read(a, c))),
        Route::new("GET", "/v1/exported-services", P::ConfigRead, A::Servers, B::NONE, "What the `exported-services` entry comes to, by service; nobody is served by it; blocking", |a, c| Box::pin(exported::list(a, c))),
        Route::new("GET", "/v1/imported-services", P::ConfigRead, A::Servers, B::NONE, "Nothing: there are no peers; blocking", |a, c| Box::pin(exported::imported(a, c))),
        Route::new("DELETE", "/v1/config/{kind}/{name}", P::ConfigWrite, A::Servers, B::NONE, "Remove a config entry (`cas`)", |a, c| Box::pin(config::delete(a, c))),
    ]
}

#[rustfmt::skip]
fn coordination_routes() -> Vec<Route> {
    use Answerer as A;
    use BodyLimit as B;
    use Permission as P;
    vec![
        Route::new("GET", "/v1/kv/", P::KeyRead, A::Servers, B::NONE, "Every entry of the key-value store (`recurse`, `keys`, `separator`); blocking", |a, c| Box::pin(kv::read(a, c))),
        Route::new("DELETE", "/v1/kv/", P::KeyWrite, A::Servers, B::NONE, "Remove every entry (`recurse`)", |a, c| Box::pin(kv::delete(a, c))),
        Route::new("GET", "/v1/kv/{*key}", P::KeyRead, A::Servers, B::NONE, "An entry of the key-value store (`raw`), or those whose keys begin so (`recurse`, `keys`, `separator`); blocking", |a, c| Box::pin(kv::read(a, c))),
        Route::new("PUT", "/v1/kv/{*key}", P::KeyWrite, A::Servers, B::KV_VALUE, "Write an entry, whose value is the body (`flags`, `cas`, `acquire`, `release`); answers whether it was", |a, c| Box::pin(kv::write(a, c))),
        Route::new("DELETE", "/v1/kv/{*key}", P::KeyWrite, A::Servers, B::NONE, "Remove an entry (`cas`), or those whose keys begin so (`recurse`); answers whether it was", |a, c| Box::pin(kv::delete(a, c))),
        Route::new("PUT", "/v1/txn", P::KeyWrite, A::Servers, B::TRANSACTION, "Read and write up to 128 entries, nodes, services and checks, all or none; 409 with the reasons if none", |a, c| Box::pin(txn::run(a, c))),
        Route::new("PUT", "/v1/session/create", P::SessionWrite, A::Servers, B::SMALL, "Make a session, of the asking agent's node unless it names one", |a, c| Box::pin(session::create(a, c))),
        Route::new("PUT", "/v1/session/destroy/{id}", P::SessionWrite, A::Servers, B::NONE, "End a session, and what it has locked", |a, c| Box::pin(session::destroy(a, c))),
        Route::new("PUT", "/v1/session/renew/{id}", P::SessionWrite, A::Servers, B::NONE, "Have a session with a TTL go on", |a, c| Box::pin(session::renew(a, c))),
        Route::new("GET", "/v1/session/info/{id}", P::SessionRead, A::Servers, B::NONE, "A session, in a list that is empty without; blocking", |a, c| Box::pin(session::info(a, c))),
        Route::new("GET", "/v1/session/node/{node}", P::SessionRead, A::Servers, B::NONE, "The sessions of a node; blocking", |a, c| Box::pin(session::of_node(a, c))),
        Route::new("GET", "/v1/session/list", P::SessionRead, A::Servers, B::NONE, "Every session; blocking", |a, c| Box::pin(session::list(a, c))),
    ]
}

#[rustfmt::skip]
fn operator_routes() -> Vec<Route> {
    use Answerer as A;
    use BodyLimit as B;
    use Permission as P;
    vec![
        Route::new("GET", "/v1/operator/raft/configuration", P::OperatorRead, A::Servers, B::NONE, "The servers, as Consul would tell of its own", |a, c| Box::pin(operator::raft(a, c))),
        Route::new("DELETE", "/v1/operator/raft/peer", P::OperatorWrite, A::OwnListeners, B::NONE, "Refused: servers vote on nothing", |a, c| Box::pin(operator::without_raft(a, c))),
        Route::new("POST", "/v1/operator/raft/transfer-leader", P::OperatorWrite, A::OwnListeners, B::NONE, "Refused: servers vote on nothing", |a, c| Box::pin(operator::without_raft(a, c))),
        Route::new("GET", "/v1/operator/autopilot/configuration", P::OperatorRead, A::Servers, B::NONE, "Settings of Consul's autopilot, which are kept and do nothing", |a, c| Box::pin(operator::autopilot(a, c))),
        Route::new("PUT", "/v1/operator/autopilot/configuration", P::OperatorWrite, A::OwnListeners, B::SMALL, "Write them (`cas`)", |a, c| Box::pin(operator::write_autopilot(a, c))),
        Route::new("GET", "/v1/operator/autopilot/health", P::OperatorRead, A::Servers, B::NONE, "How the servers fare; 429 if one does not", |a, c| Box::pin(operator::health(a, c))),
        Route::new("GET", "/v1/operator/autopilot/state", P::OperatorRead, A::Servers, B::NONE, "The same, by identifier", |a, c| Box::pin(operator::state(a, c))),
        Route::new("GET", "/v1/operator/usage", P::OperatorRead, A::Servers, B::NONE, "How many nodes, services and instances there are; blocking", |a, c| Box::pin(operator::usage(a, c))),
        Route::new("PUT", "/v1/event/fire/{name}", P::AgentWrite, A::Servers, B::EVENT, "Tell an event (`node`, `service`, `tag`); its payload is the body", |a, c| Box::pin(event::fire(a, c))),
        Route::new("GET", "/v1/event/list", P::AgentRead, A::Servers, B::NONE, "The last 256 events of every server (`name`; `local`: of the one that is asked); blocking", |a, c| Box::pin(event::list(a, c))),
        Route::new("GET", "/v1/query", P::ServiceRead, A::Servers, B::NONE, "Every prepared query; blocking", |a, c| Box::pin(query::list(a, c))),
        Route::new("POST", "/v1/query", P::ServiceWrite, A::Servers, B::SMALL, "Make a prepared query, or a template of some", |a, c| Box::pin(query::create(a, c))),
        Route::new("GET", "/v1/query/{query}", P::ServiceRead, A::Servers, B::NONE, "A prepared query; blocking", |a, c| Box::pin(query::read(a, c))),
        Route::new("PUT", "/v1/query/{query}", P::ServiceWrite, A::Servers, B::SMALL, "Change a prepared query", |a, c| Box::pin(query::update(a, c))),
        Route::new("DELETE", "/v1/query/{query}", P::ServiceWrite, A::Servers, B::NONE, "Remove a prepared query", |a, c| Box::pin(query::delete(a, c))),
        Route::new("GET", "/v1/query/{query}/execute", P::ServiceRead, A::Servers, B::NONE, "Instances that a query means, by its identifier or a name (`near`, `limit`, `connect`)", |a, c| Box::pin(query::execute(a, c))),
        Route::new("GET", "/v1/query/{query}/explain", P::ServiceRead, A::Servers, B::NONE, "The query that a name comes to, its template filled in", |a, c| Box::pin(query::explain(a, c))),
        Route::new("GET", "/v1/coordinate/datacenters", P::Public, A::Servers, B::NONE, "The datacentres: this one", |a, c| Box::pin(coordinate::datacenters(a, c))),
        Route::new("GET", "/v1/coordinate/nodes", P::NodeRead, A::Servers, B::NONE, "Coordinates that the server was told of (`segment`)", |a, c| Box::pin(coordinate::nodes(a, c))),
        Route::new("GET", "/v1/coordinate/node/{node}", P::NodeRead, A::Servers, B::NONE, "Those of one node", |a, c| Box::pin(coordinate::node(a, c))),
        Route::new("PUT", "/v1/coordinate/update", P::NodeWrite, A::Servers, B::SMALL, "Tell the coordinates of a node, by which `?near` sorts lists", |a, c| Box::pin(coordinate::update(a, c))),
    ]
}

#[rustfmt::skip]
fn own_routes() -> Vec<Route> {
    use Answerer as A;
    use BodyLimit as B;
    use Permission as P;
    vec![
        Route::new("GET", "/starling/v1/changes", P::OperatorRead, A::Servers, B::NONE, "Receipts of recent changes by what all servers know, newest first (`local`: by the one that is asked alone)", |a, c| Box::pin(starling::changes(a, c))),
        Route::new("GET", "/starling/v1/changes/{revision}", P::OperatorRead, A::Servers, B::NONE, "Receipt of one change: who has applied it, who has not, who refused it (`wait`, `until`, `names`; `local` for the nodes of the server that is asked)", |a, c| Box::pin(starling::change(a, c))),
        Route::new("GET", "/starling/v1/nodes", P::OperatorRead, A::Servers, B::NONE, "Every node from which reports come, to whichever server: connected, revision applied, staleness, what is refused (`local`)", |a, c| Box::pin(starling::nodes(a, c))),
        Route::new("GET", "/starling/v1/servers", P::OperatorRead, A::Servers, B::NONE, "Every server: addresses, nodes attached, which leads; those that were lost; and whether the store takes writes (`members`: what each member of etcd says); blocking", |a, c| Box::pin(servers::list(a, c))),
        Route::new("GET", "/starling/v1/health/live", P::Public, A::Servers, B::NONE, "503 once the server that answers follows its store no longer", |a, c| Box::pin(servers::live(a, c))),
        Route::new("GET", "/starling/v1/health/ready", P::Public, A::Servers, B::NONE, "503 while the server that answers is to be sent nothing; with `writes` also while its store takes none", |a, c| Box::pin(servers::ready(a, c))),
        Route::new("GET", "/starling/v1/proxies", P::OperatorRead, A::Servers, B::NONE, "Every proxy that is known to any server: connected, revision applied, what it refused (`local`)", |a, c| Box::pin(starling::proxies(a, c))),
        Route::new("GET", "/starling/v1/diagnostics", P::OperatorRead, A::Agent, B::NONE, "What is wrong with what users wrote, and what to do", |a, c| Box::pin(starling::diagnostics(a, c))),
        Route::new("GET", "/starling/v1/can", P::IntentionsRead, A::Servers, B::NONE, "Whether a request may pass, and which rule decides (`source`, `destination`, `path`, `method`, `header=NAME:VALUE`)", |a, c| Box::pin(starling::can(a, c))),
        Route::new("GET", "/starling/v1/agent/xds", P::ServiceRead, A::Agent, B::NONE, "What a proxy of this node has to know to ask for its configuration: the node, its datacentre and the port of xDS", |a, c| Box::pin(agent::xds(a, c))),
        Route::new("PUT", "/starling/v1/agent/leaves/rotate", P::AgentWrite, A::Agent, B::NONE, "Have every leaf certificate of this node issued anew, with a new key", |a, c| Box::pin(starling::rotate_leaves(a, c))),
        Route::new("PUT", "/starling/v1/tokens/join", P::OperatorWrite, A::OwnListeners, B::SMALL, "Make a join token (`Reusable`, `TTL`, `Description`, `Services`); its text is answered here and never again", |a, c| Box::pin(token::create(a, c))),
        Route::new("GET", "/starling/v1/tokens/join", P::OperatorRead, A::Servers, B::NONE, "Join tokens, without their texts", |a, c| Box::pin(token::list(a, c))),
        Route::new("DELETE", "/starling/v1/tokens/join/{id}", P::OperatorWrite, A::OwnListeners, B::NONE, "Revoke a join token; nodes that have joined by it stay", |a, c| Box::pin(token::revoke(a, c))),
        Route::new("GET", "/v1/snapshot", P::OperatorWrite, A::OwnListeners, B::NONE, "The catalog at one revision as a snapshot file, of a form of Starling's own", |a, c| Box::pin(snapshot::save(a, c))),
        Route::new("PUT", "/v1/snapshot", P::OperatorWrite, A::OwnListeners, B::SNAPSHOT, "Set the catalog back to a snapshot file by ordinary changes; answers what was changed, what was left and what others wrote meanwhile", |a, c| Box::pin(snapshot::restore(a, c))),
        Route::new("GET", "/starling/v1/quarantine", P::OperatorRead, A::Servers, B::NONE, "Stored records that this release cannot use, and why", |a, c| Box::pin(quarantine::list(a, c))),
        Route::new("DELETE", "/starling/v1/quarantine", P::OperatorWrite, A::OwnListeners, B::NONE, "Delete a quarantined record from the store (`key`)", |a, c| Box::pin(quarantine::delete(a, c))),
        Route::new("GET", "/starling/v1/enrolments", P::OperatorRead, A::Servers, B::NONE, "List nodes and relays by the key that holds their name: epoch, status, and the services that a node may register", |a, c| Box::pin(enrolment::list(a, c))),
        Route::new("PUT", "/starling/v1/nodes/{node}/evict", P::OperatorWrite, A::OwnListeners, B::NONE, "Put a node out of the mesh: its keys count for nothing, its connections end, its records go", |a, c| Box::pin(enrolment::evict_node(a, c))),
        Route::new("PUT", "/starling/v1/nodes/{node}/release", P::OperatorWrite, A::OwnListeners, B::NONE, "Let another key take the name of a node that lost its own", |a, c| Box::pin(enrolment::release_node(a, c))),
        Route::new("PUT", "/starling/v1/relays/{node}/evict", P::OperatorWrite, A::OwnListeners, B::NONE, "Put a relay out of the mesh: its keys count for nothing, its connections end", |a, c| Box::pin(enrolment::evict_relay(a, c))),
        Route::new("PUT", "/starling/v1/relays/{node}/release", P::OperatorWrite, A::OwnListeners, B::NONE, "Let another key take the name of a relay that lost its own", |a, c| Box::pin(enrolment::release_relay(a, c))),
        Route::new("GET", "/starling/v1/ca", P::OperatorRead, A::Servers, B::NONE, "The CA: every trusted root, which of them signs, where its key is, and how far a rotation is", |a, c| Box::pin(authority::show(a, c))),
        Route::new("PUT", "/starling/v1/ca/rotate", P::OperatorWrite, A::OwnListeners, B::SMALL, "Have another root trusted, which signs once every node has applied that (`RenewWithin`, `Vault`)", |a, c| Box::pin(authority::rotate(a, c))),
        Route::new("PUT", "/starling/v1/ca/import", P::OperatorWrite, A::OwnListeners, B::CERTIFICATES, "Take a CA from elsewhere, its key sealed (`Root`, `Key`, `RenewWithin`)", |a, c| Box::pin(authority::import(a, c))),
        Route::new("PUT", "/starling/v1/ca/proceed", P::OperatorWrite, A::OwnListeners, B::NONE, "Go on with a rotation without the nodes and relays that have not applied it; names them", |a, c| Box::pin(authority::proceed(a, c))),
        Route::new("PUT", "/starling/v1/ca/reseal", P::OperatorWrite, A::OwnListeners, B::NONE, "Seal every key of the CA anew, with the first seal key of this server", |a, c| Box::pin(authority::reseal(a, c))),
        Route::new("DELETE", "/starling/v1/ca/roots/{id}", P::OperatorWrite, A::OwnListeners, B::NONE, "Trust a root no more that does not sign; one that has leaves only with `now`", |a, c| Box::pin(authority::remove(a, c))),
        Route::new("GET", "/starling/v1/server/leave", P::OperatorRead, A::Servers, B::NONE, "How far this server is with leaving: agents that are attached to it, and in reserve", |a, c| Box::pin(starling::leaving(a, c))),
        Route::new("PUT", "/starling/v1/server/leave", P::OperatorWrite, A::OwnListeners, B::NONE, "Have this server leave: its agents go to the others, and it ends", |a, c| Box::pin(starling::leave(a, c))),
        Route::new("GET", "/metrics", P::AgentRead, A::Agent, B::NONE, "Metrics in the OpenMetrics text form", |a, c| Box::pin(status::metrics(a, c))),
    ]
}
