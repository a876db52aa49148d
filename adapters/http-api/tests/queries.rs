//! Prepared queries as clients of Consul have them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::sync::Arc;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use world::World;

async fn send(world: &Arc<World>, method: &str, target: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (head, text) = world.send(method, target, &body).await;
    (head.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Three instances of db on as many nodes: one is well, one warns, one is critical.
async fn world() -> Arc<World> {
    let world = World::new();
    for (node, status, tag) in [("a", "passing", "v1"), ("b", "warning", "v2"), ("c", "critical", "v1")] {
        let registration = json!({
            "Node": node, "Address": "10.0.0.2", "NodeMeta": {"rack": node},
            "Service": {"Service": "db", "Port": 1, "Tags": [tag], "Meta": {"team": "x"}},
            "Check": {"CheckID": format!("of-{node}"), "Name": "alive", "Status": status, "ServiceID": "db"},
        });
        assert_eq!(send(&world, "PUT", "/v1/catalog/register", registration).await.0, 200);
    }
    world
}

async fn made(world: &Arc<World>, definition: Value) -> String {
    let (status, made) = send(world, "POST", "/v1/query", definition).await;
    assert_eq!(status, 200, "{made}");
    made["ID"].as_str().unwrap().to_owned()
}

/// The nodes that a query means, in order.
async fn nodes(world: &Arc<World>, query: &str) -> String {
    let (status, found) = send(world, "GET", &format!("/v1/query/{query}/execute"), Value::Null).await;
    assert_eq!(status, 200, "{found}");
    let nodes = found["Nodes"].as_array().unwrap();
    let mut names: Vec<_> = nodes.iter().map(|row| row["Node"]["Node"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.concat()
}

#[tokio::test]
async fn a_query_is_kept_changed_carried_out_and_removed() {
    let world = world().await;
    let id = made(&world, json!({"Name": "q", "Service": {"Service": "db"}, "DNS": {"TTL": "10s"}})).await;
    assert_eq!(nodes(&world, &id).await, "ab", "the critical one is none");
    assert_eq!(nodes(&world, "q").await, "ab");
    let (_, read) = send(&world, "GET", &format!("/v1/query/{id}"), Value::Null).await;
    assert_eq!(
        (&read[0]["Name"], &read[0]["DNS"]["TTL"], &read[0]["Service"]["Tags"]),
        (&json!("q"), &json!("10s"), &Value::Null)
    );
    for (service, expected) in [
        (json!({"OnlyPassing": true}), "a"),
        (json!({"IgnoreCheckIDs": ["of-c"]}), "abc"),
        (json!({"Tags": ["v1"]}), "a"),
        (json!({"Tags": ["!v1"]}), "b"),
        (json!({"NodeMeta": {"rack": "b"}}), "b"),
        (json!({"ServiceMeta": {"team": "y"}}), ""),
        (json!({"Connect": true}), ""),
        (json!({"Failover": {"NearestN": 1, "Datacenters": ["dc2"]}}), "ab"),
    ] {
        let mut definition = json!({"ID": id, "Name": "q", "Service": {"Service": "db"}});
        definition["Service"].as_object_mut().unwrap().extend(service.as_object().unwrap().clone());
        assert_eq!(send(&world, "PUT", &format!("/v1/query/{id}"), definition).await.0, 200);
        assert_eq!(nodes(&world, "q").await, expected, "{service}");
    }
    let (_, limited) = send(&world, "GET", "/v1/query/q/execute?limit=1", Value::Null).await;
    assert_eq!(limited["Nodes"].as_array().map(Vec::len), Some(1));
    let (_, kinds) = send(&world, "GET", "/v1/config/prepared-query", Value::Null).await;
    assert!(kinds.is_string(), "it is no config entry: {kinds}");
    assert_eq!(send(&world, "DELETE", &format!("/v1/query/{id}"), Value::Null).await.0, 200);
    assert_eq!(send(&world, "GET", "/v1/query", Value::Null).await.1, json!([]));
    assert_eq!(send(&world, "GET", "/v1/query/q/execute", Value::Null).await.0, 404);
    assert_eq!(send(&world, "GET", &format!("/v1/query/{id}"), Value::Null).await.0, 404);
}

#[tokio::test]
async fn a_template_makes_queries_of_names_and_the_longest_beginning_counts() {
    let world = world().await;
    let template = |name: &str, regexp: &str, service: Value| {
        json!({
            "Name": name,
            "Template": {"Type": "name_prefix_match", "Regexp": regexp, "RemoveEmptyTags": true},
            "Service": service,
        })
    };
    made(&world, template("", "", json!({"Service": "${name.full}"}))).await;
    made(&world, template("find-", "^find-(.+?)(-v.)?$", json!({"Service": "${match(1)}", "Tags": ["${match(3)}"]})))
        .await;
    assert_eq!(nodes(&world, "db").await, "ab");
    assert_eq!(nodes(&world, "find-db-v9").await, "ab");
    let (_, explained) = send(&world, "GET", "/v1/query/find-db/explain", Value::Null).await;
    let service = &explained["Query"]["Service"];
    assert_eq!((&service["Service"], &service["Tags"]), (&json!("db"), &Value::Null));
}

#[tokio::test]
async fn what_can_be_no_query_is_refused_with_the_fields_path() {
    let world = world().await;
    made(&world, json!({"Name": "q", "Service": {"Service": "db"}})).await;
    for (definition, path) in [
        (json!({"Service": {"Service": "db"}, "Name": "q"}), "Name: "),
        (json!({"Name": "r"}), "Service: "),
        (json!({"Service": {"Service": "a/b"}}), "Service.Service: "),
        (json!({"Service": {"Service": "db", "Tgas": []}}), "Service.Tgas: "),
        (json!({"Service": {"Service": "db"}, "Session": "x"}), "Session: "),
        (json!({"Service": {"Service": "db"}, "DNS": {"TTL": "soon"}}), "DNS.TTL: "),
        (json!({"Service": {"Service": "db"}, "Template": {"Type": "other"}}), "Template.Type: "),
        (
            json!({"Service": {"Service": "db"}, "Template": {"Type": "name_prefix_match", "Regexp": "("}}),
            "Template.Regexp: ",
        ),
        (json!({"Name": "6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11", "Service": {"Service": "db"}}), "Name: "),
    ] {
        let (status, text) = send(&world, "POST", "/v1/query", definition.clone()).await;
        assert!(status == 400 && text.as_str().unwrap().starts_with(path), "{definition}: {status} {text}");
    }
    made(
        &world,
        json!({"Name": "t", "Template": {"Type": "name_prefix_match"}, "Service": {"Service": "${name.ful}"}}),
    )
    .await;
    let (status, text) = send(&world, "GET", "/v1/query/tx/execute", Value::Null).await;
    assert!(status == 400 && text.as_str().unwrap().contains("name.full"), "{text}");
}

#[tokio::test]
async fn what_is_near_comes_first_by_distance_as_far_as_it_is_known_and_else_by_the_node_itself() {
    let world = world().await;
    // As many as are well, so that chance orders them rightly once in thousands only.
    for number in 0..5 {
        let registration =
            json!({"Node": format!("m{number}"), "Address": format!("10.0.1.{number}"), "Service": {"Service": "db"}});
        assert_eq!(send(&world, "PUT", "/v1/catalog/register", registration).await.0, 200);
    }
    let id = made(&world, json!({"Name": "q", "Service": {"Service": "db", "Near": "m3"}})).await;
    // Coordinates are in the memory of one router.
    let router = world.router();
    let ask = async |method: &str, target: &str, forwarded: Option<&str>, body: String| {
        let mut request = http::Request::builder().method(method).uri(target);
        if let Some(address) = forwarded {
            request = request.header("x-forwarded-for", address);
        }
        let request = request.body(axum::body::Body::from(body)).unwrap();
        let (head, body) = router.clone().oneshot(request).await.unwrap().into_parts();
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        assert_eq!(head.status.as_u16(), 200, "{text}");
        text
    };
    let order = async |target: &str, forwarded: Option<&str>| {
        let found: Value = serde_json::from_str(&ask("GET", target, forwarded, String::new()).await).unwrap();
        let rows = found.get("Nodes").unwrap_or(&found).as_array().unwrap();
        let name = |row: &Value| row["Node"]["Node"].as_str().or_else(|| row["Node"].as_str()).unwrap().to_owned();
        rows.iter().map(name).collect::<Vec<_>>()
    };
    for _ in 0..5 {
        assert_eq!(order("/v1/query/q/execute", None).await[0], "m3", "no distance is known");
        assert_eq!(order(&format!("/v1/query/{id}/execute?near=m1"), None).await[0], "m1");
        assert_eq!(order("/v1/query/q/execute?near=_ip", Some("10.0.1.4, 192.0.2.1")).await[0], "m4");
        assert_eq!(order("/v1/catalog/service/db?near=m2", None).await[0], "m2");
    }
    for (node, at) in [("m3", 0.0), ("m1", 3.0), ("m0", 1.0), ("m2", 2.0)] {
        let coordinate = json!({"Node": node, "Coord": {"Vec": [at, 0, 0, 0, 0, 0, 0, 0], "Height": 0.1}});
        ask("PUT", "/v1/coordinate/update", None, coordinate.to_string()).await;
    }
    assert_eq!(order("/v1/query/q/execute", None).await[..4], ["m3", "m0", "m2", "m1"]);
    assert_eq!(order("/v1/query/q/execute?limit=2", None).await, ["m3", "m0"]);
}

#[tokio::test]
async fn a_template_is_asked_for_by_names_which_may_look_like_identifiers() {
    let world = world().await;
    let template =
        json!({"Name": "", "Template": {"Type": "name_prefix_match"}, "Service": {"Service": "${name.full}"}});
    let for_all = made(&world, template).await;
    let template =
        json!({"Name": "web", "Template": {"Type": "name_prefix_match"}, "Service": {"Service": "${name.full}"}});
    let id = made(&world, template).await;
    let name = "6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11";
    // By its identifier it is what its own name makes of it.
    for (asked, service) in [(name, name), (&id, "web"), ("web-1", "web-1")] {
        let (_, explained) = send(&world, "GET", &format!("/v1/query/{asked}/explain"), Value::Null).await;
        assert_eq!(explained["Query"]["Service"]["Service"], service, "{asked}");
    }
    let (status, text) = send(&world, "GET", &format!("/v1/query/{for_all}/execute"), Value::Null).await;
    assert!(status == 400 && text.as_str().unwrap().contains("Service"), "{status} {text}");
}
