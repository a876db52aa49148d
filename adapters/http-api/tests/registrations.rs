//! What registrations say that nothing here acts upon: it is kept, and answered as it was given.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::sync::Arc;

use serde_json::{Value, json};
use world::World;

async fn send(world: &Arc<World>, method: &str, target: &str, body: Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (head, text) = world.send(method, target, &body).await;
    assert_eq!(head.status(), 200, "{method} {target}: {text}");
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

async fn register(world: &Arc<World>, service: Value) {
    send(world, "PUT", "/v1/agent/service/register", service).await;
}

async fn get(world: &Arc<World>, target: &str) -> Value {
    send(world, "GET", target, Value::Null).await
}

#[tokio::test]
async fn sockets_and_several_ports_are_kept_and_one_port_counts() {
    let world = World::new();
    let ports =
        json!([{"Name": "metrics", "Port": 9090, "Default": false}, {"Name": "http", "Port": 8080, "Default": true}]);
    register(&world, json!({"Name": "many", "Ports": ports})).await;
    register(&world, json!({"Name": "socket", "SocketPath": "/tmp/a.sock"})).await;
    let services = get(&world, "/v1/agent/services").await;
    assert_eq!((&services["many"]["Ports"], &services["many"]["Port"]), (&ports, &json!(8080)));
    assert_eq!(services["socket"]["SocketPath"], "/tmp/a.sock");
    let row = &get(&world, "/v1/catalog/service/socket").await[0];
    assert_eq!(row["ServiceSocketPath"], "/tmp/a.sock");
    let row = &get(&world, "/v1/catalog/service/many").await[0];
    assert_eq!((&row["ServicePorts"], &row["ServicePort"]), (&ports, &json!(8080)));
}

#[tokio::test]
async fn gateways_for_which_nothing_is_planned_are_kept_with_their_settings() {
    let world = World::new();
    for kind in ["mesh-gateway", "terminating-gateway", "api-gateway"] {
        let proxy = json!({"Config": {"foo": "bar"}});
        register(&world, json!({"Name": kind, "Kind": kind, "Port": 8443, "Proxy": proxy})).await;
        let kept = get(&world, &format!("/v1/agent/service/{kind}")).await;
        assert_eq!((&kept["Kind"], &kept["Proxy"]["Config"]["foo"]), (&json!(kind), &json!("bar")));
        let row = &get(&world, &format!("/v1/catalog/service/{kind}")).await[0];
        assert_eq!((&row["ServiceKind"], &row["ServiceProxy"]["Config"]["foo"]), (&json!(kind), &json!("bar")));
    }
}

#[tokio::test]
async fn a_proxy_keeps_its_exposed_paths_and_its_upstreams_that_are_queries() {
    let world = World::new();
    let expose = json!({"Checks": true, "Paths": [{"ListenerPort": 21500, "Path": "/metrics", "LocalPathPort": 8080, "Protocol": "http2"}]});
    let query = json!({"DestinationType": "prepared_query", "DestinationName": "geo", "LocalBindPort": 8181});
    let service = json!({"DestinationName": "db", "LocalBindPort": 9191});
    let proxy = json!({"DestinationServiceName": "web", "Expose": expose, "Upstreams": [service, query]});
    register(&world, json!({"Name": "p", "Kind": "connect-proxy", "Port": 8443, "Proxy": proxy})).await;
    let kept = get(&world, "/v1/agent/service/p").await["Proxy"].clone();
    assert_eq!((&kept["Expose"], &kept["Upstreams"][1]), (&expose, &query));
    assert_eq!(kept["Upstreams"][0]["DestinationType"], "service", "an agent says so");
    let registration = json!({
        "Node": "n2", "Address": "10.0.0.2",
        "Service": {"Service": "q", "Kind": "connect-proxy", "Port": 1, "Proxy": proxy},
    });
    send(&world, "PUT", "/v1/catalog/register", registration).await;
    let row = &get(&world, "/v1/catalog/service/q").await[0]["ServiceProxy"];
    assert_eq!(row["Upstreams"][0]["DestinationType"], Value::Null, "nobody has said it");
    assert_eq!(row["Upstreams"][1], query);
}

#[tokio::test]
async fn who_stands_behind_a_gateway_is_told_by_what_was_written() {
    let world = World::new();
    for name in ["redis", "api"] {
        register(&world, json!({"Name": name, "Port": 80})).await;
    }
    register(&world, json!({"Name": "edge", "Kind": "ingress-gateway", "Port": 443})).await;
    let linked = json!([{"Name": "api", "CAFile": "api.crt", "SNI": "a.example"}, {"Name": "*", "CAFile": "ca.crt"}]);
    send(&world, "PUT", "/v1/config", json!({"Kind": "terminating-gateway", "Name": "egress", "Services": linked}))
        .await;
    let listeners = json!([{"Port": 8888, "Protocol": "tcp", "Services": [{"Name": "redis"}]}]);
    send(&world, "PUT", "/v1/config", json!({"Kind": "ingress-gateway", "Name": "edge", "Listeners": listeners})).await;
    let of = |service: &str, gateway: &str, kind: &str| json!({"Gateway": {"Name": gateway}, "Service": {"Name": service}, "GatewayKind": kind});
    let mut expected = [of("api", "egress", "terminating-gateway"), of("redis", "egress", "terminating-gateway")];
    expected[0]["CAFile"] = "api.crt".into();
    expected[0]["SNI"] = "a.example".into();
    expected[1]["CAFile"] = "ca.crt".into();
    expected[1]["FromWildcard"] = true.into();
    assert_eq!(get(&world, "/v1/catalog/gateway-services/egress").await, json!(expected));
    let mut expected = of("redis", "edge", "ingress-gateway");
    expected["Port"] = 8888.into();
    expected["Protocol"] = "tcp".into();
    assert_eq!(get(&world, "/v1/catalog/gateway-services/edge").await, json!([expected]));
    assert_eq!(get(&world, "/v1/catalog/gateway-services/none").await, json!([]));
    let found = get(&world, "/v1/health/ingress/redis?passing").await;
    assert_eq!((found[0]["Service"]["Service"].as_str(), found.as_array().map(Vec::len)), (Some("edge"), Some(1)));
    assert_eq!(get(&world, "/v1/health/ingress/api").await, json!([]));
}
