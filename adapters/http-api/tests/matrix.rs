//! Every route, asked by everybody, with whatever can be sent: nobody gets more than is theirs, and nothing breaks.
//!
//! Strangers where nothing is allowed that no rule allows are in `acl.rs`; here are who may write, who may everything, and a mesh in which
//! everything is allowed that no rule denies.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "world/world.rs"]
mod world;

use starling_http_api::Route;
use starling_http_api::limits::BodyLimit;
use starling_http_api::routes::table;
use starling_model::Action;
use world::controlled::Mesh;

/// Bodies of every kind but a good one: none, of other types, cut off, too deep, with numbers past every range, with what is no text.
fn bodies() -> Vec<Vec<u8>> {
    let deep = |open: &str| open.repeat(2_000);
    let texts = [
        "",
        "{}",
        "[]",
        "null",
        "0",
        "\"\"",
        "{",
        "[{",
        "{\"a\"",
        "\u{0}",
        "\u{feff}{}",
        "{}{}",
        "[[[[[[]]]]]]",
        "true",
        r#"{"Name": "web", "Node": "node-1", "Kind": "mesh", "Token": "x"}"#,
        r#"{"Name": 1, "ID": [], "Node": {}, "Service": "x", "Port": "x", "Check": 7, "Checks": {}, "TTL": -1}"#,
        r#"{"Name": "web", "name": "web", "NAME": "web"}"#,
        r#"{"ID": "../../etc", "Name": "a/b?c#d", "Node": "%00", "Address": "\u0000", "Service": {"Service": "\ud800"}}"#,
        r#"{"Port": 99999999999999999999, "TTL": "1e999s", "LockDelay": "-9223372036854775808ns", "Index": -1}"#,
        r#"{"Name": null, "Rules": "key \"a\" {", "Policies": [null], "Roles": [{}], "Config": [], "Selector": "((((("}"#,
        r#"[{"KV": {"Verb": "set"}}, {"KV": null}, {"Node": {"Verb": "cas", "Node": {}}}, 7, {"Check": {"Verb": "x"}}]"#,
        r#"{"Kind": "service-resolver", "Name": "web", "Subsets": {"": {"Filter": "((("}}, "Redirect": {}, "Failover": []}"#,
        r#"{"Kind": "service-intentions", "Name": "*", "Sources": [{"Name": "*", "Permissions": [{}], "Action": "x"}]}"#,
        r#"{"Template": {"Type": "name_prefix_match", "Regexp": "(a{1000}){1000}{1000}"}, "Service": {"Service": "${"}}"#,
        r#"{"AuthMethod": "x", "BearerToken": "a.b.c", "BindType": "service", "BindName": "${value.", "Type": "jwt"}"#,
        r#"{"SourceName": "", "DestinationName": "*", "Action": "allow", "Permissions": [{"HTTP": {"PathRegex": "("}}]}"#,
        r#"{"Segment": 1, "Coord": {"Vec": [1e308, 1, 1, 1, 1, 1, 1, 1], "Height": 1e308}, "Node": "node-1"}"#,
    ];
    let mut bodies: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    bodies.extend([deep("[").into_bytes(), deep("{\"a\":").into_bytes(), vec![0xff, 0xfe, 0x80], vec![b'x'; 40_000]]);
    bodies
}

const QUERIES: [&str; 12] = [
    "",
    "?recurse&keys&raw&separator=%2f",
    "?index=x&wait=y",
    "?index=99999999999999999999&wait=1ms",
    "?index=-1&wait=-1s",
    "?filter=(",
    "?filter=Node%20%3d%3d%20%22%00%22%20and%20not%20(Meta%20is%20empty)",
    "?dc=dc2&ns=other&partition=other",
    "?cas=-1&flags=x&acquire=x&release=%ff",
    "?near=_ip&node-meta=a&node-meta=:&tag=&tag=%ff",
    "?source=a&destination=*&by=source&name=web&cas=18446744073709551616",
    "?%ff=%&&&=&a=b=c&stale&consistent&cached",
];

const NAMES: [&str; 5] = ["web", "%ff%00", "..%2f..", "00000000-0000-0000-0000-000000000001", "*"];

/// Asks each route for each name, with bodies and query strings in turn; `judge` says whether an answer is right.
async fn ask_all(mesh: &Mesh, tokens: &[Option<&str>], judge: impl Fn(&Route, u16, &str) -> bool) {
    let bodies = bodies();
    let mut turn = 0;
    for route in table().iter().filter(|route| !is_left_out(route)) {
        for name in NAMES {
            let bodies = if route.body() == BodyLimit::NONE { &bodies[..1] } else { &bodies[..] };
            for body in bodies {
                turn += 1;
                let target = format!("{}{}", filled(route.path(), name), QUERIES[turn % QUERIES.len()]);
                for token in tokens {
                    let (status, text) = mesh.ask(*token, route.method(), &target, body).await;
                    let what = || {
                        format!(
                            "{} {target} {:?} by {token:?}: {status} {text}",
                            route.method(),
                            String::from_utf8_lossy(body)
                        )
                    };
                    assert!(status < 500, "{}", what());
                    assert!(judge(route, status, &text), "{}", what());
                }
            }
        }
    }
}
/// What would end the mesh, or the tokens by which it is asked; it has tests of its own.
fn is_left_out(route: &Route) -> bool {
    let path = route.path();
    // What never ends has one, too.
    let is_endless = path.ends_with("/metrics/stream");
    is_endless || path.contains("/server/leave") || (route.method() != "GET" && path.starts_with("/v1/acl/token/"))
}

fn filled(path: &str, with: &str) -> String {
    path.split('/').map(|part| if part.starts_with('{') { with } else { part }).collect::<Vec<_>>().join("/")
}

/// What is access control's own, or everything at once: nobody but who may everything has it.
fn is_managements(route: &Route) -> bool {
    let path = route.path();
    let of_acl = path.starts_with("/v1/acl/")
        && !["/v1/acl/login", "/v1/acl/logout", "/v1/acl/bootstrap", "/v1/acl/token/self", "/v1/acl/replication"]
            .contains(&path);
    of_acl || path == "/v1/snapshot"
}

/// What of the mesh only who may everything changes.
fn guarded(mesh: &Mesh) -> String {
    let snapshot = starling_http_api::CatalogPort::snapshot(&*mesh.world);
    let tokens: Vec<_> = snapshot.acl_tokens().map(|token| token.value.accessor.to_string()).collect();
    let policies: Vec<_> = snapshot.acl_policies().map(|policy| policy.value.name.to_string()).collect();
    let roots: Vec<_> = snapshot.roots().iter().map(|root| root.value.id.to_string()).collect();
    format!("{tokens:?} {policies:?} {roots:?}")
}

#[tokio::test]
async fn who_may_write_everything_but_access_control_gets_no_further_whatever_is_sent() {
    let mesh = Mesh::new(Action::Deny).await;
    let all = ["agent", "event", "key", "node", "query", "service", "session"];
    let rules: Vec<_> = all.iter().map(|what| format!("{what}_prefix \"\" {{ policy = \"write\" }}")).collect();
    let rules = format!("{} mesh = \"write\" keyring = \"write\" peering = \"write\"", rules.join(" "));
    let writer = mesh.token("writer", &rules).await;
    let before = guarded(&mesh);
    ask_all(&mesh, &[Some(writer.as_str())], |route, status, _| {
        let is_operators =
            route.path() == "/v1/connect/ca/configuration" || route.path().starts_with("/starling/v1/token");
        !(is_managements(route) || is_operators) || status >= 400
    })
    .await;
    assert_eq!(guarded(&mesh), before);
}

#[tokio::test]
async fn who_may_everything_is_told_what_is_wrong_whatever_is_sent() {
    let mesh = Mesh::new(Action::Deny).await;
    let root = mesh.root.clone();
    // Of an entry that is not there nothing more is said, as in Consul.
    let told = |_: &Route, status: u16, text: &str| status < 400 || status == 404 || !text.trim().is_empty();
    ask_all(&mesh, &[Some(root.as_str())], told).await;
    // It serves on, and knows who asks.
    assert_eq!(mesh.ask(Some(&root), "GET", "/v1/acl/tokens", b"").await.0, 200);
    assert_eq!(mesh.ask(Some(&root), "GET", "/v1/catalog/nodes", b"").await.0, 200);
}

#[tokio::test]
async fn where_all_is_allowed_access_control_is_not_and_what_is_denied_stays_so() {
    let mesh = Mesh::new(Action::Allow).await;
    let all = ["agent", "event", "key", "node", "query", "service", "session"];
    let denied: Vec<_> = all.iter().map(|what| format!("{what}_prefix \"\" {{ policy = \"deny\" }}")).collect();
    let whole = ["acl", "operator", "mesh", "keyring", "peering"].map(|what| format!("{what} = \"deny\""));
    let denied = mesh.token("denied", &format!("{} {}", denied.join(" "), whole.join(" "))).await;
    let reads = mesh.token("reads", "key_prefix \"\" { policy = \"read\" } acl = \"read\"").await;
    let before = mesh.world.snapshot_now();
    // Who is denied all, and who shows what nobody has, get nothing.
    let public = |route: &Route| {
        let path = route.path();
        ["/ca/roots", "/status/", "/health/live", "/health/ready"].iter().any(|part| path.contains(part))
            || path.ends_with("/datacenters")
            || ["/v1/acl/replication", "/v1/acl/token/self", "/starling/v1/acl/rights"].contains(&path)
    };
    let empty = |text: &str| matches!(text, "[]" | "{}" | "null" | "") || text == r#"{"Node":null,"Services":null}"#;
    let strangers = [Some(denied.as_str()), Some("5e3c2f0e-3f0b-4f0e-8b7f-0d8a3a0b1c2d")];
    ask_all(&mesh, &strangers, |route, status, text| status >= 400 || public(route) || empty(text)).await;
    assert_eq!(mesh.world.snapshot_now(), before, "something was changed");
    // A rule that lets read takes the right to write away, which is allowed otherwise.
    assert_eq!(mesh.ask(Some(&reads), "PUT", "/v1/kv/a", b"1").await.0, 403);
    assert_eq!(mesh.ask(Some(&reads), "PUT", "/v1/acl/policy", b"{\"Name\": \"x\"}").await.0, 403);
    assert_eq!(mesh.ask(None, "PUT", "/v1/kv/a", b"1").await.0, 200);
    // Who shows nothing may all but what is management's.
    let guarded_before = guarded(&mesh);
    ask_all(&mesh, &[None, Some("anonymous")], |route, status, _| !is_managements(route) || status >= 400).await;
    assert_eq!(guarded(&mesh), guarded_before);
}
