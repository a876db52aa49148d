//! Rights lost during a wait: whatever route waits, it answers by the rights of after the wait.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use std::collections::BTreeSet;

use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use starling_http_api::routes::table;
use starling_http_api::{EntryPoint, Route};
use starling_model::Action;
use tower::ServiceExt;
use world::controlled::Mesh;

/// Rights to read everything that has a name, and what is whole.
const READS: &str = r#"agent_prefix "" { policy = "read" } key_prefix "" { policy = "read" } node_prefix "" { policy = "read" }
    query_prefix "" { policy = "read" } event_prefix "" { policy = "read" } session_prefix "" { policy = "read" }
    service_prefix "" { policy = "write", intentions = "read" } acl = "read" mesh = "read" operator = "read""#;

/// What a mesh has for these tests, by the parameters of paths.
struct Filled {
    session: String,
    query: String,
    intention: String,
    policy: String,
    token: String,
}

impl Filled {
    async fn new(mesh: &Mesh) -> Self {
        let text = |value: &Value, name: &str| value[name].as_str().unwrap().to_owned();
        mesh.as_root("PUT", "/v1/agent/service/register", r#"{"Name": "web", "Check": {"TTL": "10s"}}"#).await;
        mesh.as_root("PUT", "/v1/kv/web/a", "1").await;
        let defaults = r#"{"Kind": "service-defaults", "Name": "web", "Protocol": "http"}"#;
        mesh.as_root("PUT", "/v1/config", defaults).await;
        let intention = r#"{"SourceName": "a", "DestinationName": "web", "Action": "allow"}"#;
        let intention = mesh.as_root("POST", "/v1/connect/intentions", intention).await;
        let query = mesh.as_root("POST", "/v1/query", r#"{"Name": "web", "Service": {"Service": "web"}}"#).await;
        let session = mesh.as_root("PUT", "/v1/session/create", r#"{"Node": "node-1", "NodeChecks": []}"#).await;
        let policy = mesh.as_root("PUT", "/v1/acl/policy", r#"{"Name": "web"}"#).await;
        mesh.as_root("PUT", "/v1/acl/role", r#"{"Name": "web"}"#).await;
        let token = mesh.as_root("PUT", "/v1/acl/token", "{}").await;
        Self {
            session: text(&session, "ID"),
            query: text(&query, "ID"),
            intention: text(&intention, "ID"),
            policy: text(&policy, "ID"),
            token: text(&token, "AccessorID"),
        }
    }

    fn path(&self, path: &str) -> String {
        let part = |part: &str| match part {
            "{*key}" | "{service}" | "{name}" | "{gateway}" => "web".to_owned(),
            "{node}" => "node-1".to_owned(),
            "{state}" => "any".to_owned(),
            "{kind}" => "service-defaults".to_owned(),
            "{query}" => self.query.clone(),
            "{accessor}" => self.token.clone(),
            "{revision}" => "1".to_owned(),
            "{id}" if path.contains("/session/") => self.session.clone(),
            "{id}" if path.contains("/intentions/") => self.intention.clone(),
            "{id}" if path.contains("/acl/policy/") => self.policy.clone(),
            part if part.starts_with('{') => "web".to_owned(),
            part => part.to_owned(),
        };
        path.split('/').map(part).collect::<Vec<_>>().join("/")
    }
}

async fn ask(router: axum::Router, target: String, token: String) -> (u16, http::HeaderMap, String) {
    let request = Request::get(target).header("x-consul-token", token).body(axum::body::Body::empty()).unwrap();
    let (head, body) = router.oneshot(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (head.status.as_u16(), head.headers, String::from_utf8_lossy(&bytes).into_owned())
}

/// An answer that has nothing in it.
fn says_nothing(text: &str) -> bool {
    matches!(text, "[]" | "{}" | "null" | "") || text == r#"{"Node":null,"Services":null}"#
}

/// What says the same to everybody.
fn is_public(path: &str) -> bool {
    let public = ["/ca/roots", "/status/", "/health/live", "/health/ready", "/datacenters", "/acl/replication"];
    public.iter().any(|part| path.contains(part)) || path == "/v1/acl/token/self" || path == "/starling/v1/acl/rights"
}

#[tokio::test(start_paused = true)]
async fn every_route_that_waits_answers_by_the_rights_of_after_the_wait() {
    let mesh = Mesh::new(Action::Deny).await;
    let filled = Filled::new(&mesh).await;
    let token = mesh.token("reads", READS).await;
    let policy = mesh.as_root("GET", "/v1/acl/policy/name/reads", "").await;
    let change = format!("/v1/acl/policy/{}", policy["ID"].as_str().unwrap());
    let rules = |rules: &str| json!({"Name": "reads", "Rules": rules}).to_string();
    let endless = ["/v1/agent/monitor", "/v1/agent/metrics/stream"];
    let routes: Vec<Route> =
        table().into_iter().filter(|it| it.method() == "GET" && !endless.contains(&it.path())).collect();
    let (mut waited, mut blocking) = (BTreeSet::new(), BTreeSet::new());
    for entry_point in [EntryPoint::Own, EntryPoint::Agents] {
        let router = mesh.world.router_at(entry_point);
        for route in routes.iter().filter(|route| entry_point.serves(route) && !is_public(route.path())) {
            if route.summary().contains("blocking") {
                blocking.insert(route.path());
            }
            for more in ["", "&recurse", "&keys", "&source=a&destination=web", "&by=source&name=a"] {
                if more.starts_with("&r") | more.starts_with("&k") && !route.path().starts_with("/v1/kv/") {
                    continue;
                }
                mesh.as_root("PUT", &change, rules(READS)).await;
                let target = format!("{}?x{more}", filled.path(route.path()));
                let (status, headers, text) = ask(router.clone(), target.clone(), token.clone()).await;
                let told = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
                let index = told("x-consul-index").unwrap_or_else(|| "1".to_owned());
                let hash = told("x-consul-contenthash").map(|hash| format!("&hash={hash}")).unwrap_or_default();
                let waiting = format!("{target}&index={index}{hash}&wait=60s");
                let task = tokio::spawn(ask(router.clone(), waiting, token.clone()));
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                if task.is_finished() {
                    continue;
                }
                if status == 200 && !says_nothing(&text) {
                    waited.insert(route.path());
                }
                mesh.as_root("PUT", &change, rules("")).await;
                let (status, _, text) = task.await.unwrap();
                assert!(status >= 400 || says_nothing(&text), "{target} at {entry_point:?}: {status} {text}");
            }
        }
    }
    // What waits and had something to lose: were it fewer, the test would say less than it seems to.
    let missing: Vec<_> = blocking.difference(&waited).collect();
    let without_content = [
        "/v1/acl/auth-methods",
        "/v1/acl/binding-rules",
        "/v1/catalog/connect/{service}",
        "/v1/catalog/gateway-services/{gateway}",
        // Events are those of one router, and these have none.
        "/v1/event/list",
        "/v1/exported-services",
        "/v1/health/connect/{service}",
        "/v1/health/ingress/{service}",
        "/v1/imported-services",
    ];
    assert!(missing.iter().all(|path| without_content.contains(path)), "{missing:?}");
    assert!(waited.contains("/v1/kv/{*key}") && waited.contains("/v1/agent/service/{id}"), "{waited:?}");
}
