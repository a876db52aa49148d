//! An instance that is not healthy gets no traffic.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use starling_e2e::{Instance, Mesh, MeshOptions, Traffic, Workload, eventually, free_port, http};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Requests that show who answers: with two instances in turn, the chance that one of them is missed is below 10⁻⁹.
const SAMPLE: usize = 30;

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

/// Waits until exactly these instances answer.
async fn served_by(web: &Instance, expected: &[&str], when: &str) {
    let expected: BTreeSet<_> = expected.iter().map(|name| (*name).to_owned()).collect();
    eventually(&format!("{expected:?} serve when {when}"), async || {
        let mut names = BTreeSet::new();
        for _ in 0..SAMPLE {
            let answer = http::get(&web.upstream("api"), "/").await?;
            anyhow::ensure!(answer.status == 200, "{}", answer.status);
            names.extend(answer.json()["name"].as_str().map(str::to_owned));
        }
        anyhow::ensure!(names == expected, "{names:?}");
        Ok(())
    })
    .await;
}

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
    served_by(&web, &["api-http", "api-tcp", "api-ttl"], "all are well").await;
    // Whoever is called is up: no request may fail, whatever the checks say.
    let traffic = Traffic::start(&web.upstream("api"), "/");

    http_patient.feels(500);
    served_by(&web, &["api-tcp", "api-ttl"], "one answers 500").await;
    http_patient.feels(429);
    // A warning is no failure; Consul lets such instances serve.
    served_by(&web, &["api-http", "api-tcp", "api-ttl"], "one answers 429").await;
    http_patient.feels(200);

    let tcp_port = tcp_patient.port;
    drop(tcp_patient);
    served_by(&web, &["api-http", "api-ttl"], "one is not listened on").await;
    let _listener =
        eventually("the port is free", async || Ok(TcpListener::bind(("127.0.0.1", tcp_port)).await?)).await;
    served_by(&web, &["api-http", "api-tcp", "api-ttl"], "it is again").await;

    ttl(&mesh, "fail", "by-ttl").await;
    served_by(&web, &["api-http", "api-tcp"], "one says that it fails").await;
    let passing = mesh.get("/v1/health/service/api?passing").await.success().json();
    assert_eq!(passing.as_array().map(Vec::len), Some(2), "{passing:#}");
    ttl(&mesh, "warn", "by-ttl").await;
    served_by(&web, &["api-http", "api-tcp", "api-ttl"], "it only warns").await;
    ttl(&mesh, "pass", "by-ttl").await;

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
