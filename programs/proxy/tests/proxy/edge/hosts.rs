//! Which service a host stands for, and what becomes of those that stand for none.

use starling_model::{HttpsRedirect, PathMatch, Port, Protocol, RedirectStatus, RequestMatch, RouteRedirect};
use starling_plan::{EdgeHost, EdgeRoute, Routes};
use starling_traffic::{RouteRule, RouteTable, RuleAction};
use tokio::io::AsyncWriteExt;

use super::{Gateway, edge, pattern, to_api};
use crate::wire::within;
use crate::world::{Setup, counted, rule};

#[tokio::test]
async fn the_most_exact_host_decides_and_an_unknown_one_is_not_found() {
    let mut by_host = edge(Protocol::Http, &[]);
    let hosts = ["www.example.com", "*.example.com", "api.ingress.*"].map(|name| {
        let mut host = EdgeHost { hosts: vec![pattern(name)], ..to_api() };
        host.request_headers.set.insert("x-host".to_owned(), name.to_owned());
        host.response_headers.set.insert("x-answered".to_owned(), name.to_owned());
        host
    });
    by_host.route = EdgeRoute::Hosts(hosts.into());
    let mut gateway = Gateway::start(by_host).await;
    let app = gateway.app.mirror();
    for (host, expected) in [
        ("www.example.com", "www.example.com"),
        ("WWW.Example.com:8080", "www.example.com"),
        ("www.example.com.", "www.example.com"),
        ("a.b.example.com", "*.example.com"),
        ("api.ingress.dc1.consul", "api.ingress.*"),
    ] {
        let answer = gateway.ask(host).await;
        assert_eq!((answer.status(), answer.values("x-answered")), (200, vec![expected]), "{host}");
        let seen = answer.text();
        assert!(
            seen.starts_with("GET /path?q=1 HTTP/1.1\r\n") && seen.contains(&format!("x-host: {expected}\r\n")),
            "{seen}"
        );
        assert!(seen.contains(&format!("host: {}\r\n", host.trim_end_matches('.'))), "the host is passed on: {seen}");
    }
    let served = app.served();
    for host in ["example.com", "www.example.com.evil", "other", "[::1]:80"] {
        let answer = gateway.ask(host).await;
        assert_eq!((answer.status(), answer.text()), (404, "no service for this host".to_owned()), "{host}");
    }
    assert_eq!(app.served(), served, "nothing else has reached the service");

    // Another meaning, on a connection that stands.
    let mut client = gateway.client().await;
    for (allowed, expected) in [(true, 200), (false, 404), (true, 200)] {
        gateway
            .change(|edge| {
                edge.route = EdgeRoute::Hosts(vec![EdgeHost {
                    hosts: vec![pattern(if allowed { "*" } else { "nobody" })],
                    ..to_api()
                }])
            })
            .await;
        client.send("GET / HTTP/1.1\r\nhost: anything\r\n\r\n").await;
        assert_eq!(client.message().await.status(), expected);
    }
}

#[tokio::test]
async fn callers_in_plaintext_are_told_to_come_by_https() {
    let redirect =
        |port: i64, status| EdgeRoute::Redirect(HttpsRedirect { port: Port::try_from(port).unwrap(), status });
    let mut to_https = edge(Protocol::Http, &[]);
    to_https.route = redirect(443, RedirectStatus::MovedPermanently);
    let mut gateway = Gateway::start(to_https).await;
    let mut client = gateway.client().await;
    for (host, expected) in [
        ("example.com", "https://example.com/a?b=c"),
        ("example.com:8080", "https://example.com/a?b=c"),
        ("Example.com.", "https://Example.com/a?b=c"),
        ("[::1]:80", "https://[::1]/a?b=c"),
    ] {
        // In the one form of the path, over one connection, with what a client sends beside.
        client.send(format!("POST /x/../a?b=c HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n")).await;
        let answer = client.message().await;
        assert_eq!((answer.status(), answer.values("location")), (301, vec![expected]), "{host}");
    }
    gateway.change(|edge| edge.route = redirect(8443, RedirectStatus::Permanent)).await;
    client.send("GET / HTTP/1.1\r\nhost: example.com\r\n\r\n").await;
    let answer = client.message().await;
    assert_eq!((answer.status(), answer.values("location")), (308, vec!["https://example.com:8443/"]));
    client.send("GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.message().await.status(), 400, "there is nowhere to come to");
    assert!(gateway.app.is_left_alone().await);
    assert_eq!(counted(&gateway.sidecar.engine)["3xx"], 5);
}

#[tokio::test]
async fn the_routes_of_a_service_hold_at_the_edge() {
    let mut gateway = Gateway::start(edge(Protocol::Http, &["*"])).await;
    let old = &gateway.sidecar.plan.routes[0];
    let matches = RequestMatch { path: Some(PathMatch::Prefix("/old".to_owned())), ..RequestMatch::default() };
    let redirect = RouteRedirect {
        status: RedirectStatus::Found,
        https: false,
        host: Some("new.example.com".to_owned()),
        port: None,
        path: None,
        strip_query: true,
    };
    let mut rules = vec![RouteRule { matches, action: RuleAction::Redirect(redirect) }];
    rules.extend(old.table.rules().iter().cloned());
    let routes = Routes { table: RouteTable::new(rules).into(), ..Routes::clone(old) };
    gateway.sidecar.plan.routes = vec![routes.into()];
    gateway.sidecar.apply().await;
    let _app = gateway.app.mirror();
    let mut client = gateway.client().await;
    client.send("GET /old/a?b HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let answer = client.message().await;
    assert_eq!((answer.status(), answer.values("location")), (302, vec!["http://new.example.com/old/a"]));
    client.send("GET /other HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.message().await.status(), 200);
}

#[tokio::test]
async fn intentions_speak_of_the_gateway_as_of_any_service() {
    let deny = |source| rule(source, starling_model::SourceDecision::Connection(starling_model::Action::Deny));
    let mut setup = Setup::of(Protocol::Http);
    setup.rules = vec![deny("ingress")];
    let gateway = Gateway::behind(setup, edge(Protocol::Http, &["*"])).await;
    let answer = gateway.ask("a").await;
    assert_eq!((answer.status(), answer.text()), (403, "RBAC: access denied".to_owned()));
    assert!(gateway.app.is_left_alone().await);
}

#[tokio::test]
async fn bytes_pass_where_requests_cannot_be_told_apart() {
    let gateway = Gateway::start(edge(Protocol::Tcp, &[])).await;
    let mut client = gateway.client().await;
    let mut app = gateway.app.accept().await;
    app.send("220 ready\r\n").await;
    assert_eq!(client.exactly(11).await, b"220 ready\r\n", "a server may speak first");
    client.send("hello").await;
    assert_eq!(app.exactly(5).await, b"hello");
    client.stream.shutdown().await.unwrap();
    assert!(app.ends().await);
    app.send("bye").await;
    drop(app);
    assert_eq!(client.rest().await, b"bye");
}

#[tokio::test]
async fn connections_past_the_limit_are_refused_and_others_stay() {
    let limited = starling_plan::Edge { max_connections: Some(2), ..edge(Protocol::Http, &["*"]) };
    let gateway = Gateway::start(limited).await;
    let _app = gateway.app.mirror();
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut client = gateway.client().await;
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert_eq!(client.message().await.status(), 200);
        kept.push(client);
    }
    assert!(within(gateway.client()).await.ends().await);
    assert_eq!(counted(&gateway.sidecar.engine)["overflowed"], 1);
    kept[0].send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(kept[0].message().await.status(), 200);
}
