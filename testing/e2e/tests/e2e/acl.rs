//! Access control with real programs: over the end of a server, through an agent apart, and under the name of Consul.

use http::Method;
use serde_json::{Value, json};
use starling_e2e::{Mesh, MeshOptions, Program, eventually};

use crate::apart::node;

/// Access is controlled, and nothing allowed.
const SETTINGS: &str = "node_grace = \"3s\"\nacl_default_policy = \"deny\"\n";

/// A server with access control, and the token that may everything.
pub(crate) async fn server() -> (Mesh, String) {
    let program = Program::Server(SETTINGS.to_owned());
    let server = Mesh::start(MeshOptions { program, ..MeshOptions::default() }).await;
    let first = server.put("/v1/acl/bootstrap", &json!({})).await.success().json();
    let secret = first["SecretID"].as_str().expect("a secret").to_owned();
    (server, secret)
}

pub(crate) fn shown(target: &str, token: &str) -> String {
    let sign = if target.contains('?') { '&' } else { '?' };
    format!("{target}{sign}token={token}")
}

pub(crate) async fn made(mesh: &Mesh, target: &str, root: &str, body: &Value) -> Value {
    mesh.put(&shown(target, root), body).await.success().json()
}

/// The secret of a token with these rules.
pub(crate) async fn token(mesh: &Mesh, root: &str, name: &str, rules: &str) -> String {
    made(mesh, "/v1/acl/policy", root, &json!({"Name": name, "Rules": rules})).await;
    let token = made(mesh, "/v1/acl/token", root, &json!({"Policies": [{"Name": name}]})).await;
    token["SecretID"].as_str().expect("a secret").to_owned()
}

async fn status(mesh: &Mesh, method: Method, target: &str, body: &'static str) -> u16 {
    mesh.call(method, target, body).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_hold_over_the_end_of_a_server_and_at_agents_apart_while_none_is_there() {
    let (mut server, root) = server().await;
    let app = token(
        &server,
        &root,
        "app",
        "key_prefix \"app/\" { policy = \"write\" } service \"web\" { policy = \"write\" } agent_prefix \"\" { policy = \"read\" }",
    )
    .await;
    let other = token(&server, &root, "other", "key_prefix \"other/\" { policy = \"write\" }").await;
    for (key, token, expected) in
        [("app/a", Some(&app), 200), ("other/a", Some(&app), 403), ("app/a", Some(&other), 403), ("app/a", None, 403)]
    {
        let target = format!("/v1/kv/{key}");
        let target = token.map_or(target.clone(), |token| shown(&target, token));
        assert_eq!(status(&server, Method::PUT, &target, "1").await, expected, "{key}");
    }
    assert_eq!(server.put("/v1/acl/bootstrap", &json!({})).await.status, 403);
    server.kill9();
    server.restart().await;
    assert_eq!(status(&server, Method::GET, &shown("/v1/kv/app/a?raw", &app), "").await, 200);
    assert_eq!(server.put("/v1/acl/bootstrap", &json!({})).await.status, 403);

    // By this the test sees that an agent is ready.
    made(
        &server,
        "/v1/acl/policy",
        &root,
        &json!({"Name": "ready", "Rules": "agent_prefix \"\" { policy = \"read\" }"}),
    )
    .await;
    let anonymous = "/v1/acl/token/00000000-0000-0000-0000-000000000002";
    made(&server, anonymous, &root, &json!({"Policies": [{"Name": "ready"}]})).await;
    let join = server.cli(&["token", "create", "--join", "--services", "*", "--token", &root]).await.success().stdout;
    let agent = Mesh::start(node(&server, "n1", Some(join.trim()))).await;
    let register = |name: &str| json!({"Name": name});
    let at = "/v1/agent/service/register";
    // Its own routes it judges itself, what it passes on the server.
    assert_eq!(agent.put(&shown(at, &app), &register("web")).await.status, 200);
    assert_eq!(agent.put(&shown(at, &app), &register("db")).await.status, 403);
    assert_eq!(agent.put(&shown(at, &other), &register("web")).await.status, 403);
    assert_eq!(agent.put(at, &register("web")).await.status, 403);
    assert_eq!(agent.put(&shown(at, "5e3c2f0e-3f0b-4f0e-8b7f-0d8a3a0b1c2d"), &register("web")).await.status, 403);
    assert_eq!(status(&agent, Method::GET, &shown("/v1/kv/app/a?raw", &app), "").await, 200);
    assert_eq!(status(&agent, Method::GET, &shown("/v1/kv/app/a?raw", &other), "").await, 403);
    // Nobody asks for himself what programs of the mesh may ask.
    let pretended = [("x-starling-inside", "1")];
    let asked =
        starling_e2e::http::request(Method::GET, &agent.addresses.http, "/starling/v1/nodes", &pretended, "").await;
    assert_eq!(asked.expect("an answer").status, 403);

    server.kill9();
    eventually("a token that is known has its rights, one that is not has none", async || {
        let known = agent.put(&shown(at, &app), &register("db")).await;
        anyhow::ensure!(known.status == 403, "{}", known.text());
        let known = agent.get(&shown("/v1/agent/services", &app)).await;
        anyhow::ensure!(known.status == 200 && known.text().contains("web"), "{}", known.text());
        let unknown = agent.get(&shown("/v1/agent/services", &root)).await;
        anyhow::ensure!(unknown.status == 503, "{} {}", unknown.status, unknown.text());
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_taken_away_is_gone_at_once_at_the_server() {
    let (server, root) = server().await;
    let app = token(&server, &root, "app", "key_prefix \"\" { policy = \"write\" }").await;
    assert_eq!(status(&server, Method::PUT, &shown("/v1/kv/a", &app), "1").await, 200);
    let policy = server.get(&shown("/v1/acl/policy/name/app", &root)).await.success().json();
    let path = format!("/v1/acl/policy/{}", policy["ID"].as_str().expect("an id"));
    made(&server, &path, &root, &json!({"Name": "app", "Rules": "key_prefix \"\" { policy = \"read\" }"})).await;
    assert_eq!(status(&server, Method::PUT, &shown("/v1/kv/a", &app), "1").await, 403);
    assert_eq!(status(&server, Method::GET, &shown("/v1/kv/a", &app), "").await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_makes_policies_roles_and_tokens() {
    let (server, root) = server().await;
    let run = async |token: &str, arguments: &[&str]| server.cli(&[arguments, &["-token", token]].concat()).await;
    let says = async |arguments: &[&str]| run(&root, arguments).await.success();
    let again = server.cli(&["acl", "bootstrap"]).await;
    assert!(again.code == 1 && again.stderr.contains("403"), "{again}");
    let rules = r#"key_prefix "app/" { policy = "write" }"#;
    let made = says(&["acl", "policy", "create", "-name", "app", "-rules", rules]).await.stdout;
    assert!(made.contains("Name:") && made.ends_with(&format!("Rules:\n{rules}\n")), "{made}");
    let wrong = run(&root, &["acl", "policy", "create", "-name", "x", "-rules", "key {"]).await;
    assert_eq!(wrong.code, 2, "{wrong}");
    says(&["acl", "role", "create", "-name", "apps", "-policy-name", "app"]).await;
    let token = says(&["acl", "token", "create", "-role-name", "apps", "-description", "of app", "-o", "json"]).await;
    let token = token.json();
    let [secret, accessor] = ["SecretID", "AccessorID"].map(|field| token[field].as_str().expect("a text").to_owned());
    assert_eq!(run(&secret, &["kv", "put", "app/x", "1"]).await.code, 0);
    let denied = run(&secret, &["kv", "put", "other", "1"]).await;
    assert!(denied.code == 1 && denied.stderr.contains("lacks permission 'key:write' on \"other\""), "{denied}");
    assert!(says(&["acl", "token", "list"]).await.stdout.contains(&accessor));
    let read = run(&secret, &["acl", "token", "read", "-self"]).await.success().stdout;
    assert!(read.contains("of app") && read.contains("apps"), "{read}");

    says(&["acl", "policy", "update", "-name", "app", "-rules", r#"key "other" { policy = "write" }"#]).await;
    assert_eq!(run(&secret, &["kv", "put", "other", "1"]).await.code, 0);
    assert_eq!(run(&secret, &["kv", "put", "app/x", "1"]).await.code, 1);
    says(&["acl", "role", "delete", "-name", "apps"]).await;
    assert_eq!(run(&secret, &["kv", "put", "other", "1"]).await.code, 1);
    says(&["acl", "token", "delete", "-accessor-id", &accessor]).await;
    let gone = run(&secret, &["kv", "get", "other"]).await;
    assert!(gone.code == 1 && gone.stderr.contains("ACL not found"), "{gone}");
    let which = run(&root, &["acl", "policy", "read"]).await;
    assert!(which.code == 2 && which.stderr.contains("--id or --name"), "{which}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_named_by_what_their_ids_begin_with_and_get_more_rights_one_by_one() {
    let (server, root) = server().await;
    let run = async |arguments: &[&str]| server.cli(&[arguments, &["-token", &root]].concat()).await;
    let json = async |arguments: &[&str]| run(&[arguments, &["-format=json"]].concat()).await.success().json();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let policy = json(&["acl", "policy", "create", "-name", "one", "-rules", "key \"a\" { policy = \"read\" }"]).await;
    json(&["acl", "policy", "create", "-name", "two", "-rules", "key \"b\" { policy = \"read\" }"]).await;
    let role = json(&["acl", "role", "create", "-name", "both", "-policy-name", "two"]).await;
    let [policy, role] = [&policy, &role].map(|it| text(&it["ID"]));
    let accessor = "abcd0000-1111-2222-3333-444444444444";
    let other = "abcd1111-1111-2222-3333-444444444444";
    for accessor in [accessor, other] {
        json(&[
            "acl",
            "token",
            "create",
            "-accessor",
            accessor,
            "-policy-id",
            &policy[..13],
            "-node-identity",
            "n:dc1",
        ])
        .await;
    }
    let (names, id) = (["Policies", "Roles", "NodeIdentities"], &accessor[..5]);
    let has = |token: &Value| {
        let count = |name: &str| token[name].as_array().map_or(0, Vec::len);
        assert_eq!(token["AccessorID"], accessor);
        names.map(count)
    };
    assert_eq!(has(&json(&["acl", "token", "read", "-id", id]).await), [1, 0, 1]);
    for (beginning, reason) in [("abcd", "the IDs of 2 ACL token objects"), ("abcde", "no ACL token")] {
        let refused = run(&["acl", "token", "read", "-id", beginning]).await;
        assert!(refused.code == 1 && refused.stderr.contains(reason), "{beginning}: {refused}");
    }
    let update = async |flags: &[&str]| has(&json(&[&["acl", "token", "update", "-id", id], flags].concat()).await);
    assert_eq!(update(&["-append-policy-name", "two"]).await, [2, 0, 1]);
    assert_eq!(update(&["-append-role-id", &role[..13]]).await, [2, 1, 1]);
    assert_eq!(update(&["-append-policy-id", &policy, "-description", "d"]).await, [2, 1, 1], "it has it already");
    assert_eq!(update(&["-policy-name", "two", "-merge-roles"]).await, [1, 1, 1], "of policies alone");
    let both = run(&["acl", "token", "update", "-id", id, "-policy-name", "one", "-append-policy-name", "two"]).await;
    assert_eq!(both.code, 2, "{both}");

    let shown = run(&["acl", "token", "read", "-id", id, "-expanded"]).await.success().stdout;
    assert!(shown.contains("key \"b\"") && shown.contains("both") && shown.contains("deny"), "{shown}");
    let expanded = json(&["acl", "token", "read", "-id", id, "-expanded"]).await;
    assert_eq!(expanded["ExpandedPolicies"][0]["Name"], "two", "{expanded}");
    let _ = run(&["acl", "role", "delete", "-id", &role[..13]]).await.success();
    let _ = run(&["acl", "token", "delete", "-id", id]).await.success();
    assert_eq!(json(&["acl", "token", "read", "-id", &other[..5]]).await["AccessorID"], other);
}
