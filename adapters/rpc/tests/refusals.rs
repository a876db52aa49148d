//! Agents that are not let in, or put out: each is told why, and whoever is beside them is not disturbed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/agents.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use rustls::ClientConfig;
use starling_attach::message::{AgentSays, Hello, ServerSays, Subjects};
use starling_identity::{IssuanceRules, LEAF_TTL_DEFAULT};
use starling_model::UnixSeconds;
use starling_rpc::{AgentSender, CallError, ConnectError, ServerClient, ServerFrames};
use starling_tls::{Credentials, LeafKey, TrustRoots, agent_client_config};
use support::{DEADLINE, Mesh, Server, now};

const DAY: u64 = 24 * 60 * 60;

fn hello(node: &str) -> Hello {
    Hello { node: node.to_owned(), version: "test".to_owned(), ..Hello::default() }
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
async fn a_port_that_speaks_no_tls_is_told_as_one() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        stream
    });
    let mesh = Mesh::new();
    let refused = ServerClient::connect(address, mesh.agent("n1"), DEADLINE).await;
    let Err(ConnectError::NoTls { .. }) = refused else { panic!("{:?}", refused.map(drop)) };
    drop(answer.await.unwrap());
}

#[tokio::test]
async fn a_connection_ends_with_the_certificate_that_it_was_made_with() {
    let server = Server::start_with(Mesh::made_at(UnixSeconds(now().0 - 30 * DAY)));
    let mesh = &server.door.mesh;
    let mut neighbour = Neighbour::attach(&server).await;
    let last = now().0 + 2;
    let client = server.connect(issued_at(mesh, "n1", UnixSeconds(last - LEAF_TTL_DEFAULT.as_secs()))).await;
    let (_sender, mut frames) = client.attach(hello("n1")).await.unwrap();
    server.door.talk("n1").publish(1, 10);
    assert!(matches!(frames.next().await, Some(Ok(ServerSays::Whole(_)))), "it is let in meanwhile");
    let ended = tokio::time::timeout(DEADLINE, async { while let Some(Ok(_)) = frames.next().await {} });
    ended.await.expect("the stream goes on with a certificate that is over");
    assert!(now().0 > last, "it ended before its certificate did");
    server.door.until_attached("n1", false).await;
    // With the certificate that it has renewed meanwhile it is back at once.
    let renewed = server.connect(issued_at(mesh, "n1", now())).await;
    let (_sender, _frames) = renewed.attach(hello("n1")).await.unwrap();
    neighbour.still_hears(&server, "the end of a certificate").await;
    server.stop().await;
}

#[tokio::test]
async fn strangers_leave_room_for_members() {
    let server = Server::start_for(Mesh::new(), 8);
    let asks = async || {
        let connected = ServerClient::connect(server.address, server.door.mesh.stranger(), DEADLINE).await;
        let client = connected.map_err(CallError::from)?;
        match client.own_records(None).await {
            Err(CallError::Refused { reason }) if reason.contains("join first") => Ok(client),
            other => Err(other.map(drop).expect_err("a stranger is told nothing")),
        }
    };
    // A quarter of eight.
    let mut strangers = vec![asks().await.unwrap(), asks().await.unwrap()];
    for _ in 0..10 {
        assert!(asks().await.is_err(), "a third stranger finds no place");
    }
    let mut neighbour = Neighbour::attach(&server).await;
    neighbour.still_hears(&server, "strangers at the door").await;
    strangers.pop();
    let next = async { while asks().await.is_err() {} };
    tokio::time::timeout(DEADLINE, next).await.expect("the place of one that has left is free again");
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
