//! Real sockets: both transports on one port, limits of connections, the end.

#[path = "support/world.rs"]
mod world;

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use starling_dns::serve::{TCP_CONNECTIONS_MAX, TCP_CONNECTIONS_PER_ADDRESS_MAX, TCP_IDLE_MAX, TCP_QUERIES_MAX};
use starling_dns::{Responder, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use world::Shelf;

/// How long a test waits for what must come.
const DEADLINE: Duration = Duration::from_secs(20);

struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start() -> Self {
        let mut lines = vec!["node n1 10.0.0.1".to_owned()];
        lines.extend((0..100).map(|number| format!("service n1 w-{number} web port=80 address=10.0.1.{number}")));
        let (udp, tcp) = bind().await;
        let address = udp.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let responder = Responder::new(Shelf::new(world::catalog(lines)));
        let stopped = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(serve(udp, tcp, responder, TCP_CONNECTIONS_MAX.into(), stopped));
        Self { address, stop, task }
    }

    async fn stop(self) {
        self.stop.send(()).expect("still running");
        timeout(DEADLINE, self.task).await.expect("ends in time").expect("ends well");
    }
}

/// Both sockets on one free port; another process may hold the port for the other transport, so several are tried.
async fn bind() -> (UdpSocket, TcpListener) {
    for _ in 0..100 {
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().expect("an address")).await {
            return (udp, tcp);
        }
    }
    panic!("no port is free for both transports");
}

fn query(id: u16, name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).expect("a name"), kind));
    message.to_vec().expect("encodes")
}

async fn send(stream: &mut TcpStream, packet: &[u8]) {
    let len = u16::try_from(packet.len()).expect("short");
    stream.write_all(&[&len.to_be_bytes(), packet].concat()).await.expect("sent");
}

async fn receive(stream: &mut TcpStream) -> Message {
    let read = async {
        let len = stream.read_u16().await.expect("a length");
        let mut bytes = vec![0; usize::from(len)];
        stream.read_exact(&mut bytes).await.expect("a message");
        Message::from_vec(&bytes).expect("decodes")
    };
    timeout(DEADLINE, read).await.expect("in time")
}

/// Waits for the server to close; false if it sends something instead.
async fn closed(stream: &mut TcpStream) -> bool {
    // A server that closes with our bytes unread resets the connection.
    timeout(DEADLINE, stream.read_u8()).await.expect("in time").is_err()
}

async fn over_udp(address: SocketAddr, packet: &[u8]) -> Message {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    socket.connect(address).await.expect("connected");
    socket.send(packet).await.expect("sent");
    let mut buffer = [0; 2048];
    let len = timeout(DEADLINE, socket.recv(&mut buffer)).await.expect("in time").expect("received");
    Message::from_vec(&buffer[..len]).expect("decodes")
}

#[tokio::test]
async fn a_client_that_is_cut_short_over_udp_gets_everything_over_tcp() {
    let server = Server::start().await;
    let packet = query(1, "web.service.consul.", RecordType::A);
    let cut = over_udp(server.address, &packet).await;
    assert!(cut.metadata.truncation && cut.answers.len() < 100);
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    send(&mut stream, &packet).await;
    let whole = receive(&mut stream).await;
    assert_eq!((whole.answers.len(), whole.metadata.truncation), (100, false));
    server.stop().await;
}

#[tokio::test]
async fn garbage_over_udp_does_not_disturb_the_next_client() {
    let server = Server::start().await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    for garbage in [&b""[..], b"x", &[0xff; 100], &[0; 9000]] {
        socket.send_to(garbage, server.address).await.expect("sent");
    }
    let answer = over_udp(server.address, &query(2, "no.service.consul.", RecordType::A)).await;
    assert_eq!((answer.metadata.id, answer.metadata.response_code), (2, ResponseCode::NXDomain));
    assert_eq!(answer.authorities.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn queries_sent_at_once_are_answered_in_order_up_to_the_limit() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    for number in 0..TCP_QUERIES_MAX {
        let id = u16::try_from(number).expect("small");
        send(&mut stream, &query(id, "n1.node.consul.", RecordType::A)).await;
        if number % 2 == 1 {
            assert_eq!(receive(&mut stream).await.metadata.id, id - 1);
            assert_eq!(receive(&mut stream).await.metadata.id, id);
        }
    }
    assert!(closed(&mut stream).await);
    server.stop().await;
}

#[tokio::test]
async fn a_message_that_is_too_long_or_no_query_closes_the_connection() {
    let server = Server::start().await;
    for bytes in [&[0xff, 0xff][..], &[0, 0], &[0, 3, 1, 2, 3]] {
        let mut stream = TcpStream::connect(server.address).await.expect("connected");
        stream.write_all(bytes).await.expect("sent");
        assert!(closed(&mut stream).await, "{bytes:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn idle_connections_of_one_address_keep_nobody_out() {
    let server = Server::start().await;
    let packet = query(5, "n1.node.consul.", RecordType::A);
    let mut open = Vec::new();
    for _ in 0..TCP_CONNECTIONS_PER_ADDRESS_MAX + 8 {
        let mut stream = TcpStream::connect(server.address).await.expect("connected");
        send(&mut stream, &packet).await;
        assert_eq!(receive(&mut stream).await.metadata.id, 5, "a new connection is answered");
        open.push(stream);
    }
    for stream in &mut open[..8] {
        assert!(closed(stream).await, "the oldest make room");
    }
    let kept = open.last_mut().expect("some are open");
    send(kept, &packet).await;
    assert_eq!(receive(kept).await.metadata.id, 5);
    server.stop().await;
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    send(&mut stream, &query(3, "n1.node.consul.", RecordType::A)).await;
    receive(&mut stream).await;
    // Half a length is silence, too. From here on time is skipped: nothing else is left to do.
    stream.write_all(&[0]).await.expect("sent");
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    assert!(closed(&mut stream).await);
    assert!(begun.elapsed() >= TCP_IDLE_MAX / 2, "{:?}", begun.elapsed());
    tokio::time::resume();
    server.stop().await;
}

#[tokio::test]
async fn the_end_closes_connections_and_frees_the_port() {
    let server = Server::start().await;
    let address = server.address;
    let mut stream = TcpStream::connect(address).await.expect("connected");
    send(&mut stream, &query(4, "n1.node.consul.", RecordType::A)).await;
    receive(&mut stream).await;
    server.stop().await;
    assert!(closed(&mut stream).await);
    UdpSocket::bind(address).await.expect("the port is free");
}
