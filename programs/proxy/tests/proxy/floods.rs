//! HTTP/2 clients that are after the proxy: each gets a `GOAWAY`, is counted, and takes little; others go on.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use starling_model::Protocol;
use starling_proxy::Timeouts;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http2::{Client, request};
use crate::wire::{Wire, eventually, within};
use crate::world::{Setup, World, counted};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> BytesMut {
    let mut frame = BytesMut::with_capacity(9 + payload.len());
    frame.put_uint(payload.len() as u64, 3);
    frame.put_u8(kind);
    frame.put_u8(flags);
    frame.put_u32(stream);
    frame.put_slice(payload);
    frame
}

/// `GET / HTTP/2` with `:authority: api`: three indexed fields and a literal one.
fn get_block() -> Vec<u8> {
    [&[0x82, 0x86, 0x84, 0x41, 3][..], b"api"].concat()
}

/// A client that writes frames by hand, its settings exchanged.
async fn raw(world: &World, settings: &[u8]) -> Wire<TcpStream> {
    let mut wire = world.client().await;
    wire.send(PREFACE).await;
    wire.send(frame(SETTINGS, 0, 0, settings)).await;
    wire
}

/// The error of the last `GOAWAY` among frames.
fn goodbye(mut seen: &[u8]) -> Option<u32> {
    let mut error = None;
    while let [high, middle, low, kind, rest @ ..] = seen {
        let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
        if *kind == GOAWAY && rest.len() >= 13 {
            error = Some(u32::from_be_bytes(rest[9..13].try_into().unwrap()));
        }
        seen = rest.get(5 + length..).unwrap_or_default();
    }
    error
}

/// Reads frames to the answer of a ping, or to the error that the connection ends with.
async fn answered_or_ended(wire: &mut Wire<TcpStream>) -> Option<u32> {
    loop {
        let head = wire.exactly(9).await;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let payload = wire.exactly(length).await;
        match head[3] {
            PING => return None,
            GOAWAY => return Some(u32::from_be_bytes(payload[4..8].try_into().unwrap())),
            _ => {}
        }
    }
}

/// Sends `frames` again and again until the other end has had enough; the error that it ends the connection with.
///
/// How many that are says little: megabytes of them lie in the sockets before a proxy on a busy machine reads the first.
async fn flood(wire: &mut Wire<TcpStream>, mut frames: impl FnMut(u32) -> BytesMut) -> Option<u32> {
    let (mut read, mut write) = wire.stream.split();
    let mut seen = Vec::new();
    let sending = async {
        let mut sent = 0;
        while write.write_all(&frames(sent)).await.is_ok() {
            sent += 1;
        }
    };
    let reading = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = read.read(&mut buffer).await {
            seen.extend_from_slice(&buffer[..count]);
        }
    };
    within(async { tokio::join!(sending, reading) }).await;
    goodbye(&seen)
}

/// A world, and a client of it that must not notice anything.
async fn witnessed(protocol: Protocol) -> (World, Client) {
    let world = World::start(Setup::of(protocol)).await;
    let client = Client::open(&world).await;
    (world, client)
}

async fn undisturbed(witness: &mut Client, world: &World, refused: u64) {
    let answer = within(witness.get("/")).await.unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(counted(&world.web.engine)["malformed"], refused, "it is counted");
    eventually("nobody else is left", || counted(&world.web.engine)["open"] == 1).await;
}

#[tokio::test]
async fn requests_taken_back_at_once_end_the_connection() {
    let (world, mut witness) = witnessed(Protocol::Http2).await;
    let app = world.app.mirror_http2();
    let mut attacker = raw(&world, &[]).await;
    let rapid = |number: u32| {
        let stream = number * 2 + 1;
        let mut frames = frame(HEADERS, END_STREAM | END_HEADERS, stream, &get_block());
        frames.extend_from_slice(&frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        frames
    };
    assert_eq!(flood(&mut attacker, rapid).await, Some(ENHANCE_YOUR_CALM));
    undisturbed(&mut witness, &world, 1).await;
    assert!(app.served() < 3_000, "few of them reached the application: {}", app.served());
}

#[tokio::test]
async fn requests_taken_back_one_by_one_end_the_connection_too() {
    let (world, mut witness) = witnessed(Protocol::Http2).await;
    let app = world.app.mirror_http2();
    let mut attacker = raw(&world, &[]).await;
    let mut error = None;
    for number in 0..5_000_u32 {
        let stream = number * 2 + 1;
        // Each is under way before it is taken back, as the answer to a ping behind it shows.
        let begun = [frame(HEADERS, END_HEADERS, stream, &get_block()), frame(PING, 0, 0, &[0; 8])].concat();
        // Who has been let go can send no more, and finds out why.
        let _ = attacker.try_send(begun).await;
        error = answered_or_ended(&mut attacker).await;
        if error.is_some() {
            break;
        }
        let _ = attacker.try_send(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())).await;
    }
    assert_eq!(error, Some(ENHANCE_YOUR_CALM));
    undisturbed(&mut witness, &world, 1).await;
    drop(app);
}

#[tokio::test]
async fn header_lists_without_an_end_end_the_connection() {
    let (world, mut witness) = witnessed(Protocol::Http2).await;
    let _app = world.app.mirror_http2();
    let mut attacker = raw(&world, &[]).await;
    attacker.send(frame(HEADERS, END_STREAM, 1, &get_block())).await;
    let field = [&[0, 3][..], b"x-y", &[100], &[b'z'; 100][..]].concat();
    let error = flood(&mut attacker, |_| frame(CONTINUATION, 0, 1, &field.repeat(10))).await;
    assert_eq!(error, Some(ENHANCE_YOUR_CALM));
    // Empty ones hold nothing, and are counted all the same.
    let mut attacker = raw(&world, &[]).await;
    attacker.send(frame(HEADERS, END_STREAM, 1, &get_block())).await;
    let error = flood(&mut attacker, |_| frame(CONTINUATION, 0, 1, &[])).await;
    assert_eq!(error, Some(ENHANCE_YOUR_CALM));
    undisturbed(&mut witness, &world, 2).await;
}

#[tokio::test]
async fn frames_that_carry_nothing_end_the_connection() {
    let (world, mut witness) = witnessed(Protocol::Http2).await;
    let _app = world.app.mirror_http2();
    let kinds = [
        (PING, vec![0; 8]),
        (SETTINGS, Vec::new()),
        (SETTINGS, vec![0, 4, 0, 0, 0x10, 0]),
        (WINDOW_UPDATE, vec![0, 0, 0, 1]),
        (0xbe, vec![1, 2, 3]),
    ];
    for (kind, payload) in &kinds {
        let mut attacker = raw(&world, &[]).await;
        let error = flood(&mut attacker, |_| frame(*kind, 0, 0, payload)).await;
        assert_eq!(error, Some(ENHANCE_YOUR_CALM), "frames of kind {kind}");
    }
    undisturbed(&mut witness, &world, kinds.len() as u64).await;
}

#[tokio::test]
async fn a_client_that_reads_no_answers_to_its_pings_is_let_go() {
    let (world, mut witness) = witnessed(Protocol::Http2).await;
    let _app = world.app.mirror_http2();
    let mut attacker = raw(&world, &[]).await;
    let pings = frame(PING, 0, 0, &[0; 8]).repeat(1_000);
    let mut sent = 0;
    while attacker.try_send(&pings).await.is_ok() {
        sent += 1;
        assert!(sent < 10_000, "it is not stopped");
    }
    undisturbed(&mut witness, &world, 1).await;
}

#[tokio::test]
async fn a_window_of_zero_holds_little_and_not_for_ever() {
    let mut setup = Setup::of(Protocol::Http2);
    setup.timeouts = Timeouts { still: Duration::from_millis(400), ..Timeouts::default() };
    setup.route_timeout = Duration::from_millis(400);
    let world = World::start(setup).await;
    let mut witness = Client::open(&world).await;
    let app = world.app.mirror_http2();
    let mut attacker = raw(&world, &[0, 4, 0, 0, 0, 0]).await;
    // Answers that nobody takes: the application sends back what it is sent.
    let piece = vec![7; 1024];
    for number in 0..20_u32 {
        let stream = number * 2 + 1;
        let post = [&[0x83, 0x86, 0x84, 0x41, 3][..], b"api"].concat();
        attacker.send(frame(HEADERS, END_HEADERS, stream, &post)).await;
        attacker.send(frame(0, END_STREAM, stream, &piece)).await;
    }
    eventually("all are asked", || app.served() == 20).await;
    let answer = witness.get("/").await.unwrap();
    assert_eq!(answer.status, 200, "others go on meanwhile");
    eventually("each is given up", || counted(&world.web.engine)["broken"] == 20).await;
    let (response, _to) = witness.begin(request("GET", "/"), true);
    assert_eq!(within(response).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_header_list_that_stops_and_a_connection_without_requests_are_closed() {
    let mut setup = Setup::of(Protocol::Http2);
    let short = Duration::from_millis(400);
    setup.timeouts = Timeouts { head: short, first: short, leave: short, ..Timeouts::default() };
    let world = World::start(setup).await;
    let _app = world.app.mirror_http2();
    // A peer that says nothing after its handshake.
    let mut silent = world.peer("web", starling_tls::Alpn::Http2).await;
    silent.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    silent.send(frame(SETTINGS, 0, 0, &[])).await;
    let mut partial = raw(&world, &[]).await;
    partial.send(frame(HEADERS, END_STREAM, 1, &get_block())).await;
    // What is said before the end is of no interest.
    partial.rest().await;
    silent.rest().await;
    let mut witness = Client::open(&world).await;
    assert_eq!(witness.get("/").await.unwrap().status, 200);
}
