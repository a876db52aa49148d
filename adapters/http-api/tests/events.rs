//! Events and coordinates, which a server keeps in memory only.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::time::Duration;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use starling_http_api::Router;
use tower::ServiceExt;
use world::World;

/// Through one router: what is kept in memory is its own.
async fn send(router: &Router, method: &str, target: &str, body: &str) -> (u16, u64, Value) {
    let request = Request::builder().method(method).uri(target).body(Body::from(body.to_owned())).unwrap();
    let (head, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let index = head.headers.get("x-consul-index").and_then(|index| index.to_str().ok()?.parse().ok());
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    (head.status.as_u16(), index.unwrap_or(0), serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

#[tokio::test]
async fn events_are_listed_and_wake_who_waits() {
    let router = World::new().router();
    let (status, _, fired) = send(&router, "PUT", "/v1/event/fire/deploy?node=web-.*", "v2").await;
    assert_eq!((status, &fired["Payload"], &fired["NodeFilter"]), (200, &json!("djI="), &json!("web-.*")));
    let (_, index, listed) = send(&router, "GET", "/v1/event/list", "").await;
    assert_eq!((listed[0]["ID"].as_str(), listed.as_array().map(Vec::len)), (fired["ID"].as_str(), Some(1)));
    let waits = format!("/v1/event/list?index={index}&wait=60s");
    let other = router.clone();
    let waiting = tokio::spawn(async move { send(&other, "GET", &waits, "").await });
    tokio::task::yield_now().await;
    send(&router, "PUT", "/v1/event/fire/restart", "").await;
    let (_, later, listed) = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    assert_ne!(later, index);
    assert_eq!((listed[1]["Name"].as_str(), &listed[1]["Payload"]), (Some("restart"), &Value::Null));
    let (_, _, named) = send(&router, "GET", "/v1/event/list?name=deploy", "").await;
    assert_eq!(named.as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn an_event_that_nobody_could_match_is_refused() {
    let router = World::new().router();
    for (target, body, told) in [
        ("/v1/event/fire/x?node=(", "", "node"),
        ("/v1/event/fire/x?tag=a", "", "tag: needs service"),
        ("/v1/event/fire/x", &*"x".repeat(1025), "larger than 1024 bytes"),
    ] {
        let (status, _, text) = send(&router, "PUT", target, body).await;
        assert!(status == 400 && text.as_str().unwrap().contains(told), "{target}: {status} {text}");
    }
}

#[tokio::test]
async fn who_is_near_comes_first_once_somebody_has_measured() {
    let router = World::new().router();
    let at = |node: &str, x: f64| {
        let vector = [x, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        json!({"Node": node, "Segment": "", "Coord": {"Vec": vector, "Error": 1.5, "Adjustment": 0, "Height": 0.5}})
            .to_string()
    };
    for (node, x) in [("a", 9.0), ("b", 1.0), ("c", 0.0), ("d", 0.0)] {
        let registration = json!({"Node": node, "Address": "10.0.0.2", "Service": {"Service": "db", "Port": 1}});
        assert_eq!(send(&router, "PUT", "/v1/catalog/register", &registration.to_string()).await.0, 200);
        if node != "d" {
            assert_eq!(send(&router, "PUT", "/v1/coordinate/update", &at(node, x)).await.0, 200);
        }
    }
    let (_, _, one) = send(&router, "GET", "/v1/coordinate/node/c", "").await;
    assert_eq!(one[0]["Coord"]["Height"], 0.5);
    assert_eq!(send(&router, "GET", "/v1/coordinate/node/d", "").await.0, 404);
    let (_, _, all) = send(&router, "GET", "/v1/coordinate/nodes", "").await;
    assert_eq!(all.as_array().map(Vec::len), Some(3));
    let nodes = |list: &Value| {
        let name = |row: &Value| row["Node"].as_str().or(row["Node"]["Node"].as_str()).unwrap().to_owned();
        list.as_array().unwrap().iter().map(name).collect::<String>()
    };
    for list in ["/v1/catalog/service/db", "/v1/health/service/db"] {
        assert_eq!(nodes(&send(&router, "GET", &format!("{list}?near=c"), "").await.2), "cbad");
        assert_eq!(nodes(&send(&router, "GET", &format!("{list}?near=unknown"), "").await.2), "abcd");
    }
    let (status, _, text) = send(&router, "PUT", "/v1/coordinate/update", &at("gone", 1.0)).await;
    assert!(status == 400 && text.as_str().unwrap().starts_with("Node: "), "{text}");
    let (status, _, text) =
        send(&router, "PUT", "/v1/coordinate/update", r#"{"Node": "a", "Coord": {"Vec": [1]}}"#).await;
    assert!(status == 400 && text.as_str().unwrap().starts_with("Coord.Vec: "), "{text}");
}
