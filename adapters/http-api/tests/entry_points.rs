//! The whole route table at each entry point: a node's certificate opens what agents pass on, and nothing else of a server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::collections::BTreeSet;

use http::Request;
use http_body_util::BodyExt;
use starling_http_api::routes::table;
use starling_http_api::{Answerer, EntryPoint, Permission, Route};
use starling_model::Action;
use tower::ServiceExt;
use world::World;
use world::controlled::Mesh;

/// What agents may have changed for their callers, by the beginnings of paths. None of it is about a server or its process.
const WRITES_FOR_AGENTS: [&str; 12] = [
    "/v1/acl/",
    "/v1/agent/connect/authorize",
    "/v1/catalog/",
    "/v1/config",
    "/v1/connect/intentions",
    "/v1/coordinate/update",
    "/v1/discovery-chain/",
    "/v1/event/fire/",
    "/v1/kv/",
    "/v1/query",
    "/v1/session/",
    "/v1/txn",
];

fn filled(path: &str) -> String {
    path.split('/').map(|part| if part.starts_with('{') { "web" } else { part }).collect::<Vec<_>>().join("/")
}

async fn ask(router: &axum::Router, route: &Route, token: &str) -> (u16, String) {
    let request = Request::builder().method(route.method()).uri(filled(route.path())).header("x-consul-token", token);
    let answer = router.clone().oneshot(request.body(axum::body::Body::empty()).unwrap()).await.unwrap();
    let status = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&bytes).into_owned())
}

#[tokio::test]
async fn the_port_for_agents_refuses_what_is_a_servers_own_whatever_token_is_shown() {
    let mesh = Mesh::new(Action::Deny).await;
    let open = World::new();
    let routers =
        [(mesh.world.router_at(EntryPoint::Agents), &mesh.world), (open.router_at(EntryPoint::Agents), &open)];
    for (router, world) in routers {
        let before = world.snapshot_now();
        for route in table().iter().filter(|route| !EntryPoint::Agents.serves(route)) {
            let (status, text) = ask(&router, route, &mesh.root).await;
            let what = format!("{} {}", route.method(), route.path());
            assert_eq!(status, 403, "{what}: {text}");
            assert!(
                text.contains("port for agents") && text.contains(&route.permission().to_string()),
                "{what}: {text}"
            );
        }
        assert_eq!(world.snapshot_now(), before);
    }
}

#[tokio::test]
async fn a_nodes_certificate_does_not_have_a_server_leave() {
    let world = World::new();
    let router = world.router_at(EntryPoint::Agents);
    for (method, path) in [
        ("PUT", "/v1/agent/leave"),
        ("PUT", "/starling/v1/server/leave"),
        ("PUT", "/v1/agent/reload"),
        ("PUT", "/v1/agent/maintenance"),
        ("PUT", "/v1/agent/token/{token}"),
        ("PUT", "/v1/agent/service/register"),
        ("GET", "/v1/agent/monitor"),
        ("GET", "/v1/agent/connect/ca/leaf/{service}"),
        ("PUT", "/starling/v1/agent/leaves/rotate"),
        ("GET", "/metrics"),
    ] {
        let routes = table();
        let route = routes.iter().find(|route| (route.method(), route.path()) == (method, path)).unwrap();
        assert_eq!(ask(&router, route, "").await.0, 403, "{method} {path}");
    }
}

#[test]
fn the_allow_list_has_what_agents_pass_on() {
    let table = table();
    let allowed: Vec<&Route> = table.iter().filter(|route| EntryPoint::Agents.serves(route)).collect();
    let about_agents: BTreeSet<_> =
        allowed.iter().map(|route| route.path()).filter(|path| path.contains("/agent/")).collect();
    let expected = ["/v1/agent/connect/authorize", "/v1/agent/connect/ca/roots", "/v1/agent/members"];
    assert_eq!(about_agents.into_iter().collect::<Vec<_>>(), expected, "only what a server knows of the whole mesh");
    for route in &allowed {
        let (method, path) = (route.method(), route.path());
        let is_listed = WRITES_FOR_AGENTS.iter().any(|beginning| path.starts_with(beginning));
        assert!(method == "GET" || is_listed, "{method} {path}: list it if nodes may have servers do it");
        assert_ne!(route.permission(), Permission::OperatorWrite, "{method} {path}");
    }
    for route in &table {
        assert!(EntryPoint::Own.serves(route));
        let is_own = route.permission() == Permission::OperatorWrite;
        let is_agents = route.path().starts_with("/v1/agent/") && !expected.contains(&route.path());
        let (method, path, answerer) = (route.method(), route.path(), route.answerer());
        assert_eq!(answerer == Answerer::OwnListeners, is_own, "{method} {path}: an operator's business");
        assert!(!is_agents || is_own || answerer == Answerer::Agent, "{method} {path}: an agent's own business");
    }
}
