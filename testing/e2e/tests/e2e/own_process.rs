//! Sidecars that a `starling proxy` of their own serves.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use starling_e2e::{
    Connection, Instance, Mesh, MeshOptions, OwnProxy, Plane, Program, Served, Traffic, Workload, eventually, http,
};

use crate::apart;
use crate::passing::Passing;

mod registration;
mod taking_over;

/// An address of the documentation's (RFC 5737), so of no machine.
const NOBODYS_ADDRESS: &str = "192.0.2.1";

/// Time for a proxy to end: requests that are under way have four seconds of it.
const END: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_protocol_passes_between_proxies_of_their_own() {
    let passing = Passing::start(Plane::Own, Plane::Own).await;
    passing.all_passes().await;
    passing.intentions_decide().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_of_its_own_calls_envoys_in_every_protocol() {
    let passing = Passing::start(Plane::Own, Plane::Envoy).await;
    passing.all_passes().await;
    passing.intentions_decide().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_calls_proxies_of_their_own_in_every_protocol() {
    let passing = Passing::start(Plane::Envoy, Plane::Own).await;
    passing.all_passes().await;
    passing.intentions_decide().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_and_proxies_of_their_own_call_each_other_in_every_protocol() {
    for (caller, called) in [(Plane::Native, Plane::Own), (Plane::Own, Plane::Native)] {
        let passing = Passing::start(caller, called).await;
        passing.all_passes().await;
        passing.intentions_decide().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_serves_while_its_agent_is_away_and_follows_it_again() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (mut web, _api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&mesh, Plane::Own),
        Workload::new("api").start_on(&mesh, Plane::Own),
    );
    web.served_by("api", &["api"], "all is well").await;
    let traffic = Traffic::start(&web.upstream("api"), "/");
    mesh.kill9();
    traffic.requests(50).await;
    mesh.restart().await;
    traffic.requests(50).await;
    traffic.stop_without_failure().await;
    let denied = mesh.intention("web", "api", "deny").await.index();
    mesh.settled(denied).await;
    eventually("the proxies are back and follow", async || {
        let status = http::get(&web.upstream("api"), "/").await?.status;
        anyhow::ensure!(status == 403, "{status}");
        Ok(())
    })
    .await;
    let stats = web.sidecar.own().get("/stats").await.text();
    assert!(stats.contains("starling_proxy_"), "{stats}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_cannot_be_had_is_a_refusal_until_it_can() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (web, _api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&mesh, Plane::Own),
        Workload::new("api").start_on(&mesh, Plane::Own),
    );
    web.served_by("api", &["api"], "all is well").await;
    let mut broken = web.registration.clone();
    let upstreams = &mut broken["Connect"]["SidecarService"]["Proxy"]["Upstreams"];
    upstreams.as_array_mut().expect("upstreams").push(json!({
        "DestinationName": "elsewhere", "LocalBindAddress": NOBODYS_ADDRESS, "LocalBindPort": 9_999,
    }));
    let refused = mesh.put("/v1/agent/service/register?until=applied:all&wait=20s", &broken).await.success();
    assert_eq!(refused.header("x-starling-until"), Some("never"), "{:?}", refused.headers);
    let receipt = mesh.receipt(refused.index(), "10s").await;
    let rejected = receipt["rejected"].to_string();
    assert!(rejected.contains("web-sidecar-proxy") && rejected.contains(NOBODYS_ADDRESS), "{receipt:#}");
    web.served_by("api", &["api"], "what can be served is").await;
    // A port that somebody else holds, and then gives up.
    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = held.local_addr().expect("an address").port();
    let upstreams = &mut broken["Connect"]["SidecarService"]["Proxy"]["Upstreams"];
    upstreams[1] = json!({"DestinationName": "elsewhere", "LocalBindPort": port});
    let refused = mesh.put("/v1/agent/service/register?until=applied:all&wait=20s", &broken).await.success();
    assert_eq!(refused.header("x-starling-until"), Some("never"), "{:?}", refused.headers);
    drop(held);
    eventually("the port is listened on", async || Ok(Connection::open(&format!("127.0.0.1:{port}")).await?)).await;
    let repaired = mesh.intention("web", "elsewhere", "allow").await.index();
    mesh.settled(repaired).await;
    eventually("nothing is refused any more", async || {
        let status = mesh.cli(&["status", "-o", "json"]).await.success();
        anyhow::ensure!(!status.stdout.contains(&port.to_string()), "{status}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_under_way_at_the_end_is_finished() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (mut web, _api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&mesh, Plane::Own),
        Workload::new("api").env("TIMING_50_PERCENTILE", "200ms").start_on(&mesh, Plane::Own),
    );
    web.served_by("api", &["api"], "all is well").await;
    let authority = web.upstream("api");
    let mut under_way = Vec::new();
    for over_http2 in [false, true] {
        let mut connection = match over_http2 {
            false => Connection::open(&authority).await.expect("a connection"),
            true => Connection::open_http2(&authority).await.expect("a connection"),
        };
        under_way.push(tokio::spawn(async move { connection.get("/").await }));
    }
    eventually("the requests are under way", async || {
        let clusters = web.sidecar.own().get("/clusters").await.json();
        let of_api =
            clusters["web-sidecar-proxy"].as_object().into_iter().flatten().find(|(name, _)| name.starts_with("api."));
        let calls = of_api.map(|(_, cluster)| cluster["calls"].clone());
        anyhow::ensure!(calls == Some(json!(2)), "{clusters:#}");
        Ok(())
    })
    .await;
    let status = tokio::task::block_in_place(|| web.sidecar.own().process.end_with(Signal::SIGTERM, END));
    assert!(status.success(), "{status}");
    let log = web.sidecar.own().process.log();
    assert!(log.contains("draining 2 connections, for at most 20s") && log.contains("drained; ending"), "{log}");
    for answer in under_way {
        let answer = answer.await.expect("no panic").expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert!(http::get(&authority, "/").await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_take_over_from_each_other_and_no_request_fails() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    mesh.protocol("api", "http").await;
    let (mut web, mut api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&mesh, Plane::Own),
        Workload::new("api").start_on(&mesh, Plane::Own),
    );
    web.served_by("api", &["api"], "all is well").await;
    let traffic = Traffic::start(&web.upstream("api"), "/");
    for workers in ["1", "2", "1"] {
        traffic.requests(30).await;
        let more = ["--workers", workers];
        let (ended, also_ended) = tokio::join!(
            web.sidecar.own().taken_over(&mesh, "web", &more),
            api.sidecar.own().taken_over(&mesh, "api", &more),
        );
        assert!(ended.success() && also_ended.success(), "{ended} {also_ended}");
    }
    traffic.requests(30).await;
    assert!(traffic.stop_without_failure().await > 120);
    web.served_by("api", &["api"], "the last ones serve").await;
    let change = mesh.intention("web", "api", "deny").await.index();
    mesh.settled(change).await;
    assert_eq!(http::get(&web.upstream("api"), "/").await.expect("an answer").status, 403, "they follow");
    // Without being asked to, none takes another's place, by whatever name it calls the agent.
    let port = mesh.addresses.http.rsplit(':').next().expect("a port");
    for agent in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("http://127.0.0.1:{port}/")] {
        let mut second = OwnProxy::spawn(&mesh, "web", &["--http-addr", &agent]).process;
        let ended =
            eventually("the second one ends", async || second.ended().ok_or_else(|| anyhow::anyhow!("it runs"))).await;
        assert!(!ended.success() && second.log().contains("--take-over"), "{agent}: {}", second.log());
    }
    // Where it does not meet the first one the agent says so, which knows who is attached.
    let elsewhere = tempfile::tempdir().expect("a folder");
    let folder = elsewhere.path().join("own");
    for more in [&[][..], &["--take-over"]] {
        let mut second = OwnProxy::spawn_apart(&mesh, "web", &folder, more).process;
        let ended =
            eventually("the second one ends", async || second.ended().ok_or_else(|| anyhow::anyhow!("it runs"))).await;
        assert!(
            !ended.success() && second.log().contains("another process serves web-sidecar-proxy"),
            "{}",
            second.log()
        );
    }
    web.sidecar.own().process.expect_running().expect("the first one serves");
    assert_eq!(http::get(&web.upstream("api"), "/").await.expect("an answer").status, 403, "as before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_start_at_once_one_serves() {
    let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
    mesh.protocol("api", "http").await;
    let web = Workload::new("web").calls("api").start_on(&mesh, Plane::Native).await;
    let mut started: Vec<_> = (0..3).map(|_| OwnProxy::spawn(&mesh, "web", &[])).collect();
    eventually("all but one have ended", async || {
        let running = started.iter_mut().filter_map(|one| one.process.ended().is_none().then_some(())).count();
        anyhow::ensure!(running == 1, "{running} run");
        Ok(())
    })
    .await;
    for one in &mut started {
        let (log, refused) = (one.process.log(), one.process.ended().is_some());
        assert_eq!(log.contains("another process serves it already"), refused, "{log}");
        if !refused {
            one.live("web", &[web.public_port]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_are_said_with_what_to_do() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    for (arguments, expected) in [
        (&["proxy"][..], "one of --sidecar-for, --proxy-id and --gateway"),
        (&["proxy", "-sidecar-for", "nobody"], "no service with the ID \"nobody\""),
        (&["proxy", "-sidecar-for", "x", "-admin-bind", "0.0.0.0:1"], "no loopback address"),
        (&["proxy", "-sidecar-for", "x", "--workers", "0"], "0 is not in 1..=512"),
        (&["proxy", "-sidecar-for", "x", "--drain-time", "soon"], "such as 20s, 500ms or 2m"),
    ] {
        let said = mesh.cli(arguments).await;
        assert_ne!(said.code, 0, "{arguments:?}: {said}");
        assert!(said.stderr.contains(expected), "{arguments:?}: {said}");
    }
}

/// Registers web with a listener that nobody can have.
async fn break_listener(mesh: &Mesh, web: &Instance<Served>) -> Value {
    let mut broken = web.registration.clone();
    let upstreams = &mut broken["Connect"]["SidecarService"]["Proxy"]["Upstreams"];
    upstreams.as_array_mut().expect("upstreams").push(json!({
        "DestinationName": "elsewhere", "LocalBindAddress": NOBODYS_ADDRESS, "LocalBindPort": 9_999,
    }));
    let _ = mesh.register(&broken).await;
    broken
}

/// Waits until a refusal of the listener stands, or none does.
async fn refuses(mesh: &Mesh, expected: bool, when: &str) {
    eventually(&format!("refused is {expected} when {when}"), async || {
        let [nodes, proxies] = ["/starling/v1/nodes", "/starling/v1/proxies"].map(|target| mesh.get(target));
        let known = nodes.await.success().text() + &proxies.await.success().text();
        anyhow::ensure!(known.contains(NOBODYS_ADDRESS) == expected, "{known}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_before_a_reconnect_is_not_had_after_it() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let (web, _api) = tokio::join!(
        Workload::new("web").calls("api").start_on(&mesh, Plane::Own),
        Workload::new("api").start_on(&mesh, Plane::Own),
    );
    let broken = break_listener(&mesh, &web).await;
    refuses(&mesh, true, "the listener is nobody's").await;
    mesh.kill9();
    mesh.restart().await;
    // Receipts begin anew with the server: this is what the proxy says now.
    refuses(&mesh, true, "the agent is back").await;
    // And so it is with whatever else comes: nothing of it is taken for applied.
    let more = mesh.put("/v1/agent/service/register?until=applied:all&wait=20s", &broken).await.success();
    assert_ne!(more.header("x-starling-until"), Some("applied"), "{:?}", more.headers);
    let _ = mesh.register(&web.registration).await;
    refuses(&mesh, false, "it is asked for no more").await;
    mesh.settled(mesh.revision().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_on_a_node_stands_when_its_server_is_back() {
    let mut server =
        Mesh::start(MeshOptions { program: Program::Server(String::new()), ..MeshOptions::default() }).await;
    let token = apart::token(&server, &[]).await;
    let options = MeshOptions { native: true, ..apart::node(&server, "n1", Some(&token)) };
    let agent = Mesh::start(options).await;
    let web = Workload::new("web").calls("api").start_on(&agent, Plane::Native).await;
    let _ = break_listener(&agent, &web).await;
    refuses(&server, true, "the agent has said so").await;
    server.kill9();
    server.restart().await;
    apart::connected(&server, "n1", true).await;
    refuses(&server, true, "the server is back").await;
    let _ = agent.register(&web.registration).await;
    refuses(&server, false, "it is asked for no more").await;
}

/// Routes of each of the services below, and characters of each path: half a message's worth in each of the four.
const LARGE_ROUTES: usize = 1_000;
const LARGE_PATH: usize = 500;

/// A router of which the plan is larger than what an agent sends at once.
fn large_router(service: &str) -> Value {
    let route = |number: usize| {
        let path = format!("/{number}/{}", "x".repeat(LARGE_PATH));
        json!({"Match": {"HTTP": {"PathExact": path}}, "Destination": {"Fault": {"Abort": {"Status": 418}}}})
    };
    json!({"Kind": "service-router", "Name": service, "Routes": (0..LARGE_ROUTES).map(route).collect::<Vec<_>>()})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_takes_several_messages_arrives_whole() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let called = ["api", "shop", "cart", "mail"];
    for service in called {
        mesh.protocol(service, "http").await;
        mesh.config(&large_router(service)).await;
    }
    let web = called.iter().fold(Workload::new("web"), |web, service| web.calls(service));
    let mut web = web.start_on(&mesh, Plane::Own).await;
    mesh.settled(mesh.revision().await).await;
    for service in called {
        for (number, status) in [(0, 418), (LARGE_ROUTES - 1, 418), (LARGE_ROUTES, 503)] {
            let path = format!("/{number}/{}", "x".repeat(LARGE_PATH));
            let answer = http::get(&web.upstream(service), &path).await.expect("an answer");
            assert_eq!(answer.status, status, "{service} {number}");
        }
    }
    let shown = web.sidecar.own().get("/config").await.text();
    assert!(shown.len() > 2 << 20, "{} bytes", shown.len());
    // A change of one part, while the others stay.
    let change = mesh.config(&json!({"Kind": "service-router", "Name": "api", "Routes": []})).await.index();
    mesh.settled(change).await;
    let path = format!("/0/{}", "x".repeat(LARGE_PATH));
    let statuses = [http::get(&web.upstream("api"), &path).await, http::get(&web.upstream("shop"), &path).await];
    assert_eq!(statuses.map(|answer| answer.expect("an answer").status), [503, 418]);
}
