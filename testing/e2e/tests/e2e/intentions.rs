//! Intentions in traffic: by connection, by request, and which of several decides. `starling can` says the same.

use serde_json::{Value, json};
use starling_e2e::{Answer, Connection, Instance, Mesh, MeshOptions, Method, Plane, Workload, eventually, http};

/// One request, and whether a rule under test matches it.
struct Request {
    method: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    matched: bool,
}

const fn request(
    method: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    matched: bool,
) -> Request {
    Request { method, path, headers, matched }
}

const fn get(path: &'static str, matched: bool) -> Request {
    request("GET", path, &[], matched)
}

const fn with(headers: &'static [(&'static str, &'static str)], matched: bool) -> Request {
    request("GET", "/", headers, matched)
}

/// The `HTTP` part of a permission, and requests that it matches or does not.
fn rules() -> Vec<(Value, Vec<Request>)> {
    let header = |test: Value| {
        let mut test = test;
        test["Name"] = json!("x-key");
        json!({"Header": [test]})
    };
    vec![
        (json!({"PathExact": "/a"}), vec![get("/a", true), get("/a?q=1", true), get("/a/", false), get("/A", false)]),
        (json!({"PathPrefix": "/a"}), vec![get("/a", true), get("/ab/c", true), get("/b/a", false)]),
        (json!({"PathRegex": "/v[0-9]+/x"}), vec![get("/v12/x", true), get("/v/x", false), get("/v1/x/y", false)]),
        (
            json!({"Methods": ["POST", "PUT"]}),
            vec![request("POST", "/", &[], true), request("PUT", "/", &[], true), get("/", false)],
        ),
        (
            json!({"PathPrefix": "/a", "Methods": ["DELETE"]}),
            vec![request("DELETE", "/a/1", &[], true), get("/a/1", false), request("DELETE", "/b", &[], false)],
        ),
        (header(json!({"Present": true})), vec![with(&[("x-key", "")], true), with(&[], false)]),
        (
            header(json!({"Exact": "s3"})),
            vec![
                with(&[("x-key", "s3")], true),
                with(&[("X-KEY", "s3")], true),
                with(&[("x-key", "S3")], false),
                // Of a field that is there twice, each value counts: nobody hides one behind another.
                with(&[("x-key", "s3"), ("x-key", "s4")], true),
                with(&[("x-key", "s4"), ("x-key", "s3")], true),
            ],
        ),
        (header(json!({"Exact": "s3", "IgnoreCase": true})), vec![with(&[("x-key", "S3")], true), with(&[], false)]),
        (header(json!({"Prefix": "ab"})), vec![with(&[("x-key", "abc")], true), with(&[("x-key", "cab")], false)]),
        (header(json!({"Suffix": "ab"})), vec![with(&[("x-key", "cab")], true), with(&[("x-key", "abc")], false)]),
        (header(json!({"Contains": "3,s"})), vec![with(&[("x-key", "s3"), ("x-key", "s4")], false)]),
        (header(json!({"Contains": "b"})), vec![with(&[("x-key", "abc")], true), with(&[("x-key", "ac")], false)]),
        (header(json!({"Regex": "a+"})), vec![with(&[("x-key", "aaa")], true), with(&[("x-key", "aab")], false)]),
        (
            header(json!({"Exact": "s3", "Invert": true})),
            vec![with(&[("x-key", "s3")], false), with(&[("x-key", "s3"), ("x-key", "s4")], false), with(&[], true)],
        ),
        (header(json!({"Present": true, "Invert": true})), vec![with(&[("x-key", "1")], false), with(&[], true)]),
    ]
}

async fn send(instance: &Instance, upstream: &str, request: &Request) -> anyhow::Result<Answer> {
    let method = Method::from_bytes(request.method.as_bytes())?;
    http::request(method, &instance.upstream(upstream), request.path, request.headers, "").await
}

/// What `starling can` says of the request.
async fn can(mesh: &Mesh, request: &Request) -> bool {
    let headers: Vec<_> = request.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let mut arguments = vec!["--path", request.path, "--method", request.method];
    for header in &headers {
        arguments.extend(["--header", header.as_str()]);
    }
    mesh.can("web", "api", &arguments).await
}

async fn assert_answered(mesh: &Mesh, web: &Instance, request: &Request, allowed: bool, why: &str) {
    let what = format!("{} {} {:?} under {why}", request.method, request.path, request.headers);
    let expected = if allowed { 200 } else { 403 };
    eventually(&what, async || {
        let answer = send(web, "api", request).await?;
        anyhow::ensure!(answer.status == expected, "{} instead of {expected}", answer.status);
        Ok(())
    })
    .await;
    assert_eq!(can(mesh, request).await, allowed, "`starling can`: {what}");
}

/// A mesh in which web calls api over HTTP.
async fn web_calls_api(options: MeshOptions) -> (Mesh, Instance, Instance) {
    let mesh = Mesh::start(options).await;
    mesh.protocol("api", "http").await;
    let (web, api) = tokio::join!(Workload::new("web").calls("api").start(&mesh), Workload::new("api").start(&mesh));
    (mesh, web, api)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_told_apart() {
    let (mesh, web, _api) = web_calls_api(MeshOptions::default()).await;
    for (rule, requests) in rules() {
        let permissions = json!([{"Action": "deny", "HTTP": rule}]);
        let change = mesh.permissions("web", "api", &permissions).await.index();
        mesh.settled(change).await;
        for request in &requests {
            assert_answered(&mesh, &web, request, !request.matched, &format!("deny {rule}")).await;
        }
    }
    // The first permission that matches decides.
    let permissions = json!([
        {"Action": "allow", "HTTP": {"PathExact": "/admin/health"}},
        {"Action": "deny", "HTTP": {"PathPrefix": "/admin"}},
        {"Action": "allow", "HTTP": {"PathPrefix": "/"}},
    ]);
    let change = mesh.permissions("web", "api", &permissions).await.index();
    mesh.settled(change).await;
    for (path, allowed) in [("/admin/health", true), ("/admin/users", false), ("/shop", true)] {
        assert_answered(&mesh, &web, &get(path, false), allowed, "three permissions").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_reaches_connections_that_are_open() {
    let (mesh, web, _api) = web_calls_api(MeshOptions::default()).await;
    let mut connection = eventually("api answers", async || {
        let mut connection = Connection::open(&web.upstream("api")).await?;
        anyhow::ensure!(connection.get("/").await?.status == 200);
        Ok(connection)
    })
    .await;
    for (action, expected) in [("deny", 403), ("allow", 200), ("deny", 403)] {
        mesh.intention("web", "api", action).await;
        eventually(&format!("the open connection notices {action}"), async || {
            let answer = connection.get("/").await.expect("the connection stays open");
            anyhow::ensure!(answer.status == expected, "{}", answer.status);
            Ok(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_tcp_service_closes_connections() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let (web, _db) = tokio::join!(Workload::new("web").calls("db").start(&mesh), Workload::new("db").start(&mesh));
    let outcome = async |expected: bool| {
        eventually(&format!("web may call db: {expected}"), async || {
            let answered = http::get(&web.upstream("db"), "/").await.map(|answer| answer.status);
            anyhow::ensure!(answered.is_ok() == expected, "{answered:?}");
            Ok(())
        })
        .await;
        assert_eq!(mesh.can("web", "db", &[]).await, expected, "`starling can`");
    };
    outcome(true).await;
    mesh.intention("web", "db", "deny").await;
    outcome(false).await;
    mesh.delete_intention("web", "db").await;
    outcome(true).await;
    // Requests cannot be told apart here; that they were to be is refused, not ignored.
    let target = "/v1/connect/intentions/exact?source=web&destination=db";
    let permissions = json!({"Permissions": [{"Action": "deny", "HTTP": {"PathPrefix": "/"}}]});
    assert_eq!(mesh.put(target, &permissions).await.status, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_tcp_service_closes_open_connections() {
    let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
    let (web, _db) = tokio::join!(
        Workload::new("web").calls("db").start_on(&mesh, Plane::Native),
        Workload::new("db").start_on(&mesh, Plane::Native),
    );
    web.served_by("db", &["db"], "nothing is denied").await;
    let mut connection = Connection::open(&web.upstream("db")).await.expect("a connection");
    assert_eq!(connection.get("/").await.expect("an answer").status, 200);
    mesh.intention("web", "db", "deny").await;
    eventually("the open connection is closed", async || {
        anyhow::ensure!(connection.is_over().await, "it is open");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_most_exact_intention_decides() {
    let (mesh, web, _api) = web_calls_api(MeshOptions::default()).await;
    let root = get("/", false);
    // Each is of a higher precedence than the one before: 5, 6, 8, 9.
    let steps = [("*", "*", "deny"), ("web", "*", "allow"), ("*", "api", "deny"), ("web", "api", "allow")];
    for (source, destination, action) in steps {
        mesh.intention(source, destination, action).await;
        assert_answered(&mesh, &web, &root, action == "allow", &format!("{source} => {destination}: {action}")).await;
        let check = mesh.get("/v1/connect/intentions/check?source=web&destination=api").await.success().json();
        assert_eq!(check["Allowed"], action == "allow");
    }
    // And back again, as the higher ones go.
    for index in (1..steps.len()).rev() {
        let (source, destination, _) = steps[index];
        mesh.delete_intention(source, destination).await;
        let (_, _, left) = steps[index - 1];
        let why = format!("{source} => {destination} is gone");
        assert_answered(&mesh, &web, &root, left == "allow", &why).await;
    }
}

/// Calls a method with an empty message, which every method of the fake service takes; the code that it ends with.
async fn call_grpc(authority: &str, path: &str) -> anyhow::Result<u32> {
    let headers = [("content-type", "application/grpc"), ("te", "trailers")];
    let no_fields = vec![0; 5];
    let answer = Connection::open_http2(authority).await?.send(Method::POST, path, &headers, no_fields).await?;
    anyhow::ensure!(answer.status == 200, "{}", answer.status);
    // A call that fails has its code in the header, there being no message before it; one that succeeds has a message.
    match answer.header("grpc-status") {
        Some(code) => Ok(code.parse()?),
        None => {
            anyhow::ensure!(answer.body.len() > 5, "neither a code nor a message");
            Ok(GRPC_OK)
        }
    }
}

const HANDLE: &str = "/FakeService/Handle";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const GRPC_OK: u32 = 0;
const PERMISSION_DENIED: u32 = 7;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_methods_are_told_apart_by_their_path() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("rpc", "grpc").await;
    let (web, _rpc) = tokio::join!(
        Workload::new("web").calls_grpc("rpc").start(&mesh),
        Workload::new("rpc").env("SERVER_TYPE", "grpc").start(&mesh),
    );
    let code = async |path: &str, expected: u32| {
        eventually(&format!("{path} ends with code {expected}"), async || {
            let code = call_grpc(&web.upstream("rpc"), path).await?;
            anyhow::ensure!(code == expected, "{code}");
            Ok(())
        })
        .await;
        let can = mesh.can("web", "rpc", &["--path", path, "--method", "POST"]).await;
        assert_eq!(can, expected == GRPC_OK, "`starling can` {path}");
    };
    code(HANDLE, GRPC_OK).await;
    code(HEALTH, GRPC_OK).await;

    let deny_handle = json!([{"Action": "deny", "HTTP": {"PathExact": HANDLE, "Methods": ["POST"]}}]);
    mesh.permissions("web", "rpc", &deny_handle).await;
    code(HANDLE, PERMISSION_DENIED).await;
    code(HEALTH, GRPC_OK).await;
    // What web itself sends is refused as well.
    let answer = http::get(&web.app.authority(), "/").await.expect("an answer").json();
    let calls = answer["upstream_calls"].as_object().expect("nested answers");
    assert!(calls.values().all(|call| call["code"] == PERMISSION_DENIED), "{answer:#}");

    let only_handle = json!([
        {"Action": "allow", "HTTP": {"PathPrefix": "/FakeService/"}},
        {"Action": "deny", "HTTP": {"PathPrefix": "/"}},
    ]);
    mesh.permissions("web", "rpc", &only_handle).await;
    code(HANDLE, GRPC_OK).await;
    code(HEALTH, PERMISSION_DENIED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_over_http2_are_told_apart() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("h2", "http2").await;
    let (web, _h2) = tokio::join!(Workload::new("web").calls("h2").start(&mesh), Workload::new("h2").start(&mesh));
    let mut connection = Connection::open_http2(&web.upstream("h2")).await.expect("HTTP/2 at the outbound listener");
    let mut answers = async |path: &str, expected: u16| {
        eventually(&format!("{path} is answered {expected}"), async || {
            let answer = connection.get(path).await?;
            anyhow::ensure!(answer.status == expected, "{}", answer.status);
            Ok(())
        })
        .await;
    };
    answers("/admin", 200).await;
    mesh.permissions("web", "h2", &json!([{"Action": "deny", "HTTP": {"PathPrefix": "/admin"}}])).await;
    answers("/admin", 403).await;
    answers("/shop/../admin/users", 403).await;
    answers("/shop", 200).await;
    mesh.delete_intention("web", "h2").await;
    answers("/admin", 200).await;
}
