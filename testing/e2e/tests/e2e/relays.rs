//! Relays: agents that are attached to one are known to the servers as if they were attached there.

use serde_json::{Value, json};
use starling_e2e::etcd::Etcd;
use starling_e2e::{Instance, Mesh, MeshOptions, Plane, Program, Seal, Traffic, Workload, eventually, new_seal_key};

use crate::apart::{answered, connected, token};
use crate::streams::{is_attached, metric, until_metric};

/// Short, so that the test sees a node lost.
const GRACE: &str = "node_grace = \"3s\"\n";

async fn server() -> Mesh {
    Mesh::start(MeshOptions { program: Program::Server(GRACE.to_owned()), ..MeshOptions::default() }).await
}

fn relay_options(name: &str, join: &[&Mesh], token: Option<String>) -> MeshOptions {
    let join = join.iter().map(|above| above.addresses.grpc_tls.as_str()).collect::<Vec<_>>().join(",");
    let program = Program::Relay { name: name.to_owned(), join, token };
    MeshOptions { program, ..MeshOptions::default() }
}

async fn relay(name: &str, server: &Mesh, join: &[&Mesh]) -> Mesh {
    let token = token(server, &["--relay"]).await;
    Mesh::start(relay_options(name, join, Some(token))).await
}

/// An agent that knows these relays, and joins through them.
async fn agent(name: &str, server: &Mesh, relays: &[&Mesh]) -> Mesh {
    let token = Some(token(server, &[]).await);
    let server = relays.iter().map(|relay| relay.addresses.grpc_tls.as_str()).collect::<Vec<_>>().join(",");
    let program = Program::Agent { node: name.to_owned(), server, token };
    Mesh::start(MeshOptions { program, native: true, ..MeshOptions::default() }).await
}

/// Two agents behind relays, with a workload each, of which one calls the other.
struct Pair {
    first: Mesh,
    second: Mesh,
    web: Instance,
    _api: Instance,
}

async fn pair(server: &Mesh, relays: &[&Mesh]) -> Pair {
    let first = agent("n1", server, relays).await;
    let second = agent("n2", server, relays).await;
    let api = Workload::new("api").start(&first).await;
    let web = Workload::new("web").calls("api").start(&second).await;
    web.served_by("api", &["api"], "it is called").await;
    Pair { first, second, web, _api: api }
}

impl Pair {
    async fn have_reserves(&self) {
        eventually("each agent has a stream in reserve", async || {
            for agent in [&self.first, &self.second] {
                let text = agent.get("/metrics").await.success().text();
                anyhow::ensure!(text.contains("starling_agent_streams{role=\"standby\"} 1"), "{text}");
            }
            Ok(())
        })
        .await;
    }
}

/// A change that concerns both nodes, written at the server; every one of `nodes` has it in force.
async fn change(server: &Mesh, source: &str, nodes: u64) -> Value {
    let revision = server.intention(source, "api", "allow").await.index();
    let receipt = eventually("the change is in force behind the relay", async || {
        let receipt = server.receipt(revision, "2s").await;
        let counts = &receipt["counts"];
        anyhow::ensure!(counts["applied"] == json!(nodes) && counts["pending"] == json!(0), "{receipt}");
        Ok(receipt)
    })
    .await;
    println!("{receipt}");
    receipt
}

/// The intention that denies the call is in force: the answer came after everyone had applied it.
async fn refused(web: &Instance) {
    // Over TCP, which is what a service speaks of which nothing else is said, the connection is closed.
    let answer = starling_e2e::http::get(&web.upstream("api"), "/").await;
    assert!(answer.as_ref().is_err() || answer.as_ref().is_ok_and(|answer| answer.status != 200), "{answer:?}");
}

async fn health(mesh: &Mesh, node: &str) -> String {
    let checks = mesh.get(&format!("/v1/health/node/{node}")).await.success().json();
    let check = checks.as_array().into_iter().flatten().find(|check| check["CheckID"] == "serfHealth").cloned();
    check.map(|check| check["Status"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_behind_a_relay_are_known_to_the_server_as_if_they_were_attached_to_it() {
    let server = server().await;
    let relay = relay("r1", &server, &[&server]).await;
    let mut pair = pair(&server, &[&relay]).await;
    connected(&server, "n1", true).await;
    connected(&server, "n2", true).await;

    // A write by an agent behind the relay waits for everyone, by the server's receipts.
    let target = "/v1/connect/intentions/exact?source=web&destination=api&until=applied:all&timeout=10s";
    let _ = pair.second.put(target, &json!({"Action": "deny"})).await.success();
    refused(&pair.web).await;
    let _ = pair.second.put(target, &json!({"Action": "allow"})).await.success();
    pair.web.served_by("api", &["api"], "it may again").await;
    change(&server, "someone", 1).await;

    // What is asked of an agent and only servers know comes by way of the relay.
    let nodes = pair.second.get("/v1/catalog/nodes").await.success().json();
    assert!(nodes.as_array().is_some_and(|nodes| nodes.len() >= 2), "{nodes}");

    pair.first.kill9();
    connected(&server, "n1", false).await;
    eventually("the node behind the relay is lost after the grace", async || {
        let status = health(&server, "n1").await;
        anyhow::ensure!(status == "critical", "{status}");
        Ok(())
    })
    .await;
    pair.first.restart().await;
    eventually("the node is back", async || {
        let status = health(&server, "n1").await;
        anyhow::ensure!(status == "passing", "{status}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_killed_and_comes_back_is_resumed_and_receipts_are_whole() {
    let server = Mesh::start(MeshOptions { program: Program::Server(String::new()), ..MeshOptions::default() }).await;
    let mut relay = relay("r1", &server, &[&server]).await;
    let pair = pair(&server, &[&relay]).await;
    change(&server, "before", 1).await;
    let alive_since = server.get("/v1/health/node/n1").await.success().index();
    relay.kill9();
    connected(&server, "n1", false).await;
    pair.web.served_by("api", &["api"], "the relay is gone").await;
    // Nobody is there to apply it; it comes when the relay does.
    let meanwhile = server.intention("meanwhile", "api", "allow").await.index();
    relay.restart().await;
    connected(&server, "n1", true).await;
    connected(&server, "n2", true).await;
    server.settled(meanwhile).await;
    change(&server, "after", 1).await;
    let alive = server.get("/v1/health/node/n1").await.success();
    assert_eq!(alive.index(), alive_since, "within the grace nothing is written: {}", alive.text());
    drop(pair.second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_are_served_on_while_the_relay_reaches_no_server_and_resume_when_it_does() {
    let mut server = server().await;
    let relay = relay("r1", &server, &[&server]).await;
    let pair = pair(&server, &[&relay]).await;
    change(&server, "before", 1).await;
    server.kill9();
    eventually("the relay says that it reaches no server", async || {
        let ready = relay.get("/starling/v1/health/ready").await;
        anyhow::ensure!(ready.status == 503 && ready.text().contains("no server is reached"), "{}", ready.text());
        Ok(())
    })
    .await;
    assert_eq!(relay.get("/starling/v1/health/live").await.status, 200);
    pair.web.served_by("api", &["api"], "the server is gone").await;
    server.restart().await;
    connected(&server, "n1", true).await;
    connected(&server, "n2", true).await;
    change(&server, "after", 1).await;
    let metrics = relay.get("/metrics").await.success().text();
    assert!(metrics.contains("starling_relay_upstream_anew_total 0"), "nothing was sent anew: {metrics}");
    drop(pair.first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_of_relays_passes_everything_on_and_a_second_relay_takes_over_at_once() {
    let server = server().await;
    let above = relay("above", &server, &[&server]).await;
    let mut left = relay("left", &server, &[&above]).await;
    let right = relay("right", &server, &[&above, &server]).await;
    let pair = pair(&server, &[&left, &right]).await;
    connected(&server, "n1", true).await;
    connected(&server, "n2", true).await;
    change(&server, "before", 1).await;
    pair.have_reserves().await;
    left.kill9();
    change(&server, "after", 1).await;
    connected(&server, "n1", true).await;
    connected(&server, "n2", true).await;
    assert_eq!(health(&server, "n1").await, "passing");
    // One that ends in order tells its agents to go, and they do.
    left.restart().await;
    drop(above);
    change(&server, "alone", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_alone_reaches_no_server_is_left_before_its_nodes_count_as_lost() {
    let server = Mesh::start(MeshOptions { program: Program::Server(String::new()), ..MeshOptions::default() }).await;
    let mut above = relay("above", &server, &[&server]).await;
    let left = relay("left", &server, &[&above]).await;
    let mut right = relay("right", &server, &[&server]).await;
    right.kill9();
    let pair = pair(&server, &[&left, &right]).await;
    right.restart().await;
    pair.have_reserves().await;
    let attached = "starling_relay_agents_attached";
    until_metric(&left, attached, 2.0).await;
    let alive_since = server.get("/v1/health/node/n1").await.success().index();
    above.kill9();
    until_metric(&right, attached, 2.0).await;
    change(&server, "after", 1).await;
    let alive = server.get("/v1/health/node/n1").await.success();
    assert_eq!(alive.index(), alive_since, "within the grace nothing is written: {}", alive.text());
    // With nobody left who reaches a server they stay where they are, and are served.
    right.kill9();
    until_metric(&left, attached, 2.0).await;
    pair.web.served_by("api", &["api"], "no server is reached").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_behind_for_a_while_has_every_receipt() {
    let etcd = Etcd::start().await;
    let cable = etcd.cable().await;
    let on_etcd = |store| MeshOptions {
        program: Program::Server(GRACE.to_owned()),
        store: Some(store),
        ..MeshOptions::default()
    };
    let first = Mesh::start(on_etcd(etcd.store_over(&cable))).await;
    let relay = relay("r1", &first, &[&first]).await;
    let pair = pair(&first, &[&relay]).await;
    first.protocol("api", "http").await;
    answered(&pair.web, "api", 200, "nothing says otherwise").await;
    let second = Mesh::start(on_etcd(etcd.store())).await;
    until_metric(&relay, "starling_relay_upstream_standby", 1.0).await;
    assert!(is_attached(&first, "n1").await && is_attached(&first, "n2").await);

    // Not for so long that it would send its relays away.
    cable.cut();
    let denied = second.intention("web", "api", "deny").await.index();
    answered(&pair.web, "api", 403, "the server in reserve has told it").await;
    cable.mend();
    let receipt = first.receipt(denied, "20s").await;
    assert_eq!((&receipt["counts"]["applied"], &receipt["settled"]), (&json!(1), &json!(true)), "{receipt}");
    assert!(is_attached(&first, "n1").await && !is_attached(&second, "n1").await, "it was told by the same relay");
    change(&second, "after", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_set_back_below_what_a_relay_has_heard_begins_it_anew() {
    let mut server = server().await;
    let relay = relay("r1", &server, &[&server]).await;
    let first = agent("n1", &server, &[&relay]).await;
    let second = agent("n2", &server, &[&relay]).await;
    let _api = Workload::new("api").start_on(&first, Plane::Envoy).await;
    let web = Workload::new("web").calls("api").start_on(&second, Plane::Envoy).await;
    server.protocol("api", "http").await;
    answered(&web, "api", 200, "nothing says otherwise").await;
    server.kill9();
    let copy = tempfile::TempDir::with_prefix("starling-e2e-copy-").expect("a temporary directory");
    let (store, kept) = (server.data_dir().join("store"), copy.path().join("store"));
    copy_folder(&store, &kept);
    server.restart().await;
    connected(&server, "n1", true).await;
    connected(&server, "n2", true).await;
    let denied = server.intention("web", "api", "deny").await.index();
    for source in ["one", "two", "three"] {
        change(&server, source, 1).await;
    }
    answered(&web, "api", 403, "it is denied").await;

    server.kill9();
    std::fs::remove_dir_all(&store).expect("the store is lost");
    copy_folder(&kept, &store);
    server.restart().await;
    assert!(server.revision().await <= denied + 3, "it is not where the relay is");
    answered(&web, "api", 200, "the store that is there now allows it").await;
    assert_eq!(metric(&relay, "starling_relay_upstream_anew_total").await, Some(1.0));
    connected(&server, "n1", true).await;
    connected(&server, "n2", true).await;
    // It has the number of another change, which everyone had in force.
    let again = server.intention("web", "api", "deny").await.index();
    server.settled(again).await;
    answered(&web, "api", 403, "changes arrive again").await;
    change(&server, "after", 1).await;
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    let status = std::process::Command::new("cp").arg("-r").args([from, to]).status().expect("cp runs");
    assert!(status.success(), "{} is copied", from.display());
}

/// What a relay shows itself by, as it is on its disk.
fn certificate(relay: &Mesh) -> String {
    let path = relay.data_dir().join("agent/identity/cert.pem");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// How far a rotation is.
async fn rotation(server: &Mesh) -> Value {
    server.cli(&["ca", "status", "-o", "json"]).await.success().json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_waits_until_every_relay_of_a_tree_trusts_the_root_and_nothing_fails_across_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let seal = folder.path().join("seal");
    new_seal_key(&seal);
    let program = Program::Server(String::new());
    let server = Mesh::start(MeshOptions { program, seal: Seal::File(seal), ..MeshOptions::default() }).await;
    let above = relay("above", &server, &[&server]).await;
    let below = relay("below", &server, &[&above]).await;
    let pair = pair(&server, &[&below]).await;
    connected(&server, "n1", true).await;
    connected(&server, "n2", true).await;
    let traffic = Traffic::start(&pair.web.upstream("api"), "/");
    // The relay below can keep no other roots than it has, so it goes by none: agents that had a leaf under the new one could not
    // come back to it.
    let in_its_way = below.data_dir().join("agent/identity.partial");
    std::fs::write(&in_its_way, "").expect("a file where it writes");
    let before = [certificate(&above), certificate(&below)];
    let root = server.cli(&["ca", "rotate", "--renew-within", "1s"]).await.success().stdout.trim().to_owned();
    eventually("it waits for the relay below, and for nobody else", async || {
        let status = rotation(&server).await;
        anyhow::ensure!(status["pending_relays"] == json!(["below"]) && status["pending"] == json!([]), "{status}");
        Ok(())
    })
    .await;
    let shown = server.cli(&["ca", "status"]).await.success().stdout;
    assert!(shown.contains("waits for relays: below"), "{shown}");
    std::fs::remove_file(&in_its_way).expect("it is there");
    eventually("it signs", async || {
        let roots = server.get("/v1/connect/ca/roots").await.success().json();
        anyhow::ensure!(roots["ActiveRootID"] == json!(root), "{roots}");
        Ok(())
    })
    .await;
    for (relay, before) in [&above, &below].into_iter().zip(before) {
        eventually("the relay has a certificate under the new root", async || {
            anyhow::ensure!(certificate(relay) != before, "it is the same");
            Ok(())
        })
        .await;
    }
    traffic.requests(100).await;
    traffic.stop_without_failure().await;
    // Whoever knows the new root alone, and whoever joins now, comes in by way of the relays.
    let third = agent("n3", &server, &[&below]).await;
    connected(&server, "n3", true).await;
    change(&server, "after", 1).await;
    drop((third, pair));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_goes_on_with_a_rotation_without_a_relay_and_is_told_which() {
    let folder = tempfile::tempdir().expect("a folder");
    let seal = folder.path().join("seal");
    new_seal_key(&seal);
    let program = Program::Server(String::new());
    let server = Mesh::start(MeshOptions { program, seal: Seal::File(seal), ..MeshOptions::default() }).await;
    let relay = relay("r1", &server, &[&server]).await;
    let in_its_way = relay.data_dir().join("agent/identity.partial");
    std::fs::write(&in_its_way, "").expect("a file where it writes");
    let root = server.cli(&["ca", "rotate"]).await.success().stdout.trim().to_owned();
    eventually("it waits for the relay", async || {
        let status = rotation(&server).await;
        anyhow::ensure!(status["pending_relays"] == json!(["r1"]), "{status}");
        Ok(())
    })
    .await;
    let given_up = server.cli(&["ca", "proceed"]).await.success().stdout;
    assert_eq!(given_up.trim(), "relay r1");
    eventually("it signs", async || {
        let roots = server.get("/v1/connect/ca/roots").await.success().json();
        anyhow::ensure!(roots["ActiveRootID"] == json!(root), "{roots}");
        Ok(())
    })
    .await;
    std::fs::remove_file(&in_its_way).expect("it is there");
}
