//! Ingress gateways: callers from outside, by host and by certificate, into the mesh.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use starling_e2e::{Answer, Mesh, MeshOptions, OwnProxy, Plane, Traffic, Workload, eventually, free_port, http};

/// Asks for a host.
async fn ask(port: u16, host: &str, target: &str) -> anyhow::Result<Answer> {
    http::request(Method::GET, &format!("127.0.0.1:{port}"), target, &[("host", host)], Bytes::new()).await
}

/// Waits until a host is answered with a status; the whole answer.
async fn answered(port: u16, host: &str, status: u16, when: &str) -> Answer {
    eventually(&format!("{host} is answered {status} when {when}"), async || {
        let answer = ask(port, host, "/").await?;
        anyhow::ensure!(answer.status == status, "{}: {}", answer.status, answer.text());
        Ok(answer)
    })
    .await
}

fn entry(listeners: &Value) -> Value {
    json!({"Kind": "ingress-gateway", "Name": "ingress", "Listeners": listeners})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_let_in_reaches_its_service_and_nothing_else() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    for service in ["api", "web"] {
        mesh.protocol(service, "http").await;
    }
    let (_api, _web) = tokio::join!(
        Workload::new("api").start_on(&mesh, Plane::Own),
        Workload::new("web").start_on(&mesh, Plane::Own)
    );
    let (port, other, redirecting) = (free_port(), free_port(), free_port());
    let web =
        json!({"Name": "web", "Hosts": ["*.example.com", "127.0.0.1"], "ResponseHeaders": {"Set": {"x-edge": "yes"}}});
    let listeners = json!([
        {"Port": port, "Protocol": "http", "Services": [{"Name": "api"}, web]},
        {"Port": redirecting, "HTTPSRedirect": {"Port": 8443}},
    ]);
    mesh.config(&entry(&listeners)).await;
    let mut gateway = OwnProxy::gateway(&mesh, "ingress", &[port, redirecting]).await;

    let api = answered(port, "api.ingress.dc1.consul", 200, "all is well").await.json();
    assert_eq!(api["name"], "api");
    let certificate = api["request"]["headers"]["x-forwarded-client-cert"].to_string();
    assert!(certificate.contains("/svc/ingress"), "{api:#}");
    let web = answered(port, "www.Example.com:80", 200, "all is well").await;
    assert_eq!((&web.json()["name"], web.header("x-edge")), (&json!("web"), Some("yes")));
    answered(port, "elsewhere", 404, "nobody has that host").await;
    let redirected = answered(redirecting, "api.ingress.consul", 301, "it comes in plaintext").await;
    assert_eq!(redirected.header("location"), Some("https://api.ingress.consul:8443/"));

    // Intentions speak of the gateway by its name; another service is not touched.
    let denied = mesh.intention("ingress", "api", "deny").await.index();
    mesh.settled(denied).await;
    assert_eq!(ask(port, "api.ingress.consul", "/").await.expect("an answer").status, 403);
    assert_eq!(ask(port, "www.example.com", "/").await.expect("an answer").status, 200);
    assert!(!mesh.can("ingress", "api", &[]).await);
    mesh.settled(mesh.delete_intention("ingress", "api").await.index()).await;

    // A change is in force when its receipt says so, and requests under way do not notice.
    let traffic = Traffic::start(&format!("127.0.0.1:{port}"), "/");
    let all = json!([{"Name": "api", "Hosts": ["*"]}]);
    let more = json!([
        {"Port": port, "Protocol": "http", "Services": all},
        {"Port": other, "Protocol": "http", "Services": all},
    ]);
    let changed = mesh.config(&entry(&more)).await.success().index();
    mesh.settled(changed).await;
    assert_eq!(ask(other, "elsewhere", "/").await.expect("an answer").status, 200);
    assert!(ask(redirecting, "elsewhere", "/").await.is_err(), "nobody listens there any more");
    assert!(traffic.stop_without_failure().await > 0);
    gateway.process.expect_running().expect("the gateway runs");
}
