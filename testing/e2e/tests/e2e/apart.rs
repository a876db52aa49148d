//! Server and agents as processes of their own: joining, and who goes on without whom.

use serde_json::json;
use starling_e2e::{Instance, Mesh, MeshOptions, Program, Sidecar, Traffic, Workload, Xds, eventually, http};

/// Short, so that a node that is lost is lost soon; a stream that breaks is back long before.
const SETTINGS: &str = "node_grace = \"3s\"\n";

async fn server() -> Mesh {
    Mesh::start(MeshOptions { program: Program::Server(SETTINGS.to_owned()), ..MeshOptions::default() }).await
}

/// What a token is made of, by the command line.
pub(crate) async fn token(server: &Mesh, arguments: &[&str]) -> String {
    let output = server.cli(&[&["token", "create", "--join"], arguments].concat()).await.success();
    output.stdout.trim().to_owned()
}

pub(crate) fn node(server: &Mesh, node: &str, token: Option<&str>) -> MeshOptions {
    let program = Program::Agent {
        node: node.to_owned(),
        server: server.addresses.grpc_tls.clone(),
        token: token.map(str::to_owned),
    };
    MeshOptions { program, ..MeshOptions::default() }
}

pub(crate) async fn agent(server: &Mesh, name: &str) -> Mesh {
    let token = token(server, &[]).await;
    Mesh::start(node(server, name, Some(&token))).await
}

/// Waits until the server says of a node whether it is connected.
pub(crate) async fn connected(server: &Mesh, name: &str, expected: bool) {
    eventually(&format!("connected of {name} is {expected}"), async || {
        let nodes = server.get("/starling/v1/nodes").await.success().json();
        let found = nodes["nodes"].as_array().into_iter().flatten().find(|node| node["node"] == name);
        let is = found.is_some_and(|node| node["connected"] == true);
        anyhow::ensure!(is == expected, "{nodes}");
        Ok(())
    })
    .await;
}

/// Waits until an agent has kept what concerns `service` for times without a server; it does so every few seconds.
async fn kept(agent: &Mesh, service: &str) {
    eventually(&format!("what concerns {service} is kept"), async || {
        let kept = std::fs::read(agent.data_dir().join("agent/replica"))?;
        let has = kept.windows(service.len()).any(|bytes| bytes == service.as_bytes());
        anyhow::ensure!(has, "{} bytes without it", kept.len());
        Ok(())
    })
    .await;
}

/// Waits until a call of `upstream` is answered with `status`.
pub(crate) async fn answered<S>(instance: &Instance<S>, upstream: &str, status: u16, when: &str) {
    eventually(&format!("{upstream} answers {status} when {when}"), async || {
        let answer = http::get(&instance.upstream(upstream), "/").await?;
        anyhow::ensure!(answer.status == status, "{}: {}", answer.status, answer.text());
        Ok(())
    })
    .await;
}

/// Whether an agent's DNS knows `web.service.consul`; `None` if it can ask nobody.
async fn name_is_known(agent: &Mesh) -> Option<bool> {
    /// A query of type A with identifier 7.
    const QUERY: &[u8] = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03web\x07service\x06consul\0\0\x01\0\x01";
    let answer = eventually("DNS answers", async || {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await?;
        socket.send_to(QUERY, &agent.addresses.dns).await?;
        let mut answer = vec![0; 512];
        let received = tokio::time::timeout(std::time::Duration::from_secs(5), socket.recv(&mut answer)).await;
        answer.truncate(received??);
        Ok(answer)
    })
    .await;
    assert_eq!(answer[..2], QUERY[..2], "of another question");
    let (code, records) = (answer[3] & 0xf, u16::from_be_bytes([answer[6], answer[7]]));
    (code != 2).then_some(code == 0 && records > 0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_by_a_good_token_and_by_no_other() {
    let (server, other) = tokio::join!(server(), server());
    let (once, reusable) = (token(&server, &[]).await, token(&server, &["--reusable", "--description", "racks"]).await);
    let first = Mesh::start(node(&server, "n1", Some(&once))).await;

    let refused = Mesh::start_refused(&node(&server, "n2", Some(&once)), "the token is used").await;
    assert!(refused.contains("was for one node and node n1 has used it"), "{refused}");
    let refused = Mesh::start_refused(&node(&server, "n2", None), "there is no token").await;
    assert!(refused.contains("node n2 has no certificate yet; give it a join token"), "{refused}");
    let refused = Mesh::start_refused(&node(&server, "n1", Some(&reusable)), "n1 lives").await;
    assert!(refused.contains("n1") && refused.contains("refused"), "{refused}");
    let foreign = token(&other, &[]).await;
    let refused = Mesh::start_refused(&node(&server, "n2", Some(&foreign)), "it is another mesh's").await;
    assert!(refused.contains("is not a server of this mesh"), "{refused}");
    let refused = Mesh::start_refused(&node(&server, "n2", Some("starling-join.1.x")), "it is no token").await;
    assert!(refused.contains("the join token is not whole"), "{refused}");

    let listed = server.cli(&["token", "list", "-o", "json"]).await.success().json();
    let tokens = listed["tokens"].as_array().expect("tokens");
    assert_eq!(tokens.len(), 2, "{listed}");
    assert!(tokens.iter().any(|token| token["used"]["node"] == "n1"), "{listed}");
    assert!(!listed.to_string().contains("starling-join"), "a secret is shown again: {listed}");

    let _second = Mesh::start(node(&server, "n2", Some(&reusable))).await;
    let _third = Mesh::start(node(&server, "n3", Some(&reusable))).await;
    let id = tokens.iter().find(|token| token["reusable"] == true).expect("the reusable one")["id"].clone();
    let revoked = server.cli(&["token", "revoke", id.as_str().expect("its id")]).await;
    assert_eq!(revoked.code, 0, "{revoked}");
    let refused = Mesh::start_refused(&node(&server, "n4", Some(&reusable)), "the token is revoked").await;
    assert!(refused.contains("refused"), "{refused}");
    // Whoever is in was not disturbed, and asks a server through its agent; but not for tokens.
    for name in ["n1", "n2", "n3"] {
        connected(&server, name, true).await;
    }
    let nodes = first.get("/v1/catalog/nodes").await.success().json();
    assert_eq!(nodes.as_array().map(Vec::len), Some(3), "{nodes}");
    let output = first.cli(&["token", "create", "--join"]).await;
    assert_eq!(output.code, 1, "{output}");
    assert!(output.stderr.contains("operator:write"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_says_what_it_cannot_do_and_a_server_too() {
    let mut server = server().await;
    let agent = agent(&server, "n1").await;
    let answer = server.get("/v1/agent/services").await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("registered with the agent of their node"), "{}", answer.text());
    let own = server.get("/v1/agent/self").await.success().json();
    assert_eq!(own["Config"]["Server"], true);
    assert_eq!(agent.get("/v1/agent/self").await.success().json()["Config"]["Server"], false);
    // What is written through the agent is the server's, and waited for as there.
    agent.protocol("web", "http").await;
    let entry = server.get("/v1/config/service-defaults/web").await.success().json();
    assert_eq!(entry["Protocol"], "http");
    let until = agent.put("/v1/agent/service/register?until=applied:all", &json!({"Name": "web", "Port": 1})).await;
    assert_eq!(until.success().header("x-starling-until"), Some("met"));
    // A blocking read through the agent wakes at the change.
    let index = agent.get("/v1/catalog/service/web").await.success().index();
    let target = format!("/v1/catalog/service/web?index={index}&wait=30s");
    let moved = json!({"Name": "web", "Port": 2});
    let (woken, _) = tokio::join!(agent.get(&target), agent.register(&moved));
    assert_eq!(woken.success().json()[0]["ServicePort"], 2);

    assert_eq!(name_is_known(&agent).await, Some(true), "the server's DNS does not answer through the agent");

    server.kill9();
    assert_eq!(name_is_known(&agent).await, None, "somebody answers without a server");
    let answer = agent.get("/v1/catalog/services").await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.text().contains("none is reached"), "{}", answer.text());
    assert_eq!(agent.get("/v1/connect/ca/roots").await.success().json()["Roots"].as_array().map(Vec::len), Some(1));
    server.restart().await;
    eventually("the agent finds the server again", async || {
        let answer = agent.get("/v1/catalog/services").await;
        anyhow::ensure!(answer.status == 200, "{}", answer.text());
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_between_two_nodes_outlives_server_and_agents() {
    let mut server = server().await;
    let (here, mut there) = tokio::join!(agent(&server, "here"), agent(&server, "there"));
    server.protocol("api", "http").await;
    let mut api = Workload::new("api").start(&there).await;
    let web = Workload::new("web").calls("api").start(&here).await;
    web.served_by("api", &["api"], "both nodes are up").await;
    assert!(api.sidecar.stat("listener.", "ssl.handshake").await > 0, "no TLS between the nodes");

    let denied = server.intention("web", "api", "deny").await;
    server.settled(denied.index()).await;
    answered(&web, "api", 403, "an intention denies it").await;
    let allowed = server.intention("web", "api", "allow").await;
    server.settled(allowed.index()).await;
    answered(&web, "api", 200, "an intention allows it").await;

    kept(&there, "api").await;
    let traffic = Traffic::start(&web.upstream("api"), "/");
    traffic.requests(50).await;
    server.kill9();
    traffic.requests(100).await;
    // The other node's agent goes and comes with no server there; its registrations are its own.
    there.kill9();
    there.restart().await;
    let services = there.get("/v1/agent/services").await.success().json();
    assert_eq!(services["api"]["Port"], api.app.port, "{services}");
    traffic.requests(100).await;
    traffic.stop_without_failure().await;
    // So does its proxy, with a certificate that the agent kept.
    api.sidecar.process.kill9();
    api.sidecar = Sidecar::start(&there, "api", &[api.public_port], Xds::default()).await;
    answered(&web, "api", 200, "the other proxy is another").await;

    server.restart().await;
    connected(&server, "here", true).await;
    connected(&server, "there", true).await;

    let denied = server.intention("web", "api", "deny").await;
    server.settled(denied.index()).await;
    answered(&web, "api", 403, "the server is back and denies it").await;
    let allowed = server.intention("web", "api", "allow").await;
    server.settled(allowed.index()).await;
    answered(&web, "api", 200, "the server is back and allows it").await;

    // A node that stays away is lost, and so are its instances; when it is back, they are.
    there.kill9();
    connected(&server, "there", false).await;
    answered(&web, "api", 503, "the node is lost").await;
    let checks = server.get("/v1/health/node/there").await.success().json();
    let lost = checks.as_array().into_iter().flatten().find(|check| check["CheckID"] == "serfHealth");
    assert_eq!(lost.expect("the liveness check")["Status"], "critical", "{checks}");
    there.restart().await;
    answered(&web, "api", 200, "the node is back").await;
}
