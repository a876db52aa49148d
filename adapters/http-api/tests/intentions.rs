//! Intentions by their identifiers, as clients of Consul's older endpoints have them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::sync::Arc;

use serde_json::{Value, json};
use world::World;

const ALL: &str = "/v1/connect/intentions";

async fn send(world: &Arc<World>, method: &str, target: &str, body: Value) -> (u16, String) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (head, text) = world.send(method, target, &body).await;
    (head.status().as_u16(), text)
}

async fn made(world: &Arc<World>, source: &str, destination: &str) -> String {
    let body = json!({"SourceName": source, "DestinationName": destination, "Action": "allow"});
    let (status, text) = send(world, "POST", ALL, body).await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str::<Value>(&text).unwrap()["ID"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_identifier_stays_while_the_names_change() {
    let world = World::new();
    let id = made(&world, "api", "db").await;
    let one = format!("{ALL}/{id}");
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(made(&world, "api", "db").await, id, "it is the same intention");
    let change = json!({"ID": id, "SourceName": "web", "DestinationName": "db", "Action": "deny"});
    let (status, text) = send(&world, "PUT", &one, change).await;
    assert_eq!((status, &read(&text)["ID"]), (200, &json!(id)), "{text}");
    let change = json!({"SourceName": "web", "DestinationName": "cache", "Action": "deny"});
    assert_eq!(send(&world, "PUT", &one, change).await.0, 200);
    let (_, text) = send(&world, "GET", &one, Value::Null).await;
    let found = read(&text);
    assert_eq!((&found["ID"], &found["SourceName"], &found["Action"]), (&json!(id), &json!("web"), &json!("deny")));
    let (_, text) = send(&world, "GET", ALL, Value::Null).await;
    assert_eq!(read(&text), json!([found]), "it left nothing behind under its old names");
    let (_, text) = send(&world, "GET", "/v1/config/service-intentions/cache", Value::Null).await;
    assert_eq!(read(&text)["Sources"][0]["LegacyID"], json!(id));
    assert_eq!(send(&world, "DELETE", &one, Value::Null).await.0, 200);
    assert_eq!(send(&world, "GET", &one, Value::Null).await.0, 404);
    assert_eq!(send(&world, "DELETE", &one, Value::Null).await.0, 200, "as often as one likes");
}

#[tokio::test]
async fn what_names_no_intention_or_two_is_refused() {
    let world = World::new();
    let (one, two) = (made(&world, "api", "db").await, made(&world, "web", "db").await);
    let body = |source: &str| json!({"SourceName": source, "DestinationName": "db", "Action": "deny"});
    let (status, text) = send(&world, "PUT", &format!("{ALL}/{one}"), body("web")).await;
    assert!(status == 400 && text.contains("another intention from web to db"), "{status} {text}");
    let other = json!({"ID": two, "SourceName": "api", "DestinationName": "db", "Action": "deny"});
    let (status, text) = send(&world, "PUT", &format!("{ALL}/{one}"), other).await;
    assert!(status == 400 && text.starts_with("ID: "), "{status} {text}");
    for method in ["GET", "PUT", "DELETE"] {
        let (status, text) = send(&world, method, &format!("{ALL}/hello"), body("x")).await;
        assert!(status == 400 && text.contains("UUID"), "{method}: {status} {text}");
    }
    let nobody = format!("{ALL}/6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11");
    assert_eq!(send(&world, "PUT", &nobody, body("x")).await.0, 404);
}
