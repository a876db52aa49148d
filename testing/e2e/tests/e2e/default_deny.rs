//! A mesh in which nobody may call anybody unless it is said.

use serde_json::json;
use starling_e2e::{Mesh, MeshOptions, Workload, eventually, http};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_allowed_passes() {
    let mesh = Mesh::start(MeshOptions { default_policy: Some("deny"), ..MeshOptions::default() }).await;
    mesh.protocol("api", "http").await;
    let (web, _api, _db) = tokio::join!(
        Workload::new("web").calls("api").calls("db").start(&mesh),
        Workload::new("api").start(&mesh),
        Workload::new("db").start(&mesh),
    );
    let api = async |path: &str, expected: u16| {
        eventually(&format!("api answers {expected} to {path}"), async || {
            let answer = http::get(&web.upstream("api"), path).await?;
            anyhow::ensure!(answer.status == expected, "{}", answer.status);
            Ok(())
        })
        .await;
        assert_eq!(mesh.can("web", "api", &["--path", path]).await, expected == 200, "`starling can` {path}");
    };
    let db = async |expected: bool| {
        eventually(&format!("web may call db: {expected}"), async || {
            let answered = http::get(&web.upstream("db"), "/").await.map(|answer| answer.status);
            anyhow::ensure!(answered.is_ok() == expected, "{answered:?}");
            Ok(())
        })
        .await;
        assert_eq!(mesh.can("web", "db", &[]).await, expected, "`starling can`");
    };

    api("/", 403).await;
    mesh.intention("web", "db", "allow").await;
    db(true).await;
    mesh.delete_intention("web", "db").await;
    db(false).await;

    mesh.intention("web", "api", "allow").await;
    api("/", 200).await;
    // What no permission matches falls to the default.
    mesh.permissions("web", "api", &json!([{"Action": "allow", "HTTP": {"PathPrefix": "/shop"}}])).await;
    api("/admin", 403).await;
    api("/shop/7", 200).await;
    mesh.delete_intention("web", "api").await;
    api("/shop/7", 403).await;
    // Allowing everybody takes a certificate still; somebody else's denial does not concern web.
    mesh.intention("*", "api", "allow").await;
    mesh.intention("other", "api", "deny").await;
    api("/", 200).await;
}
