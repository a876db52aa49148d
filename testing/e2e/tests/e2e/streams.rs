//! Agents of several servers on one etcd: none of them misses one that dies or leaves, and none has to be told of all.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use starling_e2e::etcd::Etcd;
use starling_e2e::{Instance, Mesh, MeshOptions, Program, Traffic, Workload, eventually};

use crate::apart::token;

/// Short, so that a node that is lost by mistake is lost within the test.
const GRACE: &str = "node_grace = \"3s\"\n";

/// Longer than a server's lease and the grace together.
const UNTIL_LOST: &str = "12s";

/// From a change to its being in force, with the loss of a server before it.
const APPLIED_WITHIN: Duration = Duration::from_secs(1);

/// Until a server that hangs is given up, and another was found: each in three seconds.
const HUNG_WITHIN: Duration = Duration::from_secs(10);

async fn server(etcd: &Etcd) -> Mesh {
    let options =
        MeshOptions { program: Program::Server(GRACE.to_owned()), store: Some(etcd.store()), ..MeshOptions::default() };
    Mesh::start(options).await
}

pub(crate) async fn agent(name: &str, servers: &[&Mesh]) -> Mesh {
    let server = servers.iter().map(|server| server.addresses.grpc_tls.as_str()).collect::<Vec<_>>().join(",");
    let token = Some(token(servers[0], &[]).await);
    let program = Program::Agent { node: name.to_owned(), server, token };
    Mesh::start(MeshOptions { program, native: true, ..MeshOptions::default() }).await
}

/// The value of one series of an agent's metrics.
pub(crate) async fn metric(agent: &Mesh, series: &str) -> Option<f64> {
    let text = agent.get("/metrics").await.success().text();
    let rest = text.lines().find_map(|line| line.strip_prefix(series))?;
    // A series without labels may have empty ones.
    rest.trim_start_matches("{}").trim().parse().ok()
}

pub(crate) async fn until_metric(agent: &Mesh, series: &str, value: f64) {
    eventually(&format!("{series} is {value}"), async || {
        let found = metric(agent, series).await;
        anyhow::ensure!(found == Some(value), "{found:?}");
        Ok(())
    })
    .await;
}

pub(crate) const STANDBY: &str = "starling_agent_streams{role=\"standby\"}";

/// Whether an agent's primary stream is at this server.
pub(crate) async fn is_attached(server: &Mesh, name: &str) -> bool {
    let nodes = server.get("/starling/v1/nodes?local").await.success().json();
    let found = nodes["nodes"].as_array().into_iter().flatten().find(|node| node["node"] == name);
    found.is_some_and(|node| node["connected"] == true)
}

/// Two servers, the one first that the agent is attached to, and the agent with a workload that calls another.
struct Two {
    primary: Mesh,
    other: Mesh,
    agent: Mesh,
    traffic: Traffic,
    _workloads: [Instance; 2],
    /// The index of what is written on the node's liveness.
    alive_since: u64,
}

const LIVENESS: &str = "/v1/health/node/n1";

async fn two(etcd: &Etcd) -> Two {
    let first = server(etcd).await;
    let second = server(etcd).await;
    let agent = agent("n1", &[&first, &second]).await;
    let api = Workload::new("api").start(&agent).await;
    let web = Workload::new("web").calls("api").start(&agent).await;
    web.served_by("api", &["api"], "it is called").await;
    let traffic = Traffic::start(&web.upstream("api"), "/");
    until_metric(&agent, STANDBY, 1.0).await;
    eventually("the node counts as alive", async || {
        let checks = first.get(LIVENESS).await.success().json();
        let check = checks.as_array().into_iter().flatten().find(|check| check["CheckID"] == "serfHealth").cloned();
        anyhow::ensure!(check.as_ref().is_some_and(|check| check["Status"] == "passing"), "{check:?}");
        Ok(())
    })
    .await;
    let is_first = is_attached(&first, "n1").await;
    let (primary, other) = if is_first { (first, second) } else { (second, first) };
    assert!(is_attached(&primary, "n1").await && !is_attached(&other, "n1").await);
    let alive_since = other.get(LIVENESS).await.success().index();
    traffic.requests(200).await;
    Two { primary, other, agent, traffic, _workloads: [api, web], alive_since }
}

/// A change of what concerns the node, written at a server; answers with how long it took until it was in force there.
async fn change(server: &Mesh, source: &str) -> Duration {
    let begun = Instant::now();
    let revision = server.intention(source, "api", "allow").await.success().index();
    let receipt = eventually("the change is in force", async || {
        let receipt: Value = server.receipt(revision, "1s").await;
        let counts = &receipt["counts"];
        anyhow::ensure!(counts["applied"] == json!(1) && counts["pending"] == json!(0), "{receipt}");
        Ok(receipt)
    })
    .await;
    let took = begun.elapsed();
    println!("in force after {took:?}: {receipt}");
    took
}

/// Nothing was written on the node's liveness, nor is in the time in which it would be.
async fn assert_no_flap(server: &Mesh, since: u64) {
    let target = format!("{LIVENESS}?index={since}&wait={UNTIL_LOST}");
    let answer = server.get(&target).await.success();
    assert_eq!(answer.index(), since, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_the_server_that_an_agent_is_attached_to_costs_nothing() {
    let etcd = Etcd::start().await;
    let Two { mut primary, other, agent, traffic, alive_since, _workloads } = two(&etcd).await;
    primary.kill9();
    let took = change(&other, "after-the-loss").await;
    assert!(took < APPLIED_WITHIN, "{took:?}");
    assert!(is_attached(&other, "n1").await);
    assert_no_flap(&other, alive_since).await;
    assert_eq!(metric(&agent, "starling_agent_stream_promotions_total").await, Some(1.0));
    let gap = metric(&agent, "starling_agent_without_primary_seconds_bucket{le=\"0.1\"}").await;
    assert_eq!(gap, Some(1.0), "it was without a server for longer");
    // The lost one is back, and in reserve.
    primary.restart().await;
    until_metric(&agent, STANDBY, 1.0).await;
    traffic.requests(100).await;
    println!("{} requests", traffic.stop_without_failure().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_leaves_is_not_missed() {
    let etcd = Etcd::start().await;
    let Two { mut primary, other, agent, traffic, alive_since, _workloads } = two(&etcd).await;
    let left = primary.cli(&["server", "leave"]).await.success();
    println!("{}", left.stdout);
    assert!(left.stdout.starts_with("leaving: ") && left.stdout.contains("\nleft http"), "{}", left.stdout);
    let took = change(&other, "after-it-left").await;
    assert!(took < APPLIED_WITHIN, "{took:?}");
    eventually("its process has ended", async || {
        let ended = primary.server().ended();
        anyhow::ensure!(ended.is_some_and(|status| status.success()), "{ended:?}");
        Ok(())
    })
    .await;
    assert_no_flap(&other, alive_since).await;
    assert_eq!(metric(&agent, "starling_agent_stream_moves_total{result=\"done\"}").await, Some(1.0));
    assert_eq!(metric(&agent, "starling_agent_stream_promotions_total").await, Some(0.0));
    // Nobody is left to take its agent.
    traffic.requests(100).await;
    println!("{} requests", traffic.stop_without_failure().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_find_a_server_that_nobody_told_them_of_and_some_are_moved_to_it() {
    let etcd = Etcd::start().await;
    let first = server(&etcd).await;
    let mut agents = Vec::new();
    for name in ["n1", "n2", "n3", "n4"] {
        agents.push(agent(name, &[&first]).await);
    }
    let second = server(&etcd).await;
    for agent in &agents {
        until_metric(agent, STANDBY, 1.0).await;
    }
    let mut moved = 0.0;
    eventually("one has been moved", async || {
        moved = 0.0;
        for agent in &agents {
            moved += metric(agent, "starling_agent_stream_moves_total{result=\"done\"}").await.unwrap_or_default();
        }
        anyhow::ensure!(moved >= 1.0, "{moved}");
        Ok(())
    })
    .await;
    let mut attached = (0, 0);
    for name in ["n1", "n2", "n3", "n4"] {
        attached.0 += usize::from(is_attached(&first, name).await);
        attached.1 += usize::from(is_attached(&second, name).await);
    }
    assert_eq!(attached, (3, 1), "it has come to rest, and each is attached once");
    // Those that knew the first only do without it now.
    drop(first);
    for name in ["n1", "n2", "n3", "n4"] {
        eventually("everyone is at the second", async || {
            anyhow::ensure!(is_attached(&second, name).await, "{name}");
            Ok(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_of_an_agent_does_not_hang_with_a_server_that_does() {
    let etcd = Etcd::start().await;
    let (mut first, mut second) = (server(&etcd).await, server(&etcd).await);
    let agent = agent("n1", &[&first, &second]).await;
    until_metric(&agent, STANDBY, 1.0).await;
    let _ = agent.get("/v1/catalog/nodes").await.success();
    let hangs = if is_attached(&first, "n1").await { &mut first } else { &mut second };
    let process = hangs.server().pid();
    kill(process, Signal::SIGSTOP).expect("it runs");
    let begun = Instant::now();
    eventually("another server answers", async || {
        let answer = agent.get("/v1/catalog/nodes").await;
        anyhow::ensure!(answer.status == 200, "{}", answer.text());
        Ok(())
    })
    .await;
    let took = begun.elapsed();
    kill(process, Signal::SIGCONT).expect("it is there");
    assert!(took < HUNG_WITHIN, "after {took:?}");
}
