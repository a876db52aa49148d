//! Transactions on nodes, services and checks beside entries: all of them or none, and each by who may.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::sync::Arc;

use serde_json::{Value, json};
use world::World;

async fn txn(world: &Arc<World>, operations: Value) -> (u16, Value) {
    let (head, text) = world.send("PUT", "/v1/txn", &operations.to_string()).await;
    (head.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

async fn get(world: &Arc<World>, target: &str) -> Value {
    let (head, text) = world.send("GET", target, "").await;
    assert_eq!(head.status(), 200, "{target}: {text}");
    serde_json::from_str(&text).unwrap()
}

fn service(verb: &str, node: &str, service: Value) -> Value {
    json!({"Service": {"Verb": verb, "Node": node, "Service": service}})
}

fn check(verb: &str, check: Value) -> Value {
    json!({"Check": {"Verb": verb, "Check": check}})
}

fn node(verb: &str, node: Value) -> Value {
    json!({"Node": {"Verb": verb, "Node": node}})
}

fn a_node_with_a_service() -> Value {
    let definition = json!({"TCP": "10.0.0.9:80", "Interval": "5s", "Timeout": "10s", "DeregisterCriticalServiceAfter": "20s",
        "Header": null, "TLSSkipVerify": false});
    let alive =
        json!({"Node": "n9", "CheckID": "alive", "ServiceID": "s1", "Status": "passing", "Definition": definition});
    json!([
        {"KV": {"Verb": "set", "Key": "k", "Value": ""}},
        node("set", json!({"Node": "n9", "Address": "10.0.0.9", "Meta": {"a": "b"}})),
        service("set", "n9", json!({"ID": "s1", "Service": "shop", "Port": 80, "Tags": ["t"]})),
        check("set", alive),
    ])
}

#[tokio::test]
async fn a_node_its_service_and_its_check_come_and_go_together() {
    let world = World::new();
    let (status, done) = txn(&world, a_node_with_a_service()).await;
    assert_eq!(status, 200, "{done}");
    let results = &done["Results"];
    assert_eq!(results.as_array().unwrap().len(), 4);
    assert_eq!((&results[0]["KV"]["Key"], &results[1]["Node"]["Address"]), (&json!("k"), &json!("10.0.0.9")));
    let at = results[1]["Node"]["ModifyIndex"].clone();
    for (place, kind) in ["KV", "Node", "Service", "Check"].into_iter().enumerate() {
        assert_eq!(results[place][kind]["ModifyIndex"], at, "{kind}");
    }
    let check_form = &results[3]["Check"];
    assert_eq!(
        check_form["Definition"],
        json!({
            "TCP": "10.0.0.9:80", "Interval": "5s", "Timeout": "10s", "DeregisterCriticalServiceAfter": "20s",
        })
    );
    assert_eq!(
        (&check_form["Type"], &check_form["ServiceName"], &check_form["ServiceTags"]),
        (&json!("tcp"), &json!("shop"), &json!(["t"]))
    );
    let stored = get(&world, "/v1/health/service/shop").await;
    assert_eq!(stored[0]["Checks"][0]["Definition"], check_form["Definition"]);
    assert_eq!(stored[0]["Service"]["ModifyIndex"], at);

    // What stays as it is keeps its index; what is read shows it.
    let (status, again) = txn(&world, a_node_with_a_service()).await;
    assert_eq!((status, &again["Results"][3]["Check"]["ModifyIndex"]), (200, &at));
    let read = json!([
        node("get", json!({"Node": "n9"})),
        service("get", "n9", json!({"ID": "s1"})),
        check("get", json!({"Node": "n9", "CheckID": "alive"}))
    ]);
    let (status, read) = txn(&world, read).await;
    assert_eq!((status, &read["Results"][1]["Service"]["Port"]), (200, &json!(80)));
    assert_eq!(read["Results"][2]["Check"], *check_form);

    // A service goes with its checks, a node with everything.
    let moved = json!([
        service("set", "n9", json!({"ID": "s2", "Service": "shop"})),
        service("delete", "n9", json!({"ID": "s1"})),
        check("delete", json!({"Node": "n9", "CheckID": "alive"}))
    ]);
    let (status, done) = txn(&world, moved).await;
    assert_eq!((status, done["Results"].as_array().unwrap().len()), (200, 1), "{done}");
    assert_eq!(get(&world, "/v1/health/node/n9").await, json!([]));
    let (status, done) =
        txn(&world, json!([node("delete", json!({"Node": "n9"})), {"KV": {"Verb": "delete", "Key": "k"}}])).await;
    assert_eq!((status, &done["Results"]), (200, &json!([])), "{done}");
    assert_eq!(get(&world, "/v1/catalog/service/shop").await, json!([]));
}

#[tokio::test]
async fn one_operation_that_fails_leaves_all_as_it_was() {
    let world = World::new();
    let (status, done) = txn(&world, a_node_with_a_service()).await;
    assert_eq!(status, 200, "{done}");
    let index = done["Results"][1]["Node"]["ModifyIndex"].as_u64().unwrap();
    let before = get(&world, "/v1/health/service/shop").await;
    let stale = "index is stale";
    let as_of = |index: u64| json!({"Node": "n9", "Address": "10.0.0.1", "ModifyIndex": index});
    let new = json!({"ID": "s2", "Service": "shop", "ModifyIndex": index});
    for (operation, reason) in [
        (node("cas", as_of(index + 1)), stale),
        (node("cas", as_of(0)), stale),
        (node("delete-cas", as_of(index + 1)), stale),
        (node("delete-cas", json!({"Node": "n8", "ModifyIndex": 0})), stale),
        (service("cas", "n9", new), stale),
        (service("set", "n8", json!({"ID": "s1", "Service": "shop"})), "unknown node n8"),
        (service("get", "n9", json!({"ID": "s3"})), "service \"s3\" on node \"n9\" doesn't exist"),
        (check("get", json!({"Node": "n9", "CheckID": "c"})), "check \"c\" on node \"n9\" doesn't exist"),
        (check("set", json!({"Node": "n9", "CheckID": "c", "ServiceID": "s3"})), "is not registered on node n9"),
        (check("delete-cas", json!({"Node": "n9", "CheckID": "alive", "ModifyIndex": index + 1})), stale),
    ] {
        let removal = service("delete", "n9", json!({"ID": "s1"}));
        let write = json!({"KV": {"Verb": "set", "Key": "other", "Value": ""}});
        let (status, done) = txn(&world, json!([write, operation, removal])).await;
        assert_eq!(
            (status, &done["Results"], &done["Errors"][0]["OpIndex"]),
            (409, &Value::Null, &json!(1)),
            "{operation}"
        );
        assert!(done["Errors"][0]["What"].as_str().unwrap().contains(reason), "{operation}: {done}");
    }
    assert_eq!(get(&world, "/v1/health/service/shop").await, before);
    assert_eq!(world.send("GET", "/v1/kv/other", "").await.0.status(), 404);

    // At its index it goes; and what is named by nothing that is there can be made by cas with 0.
    let (status, done) = txn(&world, json!([node("delete-cas", as_of(index)), node("cas", as_of(0))])).await;
    assert_eq!(status, 200, "{done}");
    assert_eq!(get(&world, "/v1/catalog/service/shop").await, json!([]));
}

#[tokio::test]
async fn what_is_no_operation_is_refused_with_its_place() {
    let world = World::new();
    for (operation, reason) in [
        (json!({}), "[0]"),
        (json!({"Session": {"Verb": "delete"}}), "[0].Session"),
        (node("lock", json!({"Node": "n"})), "[0].Node.Verb: unknown verb \"lock\""),
        (node("set", json!({"Node": "n"})), "[0].Node.Node.Address"),
        (node("set", json!({"Node": "n", "Address": "::", "ID": ""})), "Address"),
        (node("set", json!({"Node": "n", "Address": "1.1.1.1", "ID": "x"})), "is no UUID"),
        (node("cas", json!({"Node": "n", "Address": "1.1.1.1", "ModifyIndex": -1})), "ModifyIndex"),
        (node("get", json!({"ID": "x"})), "Node"),
        (service("set", "", json!({"Service": "x"})), "[0].Service.Node"),
        (service("get", "n", json!({"Service": "x"})), "[0].Service.Service.ID"),
        (check("set", json!({"Node": "n"})), "[0].Check.Check.CheckID"),
        (check("set", json!({"Node": "n", "CheckID": "c", "Definition": {"Colour": 1}})), "Definition.Colour"),
        (check("set", json!({"Node": "n", "CheckID": "c", "Definition": {"Interval": "soon"}})), "Definition.Interval"),
        (json!({"KV": {"Verb": "get", "Key": "k"}, "Node": {"Verb": "get", "Node": {"Node": "n"}}}), "contradicts KV"),
    ] {
        let (status, text) = txn(&world, json!([operation])).await;
        assert!(
            status == 400 && text.to_string().replace("\\\"", "\"").contains(reason),
            "{operation}: {status} {text}"
        );
    }
}
