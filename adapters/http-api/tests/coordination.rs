//! Sessions and locks as clients meet them, and who is woken by what is written.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use world::World;

async fn json_of(world: &Arc<World>, method: &str, target: &str, body: &str) -> Value {
    let (head, text) = world.send(method, target, body).await;
    assert_eq!(head.status(), 200, "{method} {target}: {text}");
    serde_json::from_str(&text).unwrap()
}

async fn refused(world: &Arc<World>, method: &str, target: &str, body: &str) -> (u16, String) {
    let (head, text) = world.send(method, target, body).await;
    (head.status().as_u16(), text)
}

/// A session without checks: nobody is alive here.
async fn session(world: &Arc<World>, more: Value) -> String {
    let mut body = json!({"NodeChecks": []});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let made = json_of(world, "PUT", "/v1/session/create", &body.to_string()).await;
    made["ID"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_session_is_shown_as_it_was_made() {
    let world = World::new();
    let id = session(&world, json!({"Name": "leader", "TTL": "90s", "LockDelay": "1.5s", "Behavior": "delete"})).await;
    let info = json_of(&world, "GET", &format!("/v1/session/info/{id}"), "").await;
    let expected = json!([{
        "ID": id, "Name": "leader", "Node": "node-1", "LockDelay": 1_500_000_000, "Behavior": "delete", "TTL": "90s",
        "NodeChecks": [], "ServiceChecks": null, "CreateIndex": 2, "ModifyIndex": 2,
    }]);
    assert_eq!(info, expected);
    assert_eq!(json_of(&world, "GET", "/v1/session/list", "").await, expected);
    assert_eq!(json_of(&world, "GET", "/v1/session/node/node-1", "").await, expected);
    assert_eq!(json_of(&world, "GET", "/v1/session/node/other", "").await, json!([]));
    assert_eq!(json_of(&world, "PUT", &format!("/v1/session/renew/{id}"), "").await, expected, "its index stays");

    let other = session(&world, json!({"LockDelay": 15})).await;
    let info = json_of(&world, "GET", &format!("/v1/session/info/{other}"), "").await;
    assert_eq!((&info[0]["LockDelay"], &info[0]["TTL"]), (&json!(15_000_000_000_u64), &json!("")));
    assert_eq!(json_of(&world, "PUT", &format!("/v1/session/destroy/{id}"), "").await, json!(true));
    assert_eq!(json_of(&world, "GET", &format!("/v1/session/info/{id}"), "").await, json!([]));
    let (status, text) = refused(&world, "PUT", &format!("/v1/session/renew/{id}"), "").await;
    assert!(status == 404 && text.contains(&id), "{status} {text}");
}

#[tokio::test]
async fn what_can_be_no_session_is_refused_with_the_reason() {
    let world = World::new();
    for (body, reason) in [
        (r#"{"NodeChecks": ["serfHealth"]}"#, "Missing check 'serfHealth' registration"),
        (r#"{"Node": "other", "NodeChecks": []}"#, "Missing node registration"),
        (r#"{"TTL": "9s"}"#, "must be between [10s=24h0m0s]"),
        (r#"{"TTL": "soon"}"#, "TTL"),
        (r#"{"Behavior": "keep"}"#, "Invalid Behavior setting 'keep'"),
        (r#"{"LockDelay": "61s"}"#, "LockDelay"),
        (r#"{"LockDelay": -1}"#, "LockDelay"),
        (r#"{"ServiceChecks": [{"Namespace": "default"}]}"#, "ServiceChecks[0].ID"),
        (r#"{"Colour": "red"}"#, "Colour"),
    ] {
        let (status, text) = refused(&world, "PUT", "/v1/session/create", body).await;
        assert!(status == 400 && text.contains(reason), "{body}: {status} {text}");
    }
    for (method, target) in
        [("GET", "/v1/session/info/x"), ("PUT", "/v1/session/renew/x"), ("PUT", "/v1/session/destroy/x")]
    {
        let (status, text) = refused(&world, method, target, "").await;
        assert!(status == 400 && text.contains("UUID"), "{target}: {status} {text}");
    }
}

#[tokio::test]
async fn one_of_two_who_want_a_lock_gets_it() {
    let world = World::new();
    let (one, two) = (session(&world, json!({})).await, session(&world, json!({})).await);
    assert_eq!(json_of(&world, "PUT", &format!("/v1/kv/lock?acquire={one}"), "me").await, json!(true));
    assert_eq!(json_of(&world, "PUT", &format!("/v1/kv/lock?acquire={two}"), "me").await, json!(false));
    let entry = json_of(&world, "GET", "/v1/kv/lock", "").await;
    assert_eq!(
        (&entry[0]["Session"], &entry[0]["LockIndex"], &entry[0]["Value"]),
        (&json!(one), &json!(1), &json!("bWU="))
    );
    assert_eq!(json_of(&world, "PUT", &format!("/v1/kv/lock?release={two}"), "").await, json!(false));
    assert_eq!(json_of(&world, "PUT", &format!("/v1/kv/lock?release={one}"), "").await, json!(true));
    assert_eq!(json_of(&world, "PUT", &format!("/v1/kv/lock?acquire={two}"), "you").await, json!(true));
    let verbs = json!([
        {"KV": {"Verb": "check-session", "Key": "lock", "Session": two}},
        {"KV": {"Verb": "unlock", "Key": "lock", "Session": two, "Value": "eA=="}},
    ]);
    let done = json_of(&world, "PUT", "/v1/txn", &verbs.to_string()).await;
    assert_eq!(done["Results"][1]["KV"]["LockIndex"], json!(2), "{done}");
    let (status, text) = refused(&world, "PUT", "/v1/txn", &verbs.to_string()).await;
    assert!(status == 409 && text.contains("current session differs"), "{status} {text}");
}

/// Waiting at `target` from now on, a reader is woken by what the last of the writes does, and by none before it.
async fn woken_by_the_last(target: &str, writes: &[(&str, &str)]) {
    let world = World::new();
    for path in ["a/b/1", "a/c", "d"] {
        json_of(&world, "PUT", &format!("/v1/kv/{path}"), "before").await;
    }
    let (head, _) = world.send("GET", target, "").await;
    let index = head.headers()["x-consul-index"].to_str().unwrap().to_owned();
    let separator = if target.contains('?') { '&' } else { '?' };
    let target = format!("{target}{separator}index={index}&wait=60s");
    let reader = tokio::spawn({
        let world = Arc::clone(&world);
        async move { world.send("GET", &target, "").await.0 }
    });
    let (last, earlier) = writes.split_last().unwrap();
    for (method, path) in earlier {
        json_of(&world, method, path, "now").await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!reader.is_finished(), "{method} {path} is none of its business");
    }
    json_of(&world, last.0, last.1, "now").await;
    let head = tokio::time::timeout(Duration::from_secs(1), reader).await.expect("it is woken").unwrap();
    assert!(head.headers()["x-consul-index"].to_str().unwrap() > index.as_str());
}

#[tokio::test(start_paused = true)]
async fn a_write_wakes_who_waits_for_it_and_nobody_else() {
    woken_by_the_last("/v1/kv/a/b/1", &[("PUT", "/v1/kv/a/b/12"), ("PUT", "/v1/kv/a/b"), ("PUT", "/v1/kv/a/b/1")])
        .await;
    woken_by_the_last("/v1/kv/a/b/1", &[("DELETE", "/v1/kv/a/c"), ("DELETE", "/v1/kv/a/b/1")]).await;
    woken_by_the_last("/v1/kv/none", &[("PUT", "/v1/kv/no"), ("PUT", "/v1/kv/none")]).await;
    woken_by_the_last("/v1/kv/a/b/?recurse", &[("PUT", "/v1/kv/a/c"), ("PUT", "/v1/kv/d"), ("PUT", "/v1/kv/a/b/2/3")])
        .await;
    woken_by_the_last("/v1/kv/a/?keys", &[("PUT", "/v1/kv/d"), ("DELETE", "/v1/kv/a/b/1")]).await;
    woken_by_the_last("/v1/kv/?recurse", &[("DELETE", "/v1/kv/d?recurse")]).await;
    woken_by_the_last("/v1/kv/e/?keys", &[("PUT", "/v1/kv/e"), ("PUT", "/v1/kv/e/1")]).await;
}
