//! What bad input gets: 400 with the field's path and the reason, and nothing changed.

use bytes::Bytes;
use serde_json::{Value, json};
use starling_e2e::{Mesh, MeshOptions, Method, free_port, request};

const REGISTER: &str = "/v1/agent/service/register";
const CONFIG: &str = "/v1/config";
const EXACT: &str = "/v1/connect/intentions/exact?source=web&destination=l7";

/// A service whose sidecar calls as it is told.
fn calling(upstreams: &Value) -> Value {
    json!({"Name": "web", "Port": 80, "Connect": {"SidecarService": {"Port": 81, "Proxy": {"Upstreams": upstreams}}}})
}

fn upstream(name: &str, port: i64) -> Value {
    json!({"DestinationName": name, "LocalBindPort": port})
}

/// An intention towards `l7` with one permission.
fn permission(http: &Value) -> Value {
    json!({"Kind": "service-intentions", "Name": "l7",
        "Sources": [{"Name": "web", "Permissions": [{"Action": "deny", "HTTP": http}]}]})
}

const UPSTREAMS: &str = "Connect.SidecarService.Proxy.Upstreams";
const HTTP: &str = "Sources[0].Permissions[0].HTTP";

/// Target, body, and the path that the refusal names.
fn registrations(taken_port: u16) -> Vec<(Value, String)> {
    let long = "a".repeat(129);
    let plain = [
        (json!({"Name": "web", "Prot": 80}), "Prot"),
        (json!({"Name": "web", "Port": "80"}), "Port"),
        (json!({"Name": "web", "Port": 70_000}), "Port"),
        (json!({"Name": "web", "Port": -1}), "Port"),
        (json!({"Name": "web", "Port": 8.5}), "Port"),
        (json!({"Name": "web", "Port": 0}), "Port"),
        (json!({"Name": "web", "Port": 0, "Connect": {"SidecarService": {}}}), "Port"),
        (json!({"Nmae": "web"}), "Nmae"),
        (json!({"Name": "web", "Tags": "blue"}), "Tags"),
        (json!({"Name": "web", "Meta": {"weight": 1}}), "Meta.weight"),
        (json!({"Name": "web", "Address": "10.0.0.1; rm -rf"}), "Address"),
        (json!({"Name": "web", "ID": "web/1"}), "ID"),
        (json!({"Name": "web", "Weights": {"Passing": 0}}), "Weights.Passing"),
        (json!({"Name": "web", "Kind": "proxy"}), "Kind"),
        (json!({"Port": 80}), "Name"),
        (json!({"Name": ""}), "Name"),
        (json!({"Name": "we b"}), "Name"),
        (json!({"Name": "-web"}), "Name"),
        (json!({"Name": "*"}), "Name"),
        (json!({"Name": "web\n"}), "Name"),
        (json!({"Name": "wéb"}), "Name"),
        (json!({"Name": long}), "Name"),
        (json!([]), "body"),
        (json!("web"), "body"),
    ];
    let checks = [
        (json!({"Name": "c"}), ""),
        (json!({"HTTP": "http://127.0.0.1/"}), ".Interval"),
        (json!({"HTTP": "127.0.0.1", "Interval": "1s"}), ".HTTP"),
        (json!({"TCP": "localhost", "Interval": "1s"}), ".TCP"),
        (json!({"TTL": "soon"}), ".TTL"),
        (json!({"TTL": "1s", "Status": "well"}), ".Status"),
        (json!({"Args": ["true"], "Interval": "1s"}), ".Args"),
    ];
    let sidecars = [
        (
            calling(&json!([{"DestinationName": "api", "LocalBindPort": 9000, "LocalBindAdress": "127.0.0.1"}])),
            format!("{UPSTREAMS}[0].LocalBindAdress"),
        ),
        (calling(&json!([upstream("api", 0)])), format!("{UPSTREAMS}[0].LocalBindPort")),
        (calling(&json!([upstream("api", 70_000)])), format!("{UPSTREAMS}[0].LocalBindPort")),
        (calling(&json!([upstream("web", 9000)])), format!("{UPSTREAMS}[0].DestinationName")),
        (calling(&json!([upstream("a", 9000), upstream("b", 9000)])), format!("{UPSTREAMS}[1].LocalBindPort")),
        (calling(&json!([upstream("a", 81)])), format!("{UPSTREAMS}[0].LocalBindPort")),
        (calling(&json!([upstream("a", i64::from(taken_port))])), format!("{UPSTREAMS}[0].LocalBindPort")),
        (
            json!({"Name": "web", "Port": 80, "Connect": {"SidecarService": {"Port": taken_port}}}),
            "Connect.SidecarService.Port".to_owned(),
        ),
        (
            json!({"Name": "web-proxy", "Kind": "connect-proxy", "Port": taken_port,
                "Proxy": {"DestinationServiceName": "web"}}),
            "Port".to_owned(),
        ),
        (json!({"Name": "web", "Port": 80, "Connect": {"SidecarServce": {}}}), "Connect.SidecarServce".to_owned()),
        (
            json!({"Name": "web", "Port": 80, "Connect": {"SidecarService": {"Proxy": {"Config": {"protocl": "http"}}}}}),
            "Connect.SidecarService.Proxy.Config.protocl".to_owned(),
        ),
        (
            json!({"Name": "web", "Port": 80, "Connect": {"SidecarService": {"Proxy": {
                "Upstreams": [{"DestinationName": "l7", "LocalBindPort": 9000, "Config": {"protocol": "tcp"}}]}}}}),
            format!("{UPSTREAMS}[0].Config.protocol"),
        ),
    ];
    let plain = plain.map(|(body, path)| (body, path.to_owned()));
    let checks = checks.map(|(check, path)| (json!({"Name": "web", "Checks": [check]}), format!("Checks[0]{path}")));
    plain.into_iter().chain(checks).chain(sidecars).collect()
}

fn config_entries() -> Vec<(Value, String)> {
    let defaults = |fields: Value| {
        let mut entry = json!({"Kind": "service-defaults", "Name": "web"});
        for (name, value) in fields.as_object().into_iter().flatten() {
            entry[name] = value.clone();
        }
        entry
    };
    let entries = [
        (json!({"Kind": "service-defalts", "Name": "web"}), "Kind"),
        (json!({"Name": "web"}), "Kind"),
        (json!({"Kind": "service-defaults"}), "Name"),
        (defaults(json!({"Name": "we b"})), "Name"),
        (defaults(json!({"Protocol": "htpp"})), "Protocol"),
        (defaults(json!({"Protocol": 2})), "Protocol"),
        (defaults(json!({"Protocl": "http"})), "Protocl"),
        (defaults(json!({"MaxInboundConnections": -1})), "MaxInboundConnections"),
        (json!({"Kind": "proxy-defaults", "Name": "local"}), "Name"),
        (json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "htpp"}}), "Config.protocol"),
        (json!({"Kind": "service-intentions", "Name": "l7"}), "Sources"),
        (json!({"Kind": "service-intentions", "Name": "l7", "Sources": [{"Name": "web"}]}), "Sources[0]"),
        (
            json!({"Kind": "service-intentions", "Name": "l7", "Sources": [{"Name": "we*", "Action": "deny"}]}),
            "Sources[0].Name",
        ),
        (
            json!({"Kind": "service-intentions", "Name": "l7", "Sources": [{"Name": "web", "Action": "dny"}]}),
            "Sources[0].Action",
        ),
        (
            json!({"Kind": "service-intentions", "Name": "l7",
                "Sources": [{"Name": "web", "Action": "deny"}, {"Name": "web", "Action": "allow"}]}),
            "Sources[1].Name",
        ),
    ];
    let permissions = [
        (json!({"PathRegex": "("}), ".PathRegex"),
        // Valid elsewhere, but not in RE2, which is what proxies have.
        (json!({"PathRegex": "/(?=a)b"}), ".PathRegex"),
        (json!({"PathRegex": "(/a)\\1"}), ".PathRegex"),
        (json!({"PathExact": "admin"}), ".PathExact"),
        (json!({"PathExact": "/a", "PathPrefix": "/b"}), ""),
        (json!({"PathPrefix": "/", "PathExat": "/a"}), ".PathExat"),
        (json!({"Methods": ["GE T"]}), ".Methods"),
        (json!({"Header": [{"Name": "x-key"}]}), ".Header[0]"),
        (json!({"Header": [{"Exact": "1"}]}), ".Header[0].Name"),
        (json!({"Header": [{"Name": "x key", "Present": true}]}), ".Header[0].Name"),
        (json!({"Header": [{"Name": "x-key", "Regex": "["}]}), ".Header[0].Regex"),
        (json!({"Header": [{"Name": "x-key", "Exact": "1", "Prefix": "2"}]}), ".Header[0]"),
    ];
    let entries = entries.map(|(entry, path)| (entry, path.to_owned()));
    let permissions = permissions.map(|(http, path)| (permission(&http), format!("{HTTP}{path}")));
    entries.into_iter().chain(permissions).collect()
}

/// Sends what must be refused, and sees that nothing has changed.
async fn assert_refused(mesh: &Mesh, target: &str, body: impl Into<Bytes>, path: &str) {
    let body = body.into();
    let before = mesh.revision().await;
    let answer = mesh.call(Method::PUT, target, body.clone()).await;
    let shown = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
    assert_eq!(answer.status, 400, "{target} {shown}: {}", answer.text());
    let (text, reason) = (answer.text(), answer.text().split_once(": ").map(|(_, reason)| reason.len()).unwrap_or(0));
    assert!(text.starts_with(path) && reason > 5, "{target} {shown}: not {path:?} and a reason, but {text:?}");
    assert_eq!(mesh.revision().await, before, "{target} {shown} changed something");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_are_refused_with_the_fields_path() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let taken_port = free_port();
    mesh.register(&json!({"Name": "first", "Port": free_port(), "Connect": {"SidecarService": {
        "Port": taken_port, "Checks": [{"Name": "c", "TTL": "1h", "Status": "passing"}]}}}))
        .await;
    mesh.protocol("l7", "http").await;

    for (body, path) in registrations(taken_port) {
        assert_refused(&mesh, REGISTER, body.to_string(), &path).await;
    }
    for (body, path) in config_entries() {
        assert_refused(&mesh, CONFIG, body.to_string(), &path).await;
    }
    for (target, body) in [(REGISTER, ""), (REGISTER, "{\"Name\": "), (CONFIG, "\u{0}"), (CONFIG, "{}{}")] {
        assert_refused(&mesh, target, body, "").await;
    }
    let deep = format!("{{\"Name\": \"web\", \"Meta\": {}{}}}", "[".repeat(50_000), "]".repeat(50_000));
    assert_refused(&mesh, REGISTER, deep, "").await;
    // Where the sidecar of `first` is already, though no agent is asked.
    let node = mesh.get("/v1/agent/self").await.success().json()["Config"]["NodeName"].clone();
    let second = json!({"Node": node, "Service": {"Service": "second", "Port": taken_port, "Kind": "connect-proxy",
        "Proxy": {"DestinationServiceName": "web"}}});
    assert_refused(&mesh, "/v1/catalog/register", second.to_string(), "Service.Port").await;
    let regex = json!({"Permissions": [{"Action": "deny", "HTTP": {"PathRegex": "("}}]});
    assert_refused(&mesh, EXACT, regex.to_string(), "Permissions[0].HTTP.PathRegex").await;
    assert_refused(&mesh, EXACT, json!({"Action": "deny", "Acton": "deny"}).to_string(), "Acton").await;

    for target in ["/v1/catalog/services?index=x", "/v1/catalog/services?index=1&wait=x"] {
        assert_eq!(mesh.get(target).await.status, 400, "{target}");
    }
    assert_eq!(mesh.get("/v1/catalog/servces").await.status, 404);
    assert_eq!(mesh.call(Method::POST, REGISTER, "{}").await.status, 405);
    assert_eq!(mesh.get("/v1/status/leader").await.status, 200, "it still stands");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protocols_that_contradict_permissions_are_refused() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let by_request = permission(&json!({"PathPrefix": "/admin"}));
    // Nothing says that l7 speaks HTTP.
    assert_refused(&mesh, CONFIG, by_request.to_string(), "").await;
    mesh.protocol("l7", "http").await;
    mesh.config(&by_request).await;
    let to_tcp = json!({"Kind": "service-defaults", "Name": "l7", "Protocol": "tcp"});
    assert_refused(&mesh, CONFIG, to_tcp.to_string(), "Protocol").await;

    let before = mesh.revision().await;
    let answer = mesh.delete("/v1/config/service-defaults/l7").await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(mesh.revision().await, before);
    let _ = mesh.delete("/v1/config/service-intentions/l7").await.success();
    let _ = mesh.delete("/v1/config/service-defaults/l7").await.success();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_too_large_are_refused() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    for (target, limit) in [(REGISTER, 512 * 1024), (CONFIG, 1024 * 1024), (EXACT, 256 * 1024)] {
        let before = mesh.revision().await;
        let body = json!({"Name": "web", "Kind": "service-defaults", "Notes": "x".repeat(limit)}).to_string();
        let answer = mesh.call(Method::PUT, target, body.clone()).await;
        assert_eq!(answer.status, 400, "{target}: {}", answer.text());
        let told =
            |what: &str| assert!(answer.text().contains(what), "{target}: {what} is not told: {}", answer.text());
        told(&limit.to_string());
        told(target.split('?').next().expect("a path"));
        let chunked = [("transfer-encoding", "chunked")];
        let answer = request(Method::PUT, &mesh.addresses.http, target, &chunked, body).await.expect("an answer");
        assert_eq!(answer.status, 400, "{target} without a length: {}", answer.text());
        assert_eq!(mesh.revision().await, before);
    }
    let long = format!("/v1/catalog/services?filter={}", "x".repeat(9000));
    let answer = mesh.get(&long).await;
    assert!(matches!(answer.status, 400 | 414), "{}", answer.status);
}
