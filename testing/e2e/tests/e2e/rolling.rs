//! A rolling upgrade from the release before, under load: no request fails, no policy has a gap, every receipt is kept.
//!
//! The release before is that of `STARLING_PREVIOUS`, which `make upgrade` builds; without it the same binary is restarted.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use starling_e2e::etcd::Etcd;
use starling_e2e::{
    DEADLINE, Instance, Mesh, MeshOptions, Method, Plane, Process, Program, Served, Traffic, Workload, eventually,
    http, tools,
};
use tokio::task::JoinHandle;

use crate::apart::token;
use crate::streams::{STANDBY, until_metric};

/// Requests that are answered between two steps.
const BETWEEN_STEPS: u64 = 50;

/// Servers of the release before that share an etcd.
async fn servers(etcd: &Etcd, count: usize) -> Vec<Mesh> {
    let mut servers = Vec::new();
    for _ in 0..count {
        let options = MeshOptions {
            program: Program::Server(String::new()),
            store: Some(etcd.store()),
            binary: Some(tools::previous()),
            ..MeshOptions::default()
        };
        servers.push(Mesh::start(options).await);
    }
    servers
}

/// An agent of the release before; its sidecars are processes of their own, which serve while it is away.
async fn agent(name: &str, servers: &[Mesh]) -> Mesh {
    let token = Some(token(&servers[0], &[]).await);
    let server = servers.iter().map(|server| server.addresses.grpc_tls.as_str()).collect::<Vec<_>>().join(",");
    let program = Program::Agent { node: name.to_owned(), server, token };
    Mesh::start(MeshOptions { program, binary: Some(tools::previous()), ..MeshOptions::default() }).await
}

/// Two nodes, and what is called from the one at the other: by native proxies of their own and by Envoys.
struct Fleet {
    caller: Mesh,
    called: Mesh,
    web: Instance<Served>,
    services: Vec<Instance<Served>>,
}

/// Who is called, by whom it is served, and whether web may call it.
const CALLED: [(&str, Plane, bool); 5] = [
    ("api", Plane::Own, true),
    ("legacy", Plane::Envoy, true),
    ("secret", Plane::Own, false),
    ("hidden", Plane::Envoy, false),
    // As the changes say.
    (TOGGLED, Plane::Own, true),
];

const TOGGLED: &str = "toggled";

impl Fleet {
    async fn start(servers: &[Mesh]) -> Self {
        let (caller, called) = (agent("n1", servers).await, agent("n2", servers).await);
        let mut web = Workload::new("web");
        for (service, _, allowed) in CALLED {
            called.protocol(service, "http").await;
            // That the one is lost shows as a failure, that the other is as a call that gets through.
            if allowed {
                called.intention("*", service, "deny").await;
            }
            called.intention("web", service, if allowed { "allow" } else { "deny" }).await;
            web = web.calls(service);
        }
        let mut services = Vec::new();
        for (service, plane, _) in CALLED {
            services.push(Workload::new(service).start_on(&called, plane).await);
        }
        let web = web.start_on(&caller, Plane::Own).await;
        for (service, _, allowed) in CALLED {
            crate::apart::answered(&web, service, if allowed { 200 } else { 403 }, "the fleet is up").await;
        }
        Self { caller, called, web, services }
    }

    /// Each service is called all the time, but for the one that changes.
    fn load(&self) -> Vec<Traffic> {
        let steady = CALLED.iter().filter(|(service, ..)| *service != TOGGLED);
        let load = |(service, _, allowed): &(&str, Plane, bool)| {
            Traffic::answered_with(if *allowed { 200 } else { 403 }, &self.web.upstream(service), "/")
        };
        steady.map(load).collect()
    }

    fn agents(&mut self) -> [&mut Mesh; 2] {
        [&mut self.caller, &mut self.called]
    }

    /// Every native proxy gives its place to one of the binary that its agent is of.
    async fn take_proxies_over(&mut self) {
        let Self { caller, called, web, services } = self;
        let of_called = services.iter_mut().zip(CALLED).filter(|(_, (_, plane, _))| *plane == Plane::Own);
        for (instance, mesh) in of_called.map(|(instance, _)| (instance, &*called)).chain([(web, &*caller)]) {
            let ports: Vec<_> = instance.upstream_ports.values().copied().chain([instance.public_port]).collect();
            let proxy = instance.sidecar.own();
            let status = proxy.taken_over(mesh, &instance.id, &[]).await;
            assert!(status.success(), "the proxy of {} ended with {status}", instance.id);
            proxy.live(&instance.id, &ports).await;
        }
    }

    fn processes(&mut self) -> Vec<&mut Process> {
        let Self { caller, called, web, services } = self;
        let own = services.iter_mut().zip(CALLED).filter(|(_, (_, plane, _))| *plane == Plane::Own);
        let own = own.map(|(instance, _)| instance).chain([web]).map(|instance| &mut instance.sidecar.own().process);
        [caller.server(), called.server()].into_iter().chain(own).collect()
    }
}

/// Changes without a pause, one after another, at whichever servers are there: each has to be in force once its receipt says
/// so.
struct Changes {
    shared: Arc<Changing>,
    work: JoinHandle<Vec<Duration>>,
}

struct Changing {
    stop: AtomicBool,
    /// The APIs of the servers that take writes.
    there: Mutex<Vec<String>>,
    /// Where the service is called that the changes are of.
    toggled: String,
}

impl Changes {
    fn start(servers: &[Mesh], fleet: &Fleet) -> Self {
        let there = servers.iter().map(|server| server.addresses.http.clone()).collect();
        let (stop, toggled) = (AtomicBool::new(false), fleet.web.upstream(TOGGLED));
        let shared = Arc::new(Changing { stop, there: Mutex::new(there), toggled });
        let working = Arc::clone(&shared);
        Self { shared, work: tokio::spawn(async move { working.work().await }) }
    }

    /// Nobody is to ask that server any more, as a load balancer would see by its readiness.
    fn without(&self, server: &Mesh) {
        self.there().retain(|address| *address != server.addresses.http);
    }

    fn with(&self, server: &Mesh) {
        self.there().push(server.addresses.http.clone());
    }

    fn there(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.shared.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends them; how long each took until it was in force, the shortest first.
    async fn stop(mut self) -> Vec<Duration> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut took = (&mut self.work).await.expect("every change comes in force");
        took.sort_unstable();
        took
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl Changing {
    /// The API of a server that is there, another each time.
    fn server(&self, turn: usize) -> String {
        let there = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        there[turn % there.len()].clone()
    }

    async fn work(&self) -> Vec<Duration> {
        let mut took = Vec::new();
        for turn in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let allowed = turn % 2 == 1;
            let begun = Instant::now();
            let intention = json!({"Action": if allowed { "allow" } else { "deny" }});
            let target = format!("/v1/connect/intentions/exact?source=web&destination={TOGGLED}");
            let body = intention.to_string();
            let written = http::request(Method::PUT, &self.server(turn), &target, &[], body).await;
            let revision = written.unwrap_or_else(|error| panic!("change {turn}: {error:#}")).success().index();
            let receipt = self.settled(turn, revision).await;
            took.push(begun.elapsed());
            let answer = http::get(&self.toggled, "/").await.unwrap_or_else(|error| panic!("change {turn}: {error:#}"));
            let expected = if allowed { 200 } else { 403 };
            assert_eq!(answer.status, expected, "change {turn} is in force, says its receipt: {receipt}");
        }
        took
    }

    /// Waits until everybody has applied a change, whichever server is asked.
    async fn settled(&self, turn: usize, revision: u64) -> Value {
        let (begun, target) = (Instant::now(), format!("/starling/v1/changes/{revision}?wait=1s"));
        for asked in turn + 1.. {
            let receipt = http::get(&self.server(asked), &target).await;
            let receipt = receipt.unwrap_or_else(|error| panic!("the receipt of {turn}: {error:#}")).success().json();
            assert_eq!(receipt["rejected"], json!([]), "change {turn} is refused: {receipt}");
            if receipt["settled"] == true {
                return receipt;
            }
            assert!(begun.elapsed() < DEADLINE, "change {turn} is not in force everywhere: {receipt}");
        }
        unreachable!("there is no end of numbers")
    }
}

async fn some_requests(load: &[Traffic]) {
    for traffic in load {
        traffic.requests(BETWEEN_STEPS).await;
    }
}

/// A server leaves, and another of the new binary takes its place.
async fn replace_server(server: &mut Mesh, new: &Path, by_command: bool) {
    if by_command {
        let left = server.cli(&["server", "leave"]).await.success();
        assert!(left.stdout.contains("\nleft http"), "{left}");
        eventually("the server that has left ends", async || {
            server.server().ended().ok_or_else(|| anyhow::anyhow!("it runs: {}", server.server().log()))
        })
        .await;
    } else {
        let status = tokio::task::block_in_place(|| server.end_with(Signal::SIGTERM));
        assert!(status.success(), "the server ended with {status}");
    }
    server.restart_from(new.to_owned()).await;
    eventually("the server takes writes", async || {
        let ready = http::get(&server.addresses.http, "/starling/v1/health/ready?writes").await?;
        anyhow::ensure!(ready.status == 200, "{}: {}", ready.status, ready.text());
        Ok(())
    })
    .await;
}

async fn replace_agent(agent: &mut Mesh, new: &Path) {
    let status = tokio::task::block_in_place(|| agent.end_with(Signal::SIGTERM));
    assert!(status.success(), "the agent ended with {status}");
    agent.restart_from(new.to_owned()).await;
    until_metric(agent, STANDBY, 1.0).await;
}

/// The program that a process runs, as the system knows it.
fn program(process: &Process) -> PathBuf {
    std::fs::read_link(format!("/proc/{}/exe", process.pid())).expect("it runs")
}

/// Everybody runs the new binary, and says so.
async fn all_are_new(servers: &mut [Mesh], fleet: &mut Fleet, new: &Path) {
    let version = servers[0].cli(&["version", "-o", "json"]).await.success().json();
    let listed = servers[0].get("/starling/v1/servers").await.success().json();
    let listed = listed["servers"].as_array().cloned().unwrap_or_default();
    assert_eq!(listed.len(), servers.len(), "{listed:?}");
    for server in &listed {
        assert_eq!(server["version"], version["version"], "{server}");
    }
    let new = new.canonicalize().expect("a path");
    let all = servers.iter_mut().map(Mesh::server).chain(fleet.processes());
    for process in all {
        assert_eq!(program(process), new, "{process:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_upgrade_under_load_fails_no_request_and_leaves_no_gap() {
    let (etcd, new) = (Etcd::start().await, tools::starling());
    let mut servers = servers(&etcd, 3).await;
    let mut fleet = Fleet::start(&servers).await;
    for agent in fleet.agents() {
        until_metric(agent, STANDBY, 1.0).await;
    }
    let load = fleet.load();
    let changes = Changes::start(&servers, &fleet);
    some_requests(&load).await;
    let begun = Instant::now();

    for (number, server) in servers.iter_mut().enumerate() {
        changes.without(server);
        replace_server(server, &new, number == 0).await;
        changes.with(server);
        for agent in fleet.agents() {
            // The next one may go only once nobody relies on it alone.
            until_metric(agent, STANDBY, 1.0).await;
        }
        some_requests(&load).await;
        println!("server {number} is new after {:?}", begun.elapsed());
    }
    for agent in fleet.agents() {
        replace_agent(agent, &new).await;
        some_requests(&load).await;
        println!("an agent is new after {:?}", begun.elapsed());
    }
    fleet.take_proxies_over().await;
    some_requests(&load).await;
    println!("all is new after {:?}", begun.elapsed());

    all_are_new(&mut servers, &mut fleet, &new).await;
    let took = changes.stop().await;
    println!("{} changes: median {:?}, longest {:?}", took.len(), took[took.len() / 2], took[took.len() - 1]);
    for (traffic, (service, ..)) in load.into_iter().zip(CALLED) {
        println!("{service}: {} requests", traffic.stop_without_failure().await);
    }
}

/// Not the order that is told to operators: nothing may break by it all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_are_upgraded_before_their_servers_go_on() {
    let (etcd, new) = (Etcd::start().await, tools::starling());
    let mut servers = servers(&etcd, 2).await;
    let mut fleet = Fleet::start(&servers).await;
    for agent in fleet.agents() {
        until_metric(agent, STANDBY, 1.0).await;
    }
    let load = fleet.load();
    let changes = Changes::start(&servers, &fleet);
    for agent in fleet.agents() {
        replace_agent(agent, &new).await;
    }
    fleet.take_proxies_over().await;
    some_requests(&load).await;
    for server in &mut servers {
        changes.without(server);
        replace_server(server, &new, false).await;
        changes.with(server);
        for agent in fleet.agents() {
            until_metric(agent, STANDBY, 1.0).await;
        }
    }
    some_requests(&load).await;
    all_are_new(&mut servers, &mut fleet, &new).await;
    println!("{} changes", changes.stop().await.len());
    for (traffic, (service, ..)) in load.into_iter().zip(CALLED) {
        println!("{service}: {} requests", traffic.stop_without_failure().await);
    }
}
