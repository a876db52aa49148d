//! Agents and a server over real sockets and TLS.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "support/agents.rs"]
mod support;

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use starling_attach::message::{AgentSays, Applied, Hello, ServerSays, Subjects};
use starling_model::{Change, Node, Record, RecordKey, Revision};
use starling_rpc::agents::PIECE_BYTES;
use starling_rpc::{
    AgentSender, AliasView, CallError, JoinRequest, LeafRequest, OwnRecords, ServerClient, ServerFrames,
};
use starling_tls::{Credentials, LeafKey};
use support::{DEADLINE, Mesh, Server};
use tokio::net::TcpStream;

fn hello(node: &str) -> Hello {
    Hello { node: node.to_owned(), version: "test".to_owned(), ..Hello::default() }
}

async fn attach(server: &Server, node: &str) -> (AgentSender, ServerFrames) {
    server.connect(server.door.mesh.agent(node)).await.attach(hello(node)).await.unwrap()
}

/// The next revision that the server sends, and how many bytes come with it.
async fn next(frames: &mut ServerFrames) -> Result<(u64, usize), CallError> {
    let says = tokio::time::timeout(DEADLINE, frames.next()).await.expect("nothing comes").expect("it is over")?;
    let ServerSays::Whole(whole) = says else { panic!("{says:?}") };
    Ok((whole.revision, whole.items[0].value.as_ref().unwrap().len()))
}

fn node(name: &str) -> Node {
    let (name, id, address) = (name.parse().unwrap(), String::new(), "10.0.0.1".to_owned());
    Node { name, id, address, tagged_addresses: Default::default(), meta: Default::default() }
}

fn refusal(error: CallError) -> String {
    let CallError::Refused { reason } = error else { panic!("{error:?}") };
    reason
}

#[tokio::test]
async fn frames_go_both_ways_until_the_agent_leaves() {
    let server = Server::start();
    let (sender, mut frames) = attach(&server, "n1").await;
    let talk = server.door.talk("n1");
    for (revision, bytes) in [(1, 0), (2, 100), (3, 3 * PIECE_BYTES), (4, 20_000_000), (5, 1)] {
        talk.publish(revision, bytes);
        assert_eq!(next(&mut frames).await, Ok((revision, bytes)));
    }
    let applied = AgentSays::Applied(Applied { through: 5, refusals_stand: true, held_us: 3 });
    sender.send(applied.clone()).unwrap();
    server.door.until(|said| said.values().any(|said| *said == [applied.clone()])).await;
    drop((sender, frames));
    server.door.until_attached("n1", false).await;
    server.stop().await;
}

#[tokio::test]
async fn what_a_slow_reader_has_not_taken_is_replaced_by_what_is_newer() {
    let server = Server::start();
    let (_sender, mut frames) = attach(&server, "n1").await;
    let (_other_sender, mut others) = attach(&server, "n2").await;
    let (slow, prompt) = (server.door.talk("n1"), server.door.talk("n2"));
    let last = 2_000;
    for revision in 1..=last {
        slow.publish(revision, 1_000);
        prompt.publish(revision, 1_000);
        assert_eq!(next(&mut others).await, Ok((revision, 1_000)));
    }
    // The agent's window, a piece on each side of it, and what is in hand: no more has left the pending set.
    let taken = *slow.taken_bytes.borrow();
    assert!(taken <= 64 * 1024 + 3 * PIECE_BYTES, "{taken} bytes of {} were taken", last * 1_000);
    let mut seen = Vec::new();
    while seen.last() != Some(&last) {
        seen.push(next(&mut frames).await.unwrap().0);
    }
    assert!(seen.is_sorted() && seen.len() < 120, "{seen:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_large_frame_is_not_taken_apart_ahead_of_its_reader() {
    let server = Server::start();
    let client = server.connect(server.door.mesh.agent("n1")).await;
    let (_sender, mut frames) = client.attach(hello("n1")).await.unwrap();
    let talk = server.door.talk("n1");
    talk.publish(1, 30_000_000);
    talk.taken_bytes.subscribe().wait_for(|taken| *taken > 0).await.unwrap();
    // While it waits, the next is replaced, and calls on the same connection are answered.
    for revision in 2..=50 {
        talk.publish(revision, 10);
        assert_eq!(client.commit(Vec::new()).await, Ok(Revision(revision - 1)));
    }
    assert_eq!(next(&mut frames).await, Ok((1, 30_000_000)));
    assert_eq!(next(&mut frames).await, Ok((50, 10)));
    server.stop().await;
}

#[tokio::test]
async fn calls_are_answered() {
    let server = Server::start();
    let client = server.connect(server.door.mesh.agent("n1")).await;
    let changes = vec![Change::Put(Record::Node(node("n1"))), Change::Delete(RecordKey::Node("n0".parse().unwrap()))];
    assert_eq!(client.commit(changes.clone()).await, Ok(Revision(1)));
    assert_eq!(*server.door.committed.lock().unwrap(), [("n1".parse().unwrap(), changes)]);
    let records = Some(vec![Record::Node(node("n1"))]);
    assert_eq!(client.own_records(None).await, Ok(OwnRecords { revision: Revision(1), records, again_after_s: 9 }));
    let same = client.own_records(Some(Revision(1))).await;
    assert_eq!(same, Ok(OwnRecords { revision: Revision(1), records: None, again_after_s: 9 }));

    let key = LeafKey::generate().unwrap();
    let csr_der = key.csr_der().unwrap();
    let wanted =
        ["web", "busy"].map(|service| LeafRequest { service: service.parse().unwrap(), csr_der: csr_der.clone() });
    let answers = client.issue_leaves(wanted.into()).await.unwrap();
    Credentials::new(&answers[0].as_ref().unwrap().chain_pem, &key).unwrap();
    assert!(matches!(&answers[1], Err(CallError::Overloaded { retry_after, .. }) if retry_after.as_millis() == 7));
    let renewed = client.renew(csr_der).await.unwrap();
    Credentials::new(&renewed.chain_pem, &key).unwrap();

    let mut views = client.follow_checks(&"n2".parse().unwrap(), None);
    assert_eq!(views.next().await, Some(Ok(AliasView::default())));
    let seen = AliasView { exists: true, checks: Vec::new() };
    server.door.views.send_replace(seen.clone());
    assert_eq!(views.next().await, Some(Ok(seen)));
    server.stop().await;
    assert_eq!(views.next().await, None);
}

#[tokio::test]
async fn a_stranger_may_join_and_nothing_else() {
    let server = Server::start();
    let client = server.connect(server.door.mesh.stranger()).await;
    let key = LeafKey::generate().unwrap();
    let mut request = JoinRequest {
        token: "bad".to_owned(),
        node: "n1".parse().unwrap(),
        node_id: String::new(),
        csr_der: key.csr_der().unwrap(),
        relay: false,
        through: None,
    };
    assert_eq!(refusal(client.join(&request).await.unwrap_err()), "the join token is not known");
    let reason = "this is for agents, and the caller has no certificate; join first";
    assert_eq!(refusal(client.own_records(None).await.unwrap_err()), reason);
    assert_eq!(refusal(client.attach(hello("n1")).await.unwrap_err()), reason);
    let mut views = client.follow_checks(&"n1".parse().unwrap(), None);
    assert_eq!(refusal(views.next().await.unwrap().unwrap_err()), reason);
    assert_eq!(views.next().await, None);
    request.token = "good".to_owned();
    let answer = client.join(&request).await.unwrap();
    // With its certificate it is one of the mesh.
    let credentials = Credentials::new(&answer.leaf.chain_pem, &key).unwrap();
    let client = server.connect(server.door.mesh.member(credentials)).await;
    client.attach(hello("n1")).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn who_is_no_agent_is_refused() {
    let server = Server::start();
    let mesh = &server.door.mesh;
    for (tls, who) in [(mesh.workload("web"), "/svc/web"), (mesh.member(mesh.server_credentials()), "/agent/server")] {
        let client = server.connect(tls).await;
        let refusals = [
            client.own_records(None).await.unwrap_err(),
            client.commit(Vec::new()).await.unwrap_err(),
            client.attach(hello("n1")).await.unwrap_err(),
        ];
        for refused in refusals.map(refusal) {
            assert!(refused.starts_with("this is for agents and relays, and the caller is spiffe://"), "{refused}");
            assert!(refused.contains(who), "{refused}");
        }
    }
    // Of another mesh: the handshake fails, at the latest when an answer is read.
    let foreign = Mesh::new().agent("n1");
    if let Ok(client) = ServerClient::connect(server.address, foreign, DEADLINE).await {
        client.own_records(None).await.unwrap_err();
    }
    assert!(server.door.said.borrow().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn an_agent_speaks_for_its_own_node() {
    let server = Server::start();
    let client = server.connect(server.door.mesh.agent("n1")).await;
    let reason = refusal(client.attach(hello("n2")).await.unwrap_err());
    assert_eq!(reason, "the certificate is of node n1, and the hello of node \"n2\"");
    client.attach(hello("n1")).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_reason_to_begin_anew_reaches_the_agent() {
    let server = Server::start();
    let (sender, mut frames) = attach(&server, "n1").await;
    sender.send(AgentSays::Unsubscribe(Subjects::default())).unwrap();
    assert_eq!(next(&mut frames).await, Err(CallError::BeginAnew { reason: "as asked".to_owned() }));
    server.door.until_attached("n1", false).await;
    server.stop().await;
}

#[tokio::test]
async fn a_stopping_server_says_so() {
    let server = Server::start();
    let (_sender, mut frames) = attach(&server, "n1").await;
    // This one would not read the reason.
    let (_deaf_sender, _deaf) = attach(&server, "n2").await;
    let talk = server.door.talk("n2");
    talk.publish(1, 1_000_000);
    talk.taken_bytes.subscribe().wait_for(|taken| *taken > 0).await.unwrap();
    server.stop().await;
    assert_eq!(next(&mut frames).await, Err(CallError::unavailable("the server is stopping")));
}

#[tokio::test]
async fn garbage_ends_its_stream_only() {
    let server = Server::start();
    let tls = server.door.mesh.agent("n1");
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("starling").unwrap();
    let stream = tokio_rustls::TlsConnector::from(tls).connect(name, stream).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (http2, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let send = async |frames: Vec<Bytes>| {
        let frames = futures::stream::iter(frames).map(|frame| Ok::<_, std::io::Error>(http_body::Frame::data(frame)));
        let body = StreamBody::new(frames.chain(futures::stream::pending()));
        let request = http::Request::post("http://starling/starling.agent.v1.Agents/Attach").body(body).unwrap();
        http2.clone().send_request(request).await.unwrap()
    };
    let good = send(vec![frame(b"\x0a\x04\x0a\x02n1")]).await;
    assert!(good.headers().get("grpc-status").is_none());
    server.door.until_attached("n1", true).await;
    let talk = server.door.talk("n1");
    for (frames, code, reason) in [
        (vec![frame(b"\xff\xff")], "3", "a%20frame%20cannot%20be%20decoded"),
        (vec![frame(b"")], "3", "a%20frame%20of%20unknown%20kind"),
        (vec![frame(b"\x32\x00")], "3", "a%20stream%20begins%20with%20a%20hello"),
        (vec![Bytes::from_static(b"\x00\x7f\xff\xff\xff")], "11", "too%20large"),
    ] {
        let answer = send(frames).await;
        assert_eq!(answer.headers()["grpc-status"], code);
        let said = answer.headers()["grpc-message"].to_str().unwrap();
        assert!(said.contains(reason), "{said}");
    }
    // Once a stream has begun, the reason comes at its end.
    let answer = send(vec![frame(b"\x0a\x04\x0a\x02n1"), frame(b"\x32\x00"), frame(b"\xff\xff")]).await;
    let ended = tokio::time::timeout(DEADLINE, answer.into_body().collect()).await.unwrap().unwrap();
    assert_eq!(ended.trailers().unwrap()["grpc-status"], "3");
    // The first is still there.
    talk.publish(1, 10);
    tokio::time::timeout(DEADLINE, good.into_body().frame()).await.unwrap().unwrap().unwrap();
    server.stop().await;
}

fn frame(message: &'static [u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat().into()
}

#[tokio::test]
async fn strangers_who_dawdle_keep_nobody_out() {
    use tokio::io::AsyncWriteExt;
    let server = Server::start();
    let mut dawdling = Vec::new();
    for number in 0..200 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // Half of them begin a handshake.
        if number % 2 == 0 {
            stream.write_all(b"\x16").await.unwrap();
        }
        dawdling.push(stream);
    }
    let (_sender, _frames) = attach(&server, "n1").await;
    server.door.until_attached("n1", true).await;
    server.stop().await;
}

#[tokio::test]
async fn agents_ask_the_api_and_nobody_else_does() {
    let server = Server::start();
    let ask = async |client: &ServerClient, path: &str| {
        let request = http::Request::post(format!("https://starling{path}")).body("body".to_owned()).unwrap();
        let answer = client.ask_api(request).await.unwrap();
        let status = answer.status().as_u16();
        (status, String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().into()).unwrap())
    };
    let mesh = &server.door.mesh;
    let agent = server.connect(mesh.agent("n1")).await;
    assert_eq!(ask(&agent, "/v1/config").await, (200, "POST /v1/config body".to_owned()));
    assert_eq!(ask(&agent, "/starling/v1/dns").await, (200, "POST /starling/v1/dns body".to_owned()));
    assert_eq!(ask(&agent, "/elsewhere").await.1, "", "what is no path of the API is not asked of it");
    for other in [mesh.workload("web"), mesh.stranger()] {
        assert_eq!(ask(&server.connect(other).await, "/v1/config").await, (403, String::new()));
    }
    assert!(!agent.is_closed());
    server.stop().await;
    let request = http::Request::get("https://starling/v1/config").body(String::new()).unwrap();
    assert!(matches!(agent.ask_api(request).await, Err(CallError::Unavailable { .. })));
    assert!(agent.is_closed());
}
