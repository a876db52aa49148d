//! A server with everything that it serves: the API, DNS, and the port for agents. An agent may live beside it.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::anyhow;
use http::Request;
use hyper::body::Incoming;
use starling_admission::Shares;
use starling_agent::Proxies;
use starling_dns::Responder;
use starling_http_api::{AgentPort, EntryPoint, MeshFacts, Ports, Router};
use starling_model::{Action, Node, NodeName};
use starling_rpc::{Api, LoopbackListener, ProxySource};
use starling_server::{Door, Server};
use starling_telemetry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::{ServiceExt, service_fn};

use super::catalog::Catalog;
use super::dns_for_agents::ForAgents;
use super::dns_reader::{Asker, DnsReader};
use super::doors::DnsSockets;
use super::http_doors::HttpSockets;
use super::peers::Peers;
use super::proxies_door::ProxiesDoor;
use super::{Serving, cut_off, dns_for_agents, doors, server_certificate};

/// Envoy minors that the tests run, newest first.
pub(crate) const ENVOY_VERSIONS: [&str; 1] = ["1.40.0"];

/// The sockets of a server.
pub(crate) struct ServerSockets {
    pub(crate) http: HttpSockets,
    pub(crate) grpc_tls: Option<TcpListener>,
    /// Where DNS is, the first being the one that others are told of.
    pub(crate) dns: Vec<DnsSockets>,
}

/// An agent in the server's process.
pub(crate) struct Beside {
    pub(crate) agent: Arc<dyn AgentPort>,
    pub(crate) proxies: Proxies,
    /// Where its proxies find xDS in plaintext.
    pub(crate) grpc: Option<LoopbackListener>,
}

/// A server, and the way in for agents.
pub(crate) struct Control {
    pub(crate) server: Arc<Server>,
    pub(crate) door: Arc<Door>,
    pub(crate) registry: Registry,
    default_intention_action: Action,
    /// Whether nobody is to be given roots or leaves.
    pub(crate) connect_off: bool,
    /// Whether answers say that addresses are translated.
    pub(crate) translates_addresses: bool,
    /// What answers over DNS are like.
    pub(crate) dns: starling_dns::Settings,
    acl_default: Option<Action>,
}

impl Control {
    /// A server that runs; `own_node` is the node whose agent lives beside it.
    pub(crate) fn new(
        server: Arc<Server>,
        registry: Registry,
        default_intention_action: Action,
        acl_default: Option<Action>,
        own_node: Option<NodeName>,
    ) -> Self {
        let door = Door::new(Arc::clone(&server), default_intention_action == Action::Allow, acl_default);
        let door = Arc::new(match own_node {
            Some(node) => door.beside(node),
            None => door,
        });
        let dns = starling_dns::Settings::default();
        let (connect_off, translates_addresses) = (false, false);
        Self { server, door, registry, default_intention_action, connect_off, translates_addresses, dns, acl_default }
    }

    /// Opens the doors.
    pub(crate) async fn open(
        &self,
        serving: &Serving,
        sockets: ServerSockets,
        own: &Node,
        beside: Option<Beside>,
        shares: Shares,
    ) -> anyhow::Result<()> {
        let plaintext =
            beside.as_ref().and_then(|beside| beside.grpc.as_ref()).map(LoopbackListener::local_addr).transpose()?;
        let facts = self.facts(&sockets, own, plaintext)?;
        let ServerSockets { http, grpc_tls, dns } = sockets;
        let (agent, proxies) =
            beside.as_ref().map(|beside| (Arc::clone(&beside.agent), beside.proxies.clone())).unzip();
        let peers = Arc::new(Peers::new(Arc::clone(&self.server)));
        serving.spawn_endless(cut_off::run(Arc::clone(&self.server), Arc::clone(&peers))).await;
        let catalog = Arc::new(Catalog {
            server: Arc::clone(&self.server),
            peers,
            proxies: proxies.clone(),
            registry: self.registry.clone(),
            facts,
            receiving: Arc::new(Semaphore::new(1)),
        });
        let api = |agent, entry_point| {
            starling_http_api::router(Ports { catalog: Arc::clone(&catalog) as _, agent, servers: None, entry_point })
        };
        let own_api = api(agent.clone(), EntryPoint::Own);
        let for_agents = http.audited(api(None, EntryPoint::Agents));
        let for_agents = starling_http_api::stopped_by(for_agents, serving.stopping());
        // Before anything answers: what answers can be stopped, and a start that is stopped halfway leaves its record behind.
        let for_members = match grpc_tls {
            Some(grpc_tls) => {
                let (tls, renewing) = server_certificate::listener(&self.server, grpc_tls.local_addr()?.ip()).await?;
                serving.spawn_endless(renewing).await;
                Some((grpc_tls, tls))
            }
            None => None,
        };
        http.serve(serving, own_api, &shares).await;
        if let Some(Beside { agent, proxies, grpc: Some(grpc) }) = beside {
            let source = Arc::new(ProxiesDoor { proxies, agent, catalog: Arc::clone(&catalog) as _ });
            let served = starling_rpc::serve(grpc, source, shares.grpc, serving.stopped());
            serving.spawn_door("xDS", served).await;
        }
        let asker = agent.map_or(Asker::Anybody, Asker::Agent);
        let responder = Responder::new(DnsReader::new(Arc::clone(&catalog), asker)).configured(self.dns.clone());
        let responder = Arc::new(responder.counted(&self.registry));
        for DnsSockets { udp, tcp } in dns {
            serving.spawn(starling_dns::serve(udp, tcp, Arc::clone(&responder), shares.dns, serving.stopped())).await;
        }
        let Some((grpc_tls, tls)) = for_members else { return Ok(()) };
        // They have tokens of their own, which are not this agent's.
        let for_agents = asked_by_agents(for_agents, Arc::new(ForAgents::new(catalog, self.dns.clone())));
        let doors = starling_rpc::Doors {
            proxies: proxies.map(|proxies| Arc::new(proxies) as Arc<dyn ProxySource>),
            agents: Some(Arc::clone(&self.door) as _),
            api: Some(for_agents),
        };
        let served = starling_rpc::serve_tls(grpc_tls, tls, doors, shares.grpc_tls, serving.stopped());
        serving.spawn_door("gRPC over TLS", served).await;
        Ok(())
    }

    fn facts(&self, sockets: &ServerSockets, own: &Node, grpc: Option<SocketAddr>) -> anyhow::Result<MeshFacts> {
        let http = sockets.http.address().to_string();
        Ok(MeshFacts {
            datacenter: self.server.datacenter().clone(),
            trust_domain: self.server.trust_domain().clone(),
            default_intention_action: self.default_intention_action,
            acl_default: self.acl_default,
            leader_address: http.clone(),
            peer_addresses: vec![http],
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node_name: own.name.clone(),
            node_id: own.id.clone(),
            node_address: own.address.clone(),
            grpc_port: grpc.map(|grpc| grpc.port()),
            grpc_tls_port: sockets.grpc_tls.as_ref().map(TcpListener::local_addr).transpose()?.map(|at| at.port()),
            dns_port: doors::port(&sockets.dns),
            envoy_versions: ENVOY_VERSIONS.map(str::to_owned).to_vec(),
            connect_off: self.connect_off,
            translates_addresses: self.translates_addresses,
        })
    }
}

/// What agents are asked and cannot answer: the API, and DNS.
fn asked_by_agents(api: Router, dns: Arc<ForAgents>) -> Api {
    Api::new(service_fn(move |request: Request<Incoming>| {
        let (api, dns) = (api.clone(), Arc::clone(&dns));
        async move {
            match request.uri().path() {
                dns_for_agents::PATH => Ok(dns.answer(request).await),
                _ => api.oneshot(request).await,
            }
        }
    }))
}

/// Returns when the server can no longer work, with the reason.
pub(crate) async fn failed(server: &Server) -> anyhow::Error {
    anyhow!("the catalog no longer follows the store: {}", server.halted().await)
}
