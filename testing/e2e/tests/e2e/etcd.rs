//! Servers whose catalog is on etcd: what one was told is there after its death, and at the others.

use serde_json::{Value, json};
use starling_e2e::etcd::Etcd;
use starling_e2e::{Mesh, MeshOptions, Program, eventually};

async fn server(etcd: &Etcd) -> Mesh {
    let options =
        MeshOptions { program: Program::Server(String::new()), store: Some(etcd.store()), ..MeshOptions::default() };
    Mesh::start(options).await
}

fn instance(node: &str) -> Value {
    json!({"Node": node, "Address": "192.0.2.7", "Service": {"Service": "cache", "Port": 6379}})
}

/// The nodes that have the service, and the index that the answer is of.
async fn nodes(server: &Mesh, query: &str) -> (Vec<String>, u64) {
    let answer = server.get(&format!("/v1/catalog/service/cache{query}")).await.success();
    let rows = answer.json();
    let names = rows.as_array().expect("rows").iter().map(|row| row["Node"].as_str().expect("a name").to_owned());
    (names.collect(), answer.index())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_has_acknowledged_outlives_it_and_without_etcd_it_serves_what_it_has() {
    let mut etcd = Etcd::start().await;
    let mut server = server(&etcd).await;
    let written = server.put("/v1/catalog/register", &instance("n1")).await.success().index();
    server.kill9();
    server.restart().await;
    let found = nodes(&server, "").await;
    assert_eq!(found, (vec!["n1".to_owned()], written));

    etcd.kill9();
    let refused = server.put("/v1/catalog/register", &instance("n2")).await;
    assert_eq!(refused.status, 500);
    assert!(refused.text().starts_with("No cluster leader"), "{}", refused.text());
    // What is there already is not written again; whether it still is there only a quorum knows.
    let again = server.put("/v1/catalog/register", &instance("n1")).await;
    assert_eq!(again.status, 500, "{}", again.text());
    let leader = server.get("/v1/status/leader").await;
    assert_eq!((leader.status, nodes(&server, "").await), (200, found), "reads go on");
    etcd.restart().await;
    let healed = eventually("writes are taken again", async || {
        let answer = server.put("/v1/catalog/register", &instance("n3")).await;
        anyhow::ensure!(answer.status == 200, "{}", answer.text());
        Ok(answer.index())
    });
    let healed = healed.await;
    assert!(healed > written);
    let (names, index) = nodes(&server, "").await;
    assert!(names.contains(&"n1".to_owned()) && names.contains(&"n3".to_owned()), "{names:?}");
    assert_eq!(index, healed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_waits_for_an_etcd_that_is_started_after_it() {
    let mut etcd = Etcd::start().await;
    let mut server = server(&etcd).await;
    server.kill9();
    etcd.kill9();
    let store = etcd.store();
    let address = store.strip_prefix("etcd://").expect("a store on etcd").to_owned();
    let nobody = tokio::net::TcpListener::bind(address).await.expect("the port is free");
    let there = async {
        // It has looked, and found nobody who understands it.
        drop(nobody.accept().await.expect("a connection"));
        drop(nobody);
        etcd.restart().await;
    };
    tokio::join!(server.restart(), there);
    let _ = server.put("/v1/catalog/register", &instance("n1")).await.success();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_is_one_servers_at_a_time() {
    let etcd = Etcd::start().await;
    let mut server = server(&etcd).await;
    let second = server.second_refused().await;
    assert!(second.contains("is in use by process"), "{second}");
    server.kill9();
    server.restart().await;
    let _ = server.put("/v1/catalog/register", &instance("n1")).await.success();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_at_one_server_is_seen_at_the_other_under_the_same_index() {
    let etcd = Etcd::start().await;
    let first = server(&etcd).await;
    let second = server(&etcd).await;
    let (_, before) = nodes(&second, "").await;
    let query = format!("?index={before}&wait=60s");
    let waiting = nodes(&second, &query);
    let writing = async { first.put("/v1/catalog/register", &instance("n1")).await.success().index() };
    let (seen, written) = tokio::join!(waiting, writing);
    assert_eq!(seen, (vec!["n1".to_owned()], written));

    // What the second knows only from the watch is what its own writes are decided on.
    let removed = second.put("/v1/catalog/deregister", &json!({"Node": "n1"})).await.success().index();
    let seen = nodes(&first, &format!("?index={written}&wait=60s")).await;
    assert_eq!(seen, (Vec::new(), removed));
}
