//! What is held against what is known already: ports of sidecars, protocols of services, settings of proxies.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use world::World;

const REGISTER: &str = "/v1/agent/service/register";
const CONFIG: &str = "/v1/config";
const CATALOG: &str = "/v1/catalog/register";

/// A registration of a sidecar for `web` on node `legacy`.
fn placed(id: &str, port: u16, rest: &str) -> String {
    format!(
        r#"{{"Node": "legacy", "Address": "10.0.0.9", "Service": {{"ID": "{id}", "Service": "web-proxy", "Port": {port},
            "Kind": "connect-proxy", "Proxy": {{"DestinationServiceName": "web"}}{rest}}}}}"#
    )
}

#[tokio::test]
async fn the_catalog_refuses_what_an_agent_would() {
    let world = World::new();
    let takes = async |body: &str| {
        let (answer, text) = world.send("PUT", CATALOG, body).await;
        assert_eq!(answer.status(), 200, "{body}: {text}");
    };
    // Consul's own type always writes the port of a service here.
    takes(r#"{"Node": "legacy", "Address": "10.0.0.9", "Service": {"Service": "batch", "Port": 0}}"#).await;
    takes(&placed("first", 21000, "")).await;
    for (body, wanted) in [
        (placed("second", 21000, ""), "Service.Port: port 21000 on node legacy is already that of sidecar first"),
        (
            placed("second", 21000, r#", "Address": "10.0.0.9""#),
            "Service.Port: port 21000 on node legacy is already that of sidecar first",
        ),
        (placed("second", 0, ""), "Service.Port: must be given for a proxy"),
        (
            r#"{"Node": "legacy", "Service": {"Service": "web", "Port": 70000}}"#.to_owned(),
            "Service.Port: port 70000 is outside 1 to 65535",
        ),
        (r#"{"Nod": "legacy"}"#.to_owned(), "Nod: unknown field; did you mean Node?"),
        (r#"{"Node": "new", "Adress": "10.0.0.1"}"#.to_owned(), "Adress: unknown field; did you mean Address?"),
        (
            r#"{"Node": "legacy", "Service": {"Servic": "web"}}"#.to_owned(),
            "Service.Servic: unknown field; did you mean Service?",
        ),
        (
            r#"{"Node": "legacy", "Check": {"ChekID": "a"}}"#.to_owned(),
            "Check.ChekID: unknown field; did you mean CheckID?",
        ),
    ] {
        world.refuses(CATALOG, &body, wanted).await;
    }
    takes(&placed("first", 21000, r#", "Tags": ["v2"]"#)).await;
    takes(&placed("second", 21000, r#", "Address": "10.0.0.10""#)).await;
    takes(&placed("first", 21001, "")).await;
    takes(&placed("third", 21000, "")).await;
}

#[tokio::test]
async fn a_proxy_may_not_contradict_what_its_service_speaks() {
    let world = World::new();
    let sidecar = |proxy: &str| {
        format!(r#"{{"Name": "web", "Port": 80, "Connect": {{"SidecarService": {{"Port": 90, "Proxy": {proxy}}}}}}}"#)
    };
    let upstream = |protocol: &str| {
        sidecar(&format!(
            r#"{{"Upstreams": [{{"DestinationName": "api", "LocalBindPort": 1, "Config": {{"protocol": "{protocol}"}}}}]}}"#
        ))
    };
    let ok = async |target: &str, body: &str| {
        let (answer, text) = world.send("PUT", target, body).await;
        assert_eq!(answer.status(), 200, "{body}: {text}");
    };
    // Where nothing is written about the service, the planner tells of it.
    ok(REGISTER, &sidecar(r#"{"Config": {"protocol": "http"}}"#)).await;
    ok(CONFIG, r#"{"Kind": "proxy-defaults", "Name": "global", "Config": {"Protocol": "HTTP"}}"#).await;
    ok(CONFIG, r#"{"Kind": "service-defaults", "Name": "api", "Protocol": "grpc"}"#).await;
    let path = "Connect.SidecarService.Proxy";
    for (body, wanted) in [
        (
            sidecar(r#"{"Config": {"protocol": "tcp"}}"#),
            format!("{path}.Config.protocol: \"tcp\" contradicts proxy-defaults/global, by which web speaks http; change one of the two"),
        ),
        (
            upstream("http"),
            format!("{path}.Upstreams[0].Config.protocol: \"http\" contradicts service-defaults/api, by which api speaks grpc; change one of the two"),
        ),
        (
            r#"{"Name": "p", "Kind": "connect-proxy", "Port": 1, "Proxy": {"DestinationServiceName": "api", "Config": {"protocol": "tcp"}}}"#.to_owned(),
            "Proxy.Config.protocol: \"tcp\" contradicts service-defaults/api, by which api speaks grpc; change one of the two".to_owned(),
        ),
    ] {
        world.refuses(REGISTER, &body, &wanted).await;
    }
    let wanted = "Service.Proxy.Config.protocol: \"tcp\" contradicts proxy-defaults/global, by which web speaks http; change one of the two";
    let body = r#"{"Node": "legacy", "Address": "10.0.0.9", "Service": {"Service": "p", "Kind": "connect-proxy", "Port": 1, "Proxy": {"DestinationServiceName": "web", "Config": {"protocol": "tcp"}}}}"#;
    world.refuses(CATALOG, body, wanted).await;
    ok(REGISTER, &sidecar(r#"{"Config": {"protocol": "Http"}}"#)).await;
    ok(REGISTER, &upstream("grpc")).await;
}

#[tokio::test]
async fn settings_come_out_in_one_spelling() {
    let world = World::new();
    let body = r#"{"Name": "web", "Port": 80, "Connect": {"SidecarService": {"Port": 90, "Proxy": {
        "Config": {"Bind_Port": "9000", "bind_address": "0.0.0.0", "LOCAL_CONNECT_TIMEOUT_MS": 250.0, "protocol": "HTTP",
            "max_inbound_connections": 5, "local_request_timeout_ms": null, "mesh_gateway": {}},
        "Upstreams": [{"DestinationName": "api", "LocalBindPort": 1, "Config": {"limits": {"max_connections": 3}}}]}}}}"#;
    let (answer, text) = world.send("PUT", REGISTER, body).await;
    assert_eq!(answer.status(), 200, "{text}");
    let (_, text) = world.send("GET", "/v1/agent/service/web-sidecar-proxy", "").await;
    let proxy = serde_json::from_str::<serde_json::Value>(&text).unwrap()["Proxy"].clone();
    let config = serde_json::json!({"bind_port": 9000, "bind_address": "0.0.0.0", "local_connect_timeout_ms": 250,
        "protocol": "http", "max_inbound_connections": 5});
    assert_eq!(proxy["Config"], config);
    assert_eq!(proxy["Upstreams"][0]["Config"], serde_json::json!({"limits": {"max_connections": 3}}));
}
