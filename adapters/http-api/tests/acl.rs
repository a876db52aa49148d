//! Access control at the door: who may do what, and that nobody else may.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use http::Request;
use serde_json::{Value, json};
use starling_http_api::limits::BodyLimit;
use starling_http_api::routes::table;
use starling_http_api::{AgentPort, EntryPoint, INSIDE, Route};
use starling_model::{AclSecret, Action};
use tower::ServiceExt;
use world::World;
use world::controlled::Mesh;

#[tokio::test]
async fn without_access_control_its_routes_say_so_and_everything_else_is_open() {
    let world = World::new();
    for (method, target) in
        [("PUT", "/v1/acl/bootstrap"), ("GET", "/v1/acl/tokens"), ("PUT", "/v1/agent/token/default")]
    {
        let (answer, text) = world.send(method, target, "").await;
        assert_eq!((answer.status().as_u16(), text.as_str()), (401, "ACL support disabled"), "{target}");
    }
    assert_eq!(world.send("PUT", "/v1/kv/a", "1").await.0.status(), 200);
}

#[tokio::test]
async fn the_first_token_is_made_once_and_before_it_none_is_known() {
    let world = World::new();
    world.control_access(Action::Deny);
    let (answer, text) = world.send("GET", "/v1/acl/tokens", "").await;
    let anonymous = "Permission denied: anonymous token lacks permission 'acl:read'. The anonymous token is used implicitly \
                     when a request does not specify a token.";
    assert_eq!((answer.status().as_u16(), text.as_str()), (403, anonymous));
    let (answer, text) = world.send("GET", "/v1/acl/tokens?token=root", "").await;
    let before = "ACL system must be bootstrapped before making any requests that require authorization: ACL not found";
    assert_eq!((answer.status().as_u16(), text.as_str()), (403, before));
    let secret = "5e3c2f0e-3f0b-4f0e-8b7f-0d8a3a0b1c2d";
    let (answer, _) = world.send("PUT", "/v1/acl/bootstrap", &json!({"BootstrapSecret": secret}).to_string()).await;
    assert_eq!(answer.status(), 200);
    let (answer, text) = world.send("PUT", "/v1/acl/bootstrap", "").await;
    assert_eq!(answer.status(), 403);
    assert!(text.starts_with("Permission denied: ACL bootstrap no longer allowed (reset index: "), "{text}");
    let (answer, text) = world.send("GET", "/v1/acl/tokens?token=root", "").await;
    assert_eq!((answer.status().as_u16(), text.as_str()), (403, "ACL not found"));
    let (answer, text) = world.send("GET", &format!("/v1/acl/tokens?token={secret}"), "").await;
    assert_eq!(answer.status(), 200, "{text}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap().as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn entries_are_read_and_written_by_the_rules_for_their_keys() {
    let mesh = Mesh::new(Action::Deny).await;
    let rules = "key_prefix \"app/\" { policy = \"write\" } key_prefix \"app/secret/\" { policy = \"deny\" } key \"flag\" { policy = \"read\" }";
    let token = mesh.token("app", rules).await;
    for key in ["app/a", "app/secret/b", "flag", "other"] {
        mesh.as_root("PUT", &format!("/v1/kv/{key}"), "1").await;
    }
    let accessor = mesh.ask(Some(&token), "GET", "/v1/acl/token/self", "").await.1;
    let accessor = serde_json::from_str::<Value>(&accessor).unwrap()["AccessorID"].as_str().unwrap().to_owned();
    let lacks = |what: &str| format!("Permission denied: token with AccessorID '{accessor}' lacks permission {what}");
    for (method, target, status, text) in [
        ("PUT", "/v1/kv/app/a", 200, "true".to_owned()),
        ("PUT", "/v1/kv/app/secret/b", 403, lacks("'key:write' on \"app/secret/b\"")),
        ("GET", "/v1/kv/app/secret/b", 403, lacks("'key:read' on \"app/secret/b\"")),
        ("PUT", "/v1/kv/flag", 403, lacks("'key:write' on \"flag\"")),
        ("GET", "/v1/kv/flag?raw", 200, "1".to_owned()),
        ("GET", "/v1/kv/other", 403, lacks("'key:read' on \"other\"")),
        ("GET", "/v1/kv/?keys", 200, "[\"app/a\",\"flag\"]".to_owned()),
        ("GET", "/v1/kv/?keys&separator=/", 200, "[\"app/\",\"flag\"]".to_owned()),
        ("GET", "/v1/kv/app/secret/?keys", 404, String::new()),
        ("DELETE", "/v1/kv/app/?recurse", 403, lacks("'key:write' on \"app/\"")),
        ("DELETE", "/v1/kv/app/a?recurse", 200, "true".to_owned()),
    ] {
        assert_eq!(mesh.ask(Some(&token), method, target, "").await, (status, text), "{method} {target}");
    }
    let (answer, text) = mesh.ask_head(Some(&token), "GET", "/v1/kv/?recurse", "").await;
    assert_eq!(answer.headers()["x-consul-results-filtered-by-acls"], "true");
    assert!(text.contains("flag") && !text.contains("other") && !text.contains("secret"), "{text}");
    // All of a transaction or nothing.
    let txn =
        |key: &str| json!([{"KV": {"Verb": "set", "Key": "app/x"}}, {"KV": {"Verb": "set", "Key": key}}]).to_string();
    assert_eq!(mesh.ask(Some(&token), "PUT", "/v1/txn", &txn("other")).await.0, 403);
    assert_eq!(mesh.ask(Some(&token), "GET", "/v1/kv/app/x", "").await.0, 404);
    assert_eq!(mesh.ask(Some(&token), "PUT", "/v1/txn", &txn("app/y")).await.0, 200);
    for verb in ["get-tree", "delete-tree", "get", "check-not-exists", "delete"] {
        let txn = json!([{"KV": {"Verb": verb, "Key": "oth"}}]).to_string();
        assert_eq!(mesh.ask(Some(&token), "PUT", "/v1/txn", &txn).await.0, 403, "{verb}");
    }
}

#[tokio::test]
async fn services_are_registered_by_who_may_write_them_and_never_over_others() {
    let mesh = Mesh::new(Action::Deny).await;
    let web = mesh.token("web", "service \"web\" { policy = \"write\" }").await;
    mesh.as_root(
        "PUT",
        "/v1/agent/service/register",
        r#"{"Name": "db", "ID": "db-1", "Check": {"CheckID": "c", "TTL": "10s"}}"#,
    )
    .await;
    for (target, body, status) in [
        ("/v1/agent/service/register", r#"{"Name": "web"}"#, 200),
        ("/v1/agent/service/register", r#"{"Name": "db"}"#, 403),
        // Its place is another's.
        ("/v1/agent/service/register", r#"{"Name": "web", "ID": "db-1"}"#, 403),
        ("/v1/agent/service/register", r#"{"Name": "web", "Check": {"CheckID": "c", "TTL": "10s"}}"#, 403),
        // The sidecar is a service of its own.
        ("/v1/agent/service/register", r#"{"Name": "web", "Connect": {"SidecarService": {}}}"#, 403),
        ("/v1/agent/service/deregister/db-1", "", 403),
        ("/v1/agent/check/register", r#"{"Name": "n", "TTL": "10s"}"#, 403),
        ("/v1/agent/check/register", r#"{"Name": "n", "ServiceID": "db-1", "TTL": "10s"}"#, 403),
        ("/v1/agent/check/pass/c", "", 403),
        ("/v1/agent/check/deregister/c", "", 403),
        ("/v1/catalog/register", r#"{"Node": "node-1", "Address": "10.0.0.9"}"#, 403),
        ("/v1/catalog/register", r#"{"Node": "node-1", "SkipNodeUpdate": true, "Service": {"Service": "db"}}"#, 403),
        ("/v1/catalog/deregister", r#"{"Node": "node-1", "ServiceID": "db-1"}"#, 403),
        ("/v1/catalog/deregister", r#"{"Node": "node-1"}"#, 403),
        ("/v1/config", r#"{"Kind": "service-defaults", "Name": "web", "Protocol": "http"}"#, 200),
        ("/v1/config", r#"{"Kind": "service-defaults", "Name": "db", "Protocol": "http"}"#, 403),
        ("/v1/config", r#"{"Kind": "proxy-defaults", "Name": "global"}"#, 403),
        (
            "/v1/config",
            r#"{"Kind": "service-intentions", "Name": "web", "Sources": [{"Name": "db", "Action": "allow"}]}"#,
            403,
        ),
        ("/v1/connect/intentions/exact?source=db&destination=web", r#"{"Action": "allow"}"#, 403),
        ("/v1/agent/service/deregister/web", "", 200),
    ] {
        let (found, text) = mesh.ask(Some(&web), "PUT", target, body).await;
        assert_eq!(found, status, "{target} {body}: {text}");
    }
    let callers = mesh.token("callers", "service \"web\" { policy = \"read\" intentions = \"write\" }").await;
    let exact = "/v1/connect/intentions/exact?source=db&destination=web";
    assert_eq!(mesh.ask(Some(&callers), "PUT", exact, r#"{"Action": "allow"}"#).await.0, 200);
    let any = "/v1/connect/intentions/exact?source=db&destination=*";
    assert_eq!(mesh.ask(Some(&callers), "PUT", any, r#"{"Action": "allow"}"#).await.0, 403);
}

#[tokio::test]
async fn a_transaction_is_judged_operation_by_operation() {
    let mesh = Mesh::new(Action::Deny).await;
    let body = json!({"Node": "n1", "Address": "10.0.0.1", "Service": {"ID": "a", "Service": "theirs"},
        "Check": {"Node": "n1", "CheckID": "c", "ServiceID": "a"}});
    mesh.as_root("PUT", "/v1/catalog/register", &body.to_string()).await;
    let rules =
        "service \"mine\" { policy = \"write\" } node \"n2\" { policy = \"write\" } node \"n1\" { policy = \"read\" }";
    let token = mesh.token("mine", rules).await;
    let node = |verb: &str, node: &str| json!({"Node": {"Verb": verb, "Node": {"Node": node, "Address": "10.0.0.2"}}});
    let service = |verb: &str, node: &str, id: &str, name: &str| json!({"Service": {"Verb": verb, "Node": node, "Service": {"ID": id, "Service": name}}});
    let check = |verb: &str, node: &str, id: &str, of: &str| json!({"Check": {"Verb": verb, "Check": {"Node": node, "CheckID": id, "ServiceID": of, "ServiceName": "mine"}}});
    for (operations, wanted) in [
        (json!([node("get", "n1")]), 200),
        (json!([node("set", "n1")]), 403),
        (json!([node("delete", "n1")]), 403),
        (json!([node("cas", "n1")]), 403),
        (json!([node("set", "n2"), service("set", "n2", "m", "mine"), check("set", "n2", "m", "m")]), 200),
        (json!([service("set", "n1", "b", "mine")]), 200),
        (json!([service("set", "n1", "b", "theirs")]), 403),
        (json!([service("set", "n1", "a", "mine")]), 403),
        (json!([service("get", "n1", "a", "")]), 403),
        (json!([service("get", "n1", "b", "")]), 200),
        (json!([service("delete", "n1", "a", "")]), 403),
        (json!([check("get", "n1", "c", "")]), 403),
        (json!([check("set", "n1", "c", "b")]), 403),
        (json!([check("set", "n1", "d", "a")]), 403),
        (json!([check("set", "n1", "d", "gone")]), 403),
        (json!([check("set", "n1", "d", "")]), 403),
        (json!([check("delete", "n1", "c", "")]), 403),
        (json!([check("set", "n1", "d", "b"), service("delete", "n1", "b", "")]), 200),
        (json!([node("get", "n2"), node("delete", "n1")]), 403),
        (json!([node("delete", "n2")]), 200),
    ] {
        let (status, text) = mesh.ask(Some(&token), "PUT", "/v1/txn", &operations.to_string()).await;
        assert_eq!(status, wanted, "{operations}: {text}");
        assert_eq!(mesh.ask(None, "PUT", "/v1/txn", &operations.to_string()).await.0, 403, "{operations}");
    }
    let left = mesh.as_root("GET", "/v1/health/node/n1", "").await;
    assert_eq!((left.as_array().unwrap().len(), &left[0]["CheckID"]), (1, &json!("c")));
}

#[tokio::test]
async fn lists_have_what_may_be_seen_and_say_if_that_is_not_all() {
    let mesh = Mesh::new(Action::Deny).await;
    for name in ["web", "db"] {
        let body = json!({"Name": name, "Check": {"TTL": "10s"}}).to_string();
        mesh.as_root("PUT", "/v1/agent/service/register", &body).await;
        let entry = json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"}).to_string();
        mesh.as_root("PUT", "/v1/config", &entry).await;
        let intention = json!({"SourceName": "a", "DestinationName": name, "Action": "allow"}).to_string();
        mesh.as_root("POST", "/v1/connect/intentions", &intention).await;
    }
    mesh.as_root("PUT", "/v1/session/create", r#"{"NodeChecks": []}"#).await;
    let reader =
        mesh.token("reader", "service \"web\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }").await;
    let blind = mesh.token("blind", "service \"web\" { policy = \"read\" }").await;
    for (target, count, of_blind) in [
        ("/v1/agent/services", 1, 1),
        ("/v1/agent/checks", 1, 1),
        ("/v1/catalog/services", 1, 1),
        ("/v1/catalog/nodes", 1, 0),
        ("/v1/catalog/service/web", 1, 0),
        ("/v1/catalog/service/db", 0, 0),
        ("/v1/health/service/web", 1, 0),
        ("/v1/health/service/db", 0, 0),
        ("/v1/health/checks/db", 0, 0),
        ("/v1/health/state/any", 1, 0),
        ("/v1/connect/intentions", 1, 1),
        ("/v1/config/service-defaults", 1, 1),
        ("/v1/session/list", 0, 0),
    ] {
        for (token, count) in [(Some(reader.as_str()), count), (Some(blind.as_str()), of_blind), (None, 0)] {
            let (answer, text) = mesh.ask_head(token, "GET", target, "").await;
            assert_eq!(answer.status(), 200, "{target}: {text}");
            let list: Value = serde_json::from_str(&text).unwrap();
            let found = list.as_array().map(Vec::len).or_else(|| list.as_object().map(serde_json::Map::len));
            assert_eq!(found, Some(count), "{target}: {text}");
        }
    }
    let (answer, text) = mesh.ask_head(Some(&reader), "GET", "/v1/catalog/node/node-1", "").await;
    assert_eq!(answer.headers()["x-consul-results-filtered-by-acls"], "true");
    assert!(text.contains("\"web\"") && !text.contains("\"db\""), "{text}");
    assert_eq!(mesh.ask(Some(&blind), "GET", "/v1/catalog/node/node-1", "").await, (200, "null".to_owned()));
    let (answer, _) = mesh.ask_head(Some(&mesh.root), "GET", "/v1/catalog/node/node-1", "").await;
    assert!(!answer.headers().contains_key("x-consul-results-filtered-by-acls"));
    assert_eq!(answer.headers()["x-consul-default-acl-policy"], "deny");
    for (target, status) in [
        ("/v1/agent/service/web", 200),
        ("/v1/agent/service/db", 403),
        ("/v1/agent/health/service/id/db?format=text", 403),
        ("/v1/agent/health/service/name/db", 403),
        ("/v1/config/service-defaults/web", 200),
        ("/v1/config/service-defaults/db", 403),
        ("/v1/config/service-intentions/db", 403),
        ("/v1/connect/intentions/exact?source=a&destination=db", 403),
        ("/v1/connect/intentions/match?by=destination&name=web&name=db", 403),
        ("/v1/agent/connect/ca/leaf/web", 403),
    ] {
        assert_eq!(mesh.ask(Some(&reader), "GET", target, "").await.0, status, "{target}");
    }
}

#[tokio::test]
async fn roles_identities_and_templates_give_what_they_stand_for() {
    let mesh = Mesh::new(Action::Deny).await;
    mesh.as_root("PUT", "/v1/acl/policy", r#"{"Name": "keys", "Rules": "key_prefix \"r/\" { policy = \"write\" }"}"#)
        .await;
    mesh.as_root("PUT", "/v1/acl/role", r#"{"Name": "ops", "Policies": [{"Name": "keys"}]}"#).await;
    let make = async |grants: &str| {
        mesh.as_root("PUT", "/v1/acl/token", grants).await["SecretID"].as_str().unwrap().to_owned()
    };
    let register = |name: &str| json!({"Name": name, "Connect": {"SidecarService": {}}}).to_string();
    let role = make(r#"{"Roles": [{"Name": "ops"}]}"#).await;
    assert_eq!(mesh.ask(Some(&role), "PUT", "/v1/kv/r/1", "").await.0, 200);
    for grants in [
        r#"{"ServiceIdentities": [{"ServiceName": "web"}]}"#,
        r#"{"TemplatedPolicies": [{"TemplateName": "builtin/service", "TemplateVariables": {"Name": "web"}}]}"#,
    ] {
        let token = make(grants).await;
        assert_eq!(mesh.ask(Some(&token), "PUT", "/v1/agent/service/register", &register("web")).await.0, 200);
        assert_eq!(mesh.ask(Some(&token), "PUT", "/v1/agent/service/register", &register("db")).await.0, 403);
    }
    let elsewhere = make(r#"{"ServiceIdentities": [{"ServiceName": "web", "Datacenters": ["dc9"]}]}"#).await;
    assert_eq!(mesh.ask(Some(&elsewhere), "PUT", "/v1/agent/service/register", &register("web")).await.0, 403);
    // A role that is gone gives nothing any more.
    let role_id = mesh.as_root("GET", "/v1/acl/role/name/ops", "").await["ID"].as_str().unwrap().to_owned();
    mesh.as_root("DELETE", &format!("/v1/acl/role/{role_id}"), "").await;
    assert_eq!(mesh.ask(Some(&role), "PUT", "/v1/kv/r/1", "").await.0, 403);
    let own = mesh.ask(Some(&role), "GET", "/v1/acl/token/self", "").await.1;
    assert!(!own.contains("Roles"), "{own}");
}

#[tokio::test]
async fn tokens_end_when_they_are_removed_and_their_secrets_are_shown_to_few() {
    let mesh = Mesh::new(Action::Deny).await;
    let token = mesh.token("reader", "acl = \"read\"").await;
    let (status, list) = mesh.ask(Some(&token), "GET", "/v1/acl/tokens", "").await;
    assert_eq!(status, 200);
    assert!(list.contains("hidden") && !list.contains(&mesh.root) && !list.contains(&token), "{list}");
    let own: Value = serde_json::from_str(&mesh.ask(Some(&token), "GET", "/v1/acl/token/self", "").await.1).unwrap();
    assert_eq!(own["SecretID"], token.as_str());
    let accessor = own["AccessorID"].as_str().unwrap();
    let path = format!("/v1/acl/token/{accessor}");
    assert_eq!(mesh.ask(Some(&token), "PUT", &path, "{}").await.0, 403, "who reads does not write");
    assert_eq!(mesh.ask(Some(&token), "DELETE", &path, "").await.0, 403);
    for (body, text) in [
        (r#"{"SecretID": "5e3c2f0e-3f0b-4f0e-8b7f-0d8a3a0b1c2d"}"#, "Changing a token's SecretID is not permitted"),
        (r#"{"AccessorID": "5e3c2f0e-3f0b-4f0e-8b7f-0d8a3a0b1c2d"}"#, "AccessorID: differs from the one in the path"),
        (r#"{"Policies": [{"Name": "none"}]}"#, "Policies[0]: there is no such policy"),
        (r#"{"Policies": [{}]}"#, "Policies[0].Name: must be given, or ID"),
        (r#"{"Colour": "red"}"#, "Colour: unknown field"),
    ] {
        assert_eq!(mesh.ask(Some(&mesh.root), "PUT", &path, body).await, (400, text.to_owned()), "{body}");
    }
    mesh.as_root("DELETE", &path, "").await;
    assert_eq!(mesh.ask(Some(&token), "GET", "/v1/acl/tokens", "").await, (403, "ACL not found".to_owned()));
    for (method, target, body) in [
        ("DELETE", "/v1/acl/token/00000000-0000-0000-0000-000000000002", ""),
        ("DELETE", "/v1/acl/policy/00000000-0000-0000-0000-000000000001", ""),
        ("PUT", "/v1/acl/policy/00000000-0000-0000-0000-000000000001", r#"{"Rules": ""}"#),
        ("PUT", "/v1/acl/policy", r#"{"Name": "global-management"}"#),
        ("PUT", "/v1/acl/policy", r#"{"Name": "reader"}"#),
        ("PUT", "/v1/acl/policy", r#"{"Name": "x", "Rules": "key \"a\" { policy = \"x\" }"}"#),
        ("PUT", "/v1/acl/token", r#"{"ExpirationTTL": "1s"}"#),
    ] {
        assert_eq!(mesh.ask(Some(&mesh.root), method, target, body).await.0, 400, "{method} {target} {body}");
    }
}

#[tokio::test]
async fn who_shows_no_token_has_the_rights_of_the_anonymous_one_or_those_of_the_agents_default() {
    let mesh = Mesh::new(Action::Deny).await;
    assert_eq!(mesh.ask(None, "PUT", "/v1/kv/a", "").await.0, 403);
    let policy =
        mesh.as_root("PUT", "/v1/acl/policy", r#"{"Name": "a", "Rules": "key \"a\" { policy = \"write\" }"}"#).await;
    let anonymous = "/v1/acl/token/00000000-0000-0000-0000-000000000002";
    mesh.as_root("PUT", anonymous, &json!({"Policies": [{"ID": policy["ID"]}]}).to_string()).await;
    for token in [None, Some("anonymous"), Some("")] {
        assert_eq!(mesh.ask(token, "PUT", "/v1/kv/a", "").await.0, 200, "{token:?}");
        assert_eq!(mesh.ask(token, "PUT", "/v1/kv/b", "").await.0, 403, "{token:?}");
    }
    let b = mesh.token("b", "key \"b\" { policy = \"write\" }").await;
    assert_eq!(AgentPort::default_token(&*mesh.world), None);
    mesh.as_root("PUT", "/v1/agent/token/default", &json!({"Token": b}).to_string()).await;
    assert_eq!(AgentPort::default_token(&*mesh.world), AclSecret::new(&b));
    assert_eq!(mesh.ask(None, "PUT", "/v1/kv/b", "").await.0, 200);
    assert_eq!(mesh.ask(None, "PUT", "/v1/kv/a", "").await.0, 403);
    assert_eq!(mesh.ask(Some("anonymous"), "PUT", "/v1/kv/a", "").await.0, 200);
}

#[tokio::test]
async fn by_default_everything_is_allowed_but_for_what_rules_deny_and_for_tokens() {
    let mesh = Mesh::new(Action::Allow).await;
    assert_eq!(mesh.ask(None, "PUT", "/v1/kv/a", "").await.0, 200);
    let token = mesh.token("no", "key_prefix \"\" { policy = \"deny\" }").await;
    assert_eq!(mesh.ask(Some(&token), "PUT", "/v1/kv/a", "").await.0, 403);
    assert_eq!(mesh.ask(Some("5e3c2f0e-3f0b-4f0e-8b7f-0d8a3a0b1c2d"), "PUT", "/v1/kv/a", "").await.0, 403);
}

#[tokio::test]
async fn programs_of_the_mesh_ask_for_themselves_at_their_own_door_and_little() {
    let mesh = Mesh::new(Action::Deny).await;
    let inside = mesh.world.router_at(EntryPoint::Agents);
    for (method, target, at_theirs) in [
        ("GET", "/starling/v1/nodes?local", 200),
        ("GET", "/starling/v1/changes?local", 200),
        ("GET", "/starling/v1/ca", 403),
        ("GET", "/v1/acl/tokens", 403),
        ("GET", "/v1/snapshot", 403),
        ("PUT", "/v1/kv/a", 403),
    ] {
        for (router, expected) in [(&inside, at_theirs), (&mesh.router, 403)] {
            let request = Request::builder().method(method).uri(target).header(INSIDE, "1");
            let request = request.body(axum::body::Body::empty()).unwrap();
            let found = router.clone().oneshot(request).await.unwrap().status();
            assert_eq!(found.as_u16(), expected, "{method} {target}");
        }
    }
}

/// The path of a route with something in place of its parameters.
fn filled(path: &str, with: &str) -> String {
    path.split('/').map(|part| if part.starts_with('{') { with } else { part }).collect::<Vec<_>>().join("/")
}

/// What is public: it says nothing that a stranger may not know, or proves by itself who may.
fn is_public(path: &str) -> bool {
    path.contains("/ca/roots")
        || path.contains("/status/")
        || path.contains("/health/live")
        || path.contains("/health/ready")
        || path.ends_with("/datacenters")
        || path == "/v1/acl/replication"
        || path == "/v1/acl/token/self"
        || path == "/starling/v1/acl/rights"
}

/// An answer that has nothing in it.
fn says_nothing(text: &str) -> bool {
    matches!(text, "[]" | "{}" | "null" | "") || text == r#"{"Node":null,"Services":null}"#
}

#[tokio::test]
async fn no_route_lets_a_stranger_do_or_see_anything_whatever_is_sent() {
    let mesh = Mesh::new(Action::Deny).await;
    mesh.as_root("PUT", "/v1/agent/service/register", r#"{"Name": "web", "Check": {"TTL": "10s"}}"#).await;
    mesh.as_root("PUT", "/v1/kv/web", "1").await;
    let other = mesh.token("other", "keyring = \"write\" peering = \"write\"").await;
    let strangers = [None, Some("5e3c2f0e-3f0b-4f0e-8b7f-0d8a3a0b1c2d"), Some(other.as_str())];
    let bodies =
        ["", "{}", "[]", "null", "{", "\u{0}", r#"{"Name": "web", "Node": "node-1", "Kind": "mesh", "Token": "x"}"#];
    let queries = [
        "",
        "?recurse",
        "?index=x&wait=y",
        "?filter=(",
        "?dc=dc1&keys",
        "?cas=-1&source=a&destination=*&by=source&name=web",
    ];
    let before = mesh.world.snapshot_now();
    for route in table() {
        for with in ["web", "node-1", "%ff", "global", "..%2f", "00000000-0000-0000-0000-000000000001"] {
            for (at, query) in queries.into_iter().enumerate() {
                let target = format!("{}{query}", filled(route.path(), with));
                let body = if route.body() == BodyLimit::NONE { "" } else { bodies[at % bodies.len()] };
                for token in strangers {
                    let (status, text) = mesh.ask(token, route.method(), &target, body).await;
                    let what = format!("{} {target} {body:?} by {token:?}: {status} {text}", route.method());
                    assert!(status < 500, "{what}");
                    assert!(status >= 400 || is_public(route.path()) || says_nothing(&text), "{what}");
                }
            }
        }
    }
    assert_eq!(mesh.world.snapshot_now(), before, "something was changed");
}

#[tokio::test]
async fn who_may_read_everything_writes_nothing_and_who_may_everything_is_never_refused() {
    let mesh = Mesh::new(Action::Deny).await;
    let reader = mesh.as_root("PUT", "/v1/acl/token", r#"{"Policies": [{"Name": "builtin-global-read-only"}]}"#).await;
    let reader = reader["SecretID"].as_str().unwrap();
    let before = mesh.world.snapshot_now();
    for route in ended() {
        let target = filled(route.path(), "web");
        for body in ["{}", "[]", "{", r#"[{"KV": {"Verb": "set", "Key": "a"}}]"#] {
            let body = if route.body() == BodyLimit::NONE { "" } else { body };
            let (status, text) = mesh.ask(Some(reader), route.method(), &target, body).await;
            assert!(status < 500, "{} {target}: {text}", route.method());
            if route.method() == "GET" {
                // Snapshots have every secret in them, and leaves are keys.
                let is_more = ["/v1/snapshot", "/v1/agent/connect/ca/leaf/{service}"].contains(&route.path());
                assert_eq!(status == 403, is_more, "{} {target}: {text}", route.method());
            }
        }
    }
    assert_eq!(mesh.world.snapshot_now(), before, "something was changed");
    for route in ended() {
        // What the mesh would do then is not this test's.
        if route.path().starts_with("/v1/acl/") || route.path().contains("/starling/v1/server/leave") {
            continue;
        }
        let (status, text) = mesh.ask(Some(&mesh.root), route.method(), &filled(route.path(), "web"), "{}").await;
        assert!(status < 500 && status != 403, "{} {}: {text}", route.method(), route.path());
    }
}

/// The routes whose answers end.
fn ended() -> impl Iterator<Item = Route> {
    table().into_iter().filter(|route| !route.path().ends_with("/metrics/stream"))
}
