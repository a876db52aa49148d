//! Who may call what: by certificate, by connection, by request; however the request is dressed up.

use starling_model::{Action, HeaderMatch, HeaderTest, IntentionPermission, PathMatch, Protocol, SourceDecision};
use starling_tls::Alpn;
use tokio::net::TcpStream;

use crate::wire::{Wire, eventually};
use crate::world::{Ca, Setup, World, connect_tls, counted, rule};

fn permission(action: Action, path: Option<PathMatch>) -> IntentionPermission {
    IntentionPermission { action, path, methods: Vec::new(), headers: Vec::new() }
}

fn denied_prefix(prefix: &str) -> Vec<IntentionPermission> {
    vec![permission(Action::Deny, Some(PathMatch::Prefix(prefix.to_owned()))), permission(Action::Allow, None)]
}

/// The status of a request, on a connection of its own.
async fn ask(world: &World, request: &str) -> (u16, String) {
    let mut client = world.client().await;
    client.send(request).await;
    let answer = client.message().await;
    (answer.status(), answer.text())
}

#[tokio::test]
async fn permissions_decide_by_path_method_and_header() {
    let denied = vec![
        permission(Action::Deny, Some(PathMatch::Exact("/admin".to_owned()))),
        IntentionPermission { methods: vec!["DELETE".to_owned()], ..permission(Action::Deny, None) },
        IntentionPermission {
            headers: vec![HeaderMatch {
                name: "x-role".to_owned(),
                test: HeaderTest::Exact("guest".to_owned()),
                invert: false,
                ignore_case: false,
            }],
            ..permission(Action::Deny, None)
        },
        permission(Action::Allow, Some(PathMatch::Prefix("/".to_owned()))),
    ];
    let world = World::start(Setup::of(Protocol::Http).by_request(denied)).await;
    let app = world.app.mirror();
    let cases = [
        ("GET / HTTP/1.1\r\nhost: api\r\n\r\n", 200),
        ("GET /admin HTTP/1.1\r\nhost: api\r\n\r\n", 403),
        ("GET /admin?x HTTP/1.1\r\nhost: api\r\n\r\n", 403),
        ("GET /admin/ HTTP/1.1\r\nhost: api\r\n\r\n", 200),
        ("DELETE / HTTP/1.1\r\nhost: api\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nhost: api\r\nx-role: guest\r\n\r\n", 403),
        // One value cannot hide another.
        ("GET / HTTP/1.1\r\nhost: api\r\nx-role: user\r\nX-Role: guest\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nhost: api\r\nx-role: user\r\n\r\n", 200),
        // Nor can it be taken off as meant for this hop.
        ("GET / HTTP/1.1\r\nhost: api\r\nconnection: x-other\r\nx-role: guest\r\n\r\n", 403),
    ];
    for (request, expected) in cases {
        let (status, text) = ask(&world, request).await;
        assert_eq!(status, expected, "{request}");
        assert!(expected == 200 || text == "RBAC: access denied", "{text}");
    }
    assert_eq!(app.served(), cases.iter().filter(|(_, status)| *status == 200).count() as u64);
}

#[tokio::test]
async fn a_denied_path_is_denied_in_every_dress() {
    let world = World::start(Setup::of(Protocol::Http).by_request(denied_prefix("/admin/"))).await;
    let app = world.app.mirror();
    for path in [
        "/admin/x",
        "//admin/x",
        "/./admin/x",
        "/a/../admin/x",
        "/a/..//admin/x",
        "/admin//x",
        "/%61dmin/x",
        "/admin%2fx",
        "/admin%2Fx",
        "/a/%2e%2e/admin/x",
        "/a/.%2E/admin/x",
        "/a/..;x/admin/x",
        "/a/..%2fadmin/x",
        "\\admin\\x",
        "/\\admin/x",
        "/a%5c..%5cadmin/x",
        "/admin/./x",
        "///admin///x?y",
        "http://api/admin/x",
        "http://api//admin/x",
    ] {
        let (status, _) = ask(&world, &format!("GET {path} HTTP/1.1\r\nhost: api\r\n\r\n")).await;
        let refused = if path.starts_with('\\') { 400 } else { 403 };
        assert_eq!(status, refused, "{path}");
    }
    assert_eq!(app.served(), 0, "none of them reaches the application");
    for (path, seen) in [
        ("/admins", "/admins"),
        ("/a//b/../c", "/a/c"),
        ("/a;x/b", "/a;x/b"),
        ("/%7euser", "/~user"),
        ("/a?b=//../admin/", "/a?b=//../admin/"),
    ] {
        let (status, text) = ask(&world, &format!("GET {path} HTTP/1.1\r\nhost: api\r\n\r\n")).await;
        assert_eq!((status, text.split(' ').nth(1)), (200, Some(seen)), "what was decided about is what arrives");
    }
    for path in ["/a%00b", "/a#b", "/\u{e4}", "*"] {
        assert_eq!(ask(&world, &format!("GET {path} HTTP/1.1\r\nhost: api\r\n\r\n")).await.0, 400, "{path}");
    }
}

#[tokio::test]
async fn a_source_without_an_intention_is_denied_and_one_that_is_not_of_the_mesh_does_not_get_in() {
    let world = World::start(Setup::of(Protocol::Http)).await;
    let app = world.app.mirror();
    let mut stranger = world.peer("stranger", Alpn::Http1).await;
    stranger.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    assert_eq!(stranger.message().await.status(), 403);
    let mut web = world.peer("web", Alpn::Http1).await;
    web.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    assert_eq!(web.message().await.status(), 200);

    // A root that is not the mesh's, though every name is right: neither side accepts the other.
    let other = Ca::new();
    assert!(connect_tls(&other, "web", Alpn::Http1, world.public).await.is_err());
    // No TLS at all.
    let mut plain = Wire::new(TcpStream::connect(world.public).await.unwrap());
    plain.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    let answer = plain.rest().await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert_eq!(app.served(), 1);
    eventually("both are counted", || counted(&world.api.engine)["handshakes_failed"] == 2).await;
}

#[tokio::test]
async fn a_server_of_another_identity_is_not_called() {
    let mut world = World::start(Setup::of(Protocol::Http)).await;
    let app = world.app.mirror();
    // Somebody else of the mesh listens where api was.
    world.api.keys = world.ca.keys("web");
    world.api.apply().await;
    let (status, text) = ask(&world, "GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
    assert_eq!((status, &*text), (503, "upstream connect failure"));
    assert_eq!(app.served(), 0);
    world.api.keys = world.ca.keys("api");
    world.api.apply().await;
    assert_eq!(ask(&world, "GET / HTTP/1.1\r\nhost: api\r\n\r\n").await.0, 200);
}

#[tokio::test]
async fn a_changed_intention_is_in_force_for_the_next_request_of_a_connection_that_stands() {
    let mut world = World::start(Setup::of(Protocol::Http)).await;
    let _app = world.app.mirror();
    let mut client = world.client().await;
    let setup = Setup::of(Protocol::Http);
    for (action, status) in [(Action::Allow, 200), (Action::Deny, 403), (Action::Allow, 200)] {
        let rules = vec![rule("web", SourceDecision::Connection(action))];
        let setup = Setup { rules, ..Setup::of(setup.protocol) };
        world.api.plan = crate::world::api_plan(&world.ca, &setup, world.public, world.app.address);
        world.api.apply().await;
        client.send("GET / HTTP/1.1\r\nhost: api\r\n\r\n").await;
        assert_eq!(client.message().await.status(), status);
    }
    assert_eq!(counted(&world.api.engine)["opened"], 1, "and no connection is drained");
}
