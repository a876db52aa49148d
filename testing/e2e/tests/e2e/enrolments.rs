//! A node that was taken over: what its operator does about it, and what its certificate and its files are worth then.

use serde_json::json;
use starling_e2e::{Answer, Mesh, MeshOptions, Program, eventually};

use crate::apart::{connected, node, token};

/// Short, so that a node that is lost is lost soon.
async fn server() -> Mesh {
    let program = Program::Server("node_grace = \"1s\"\n".to_owned());
    Mesh::start(MeshOptions { program, ..MeshOptions::default() }).await
}

async fn register(agent: &Mesh, service: &str) -> Answer {
    agent.put("/v1/agent/service/register", &json!({"Name": service, "Port": 9000})).await
}

/// Waits until the catalog has as many instances of a service as expected.
async fn instances(server: &Mesh, service: &str, expected: usize) {
    eventually(&format!("{expected} instances of {service}"), async || {
        let found = server.get(&format!("/v1/catalog/service/{service}")).await.success().json();
        let count = found.as_array().map_or(0, Vec::len);
        anyhow::ensure!(count == expected, "{found}");
        Ok(())
    })
    .await;
}

/// Waits until an agent logs a text.
async fn logs(agent: &mut Mesh, text: &str) {
    eventually(&format!("the agent logs {text:?}"), async || {
        let log = agent.server().log();
        anyhow::ensure!(log.contains(text), "{log}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_node_does_not_come_back_with_its_files_or_its_old_token() {
    let server = server().await;
    let old = token(&server, &["--reusable"]).await;
    let mut taken_over = Mesh::start(node(&server, "n1", Some(&old))).await;
    let _ = register(&taken_over, "payments").await.success();
    instances(&server, "payments", 1).await;

    let evicted = server.cli(&["node", "evict", "n1"]).await.success();
    assert!(evicted.stdout.contains("starling token revoke"), "it names the token to revoke: {evicted}");
    instances(&server, "payments", 0).await;
    connected(&server, "n1", false).await;
    logs(&mut taken_over, "was evicted").await;
    taken_over.restart().await;
    logs(&mut taken_over, "was evicted").await;
    instances(&server, "payments", 0).await;
    let refused = Mesh::start_refused(&node(&server, "n1", Some(&old)), "the token is older than the eviction").await;
    assert!(refused.contains("older than the eviction"), "{refused}");

    let newer = token(&server, &[]).await;
    let back = Mesh::start(node(&server, "n1", Some(&newer))).await;
    let _ = register(&back, "payments").await.success();
    instances(&server, "payments", 1).await;
    let listed = server.cli(&["node", "list", "-o", "json"]).await.success().json();
    let own = listed["enrolments"].as_array().into_iter().flatten().find(|it| it["name"] == "n1").cloned();
    assert!(own.is_some_and(|it| it["status"] == "enrolled" && it["epoch"] == 3), "evicted, then enrolled: {listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_a_lost_node_is_free_after_a_release_only() {
    let server = server().await;
    let reusable = token(&server, &["--reusable"]).await;
    let mut first = Mesh::start(node(&server, "n1", Some(&reusable))).await;
    let _ = register(&first, "payments").await.success();
    instances(&server, "payments", 1).await;
    first.kill9();
    connected(&server, "n1", false).await;
    let refused = Mesh::start_refused(&node(&server, "n1", Some(&reusable)), "another key holds the name").await;
    assert!(refused.contains("n1"), "{refused}");
    let _ = server.cli(&["node", "release", "n1"]).await.success();
    let _second = Mesh::start(node(&server, "n1", Some(&reusable))).await;
    connected(&server, "n1", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_registers_what_its_join_token_names() {
    let server = server().await;
    let token = token(&server, &["--services", "web,api-*"]).await;
    let agent = Mesh::start(node(&server, "n1", Some(&token))).await;
    for service in ["web", "api-1"] {
        let _ = register(&agent, service).await.success();
        instances(&server, service, 1).await;
    }
    let refused = register(&agent, "payments").await;
    assert!(
        refused.status != 200 && refused.text().contains("may not register service payments"),
        "{}",
        refused.text()
    );
    instances(&server, "payments", 0).await;
}
