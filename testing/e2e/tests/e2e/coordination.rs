//! Locks in the key-value store hold over the end of a server, and no longer than their session's node is alive.

use http::Method;
use serde_json::{Value, json};
use starling_e2e::{Mesh, MeshOptions, Program, eventually};

use crate::apart::{connected, node, token};

/// Short, so that the test sees a node lost.
const GRACE: &str = "node_grace = \"3s\"\n";

async fn session(mesh: &Mesh, body: &Value) -> String {
    let made = mesh.put("/v1/session/create", body).await.success().json();
    made["ID"].as_str().expect("an id").to_owned()
}

async fn lock(mesh: &Mesh, session: &str, value: &'static str) -> bool {
    let target = format!("/v1/kv/service/leader?acquire={session}");
    mesh.call(Method::PUT, &target, value).await.success().json() == json!(true)
}

async fn holder(mesh: &Mesh) -> Value {
    mesh.get("/v1/kv/service/leader").await.success().json()[0]["Session"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_outlives_its_server_and_ends_with_the_node_of_its_session() {
    let options = MeshOptions { program: Program::Server(GRACE.to_owned()), ..MeshOptions::default() };
    let mut server = Mesh::start(options).await;
    let token = token(&server, &["--reusable"]).await;
    let (mut first, second) =
        (Mesh::start(node(&server, "n1", Some(&token))).await, Mesh::start(node(&server, "n2", Some(&token))).await);
    connected(&server, "n1", true).await;
    connected(&server, "n2", true).await;
    // Asked of an agent, it is a session of that agent's node.
    let one = session(&first, &json!({"Name": "one", "LockDelay": "0s"})).await;
    let two = session(&second, &json!({"Name": "two"})).await;
    let shown = server.get("/v1/session/node/n1").await.success().json();
    assert_eq!((&shown[0]["ID"], &shown[0]["NodeChecks"]), (&json!(one), &json!(["serfHealth"])), "{shown}");
    assert!(lock(&first, &one, "one").await);
    assert!(!lock(&second, &two, "two").await);

    server.kill9();
    server.restart().await;
    assert_eq!(holder(&server).await, json!(one));
    connected(&server, "n1", true).await;
    connected(&server, "n2", true).await;
    assert!(!lock(&second, &two, "two").await);
    first.kill9();
    eventually("the lock is free once its node counts as lost", async || {
        anyhow::ensure!(lock(&second, &two, "two").await, "{}", holder(&server).await);
        Ok(())
    })
    .await;
    assert_eq!(server.get(&format!("/v1/session/info/{one}")).await.success().json(), json!([]));

    // What is read through an agent waits at the server, and is woken there.
    let read = second.get("/v1/kv/service/leader").await.success();
    let waiting = format!("/v1/kv/service/?recurse&index={}&wait=60s", read.index());
    let (woken, written) =
        tokio::join!(second.get(&waiting), second.call(Method::PUT, "/v1/kv/service/other", "value"));
    assert_eq!(written.success().json(), json!(true));
    let keys = woken.success().json();
    assert_eq!(keys.as_array().map(Vec::len), Some(2), "{keys}");
}
