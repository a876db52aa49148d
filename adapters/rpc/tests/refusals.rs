//! Agents that are not let in, or put out: each is told why, and whoever is beside them is not disturbed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/agents.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use rustls::ClientConfig;
use starling_attach::message::{AgentSays, Hello, ServerSays, Subjects};
use starling_identity::IssuanceRules;
use starling_model::UnixSeconds;
use starling_rpc::{AgentSender, CallError, ServerClient, ServerFrames};
use starling_tls::{Credentials, LeafKey, TrustRoots, agent_client_config};
use support::{DEADLINE, Mesh, Server, now};

const DAY: u64 = 24 * 60 * 60;

fn hello(node: &str) -> Hello {
    Hello { node: node.to_owned(), version: "test".to_owned() }
}

/// Somebody who is attached, and goes on hearing what is said.
struct Neighbour {
    said: u64,
    _sender: AgentSender,
    frames: ServerFrames,
}

impl Neighbour {
    async fn attach(server: &Server) -> Self {
        let client = server.connect(server.door.mesh.agent("neighbour")).await;
        let (sender, frames) = client.attach(hello("neighbour")).await.unwrap();
        Self { said: 0, _sender: sender, frames }
    }

    async fn still_hears(&mut self, server: &Server, after: &str) {
        self.said += 1;
        server.door.talk("neighbour").publish(self.said, 10);
        let heard = tokio::time::timeout(DEADLINE, self.frames.next()).await;
        match heard.unwrap_or_else(|_| panic!("nothing is heard after {after}")) {
            Some(Ok(ServerSays::Whole(whole))) => assert_eq!(whole.revision, self.said, "after {after}"),
            other => panic!("{other:?} after {after}"),
        }
    }
}

/// The agent of a node whose certificate was issued at some time.
fn issued_at(mesh: &Mesh, node: &str, at: UnixSeconds) -> Arc<ClientConfig> {
    let key = LeafKey::generate().unwrap();
    let dc = "dc1".parse().unwrap();
    let csr = key.csr_der().unwrap();
    let leaf = mesh.authority.issue_agent(&csr, &dc, &node.parse().unwrap(), &IssuanceRules::default(), at);
    let credentials = Credentials::new(&leaf.unwrap().chain_pem, &key).unwrap();
    let roots = TrustRoots::new([mesh.authority.root()]).unwrap();
    Arc::new(agent_client_config(credentials, &roots, Mesh::server_identity()).unwrap())
}

/// Why a certificate is of no use. Under TLS 1.3 it is told with the answer to the first call.
async fn turned_away(server: &Server, tls: Arc<ClientConfig>, node: &str) -> String {
    let client = match ServerClient::connect(server.address, tls, DEADLINE).await {
        Ok(client) => client,
        Err(error) => return CallError::from(error).to_string(),
    };
    let refused = tokio::time::timeout(DEADLINE, client.attach(hello(node))).await.unwrap();
    refused.map(drop).unwrap_err().to_string()
}

#[tokio::test]
async fn a_certificate_that_is_expired_or_of_another_mesh_is_turned_away() {
    let server = Server::start_with(Mesh::made_at(UnixSeconds(now().0 - 30 * DAY)));
    let mesh = &server.door.mesh;
    let mut neighbour = Neighbour::attach(&server).await;
    let expired = turned_away(&server, issued_at(mesh, "n1", UnixSeconds(now().0 - 10 * DAY)), "n1").await;
    assert!(expired.contains("CertificateExpired"), "{expired}");
    neighbour.still_hears(&server, "an expired certificate").await;

    // Who it is of another mesh is decided by the signature, not by what the certificate says.
    let foreign = Mesh::new();
    let key = LeafKey::generate().unwrap();
    let leaf = foreign.issue_agent(&key.csr_der().unwrap(), &"n1".parse().unwrap());
    let credentials = Credentials::new(&leaf.chain_pem, &key).unwrap();
    let roots = TrustRoots::new([mesh.authority.root()]).unwrap();
    let tls = Arc::new(agent_client_config(credentials, &roots, Mesh::server_identity()).unwrap());
    let refused = turned_away(&server, tls, "n1").await;
    assert!(refused.contains("UnknownCA"), "{refused}");
    neighbour.still_hears(&server, "a certificate of another mesh").await;

    let refused = turned_away(&server, mesh.agent("n2"), "n1").await;
    assert!(refused.contains("the certificate is of node n2, and the hello of node \"n1\""), "{refused}");
    neighbour.still_hears(&server, "the certificate of another node").await;
    assert_eq!(server.door.said.borrow().len(), 1, "nobody else was let in");
    // A good one is.
    let good = server.connect(issued_at(mesh, "n1", now())).await;
    good.attach(hello("n1")).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_second_hello_ends_its_stream_only() {
    let server = Server::start();
    let mut neighbour = Neighbour::attach(&server).await;
    for second in [hello("n1"), hello("neighbour")] {
        let client = server.connect(server.door.mesh.agent("n1")).await;
        let (sender, mut frames) = client.attach(hello("n1")).await.unwrap();
        sender.send(AgentSays::Hello(second)).unwrap();
        let ended = tokio::time::timeout(DEADLINE, frames.next()).await.unwrap().unwrap().unwrap_err();
        assert!(ended.to_string().contains("a second hello on one stream"), "{ended}");
        server.door.until_attached("n1", false).await;
        neighbour.still_hears(&server, "a second hello").await;
    }
    server.stop().await;
}

#[tokio::test]
async fn who_says_too_much_at_once_is_put_out() {
    let server = Server::start();
    let mut neighbour = Neighbour::attach(&server).await;
    let client = server.connect(server.door.mesh.agent("n1")).await;
    let (sender, mut frames) = client.attach(hello("n1")).await.unwrap();
    let name = "x".repeat(starling_rpc::agents::AGENT_FRAME_BYTES_MAX);
    let subjects = vec![starling_attach::message::WireSubject { kind: 1, name }];
    sender.send(AgentSays::Unsubscribe(Subjects { subjects })).unwrap();
    let ended = tokio::time::timeout(DEADLINE, frames.next()).await.unwrap().unwrap().unwrap_err();
    assert!(ended.to_string().contains("too large"), "{ended}");
    server.door.until_attached("n1", false).await;
    neighbour.still_hears(&server, "a frame that is too large").await;
    // Its calls on the same connection are answered still.
    tokio::time::timeout(Duration::from_secs(10), client.commit(Vec::new())).await.unwrap().unwrap();
    server.stop().await;
}
