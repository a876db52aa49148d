//! Rights that end: what is open when an intention, the trust or a certificate ends is cut, and what is allowed stays.

use std::time::Duration;

use starling_model::{Action, Protocol, SourceDecision, UnixSeconds};
use starling_tls::Alpn;

use crate::http2::{Client, request};
use crate::wire::{Wire, within};
use crate::world::{Ca, Setup, World, api_plan, connect_with, now, rule};

/// Has `source` denied, and everybody else allowed who was.
async fn deny(world: &mut World, protocol: Protocol, denied: &str) {
    let decide = |source: &str| {
        let action = if source == denied { Action::Deny } else { Action::Allow };
        rule(source, SourceDecision::Connection(action))
    };
    let setup = Setup { rules: vec![decide("web"), decide("other")], ..Setup::of(protocol) };
    world.api.plan = api_plan(&world.ca, &setup, world.public, world.app.address);
    world.api.apply().await;
}

#[tokio::test]
async fn a_denied_tcp_connection_is_cut_and_others_stay() {
    let mut setup = Setup::of(Protocol::Tcp);
    setup.rules.push(rule("other", SourceDecision::Connection(Action::Allow)));
    let mut world = World::start(setup).await;
    let mut web = world.peer("web", Alpn::Opaque).await;
    web.send("from web").await;
    let mut of_web = world.app.accept().await;
    assert_eq!(of_web.exactly(8).await, b"from web");
    let mut other = world.peer("other", Alpn::Opaque).await;
    other.send("from other").await;
    let mut of_other = world.app.accept().await;
    assert_eq!(of_other.exactly(10).await, b"from other");
    deny(&mut world, Protocol::Tcp, "web").await;
    assert!(of_web.ends().await, "the application is rid of it");
    assert!(within(web.ends()).await);
    other.send("still").await;
    assert_eq!(of_other.exactly(5).await, b"still");
}

#[tokio::test]
async fn a_denied_websocket_is_cut() {
    let mut world = World::start(Setup::of(Protocol::Http)).await;
    let mut client = world.client().await;
    client.send("GET /chat HTTP/1.1\r\nhost: api\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n").await;
    let mut app = world.app.accept().await;
    app.head().await;
    app.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
    client.head().await;
    client.send("up").await;
    assert_eq!(app.exactly(2).await, b"up");
    deny(&mut world, Protocol::Http, "web").await;
    assert!(client.ends().await && app.ends().await);
}

#[tokio::test]
async fn a_denied_stream_is_reset_and_its_connection_stays() {
    let mut world = World::start(Setup::of(Protocol::Http2)).await;
    let _app = world.app.mirror_http2();
    let mut client = Client::open(&world).await;
    let (response, _upload) = client.begin(request("POST", "/stream"), false);
    let mut body = within(response).await.unwrap().into_body();
    deny(&mut world, Protocol::Http2, "web").await;
    let ended = within(body.data()).await;
    assert!(matches!(ended, Some(Err(_))), "{ended:?}");
    assert_eq!(client.get("/").await.unwrap().status, 403);
    deny(&mut world, Protocol::Http2, "nobody").await;
    assert_eq!(client.get("/").await.unwrap().status, 200);
}

#[tokio::test]
async fn a_connection_under_a_root_that_is_no_longer_trusted_is_cut() {
    let mut world = World::start(Setup::of(Protocol::Tcp)).await;
    let mut web = world.peer("web", Alpn::Opaque).await;
    web.send("in").await;
    let mut app = world.app.accept().await;
    assert_eq!(app.exactly(2).await, b"in");
    // Another root, under which the same caller is not known.
    world.api.keys = Ca::new().keys("api");
    world.api.apply().await;
    assert!(app.ends().await && web.ends().await);
}

#[tokio::test]
async fn a_connection_ends_with_the_certificate_of_its_peer() {
    let world = World::start(Setup::of(Protocol::Tcp)).await;
    let ttl = starling_identity::LEAF_TTL_DEFAULT.as_secs();
    let last = now().0 + 3;
    let credentials = world.ca.credentials_of("web", UnixSeconds(last - ttl));
    let mut peer = Wire::new(connect_with(&world.ca, credentials, Alpn::Opaque, world.public).await.unwrap());
    peer.send("in").await;
    let mut app = world.app.accept().await;
    assert_eq!(app.exactly(2).await, b"in");
    let ended = tokio::time::timeout(Duration::from_secs(30), app.ends()).await;
    assert!(ended.expect("the connection outlives the certificate"));
    assert!(now().0 > last, "it ended before its certificate did");
}
