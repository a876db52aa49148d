//! A path has one form: the policy decides on it, and the application sees it.

use serde_json::json;
use starling_e2e::{Connection, DEADLINE, Mesh, MeshOptions, Workload, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The policy refuses it.
    Denied,
    /// The application sees it, in this form.
    Seen(&'static str),
    /// It is no request.
    Malformed,
}
use Outcome::{Denied, Malformed, Seen};

/// With `/admin` and what is below it denied.
const PREFIX_DENIED: &[(&str, Outcome)] = &[
    ("/admin", Denied),
    ("/admin?x=/shop", Denied),
    ("/admin/users", Denied),
    ("/./admin", Denied),
    ("//admin", Denied),
    ("/shop/..//admin", Denied),
    ("/shop/../admin", Denied),
    ("/shop/%2e%2e/admin", Denied),
    ("/shop/%2E./admin", Denied),
    ("/%61dmin", Denied),
    ("/shop/..%2fadmin", Denied),
    ("/shop%2F..%2Fadmin", Denied),
    ("/shop/..%5cadmin", Denied),
    ("/\\admin", Denied),
    ("/shop\\..\\admin", Denied),
    ("/.%5C%61dmin", Denied),
    ("http://elsewhere.example/admin", Denied),
    ("/admin/../shop", Seen("/shop")),
    ("/admin/%2e%2e/shop", Seen("/shop")),
    ("//shop//7", Seen("/shop/7")),
    ("/shop?next=/admin", Seen("/shop")),
    ("/ADMIN", Seen("/ADMIN")),
    // Decoded once and never twice: an application that decodes again is on its own.
    ("/%2561dmin", Seen("/%2561dmin")),
    ("/shop/%00", Malformed),
];

/// With nothing but `/public` allowed.
const EXACT_ALLOWED: &[(&str, Outcome)] = &[
    ("/public", Seen("/public")),
    ("/secret/../public", Seen("/public")),
    ("/%70ublic", Seen("/public")),
    ("//public", Seen("/public")),
    ("/public/", Denied),
    ("/public%2f", Denied),
    ("/public/../secret", Denied),
    ("/public/..%2fsecret", Denied),
    ("/public\\..\\secret", Denied),
    ("/public;v=1", Denied),
];

/// Heads of requests that no library would send.
const ODD_HEADS: &[&str] = &[
    "GET /admin#x HTTP/1.1",
    "GET /shop#/../admin HTTP/1.1",
    "GET admin HTTP/1.1",
    "GET  /admin HTTP/1.1",
    "GET /adm\tin HTTP/1.1",
    "GET http://api HTTP/1.1",
    "GET http://api?x HTTP/1.1",
    "OPTIONS * HTTP/1.1",
    "CONNECT api:80 HTTP/1.1",
    "get /admin HTTP/1.1",
    "GET /admin HTTP/1.0",
    "GET /admin HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade",
    "GET /shop HTTP/1.1\r\nx-envoy-original-path: /public\r\nx-original-url: /public",
];

/// The status that a request with this head is answered with; 0 if the connection is closed without one.
async fn status_of(authority: &str, head: &str) -> anyhow::Result<u16> {
    let mut stream = TcpStream::connect(authority).await?;
    stream.write_all(format!("{head}\r\nhost: api\r\n\r\n").as_bytes()).await?;
    let mut answer = vec![0; 1024];
    let length = tokio::time::timeout(DEADLINE, stream.read(&mut answer)).await??;
    let line = String::from_utf8_lossy(&answer[..length]).into_owned();
    Ok(line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_spelling_of_a_path_gets_around_a_denial() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (web, api) = tokio::join!(Workload::new("web").calls("api").start(&mesh), Workload::new("api").start(&mesh));
    let outcome = async |target: &str| -> anyhow::Result<Result<String, u16>> {
        let answer = Connection::open(&web.upstream("api")).await?.get(target).await?;
        let path = || answer.json()["request"]["path"].as_str().map(str::to_owned);
        Ok(if answer.status == 200 { Ok(path().expect("a path")) } else { Err(answer.status) })
    };
    let tables = [
        (json!([{"Action": "deny", "HTTP": {"PathPrefix": "/admin"}}]), PREFIX_DENIED),
        (
            json!([
                {"Action": "allow", "HTTP": {"PathExact": "/public"}},
                {"Action": "deny", "HTTP": {"PathPrefix": "/"}},
            ]),
            EXACT_ALLOWED,
        ),
    ];
    for (permissions, table) in tables {
        let change = mesh.permissions("web", "api", &permissions).await.index();
        mesh.settled(change).await;
        for (target, expected) in table {
            let expected_outcome = match *expected {
                Denied => Err(403),
                Malformed => Err(400),
                Seen(path) => Ok(path.to_owned()),
            };
            eventually(&format!("{target} is {expected:?}"), async || {
                let outcome = outcome(target).await?;
                anyhow::ensure!(outcome == expected_outcome, "{outcome:?}");
                Ok(())
            })
            .await;
            if *expected != Malformed && target.starts_with('/') {
                let can = mesh.can("web", "api", &["--path", target]).await;
                assert_eq!(can, *expected != Denied, "`starling can` --path {target}");
            }
        }
    }
    // With nothing allowed at all, nothing gets through, however odd.
    let nothing = json!([{"Action": "deny", "HTTP": {"PathPrefix": "/"}}]);
    let change = mesh.permissions("web", "api", &nothing).await.index();
    mesh.settled(change).await;
    eventually("a plain request is refused", async || {
        let status = status_of(&web.upstream("api"), "GET / HTTP/1.1").await?;
        anyhow::ensure!(status == 403, "{status}");
        Ok(())
    })
    .await;
    let reached = api.sidecar.stat("cluster.local_app.upstream_rq_total", "").await;
    for head in ODD_HEADS {
        let status = status_of(&web.upstream("api"), head).await.expect("an answer or the end");
        assert!(matches!(status, 0 | 400..=499), "{head:?} is answered {status}");
    }
    assert_eq!(api.sidecar.stat("cluster.local_app.upstream_rq_total", "").await, reached, "one got through");
}
