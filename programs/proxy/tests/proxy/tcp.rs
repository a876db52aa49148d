//! Bytes through both hops.

use std::time::Duration;

use starling_admission::Share;
use starling_model::{Action, Protocol, SourceDecision};
use starling_proxy::Timeouts;
use starling_tls::Alpn;

use crate::wire::Wire;
use crate::world::{Setup, World, connect_tls, counted, rule};

const LARGE: usize = 10 * 1024 * 1024;

#[tokio::test]
async fn each_direction_ends_by_itself() {
    let world = World::start(Setup::of(Protocol::Tcp)).await;
    let mut client = world.client().await;
    let mut app = world.app.accept().await;
    // A server may speak first.
    app.send("220 ready\r\n").await;
    assert_eq!(client.exactly(11).await, b"220 ready\r\n");
    let sent: Vec<u8> = (0..LARGE).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let talk = async {
        client.send(&sent).await;
        tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
        client.rest().await
    };
    let listen = async {
        let seen = app.rest().await;
        assert!(seen == sent, "everything arrives, and then the end");
        // This direction is still open.
        app.send(&seen).await;
        drop(app);
    };
    let (back, ()) = tokio::join!(talk, listen);
    assert!(back == sent);
}

#[tokio::test]
async fn a_connection_that_no_intention_allows_reaches_nobody() {
    let mut setup = Setup::of(Protocol::Tcp);
    setup.rules = vec![rule("web", SourceDecision::Connection(Action::Deny))];
    let world = World::start(setup).await;
    let mut client = world.client().await;
    client.send("hello").await;
    assert!(client.ends().await);
    let mut peer = world.peer("stranger", Alpn::Opaque).await;
    assert!(peer.ends().await, "the default is deny");
    assert!(world.app.is_left_alone().await);
}

#[tokio::test]
async fn connections_past_the_limit_are_refused_and_others_stay() {
    let mut setup = Setup::of(Protocol::Tcp);
    (setup.max_connections, setup.workers) = (Some(2), 2);
    let world = World::start(setup).await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut peer = world.peer("web", Alpn::Opaque).await;
        peer.send("in").await;
        let mut app = world.app.accept().await;
        assert_eq!(app.exactly(2).await, b"in");
        kept.push((peer, app));
    }
    for _ in 0..8 {
        let refused = connect_tls(&world.ca, "web", Alpn::Opaque, world.public).await;
        assert!(refused.is_err(), "one limit for all workers");
    }
    assert_eq!(counted(&world.api.engine)["overflowed"], 8);
    for (peer, app) in &mut kept {
        app.send("out").await;
        assert_eq!(peer.exactly(3).await, b"out");
    }
    kept.pop();
    crate::wire::eventually("there is room again", || counted(&world.api.engine)["open"] == 1).await;
    assert!(connect_tls(&world.ca, "web", Alpn::Opaque, world.public).await.is_ok());
}

#[tokio::test]
async fn connections_that_carry_nothing_end() {
    let mut setup = Setup::of(Protocol::Tcp);
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(600));
    setup.timeouts = Timeouts { half_closed: short, tcp_idle: long, ..Timeouts::default() };
    let world = World::start(setup).await;
    let (mut client, mut app) = (world.client().await, world.app.accept().await);
    client.send("a question").await;
    assert_eq!(app.exactly(10).await, b"a question");
    tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
    assert!(app.ends().await, "its direction has ended");
    assert!(client.ends().await, "nobody answers, and the other direction ends in time");

    let mut setup = Setup::of(Protocol::Tcp);
    setup.timeouts = Timeouts { half_closed: long, tcp_idle: short, ..Timeouts::default() };
    let world = World::start(setup).await;
    let (mut client, mut app) = (world.client().await, world.app.accept().await);
    client.send("hello").await;
    assert_eq!(app.exactly(5).await, b"hello");
    assert!(app.ends().await && client.ends().await, "nothing moves");
}

#[tokio::test]
async fn idle_connections_keep_nobody_out() {
    let mut setup = Setup::of(Protocol::Tcp);
    setup.share = Share::of(32);
    let world = World::start(setup).await;
    let mut kept = world.client().await;
    let mut app = world.app.accept().await;
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(Wire::new(tokio::net::TcpStream::connect(world.public).await.unwrap()));
    }
    for _ in 0..10 {
        let mut peer = world.peer("web", Alpn::Opaque).await;
        peer.send("in").await;
        assert_eq!(world.app.accept().await.exactly(2).await, b"in");
    }
    assert!(idle[0].ends().await, "the oldest makes room");
    assert!(counted(&world.api.engine)["open"] <= 32);
    kept.send("still here").await;
    assert_eq!(app.exactly(10).await, b"still here");
}
