//! Traffic through several sidecars, in every protocol.

use std::collections::BTreeSet;

use serde_json::Value;
use starling_e2e::{Connection, Instance, Mesh, MeshOptions, Method, Workload, eventually, http};

async fn trust_domain(mesh: &Mesh) -> String {
    let roots = mesh.get("/v1/connect/ca/roots").await.success().json();
    roots["TrustDomain"].as_str().expect("a trust domain").to_owned()
}

/// The answer of the whole chain behind `instance`, once it is up.
async fn whole_chain(instance: &Instance, target: &str) -> Value {
    eventually("the chain answers", async || {
        let answer = http::get(&instance.app.authority(), target).await?;
        anyhow::ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
        Ok(answer.json())
    })
    .await
}

fn nested<'a>(answer: &'a Value, instance: &Instance, upstream: &str) -> &'a Value {
    let calls = answer["upstream_calls"].as_object().expect("nested answers");
    let address = instance.upstream(upstream);
    let called = calls.iter().find(|(uri, _)| uri.ends_with(&address));
    called.unwrap_or_else(|| panic!("no answer of {upstream} at {address}: {answer:#}")).1
}

fn client_certificate(answer: &Value) -> &str {
    answer["request"]["headers"]["x-forwarded-client-cert"].as_str().unwrap_or("")
}

fn assert_called_by(answer: &Value, trust_domain: &str, service: &str) {
    let header = client_certificate(answer);
    let expected = format!("URI=spiffe://{trust_domain}/ns/default/dc/dc1/svc/{service}");
    let uris: Vec<_> = header.split([';', ',']).filter(|part| part.starts_with("URI=")).collect();
    assert_eq!(uris, [expected.as_str()], "{header}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calls_b_calls_c_through_four_sidecars() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    for service in ["a", "b", "c"] {
        mesh.protocol(service, "http").await;
    }
    let (a, b1, b2, c) = tokio::join!(
        Workload::new("a").calls("b").start(&mesh),
        Workload::new("b").id("b-1").calls("c").start(&mesh),
        Workload::new("b").id("b-2").calls("c").start(&mesh),
        Workload::new("c").start(&mesh),
    );
    let trust_domain = trust_domain(&mesh).await;

    let mut seen = BTreeSet::new();
    eventually("both instances of b are called", async || {
        let answer = whole_chain(&a, "/shop?basket=7").await;
        assert_eq!(answer["name"], "a");
        let from_b = nested(&answer, &a, "b");
        assert_called_by(from_b, &trust_domain, "a");
        let name = from_b["name"].as_str().expect("a name").to_owned();
        let b = if name == "b-1" { &b1 } else { &b2 };
        let from_c = nested(from_b, b, "c");
        assert_called_by(from_c, &trust_domain, "b");
        assert_eq!(from_c["name"], "c");
        assert_eq!(from_c["request"]["path"], "/shop");
        seen.insert(name);
        anyhow::ensure!(seen.len() == 2, "only {seen:?}");
        Ok(())
    })
    .await;

    let forged = [("x-forwarded-client-cert", "By=spiffe://x/svc/b;URI=spiffe://x/svc/admin")];
    let answer = http::request(Method::GET, &a.upstream("b"), "/", &forged, "").await.unwrap().success().json();
    assert_called_by(&answer, &trust_domain, "a");

    let metrics = c.sidecar.get("/stats/prometheus").await.text();
    assert!(metrics.contains("envoy_cluster_upstream_rq_total"), "no Prometheus statistics: {metrics}");
    eventually("c's sidecar logs who called", async || {
        let log = c.sidecar.process.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let peer = format!("spiffe://{trust_domain}/ns/default/dc/dc1/svc/b");
        let logged =
            lines.into_iter().any(|line| line["peer_identity"] == peer.as_str() && line["response_code"] == 200);
        anyhow::ensure!(logged, "{log}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_grpc_and_tcp_pass() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("h2", "http2").await;
    mesh.protocol("rpc", "grpc").await;
    let (web, h2, _rpc, _raw) = tokio::join!(
        Workload::new("web").calls("h2").calls_grpc("rpc").calls("raw").start(&mesh),
        Workload::new("h2").start(&mesh),
        Workload::new("rpc").env("SERVER_TYPE", "grpc").start(&mesh),
        Workload::new("raw").start(&mesh),
    );
    let trust_domain = trust_domain(&mesh).await;
    let answer = whole_chain(&web, "/").await;

    let rpc = nested(&answer, &web, "rpc");
    assert_eq!((&rpc["name"], &rpc["type"], &rpc["code"]), (&"rpc".into(), &"gRPC".into(), &0.into()));
    assert_called_by(rpc, &trust_domain, "web");

    let from_h2 = nested(&answer, &web, "h2");
    assert_eq!(from_h2["name"], "h2");
    assert_called_by(from_h2, &trust_domain, "web");
    let mut connection = Connection::open_http2(&web.upstream("h2")).await.expect("HTTP/2 at the outbound listener");
    assert_eq!(connection.get("/over-http2").await.unwrap().success().json()["request"]["path"], "/over-http2");
    let (http1, http2) = tokio::join!(
        h2.sidecar.stat("cluster.local_app.", "upstream_cx_http1_total"),
        h2.sidecar.stat("cluster.local_app.", "upstream_cx_http2_total"),
    );
    assert!(http1 == 0 && http2 > 0, "h2 was called over HTTP/1.1 {http1} times, over HTTP/2 {http2} times");

    let raw = nested(&answer, &web, "raw");
    assert_eq!(raw["name"], "raw");
    assert_eq!(client_certificate(raw), "", "a TCP proxy leaves the bytes alone");

    mesh.intention("web", "rpc", "deny").await;
    eventually("the gRPC call is refused", async || {
        let answer = http::get(&web.app.authority(), "/").await?;
        let json = answer.json();
        let code = &nested(&json, &web, "rpc")["code"];
        // PERMISSION_DENIED
        anyhow::ensure!(*code == 7, "code {code}");
        Ok(())
    })
    .await;
}

/// Header fields by which an Envoy is told to time out, retry or fail; believed only from those whom it trusts.
const STEERING: [(&str, &str); 5] = [
    ("x-forwarded-for", "10.0.0.1"),
    ("x-envoy-internal", "true"),
    ("x-envoy-upstream-rq-timeout-ms", "1"),
    ("x-envoy-upstream-rq-per-try-timeout-ms", "1"),
    ("x-envoy-fault-abort-request", "503"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_do_not_steer_the_sidecars() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("slow", "http").await;
    let (web, _slow) = tokio::join!(
        Workload::new("web").calls("slow").start(&mesh),
        Workload::new("slow").env("TIMING_50_PERCENTILE", "100ms").start(&mesh),
    );
    eventually("slow answers", async || {
        let answer = http::get(&web.upstream("slow"), "/").await?;
        anyhow::ensure!(answer.status == 200, "{}", answer.status);
        Ok(())
    })
    .await;
    let answer = http::request(Method::GET, &web.upstream("slow"), "/", &STEERING, "").await.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
}
