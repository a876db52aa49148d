//! A gateway: callers from outside, and api behind its own sidecar.

use std::net::SocketAddr;
use std::sync::Arc;

use starling_model::{Action, HostPattern, InstanceId, Protocol, SourceDecision};
use starling_plan::{Edge, EdgeHost, EdgeRoute, Plan};
use tokio::net::TcpStream;

use crate::app::App;
use crate::wire::{Message, Wire};
use crate::world::{Ca, Setup, Sidecar, api_plan, free_port, next_address, rule, service, web_plan};

#[path = "edge/hosts.rs"]
mod hosts;
#[path = "edge/outside.rs"]
mod outside;
#[path = "edge/tls.rs"]
mod tls;

/// A gateway with one port, and api behind it.
pub struct Gateway {
    pub ca: Ca,
    pub sidecar: Sidecar,
    pub app: App,
    /// Where it listens.
    pub address: SocketAddr,
    _api: Sidecar,
}

impl Gateway {
    /// A gateway that lets in what `edge` says; the address is put in.
    pub async fn start(edge: Edge) -> Self {
        Self::start_with(Setup::of(edge.protocol), edge).await
    }

    pub async fn start_with(mut setup: Setup, edge: Edge) -> Self {
        setup.rules = vec![rule("ingress", SourceDecision::Connection(Action::Allow))];
        Self::behind(setup, edge).await
    }

    /// The same, with the rules of the setup.
    pub async fn behind(setup: Setup, edge: Edge) -> Self {
        let (ca, ip) = (Ca::new(), next_address());
        let app = App::bind(ip).await;
        let public = free_port(ip).await;
        let api = Sidecar::start(&setup, api_plan(&ca, &setup, public, app.address), ca.keys("api")).await;
        let address = free_port(ip).await;
        let mut plan = Plan {
            service: service("ingress"),
            outbounds: Vec::new(),
            edges: vec![Arc::new(Edge { bind: address, ..edge })],
            ..web_plan(&ca, &setup, address, &[public])
        };
        plan.proxy.id = InstanceId::new("ingress").unwrap();
        let sidecar = Sidecar::start(&setup, plan, ca.keys("ingress")).await;
        Self { ca, sidecar, app, address, _api: api }
    }

    /// Lets in what `change` makes of it.
    pub async fn change(&mut self, change: impl FnOnce(&mut Edge)) {
        let mut edge = Edge::clone(&self.sidecar.plan.edges[0]);
        change(&mut edge);
        self.sidecar.plan.edges = vec![Arc::new(edge)];
        self.sidecar.apply().await;
    }

    /// A connection from outside.
    pub async fn client(&self) -> Wire<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Wire::new(stream)
    }

    /// Asks for a host over a connection of its own.
    pub async fn ask(&self, host: &str) -> Message {
        let mut client = self.client().await;
        client.send(format!("GET /path?q=1 HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
        client.message().await
    }
}

/// A port that is open to everybody for these hosts.
pub fn edge(protocol: Protocol, hosts: &[&str]) -> Edge {
    let host = |name: &&str| EdgeHost { hosts: vec![pattern(name)], ..to_api() };
    let hosts: Vec<_> = if hosts.is_empty() { vec![to_api()] } else { hosts.iter().map(host).collect() };
    Edge {
        bind: SocketAddr::from(([127, 0, 0, 1], 0)),
        protocol,
        tls: None,
        proxy_protocol: false,
        trusted_proxies: Vec::new(),
        max_connections: None,
        route: EdgeRoute::Hosts(hosts),
    }
}

pub fn pattern(host: &str) -> HostPattern {
    HostPattern::try_from(host.to_owned()).unwrap()
}

/// Api, by no host.
pub fn to_api() -> EdgeHost {
    let edits = starling_model::HeaderEdits::default;
    EdgeHost { service: service("api"), hosts: Vec::new(), request_headers: edits(), response_headers: edits() }
}
