//! A path has one form: the policy decides on it, and the application sees it.

use serde_json::json;
use starling_e2e::{Connection, Mesh, MeshOptions, Workload, eventually};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_spelling_of_a_path_gets_around_a_denial() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (web, _api) = tokio::join!(Workload::new("web").calls("api").start(&mesh), Workload::new("api").start(&mesh));
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
}
