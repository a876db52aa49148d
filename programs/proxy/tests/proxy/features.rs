//! What a plan says of traffic, seen at the endpoints: one sidecar, web's, with a plan written by the test, and endpoints that
//! answer as the test says.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use starling_model::{Percent, Protocol, RequestMatch, RetryPolicy, ServiceName};
use starling_plan::{Cluster, Endpoint, Endpoints, Plan, Routes};
use starling_traffic::{Forward, RouteRule, RouteTable, RuleAction, WEIGHT_TOTAL, WeightedTarget};
use tokio::net::TcpStream;

use self::backend::Backend;
use crate::app::{Answer, answer};
use crate::http2::request;
use crate::wire::{Message, Wire, within};
use crate::world::{Ca, Setup, Sidecar, free_port, next_address, service, web_plan};

#[path = "features/backend.rs"]
mod backend;
#[path = "features/balance.rs"]
mod balance;
#[path = "features/bridge.rs"]
mod bridge;
#[path = "features/health.rs"]
mod health;
#[path = "features/http2.rs"]
mod http2;
#[path = "features/limits.rs"]
mod limits;
#[path = "features/routes.rs"]
mod routes;
#[path = "features/tries.rs"]
mod tries;

/// Web's sidecar and the plan that it is to have.
pub struct Mesh {
    pub ca: Ca,
    pub plan: Plan,
    pub outbound: SocketAddr,
    pub ip: IpAddr,
    /// Of web's engine.
    pub workers: usize,
    protocol: Protocol,
    web: Option<Sidecar>,
}

impl Mesh {
    /// Web calls api, of which there is nothing yet.
    pub async fn new(protocol: Protocol) -> Self {
        let (ca, ip) = (Ca::new(), next_address());
        let outbound = free_port(ip).await;
        let mut plan = web_plan(&ca, &Setup::of(protocol), outbound, &[]);
        (plan.clusters, plan.endpoints) = (Vec::new(), Vec::new());
        Self { ca, plan, outbound, ip, workers: 1, protocol, web: None }
    }

    /// One cluster of api with so many endpoints, and the routes that the test makes of a plain one.
    pub async fn of_one(protocol: Protocol, count: usize, edit: impl FnOnce(&mut Forward)) -> (Self, Vec<Backend>) {
        let mut mesh = Self::new(protocol).await;
        let mut backends = Vec::new();
        for number in 0..count {
            backends.push(mesh.backend(&format!("api-{number}")).await);
        }
        mesh.cluster("api", &backends.iter().collect::<Vec<_>>());
        let mut forward = to(&[("api", 100)]);
        edit(&mut forward);
        mesh.routes(vec![always(forward)]);
        (mesh, backends)
    }

    /// An endpoint of api.
    pub async fn backend(&self, name: &str) -> Backend {
        Backend::start(&self.ca, self.ip, "api", name).await
    }

    /// An address at which nobody listens.
    pub async fn nobody(&self) -> SocketAddr {
        free_port(self.ip).await
    }

    /// A cluster `[SUBSET.]SERVICE` with these endpoints.
    pub fn cluster(&mut self, name: &str, backends: &[&Backend]) -> &mut Cluster {
        let addresses: Vec<_> = backends.iter().map(|backend| backend.address).collect();
        self.cluster_at(name, &addresses)
    }

    pub fn cluster_at(&mut self, name: &str, addresses: &[SocketAddr]) -> &mut Cluster {
        let api = web_plan(&self.ca, &Setup::of(self.protocol), self.outbound, &[]);
        let (subset, service) = split(name);
        let sni = sni_of(name);
        let identity = crate::world::identity(service.as_str());
        let cluster = Cluster {
            sni: sni.clone(),
            subset: subset.clone(),
            service: service.clone(),
            identity,
            ..(*api.clusters[0]).clone()
        };
        let endpoints =
            Endpoints { service, subset, cluster: sni, from: None, endpoints: sorted(addresses), failover: Vec::new() };
        self.plan.endpoints.push(Arc::new(endpoints));
        self.plan.clusters.push(Arc::new(cluster));
        Arc::make_mut(self.plan.clusters.last_mut().unwrap())
    }

    /// Where the cluster of that place is.
    pub fn endpoints(&mut self, place: usize) -> &mut Endpoints {
        Arc::make_mut(&mut self.plan.endpoints[place])
    }

    pub fn routes(&mut self, rules: Vec<RouteRule>) {
        let (service, protocol, table) = (service("api"), self.protocol, Arc::new(RouteTable::new(rules)));
        self.plan.routes = vec![Arc::new(Routes { service, protocol, table, targets: Vec::new(), retry_budget: None })];
    }

    /// Puts the plan in force.
    pub async fn serve(&mut self) {
        match &mut self.web {
            Some(web) => {
                web.plan = self.plan.clone();
                web.apply().await;
            }
            None => {
                let setup = Setup { workers: self.workers, ..Setup::of(self.protocol) };
                self.web = Some(Sidecar::start(&setup, self.plan.clone(), self.ca.keys("web")).await);
            }
        }
    }

    pub async fn client(&self) -> Wire<TcpStream> {
        Wire::new(TcpStream::connect(self.outbound).await.unwrap())
    }

    /// Sends what the test wrote, on a connection of its own.
    pub async fn ask(&self, request: &str) -> Message {
        let mut client = self.client().await;
        client.send(request).await;
        client.message().await
    }

    pub async fn get(&self, path: &str) -> Message {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: api\r\n\r\n")).await
    }

    pub async fn post(&self, body: &[u8]) -> Message {
        let mut client = self.client().await;
        client.send(format!("POST / HTTP/1.1\r\nhost: api\r\ncontent-length: {}\r\n\r\n", body.len())).await;
        // Whoever answers early may take no more.
        let _ = client.try_send(body).await;
        client.message().await
    }

    /// A connection of HTTP/2.
    pub async fn client2(&self) -> h2::client::SendRequest<bytes::Bytes> {
        let tcp = TcpStream::connect(self.outbound).await.unwrap();
        let (sender, connection) = within(h2::client::handshake(tcp)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    pub async fn get2(&self, path: &str) -> Answer {
        let mut sender = within(self.client2().await.ready()).await.unwrap();
        answer(sender.send_request(request("GET", path), true).unwrap().0).await.unwrap()
    }
}

fn split(name: &str) -> (Option<starling_model::SubsetName>, ServiceName) {
    match name.split_once('.') {
        Some((subset, name)) => (Some(subset.parse().unwrap()), service(name)),
        None => (None, service(name)),
    }
}

fn sni_of(name: &str) -> String {
    format!("{name}.default.dc1.internal.{}", crate::world::identity("api").trust_domain)
}

pub fn sorted(addresses: &[SocketAddr]) -> Vec<Endpoint> {
    let mut endpoints: Vec<_> =
        addresses.iter().map(|it| Endpoint { address: it.ip(), port: it.port(), weight: 1 }).collect();
    endpoints.sort();
    endpoints
}

/// To clusters by their share in percent.
pub fn to(targets: &[(&str, u32)]) -> Forward {
    let target = |(name, percent): &(&str, u32)| WeightedTarget {
        cluster: sni_of(name).as_str().into(),
        weight: percent * WEIGHT_TOTAL / 100,
        request_headers: starling_model::HeaderEdits::default(),
        response_headers: starling_model::HeaderEdits::default(),
    };
    Forward {
        targets: targets.iter().map(target).collect(),
        timeout: Some(Duration::from_secs(15)),
        ..Forward::default()
    }
}

pub fn rule(matches: RequestMatch, forward: Forward) -> RouteRule {
    RouteRule { matches, action: RuleAction::Forward(Box::new(forward)) }
}

pub fn always(forward: Forward) -> RouteRule {
    rule(RequestMatch::default(), forward)
}

pub fn percent(number: u16) -> Percent {
    Percent::of_hundredths(number * 100).unwrap()
}

/// So many tries beyond the first, on these conditions.
pub fn retry(retries: u32, on: &[&str]) -> RetryPolicy {
    RetryPolicy {
        retries: Some(retries),
        on: on.iter().map(|it| it.parse().unwrap()).collect(),
        ..RetryPolicy::default()
    }
}
