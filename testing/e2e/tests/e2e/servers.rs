//! Several servers on one etcd: who leads, whose business a node is, and how current each of them is.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use starling_e2e::etcd::Etcd;
use starling_e2e::{Mesh, MeshOptions, Program, eventually};

use crate::apart::agent;

/// How long a node may be away, and a server's record outlives it.
const GRACE: Duration = Duration::from_secs(3);
const LEASE: Duration = Duration::from_secs(5);

async fn server(etcd: &Etcd) -> Mesh {
    let options = MeshOptions {
        program: Program::Server(format!("node_grace = \"{}s\"\n", GRACE.as_secs())),
        store: Some(etcd.store()),
        ..MeshOptions::default()
    };
    Mesh::start(options).await
}

async fn leader(server: &Mesh) -> String {
    server.get("/v1/status/leader").await.success().json().as_str().expect("an address").to_owned()
}

async fn liveness(server: &Mesh, node: &str) -> anyhow::Result<String> {
    let checks = server.get(&format!("/v1/health/node/{node}")).await.success().json();
    let check = checks.as_array().into_iter().flatten().find(|check| check["CheckID"] == "serfHealth");
    let status = check.and_then(|check| check["Status"].as_str()).map(str::to_owned);
    status.ok_or_else(|| anyhow::anyhow!("no liveness check: {checks}"))
}

pub(crate) async fn is(server: &Mesh, node: &str, wanted: &str) {
    eventually(&format!("{node} is {wanted}"), async || {
        let found = liveness(server, node).await?;
        anyhow::ensure!(found == wanted, "{found}");
        Ok(())
    })
    .await;
}

/// What `starling operator health` says, once it is as wanted.
async fn health(server: &Mesh, wanted: impl Fn(bool, &Value) -> bool) -> Value {
    let found = eventually("the health that is wanted", async || {
        let said = server.cli(&["operator", "health", "-o", "json"]).await;
        let form: Value = serde_json::from_str(&said.stdout)?;
        anyhow::ensure!(wanted(said.code == 0, &form["findings"]), "{form}");
        Ok(form)
    });
    found.await["findings"].clone()
}

/// What is found to be wrong with `what`.
fn wrong(findings: &Value, what: &str) -> Vec<String> {
    let findings = findings.as_array().expect("findings").iter();
    let wrong = findings.filter(|finding| finding["what"] == what && finding["good"] == false);
    wrong.map(|finding| finding["says"].as_str().expect("a text").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_started_after_a_change_does_not_hold_its_receipt_open() {
    let etcd = Etcd::start().await;
    let first = server(&etcd).await;
    let _agent = agent(&first, "n1").await;
    let defaults = json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}});
    let written = first.put("/v1/config?until=applied:all&wait=20s", &defaults).await.success();
    assert_eq!(written.header("x-starling-until"), Some("met"));
    let second = server(&etcd).await;
    for server in [&first, &second] {
        eventually("the receipt is settled, whichever is asked", async || {
            let peers = server.get("/v1/status/peers").await.success().json();
            anyhow::ensure!(peers.as_array().is_some_and(|peers| peers.len() == 2), "{peers}");
            let target = format!("/starling/v1/changes/{}", written.index());
            let receipt = server.get(&target).await.success().json();
            anyhow::ensure!(receipt["settled"] == true && receipt["counts"]["applied"] == 1, "{receipt}");
            Ok(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_are_told_of_a_server_that_is_lost_and_of_etcd() {
    let mut etcd = Etcd::start().await;
    let named = async |name: &'static str| {
        let (program, store) = (Program::Server(String::new()), Some(etcd.store()));
        Mesh::start(MeshOptions { program, store, name: Some(name), ..MeshOptions::default() }).await
    };
    let (mut first, second) = (named("a").await, named("b").await);
    let well = health(&second, |healthy, _| healthy).await;
    assert!(well.to_string().contains("1 of 1 members are well and 1 are needed: no further one may fail"), "{well}");
    // Those who end in order are not lost.
    let ended = [named("c").await, named("d").await, named("e").await];
    for mut server in ended {
        assert!(server.end_with(nix::sys::signal::Signal::SIGTERM).success());
    }
    let well = health(&second, |healthy, _| healthy).await;
    assert_eq!(wrong(&well, "lost"), Vec::<String>::new(), "{well}");
    first.kill9();
    let lost = health(&second, |_, findings| !wrong(findings, "lost").is_empty()).await;
    assert!(wrong(&lost, "lost")[0].starts_with("a ("), "{lost}");
    assert!(second.cli(&["servers"]).await.success().stdout.contains("without leaving"));
    first.restart().await;
    let _ = health(&second, |healthy, _| healthy).await;
    etcd.kill9();
    let cut = health(&second, |_, findings| !wrong(findings, "writes").is_empty()).await;
    assert!(wrong(&cut, "etcd")[0].starts_with("0 of 1 members are well"), "{cut}");
    assert!(wrong(&cut, "failure")[0].contains("no writes"), "{cut}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_its_servers_business_and_the_leaders_once_that_is_gone() {
    let etcd = Etcd::start().await;
    let mut first = server(&etcd).await;
    let second = server(&etcd).await;
    eventually("both know the first as leader, and each other", async || {
        for server in [&first, &second] {
            anyhow::ensure!(leader(server).await == first.addresses.http, "{}", leader(server).await);
            let peers = server.get("/v1/status/peers").await.success().json();
            anyhow::ensure!(peers.as_array().is_some_and(|peers| peers.len() == 2), "{peers}");
        }
        Ok(())
    })
    .await;
    let (mut at_first, at_second) = tokio::join!(agent(&first, "n1"), agent(&second, "n2"));
    is(&second, "n1", "passing").await;
    is(&first, "n2", "passing").await;
    // Longer than either would wait for a node that it took for lost.
    let stays = async |server: &Mesh, node: &str| {
        let target = format!("/v1/health/node/{node}");
        let index = server.get(&target).await.success().index();
        let (wait, target) = (GRACE + Duration::from_secs(2), format!("{target}?index={index}"));
        let answer = server.get(&format!("{target}&wait={}s", wait.as_secs())).await.success();
        assert_eq!(answer.index(), index, "{node}: {}", answer.text());
        assert_eq!(liveness(server, node).await.expect("known"), "passing", "{node}");
    };
    tokio::join!(stays(&first, "n1"), stays(&first, "n2"), stays(&second, "n1"), stays(&second, "n2"));
    // Of a change that concerns both nodes either server has the whole receipt.
    let defaults = json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}});
    let written = first.put("/v1/config?until=applied:all&wait=20s", &defaults).await.success();
    assert_eq!(written.header("x-starling-until"), Some("met"));
    for server in [&first, &second] {
        let target = format!("/starling/v1/changes/{}?wait=20s", written.index());
        let receipt = server.get(&target).await.success().json();
        assert_eq!(receipt["counts"]["applied"], 2, "{receipt}");
        assert_eq!(receipt["settled"], true, "{receipt}");
    }
    // And so with every list, of which each server has its own part.
    let connected = async |target: &str| {
        let listed = second.get(target).await.success().json();
        let nodes = listed["nodes"].as_array().cloned().unwrap_or_default();
        let names = nodes.iter().filter(|node| node["connected"] == true).map(|node| node["node"].to_string());
        (names.collect::<Vec<_>>(), listed["unheard_servers"].clone())
    };
    let both = vec!["\"n1\"".to_owned(), "\"n2\"".to_owned()];
    assert_eq!(connected("/starling/v1/nodes").await, (both, Value::Null));
    assert_eq!(connected("/starling/v1/nodes?local").await.0, ["\"n2\""]);
    let change = async |target: &str| {
        let listed = second.get(target).await.success().json();
        let changes = listed["changes"].as_array().cloned().unwrap_or_default();
        let change = changes.into_iter().find(|change| change["revision"] == written.index());
        change.unwrap_or_else(|| panic!("it is not listed: {listed}"))
    };
    assert_eq!(change("/starling/v1/changes").await["counts"]["applied"], 2);
    assert_eq!(change("/starling/v1/changes?local").await["counts"]["applied"], 1);
    // The agent with its server, or it would go to the other at once.
    let since = Instant::now();
    at_first.kill9();
    first.kill9();
    let unheard = change("/starling/v1/changes").await;
    assert!(unheard["unheard_servers"].is_array() && unheard["settled"] == false, "{unheard}");
    assert!(connected("/starling/v1/nodes").await.1.is_array());
    let listed = second.cli(&["changes"]).await.success().stdout;
    assert!(listed.contains("Not heard, so their nodes are missing here: "), "{listed}");
    let shown = second.cli(&["changes", &written.index().to_string()]).await.success().stdout;
    assert!(shown.contains("Not heard, so their nodes are missing here: "), "{shown}");
    is(&second, "n1", "critical").await;
    let after = since.elapsed();
    println!("lost after {after:?}");
    assert!(after >= GRACE && after < 2 * (GRACE + LEASE), "after {after:?}");
    assert_eq!(leader(&second).await, second.addresses.http);
    assert_eq!(liveness(&second, "n2").await.expect("known"), "passing");
    first.restart().await;
    at_first.restart().await;
    is(&second, "n1", "passing").await;
    drop((at_first, at_second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_its_store_says_so_and_one_that_is_behind_decides_nothing_on_what_it_has() {
    let mut etcd = Etcd::start().await;
    let first = server(&etcd).await;
    let second = server(&etcd).await;
    // What was just written at one server is what the other's condition is held against.
    let entry = |n: u64| json!({"Kind": "service-defaults", "Name": "web", "Meta": {"n": n.to_string()}});
    let mut index = 0;
    for n in 0..20 {
        let writer = if n % 2 == 0 { &first } else { &second };
        let written = writer.put(&format!("/v1/config?cas={index}"), &entry(n)).await.success();
        assert_eq!(written.json(), json!(true), "write {n}");
        let reader = if n % 2 == 0 { &second } else { &first };
        let read = reader.get("/v1/config/service-defaults/web?consistent").await.success().json();
        assert_eq!(read["Meta"]["n"], n.to_string());
        index = read["ModifyIndex"].as_u64().expect("an index");
        // Waiting for what is to come after it never answers with what was before.
        let later = reader.get(&format!("/v1/config/service-defaults/web?index={index}&wait=1ms")).await.success();
        assert!(later.index() >= index);
    }
    assert_eq!(first.get("/v1/catalog/nodes").await.header("x-consul-knownleader"), Some("true"));

    etcd.kill9();
    eventually("it is said that the store is gone", async || {
        let read = first.get("/v1/config/service-defaults/web?stale").await.success();
        anyhow::ensure!(read.header("x-consul-knownleader") == Some("false"));
        let age: u64 = read.header("x-consul-lastcontact").unwrap_or_default().parse()?;
        anyhow::ensure!(age > 4_000, "{age}");
        assert_eq!(read.json()["Meta"]["n"], "19", "and what is there is served on");
        Ok(())
    })
    .await;
    assert_eq!(leader(&first).await, "");
    let refused = first.get("/v1/config/service-defaults/web?consistent").await;
    assert_eq!(refused.status, 500);
    assert!(refused.text().starts_with("No cluster leader"), "{}", refused.text());
    etcd.restart().await;
    eventually("it is there again", async || {
        let read = first.get("/v1/config/service-defaults/web?consistent").await;
        anyhow::ensure!(read.status == 200, "{}", read.text());
        anyhow::ensure!(read.header("x-consul-knownleader") == Some("true"));
        anyhow::ensure!(!leader(&first).await.is_empty());
        Ok(())
    })
    .await;
}
