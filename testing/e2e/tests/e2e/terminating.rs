//! Terminating gateways: callers in the mesh, to services that have nobody there.

use rustls::version::TLS13;
use serde_json::{Value, json};
use starling_e2e::tls::{Credentials, connect_to};
use starling_e2e::{App, Instance, Mesh, MeshOptions, OwnProxy, Plane, Served, Sidecar, Traffic, Workload, eventually};
use starling_e2e::{free_port, http};

/// Who does what the gateway's plan says.
enum Gateway {
    Native(OwnProxy),
    Envoy(Sidecar),
}

impl Gateway {
    async fn start(mesh: &Mesh, plane: Plane, port: u16) -> Self {
        match plane {
            Plane::Envoy => Self::Envoy(Sidecar::terminating(mesh, "egress", port).await),
            Plane::Native | Plane::Own => Self::Native(OwnProxy::terminating(mesh, "egress", port).await),
        }
    }

    fn expect_running(&mut self) {
        let process = match self {
            Self::Native(proxy) => &mut proxy.process,
            Self::Envoy(envoy) => &mut envoy.process,
        };
        process.expect_running().expect("the gateway runs");
    }
}

/// Writes which services the gateway stands for.
async fn link(mesh: &Mesh, services: &Value) -> u64 {
    let entry = json!({"Kind": "terminating-gateway", "Name": "egress", "Services": services});
    mesh.config(&entry).await.index()
}

/// Starts an application outside the mesh and registers it without a sidecar.
async fn outside(mesh: &Mesh, service: &str, id: &str, address: &str) -> App {
    let app = App::start(id, free_port(), &[]).await;
    register(mesh, service, id, (address, app.port)).await;
    app
}

async fn register(mesh: &Mesh, service: &str, id: &str, (address, port): (&str, u16)) -> u64 {
    mesh.register(&json!({"ID": id, "Name": service, "Address": address, "Port": port})).await.index()
}

/// Waits until a call of `upstream` is answered with a status; the answer.
async fn answered(web: &Instance<Served>, upstream: &str, status: u16, when: &str) -> http::Answer {
    eventually(&format!("{upstream} answers {status} when {when}"), async || {
        let answer = http::get(&web.upstream(upstream), "/").await?;
        anyhow::ensure!(answer.status == status, "{}: {}", answer.status, answer.text());
        Ok(answer)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_stands_for_services_outside_and_keeps_them_apart() {
    stands_for(Plane::Envoy, Plane::Envoy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_gateway_stands_for_services_outside_and_keeps_them_apart() {
    stands_for(Plane::Own, Plane::Own).await;
}

async fn stands_for(caller: Plane, plane: Plane) {
    let mesh = Mesh::start(MeshOptions { native: caller != Plane::Envoy, ..MeshOptions::default() }).await;
    mesh.protocol("legacy", "http").await;
    let _legacy = outside(&mesh, "legacy", "legacy", "127.0.0.1").await;
    let _billing = outside(&mesh, "billing", "billing", "127.0.0.1").await;
    let port = free_port();
    link(&mesh, &json!([{"Name": "legacy"}, {"Name": "billing"}])).await;
    let web = Workload::new("web").calls("legacy").calls("billing").start_on(&mesh, caller).await;
    let mut gateway = Gateway::start(&mesh, plane, port).await;

    let legacy = answered(&web, "legacy", 200, "all is well").await.json();
    assert_eq!(legacy["name"], "legacy");
    let certificate = legacy["request"]["headers"]["x-forwarded-client-cert"].to_string();
    assert!(certificate.contains("/svc/web"), "{legacy:#}");
    assert_eq!(answered(&web, "billing", 200, "all is well").await.json()["name"], "billing");
    each_shows_its_own_certificate(&mesh, port).await;

    let reached = mesh.get("/v1/health/connect/legacy?passing").await.success().json();
    let shown = (&reached[0]["Service"]["Kind"], &reached[0]["Service"]["ID"], &reached[0]["Service"]["Port"]);
    assert_eq!(shown, (&json!("terminating-gateway"), &json!("egress"), &json!(port)), "{reached:#}");
    assert_eq!(reached.as_array().map(Vec::len), Some(1));

    // Intentions are those of the services, by the caller's own name.
    let traffic = Traffic::start(&web.upstream("billing"), "/");
    mesh.settled(mesh.intention("web", "legacy", "deny").await.index()).await;
    assert_eq!(http::get(&web.upstream("legacy"), "/").await.expect("an answer").status, 403);
    mesh.settled(mesh.delete_intention("web", "legacy").await.index()).await;
    let only_admin =
        json!([{"Action": "deny", "HTTP": {"PathPrefix": "/admin"}}, {"Action": "allow", "HTTP": {"PathPrefix": "/"}}]);
    mesh.settled(mesh.permissions("web", "legacy", &only_admin).await.index()).await;
    assert_eq!(http::get(&web.upstream("legacy"), "/admin/x").await.expect("an answer").status, 403);
    assert_eq!(http::get(&web.upstream("legacy"), "/").await.expect("an answer").status, 200);
    assert!(traffic.stop_without_failure().await > 0);
    mesh.settled(mesh.intention("web", "billing", "deny").await.index()).await;
    eventually("no connection reaches billing", async || {
        anyhow::ensure!(http::get(&web.upstream("billing"), "/").await.is_err(), "one does");
        Ok(())
    })
    .await;
    mesh.settled(mesh.delete_intention("web", "billing").await.index()).await;
    answered(&web, "billing", 200, "it is allowed again").await;

    // Instances come and go without a request lost.
    let traffic = Traffic::start(&web.upstream("legacy"), "/");
    let _second = outside(&mesh, "legacy", "legacy-2", "127.0.0.1").await;
    web.served_by("legacy", &["legacy", "legacy-2"], "a second instance is registered").await;
    let gone = mesh.put("/v1/agent/service/deregister/legacy", &Value::Null).await.success().index();
    mesh.settled(gone).await;
    web.served_by("legacy", &["legacy-2"], "the first is deregistered").await;

    // Who is let go is not reached any more, and the other does not notice.
    mesh.settled(link(&mesh, &json!([{"Name": "legacy"}])).await).await;
    eventually("nobody stands for billing", async || {
        anyhow::ensure!(http::get(&web.upstream("billing"), "/").await.is_err(), "somebody does");
        Ok(())
    })
    .await;
    assert!(traffic.stop_without_failure().await > 0);
    gateway.expect_running();
}

/// The name that is asked for in the handshake decides whose certificate is shown, and a name that nobody has is refused.
async fn each_shows_its_own_certificate(mesh: &Mesh, port: u16) {
    let web = Credentials::of_leaf(&mesh.get("/v1/agent/connect/ca/leaf/web").await.success().json());
    let trust_domain = mesh.get("/v1/connect/ca/roots").await.success().json()["TrustDomain"].clone();
    let trust_domain = trust_domain.as_str().expect("a trust domain");
    for service in ["legacy", "billing"] {
        let name = format!("{service}.default.dc1.internal.{trust_domain}");
        let stream = connect_to(&name, &format!("127.0.0.1:{port}"), Some(&web), &TLS13).await.expect("a handshake");
        let chain = stream.get_ref().1.peer_certificates().expect("a certificate").to_vec();
        let leaf = chain[0].windows(64).map(String::from_utf8_lossy);
        let wanted = format!("/svc/{service}");
        assert!(leaf.into_iter().any(|text| text.contains(&wanted)), "{service} is shown as another");
    }
    let unknown = format!("other.default.dc1.internal.{trust_domain}");
    assert!(connect_to(&unknown, &format!("127.0.0.1:{port}"), Some(&web), &TLS13).await.is_err(), "nobody has it");
}
