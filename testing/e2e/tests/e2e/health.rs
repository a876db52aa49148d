//! An instance that is not healthy gets no traffic.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use starling_e2e::{App, Mesh, MeshOptions, Traffic, Workload, eventually, free_port};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// An address that a check looks at, which answers what the test wants.
struct Patient {
    port: u16,
    status: Arc<AtomicU16>,
    task: JoinHandle<()>,
}

impl Patient {
    async fn start() -> Self {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a free port");
        let status = Arc::new(AtomicU16::new(200));
        let answered = Arc::clone(&status);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 2048];
                // A checker that hangs up is none of the patient's business.
                let _ = stream.read(&mut request).await;
                let status = answered.load(Ordering::Relaxed);
                let answer = format!("HTTP/1.1 {status} Felt\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self { port, status, task }
    }

    fn feels(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The list of this one check.
fn check(id: &str, fields: Value) -> Value {
    let mut check = json!({"CheckID": id, "Name": id, "Status": "passing"});
    for (name, value) in fields.as_object().expect("an object") {
        check[name] = value.clone();
    }
    json!([check])
}

async fn ttl(mesh: &Mesh, verdict: &str, id: &str) {
    let _ = mesh.put(&format!("/v1/agent/check/{verdict}/{id}?note=said"), &Value::Null).await.success();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unhealthy_instances_leave_traffic_and_come_back() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (http_patient, tcp_patient) = (Patient::start().await, Patient::start().await);
    let http_url = format!("http://127.0.0.1:{}/health", http_patient.port);
    let http_check = check("by-http", json!({"HTTP": http_url, "Interval": "50ms", "Timeout": "1s"}));
    let tcp_address = format!("127.0.0.1:{}", tcp_patient.port);
    let tcp_check = check("by-tcp", json!({"TCP": tcp_address, "Interval": "50ms", "Timeout": "1s"}));
    let ttl_check = check("by-ttl", json!({"TTL": "10m"}));
    let (web, _first, _second, _third) = tokio::join!(
        Workload::new("web").calls("api").start(&mesh),
        Workload::new("api").id("api-http").field("Checks", http_check).start(&mesh),
        Workload::new("api").id("api-tcp").field("Checks", tcp_check).start(&mesh),
        Workload::new("api").id("api-ttl").field("Checks", ttl_check).start(&mesh),
    );
    web.served_by("api", &["api-http", "api-tcp", "api-ttl"], "all are well").await;
    // Whoever is called is up: no request may fail, whatever the checks say.
    let traffic = Traffic::start(&web.upstream("api"), "/");

    http_patient.feels(500);
    web.served_by("api", &["api-tcp", "api-ttl"], "one answers 500").await;
    http_patient.feels(429);
    // A warning is no failure; Consul lets such instances serve.
    web.served_by("api", &["api-http", "api-tcp", "api-ttl"], "one answers 429").await;
    http_patient.feels(200);

    let tcp_port = tcp_patient.port;
    drop(tcp_patient);
    web.served_by("api", &["api-http", "api-ttl"], "one is not listened on").await;
    let _listener =
        eventually("the port is free", async || Ok(TcpListener::bind(("127.0.0.1", tcp_port)).await?)).await;
    web.served_by("api", &["api-http", "api-tcp", "api-ttl"], "it is again").await;

    ttl(&mesh, "fail", "by-ttl").await;
    web.served_by("api", &["api-http", "api-tcp"], "one says that it fails").await;
    let passing = mesh.get("/v1/health/service/api?passing").await.success().json();
    assert_eq!(passing.as_array().map(Vec::len), Some(2), "{passing:#}");
    ttl(&mesh, "warn", "by-ttl").await;
    web.served_by("api", &["api-http", "api-tcp", "api-ttl"], "it only warns").await;
    ttl(&mesh, "pass", "by-ttl").await;

    traffic.stop_without_failure().await;
}

/// A gRPC server whose health service answers by this status of HTTP: SERVING for 200.
async fn grpc_patient(port: u16, status: &str) -> App {
    App::start("grpc-patient", port, &[("SERVER_TYPE", "grpc"), ("HEALTH_CHECK_RESPONSE_CODE", status)]).await
}

/// Waits until the output of a check has `text` in it.
async fn check_says(mesh: &Mesh, id: &str, text: &str) {
    eventually(&format!("{id} says {text:?}"), async || {
        let checks = mesh.get("/v1/agent/checks").await.success().json();
        anyhow::ensure!(checks[id]["Output"].as_str().is_some_and(|output| output.contains(text)), "{:#}", checks[id]);
        Ok(())
    })
    .await;
}

/// Reports a check of the service `cache` on the node `elsewhere`, as whoever watches over that node would.
async fn elsewhere(mesh: &Mesh, status: &str) {
    let check = json!({"CheckID": "cache-alive", "Name": "cache-alive", "ServiceID": "cache", "Status": status});
    let cache = json!({"Node": "elsewhere", "Address": "192.0.2.7", "Service": {"Service": "cache"}, "Check": check});
    let _ = mesh.put("/v1/catalog/register", &cache).await.success();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_script_and_alias_checks_decide_as_well() {
    let mesh = Mesh::start(MeshOptions { enable_script_checks: true, ..MeshOptions::default() }).await;
    mesh.protocol("api", "http").await;
    let grpc_port = free_port();
    let patient = grpc_patient(grpc_port, "200").await;
    let by_grpc = json!({"GRPC": format!("127.0.0.1:{grpc_port}/FakeService"), "Interval": "50ms"});
    // 0 if the file says so, 1 if it does not, 2 if there is none.
    let files = TempDir::with_prefix("starling-e2e-health-").expect("a temporary directory");
    let diary = files.path().join("diary");
    let write = |text: &str| std::fs::write(&diary, text).expect("a written file");
    write("well");
    let by_script = json!({"Args": ["grep", "well", diary], "Interval": "50ms"});
    mesh.register(&json!({"Name": "database", "Check": {"CheckID": "database-alive", "TTL": "1h"}})).await;
    ttl(&mesh, "pass", "database-alive").await;
    elsewhere(&mesh, "passing").await;
    let by_alias = json!([
        {"CheckID": "by-alias", "AliasService": "database"},
        {"CheckID": "by-remote-alias", "AliasNode": "elsewhere", "AliasService": "cache"},
    ]);
    let (web, _first, _second, _third) = tokio::join!(
        Workload::new("web").calls("api").start(&mesh),
        Workload::new("api").id("api-grpc").field("Checks", check("by-grpc", by_grpc)).start(&mesh),
        Workload::new("api").id("api-script").field("Checks", check("by-script", by_script)).start(&mesh),
        Workload::new("api").id("api-alias").field("Checks", by_alias).start(&mesh),
    );
    let all = ["api-grpc", "api-script", "api-alias"];
    web.served_by("api", &all, "all are well").await;
    let traffic = Traffic::start(&web.upstream("api"), "/");

    drop(patient);
    let patient = grpc_patient(grpc_port, "503").await;
    check_says(&mesh, "by-grpc", "NotServing").await;
    web.served_by("api", &["api-script", "api-alias"], "one is not SERVING").await;
    drop(patient);
    let _patient = grpc_patient(grpc_port, "200").await;
    web.served_by("api", &all, "it is again").await;

    std::fs::remove_file(&diary).expect("a file");
    check_says(&mesh, "by-script", "No such file").await;
    web.served_by("api", &["api-grpc", "api-alias"], "a script exits 2").await;
    write("so so");
    web.served_by("api", &all, "the script exits 1, which only warns").await;
    write("well");
    check_says(&mesh, "by-script", "well").await;

    ttl(&mesh, "fail", "database-alive").await;
    web.served_by("api", &["api-grpc", "api-script"], "whom an alias follows fails").await;
    ttl(&mesh, "pass", "database-alive").await;
    web.served_by("api", &all, "it does not any more").await;
    elsewhere(&mesh, "critical").await;
    web.served_by("api", &["api-grpc", "api-script"], "whom an alias follows on another node fails").await;
    elsewhere(&mesh, "passing").await;
    web.served_by("api", &all, "it does not any more").await;

    traffic.stop_without_failure().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_stays_critical_is_removed() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let patient = Patient::start().await;
    let ids = async || {
        let services = mesh.get("/v1/agent/services").await.success().json();
        services.as_object().expect("services by id").keys().cloned().collect::<BTreeSet<_>>()
    };
    let url = format!("http://127.0.0.1:{}/health", patient.port);
    let checked = check(
        "by-http",
        json!({"HTTP": url, "Interval": "50ms", "Timeout": "1s", "DeregisterCriticalServiceAfter": "1s"}),
    );
    mesh.register(&json!({"Name": "brief", "Port": free_port(), "Checks": checked})).await;
    mesh.register(&json!({"Name": "silent", "Port": free_port(),
        "Check": {"TTL": "100ms", "Status": "passing"}}))
        .await;
    mesh.register(&json!({"Name": "steady", "Port": free_port()})).await;
    eventually("the silent one is critical", async || {
        let checks = mesh.get("/v1/health/checks/silent").await.success().json();
        anyhow::ensure!(checks[0]["Status"] == "critical", "{checks}");
        Ok(())
    })
    .await;
    assert_eq!(ids().await, ["brief", "silent", "steady"].map(str::to_owned).into());

    patient.feels(503);
    starling_e2e::eventually_within(Duration::from_secs(90), "the brief one is removed", async || {
        let ids = ids().await;
        anyhow::ensure!(!ids.contains("brief"), "{ids:?}");
        let catalog = mesh.get("/v1/catalog/service/brief").await.success().json();
        anyhow::ensure!(catalog == json!([]), "{catalog}");
        Ok(())
    })
    .await;
    assert_eq!(ids().await, ["silent", "steady"].map(str::to_owned).into());
}
