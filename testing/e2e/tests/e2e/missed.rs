//! What a server missed of its store, and what its nodes owe of a change that took several transactions.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use starling_e2e::etcd::Etcd;
use starling_e2e::{Mesh, MeshOptions, Program, Workload, eventually};

use crate::cut_off::without_contact;
use crate::streams::{agent, is_attached};

async fn server(store: String) -> Mesh {
    let program = Program::Server(String::new());
    Mesh::start(MeshOptions { program, store: Some(store), ..MeshOptions::default() }).await
}

fn instance(node: &str, id: &str, service: &str) -> Value {
    json!({"Node": node, "Address": "192.0.2.7", "Service": {"ID": id, "Service": service, "Port": 6379}})
}

/// Everything with its indexes, as a server sees it.
async fn indexes(server: &Mesh) -> Vec<(String, u64, u64)> {
    let mut all = Vec::new();
    for target in ["/v1/kv/?recurse", "/v1/catalog/service/cache", "/v1/config/service-defaults"] {
        let answer = server.get(target).await;
        let rows = if answer.status == 404 { Value::Null } else { answer.success().json() };
        for row in rows.as_array().into_iter().flatten() {
            let name = row["Key"].as_str().or(row["Name"].as_str()).or(row["Node"].as_str()).expect("a name");
            let index = |of: &str| row[of].as_u64().expect("an index");
            all.push((format!("{target} {name}"), index("CreateIndex"), index("ModifyIndex")));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_missed_for_longer_than_etcd_remembers_is_had_as_it_was_written() {
    let etcd = Etcd::start().await;
    let first = server(etcd.store()).await;
    let cable = etcd.cable().await;
    let second = server(etcd.store_over(&cable)).await;
    for (key, value) in [("changed", 1), ("removed", 1), ("made-anew", 1), ("left", 1)] {
        let _ = first.put(&format!("/v1/kv/{key}"), &json!(value)).await.success();
    }
    let _ = first.put("/v1/catalog/register", &instance("n1", "cache", "cache")).await.success();
    let _ = first.protocol("cache", "tcp").await.success();
    eventually("the second has it, too", async || {
        anyhow::ensure!(indexes(&second).await == indexes(&first).await);
        Ok(())
    })
    .await;

    cable.cut();
    for key in ["removed", "made-anew"] {
        let _ = first.delete(&format!("/v1/kv/{key}")).await.success();
    }
    for key in ["made-anew", "changed", "new"] {
        let _ = first.put(&format!("/v1/kv/{key}"), &json!(1)).await.success();
    }
    let _ = first.put("/v1/catalog/register", &instance("n2", "cache", "cache")).await.success();
    let _ = first.protocol("cache", "http").await.success();
    let last = first.put("/v1/kv/last", &json!(2)).await.success();
    assert_eq!(last.json(), json!(true));
    etcd.compact().await;
    // It has given the connection up by then, with what lies in it.
    without_contact(&second, Duration::from_secs(8)).await;
    cable.mend();
    eventually("the second is current", async || {
        let found = second.get("/v1/kv/last").await;
        anyhow::ensure!(found.status == 200, "{}", found.status);
        Ok(())
    })
    .await;
    assert_eq!(indexes(&second).await, indexes(&first).await, "and by the same indexes");

    // Conditions are judged by these: of a client's, and of the server's own.
    let changed = second.get("/v1/kv/changed").await.success().json()[0]["ModifyIndex"].as_u64().expect("an index");
    let swapped = second.put(&format!("/v1/kv/changed?cas={changed}"), &json!(3)).await.success();
    assert_eq!(swapped.json(), json!(true), "{}", swapped.text());
    let _ = second.protocol("cache", "grpc").await.success();
    let _ = second.put("/v1/catalog/deregister", &json!({"Node": "n2"})).await.success();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receipt_speaks_of_every_transaction_of_a_change_whichever_server_a_node_is_with() {
    let etcd = Etcd::start().await;
    let first = server(etcd.store()).await;
    let second = server(etcd.store()).await;
    let mut n1 = agent("n1", &[&second]).await;
    let web = Workload::new("web").calls("a-db").start(&n1).await;
    let _ = first.put("/v1/catalog/register", &instance("n9", "a-db", "a-db")).await.success();
    // More than two transactions hold; what concerns the node goes with the first.
    for number in 0..300 {
        let filler = instance("n9", &format!("f-{number}"), "filler");
        let _ = first.put("/v1/catalog/register", &filler).await.success();
    }
    assert!(is_attached(&second, "n1").await);
    let before = first.revision().await;
    second.settled(before).await;

    kill(n1.server().pid(), Signal::SIGSTOP).expect("it runs");
    let removed = first.put("/v1/catalog/deregister", &json!({"Node": "n9"})).await.success().index();
    assert!(removed >= before + 3, "in several transactions: {before} to {removed}");
    for server in [&first, &second] {
        let receipt = server.receipt(removed, "200ms").await;
        assert_eq!(receipt["settled"], false, "{receipt}");
        assert_eq!(receipt["pending"], json!(["n1"]), "{receipt}");
    }
    kill(n1.server().pid(), Signal::SIGCONT).expect("it runs");
    for server in [&first, &second] {
        let target = format!("/starling/v1/changes/{removed}?until=applied:all&wait=20s");
        let receipt = server.get(&target).await.success().json();
        assert_eq!((&receipt["until"], &receipt["counts"]["applied"]), (&json!("met"), &json!(1)), "{receipt}");
    }
    drop(web);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_turns_writes_away_is_no_store_that_takes_them() {
    let etcd = Etcd::start().await;
    let server = server(etcd.store()).await;
    let ready = async |query: &str| server.get(&format!("/starling/v1/health/ready{query}")).await.status;
    assert_eq!((ready("").await, ready("?writes").await), (200, 200));
    etcd.out_of_space(true).await;
    // Nobody has to write for it to be known.
    eventually("it is known that no writes are taken", async || {
        anyhow::ensure!(ready("?writes").await == 503);
        Ok(())
    })
    .await;
    assert_eq!((ready("").await, server.get("/v1/catalog/nodes").await.status), (200, 200), "reads go on");
    let refused = server.put("/v1/kv/a", &json!(1)).await;
    assert_eq!(refused.status, 500, "{}", refused.text());
    let told = server.cli(&["operator", "health"]).await;
    let text = &told.stdout;
    assert!(told.code != 0 && text.contains("refused") && text.contains("NOSPACE"), "{text}");
    etcd.out_of_space(false).await;
    eventually("writes are taken again", async || {
        anyhow::ensure!(ready("?writes").await == 200);
        Ok(())
    })
    .await;
    let _ = server.put("/v1/kv/a", &json!(1)).await.success();
    assert_eq!(server.get("/v1/kv/a?raw").await.success().text(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_set_back_under_a_server_is_not_followed_as_if_nothing_had_been() {
    let mut etcd = Etcd::start().await;
    let mut server = server(etcd.store()).await;
    let _ = server.put("/v1/kv/before", &json!(1)).await.success();
    let backup = etcd.stop_and_copy();
    etcd.restart().await;
    eventually("writes are taken again", async || {
        let answer = server.put("/v1/kv/after", &json!(1)).await;
        anyhow::ensure!(answer.status == 200, "{}", answer.text());
        Ok(())
    })
    .await;
    etcd.kill9();
    etcd.set_back(backup);
    etcd.restart().await;
    eventually("the server ends, for whoever restarts it", async || {
        let ended = server.server().ended();
        anyhow::ensure!(ended.is_some_and(|status| !status.success()), "{ended:?}");
        Ok(())
    })
    .await;
    let log = server.server().log();
    assert!(log.contains("it was set back"), "{log}");
    server.restart().await;
    assert_eq!(server.get("/v1/kv/before?raw").await.success().text(), "1");
    assert_eq!(server.get("/v1/kv/after").await.status, 404, "what is there is served");
}
