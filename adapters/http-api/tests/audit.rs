//! The audit log: who wrote what by which token, what was denied, and no secret.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::sync::Arc;

use serde_json::Value;
use starling_model::Action;
use starling_telemetry::{AuditLog, verify_audit};
use world::controlled::Mesh;

#[tokio::test]
async fn writes_and_denials_are_logged_with_their_token_and_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let mesh = Mesh::new(Action::Deny).await;
    let token = mesh.token("app", "key_prefix \"app/\" { policy = \"write\" }").await;
    let accessor = mesh.ask(Some(&token), "GET", "/v1/acl/token/self", "").await.1;
    let accessor = serde_json::from_str::<Value>(&accessor).unwrap()["AccessorID"].clone();
    let log = Arc::new(AuditLog::open(&path).unwrap());
    let mesh = Mesh { router: starling_http_api::audited(mesh.router.clone(), log), ..mesh };

    for (by, method, target, status) in [
        (Some(&*token), "PUT", "/v1/kv/app/a?flags=1", 200),
        (Some(&*token), "GET", "/v1/kv/app/a", 200),
        (Some(&*token), "PUT", "/v1/kv/other", 403),
        (Some("no-such-token"), "GET", "/v1/kv/app/a", 403),
    ] {
        assert_eq!(mesh.ask(by, method, target, "1").await.0, status, "{method} {target}");
    }
    let _ = mesh.ask(None, "DELETE", &format!("/v1/kv/app/a?token={token}"), "").await;

    assert_eq!(verify_audit(&path).unwrap().lines, 4, "the read that was allowed is left out");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(&token) && !text.contains("no-such-token"), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told =
        |line: &Value| (line["path"].as_str().unwrap().to_owned(), line["decision"].as_str().unwrap().to_owned());
    let expected =
        [("/v1/kv/app/a", "allow"), ("/v1/kv/other", "deny"), ("/v1/kv/app/a", "deny"), ("/v1/kv/app/a", "allow")];
    assert_eq!(lines.iter().map(told).collect::<Vec<_>>(), expected.map(|(path, it)| (path.to_owned(), it.to_owned())));
    assert_eq!(
        lines.iter().map(|line| &line["accessor"]).collect::<Vec<_>>(),
        [&accessor, &accessor, &Value::Null, &accessor]
    );
    assert!(lines[0]["revision"].as_u64().is_some_and(|revision| revision > 0), "{}", lines[0]);
}
