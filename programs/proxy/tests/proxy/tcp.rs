//! Bytes through both hops.

use starling_model::{Action, Protocol, SourceDecision};
use starling_tls::Alpn;

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
