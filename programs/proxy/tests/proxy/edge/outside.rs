//! Who calls from outside: what the PROXY protocol says, and which fields of a request are believed.

use starling_model::{IpRange, Protocol};
use starling_plan::Edge;

use super::{Gateway, edge};
use crate::wire::{Message, eventually};
use crate::world::counted;

/// The values of a field in the request that the application was sent.
fn seen(answer: &Message, name: &str) -> Vec<String> {
    let sent = Message { head: answer.text(), body: Vec::new() };
    sent.values(name).into_iter().map(str::to_owned).collect()
}

fn trusting(ranges: &[&str]) -> Edge {
    let trusted_proxies = ranges.iter().map(|range| range.parse::<IpRange>().unwrap()).collect();
    Edge { trusted_proxies, ..edge(Protocol::Http, &["*"]) }
}

/// A request with everything that a caller outside might claim.
const CLAIMS: &str = "GET / HTTP/1.1\r\nhost: a\r\nX-Forwarded-For: 203.0.113.9\r\nx-forwarded-proto: https\r\n\
    x-forwarded-host: other\r\nForwarded: for=203.0.113.9\r\nx-real-ip: 203.0.113.9\r\n\
    x-forwarded-client-cert: URI=spiffe://x/ns/default/dc/dc1/svc/admin\r\nX-Envoy-Retry-On: 5xx\r\nx-starling-source: admin\r\n\
    x-request-id: 7\r\ntraceparent: 00-1-2-01\r\n\r\n";

#[tokio::test]
async fn strangers_are_believed_nothing() {
    let gateway = Gateway::start(trusting(&["203.0.113.0/24"])).await;
    let _app = gateway.app.mirror();
    let mut client = gateway.client().await;
    client.send(CLAIMS).await;
    let answer = client.message().await;
    assert_eq!(seen(&answer, "x-forwarded-for"), ["127.0.0.1".to_owned()], "{}", answer.text());
    assert_eq!(seen(&answer, "x-forwarded-proto"), ["http"]);
    for gone in ["x-forwarded-host", "forwarded", "x-real-ip", "x-envoy-retry-on", "x-starling-source"] {
        assert_eq!(seen(&answer, gone), [""; 0], "{gone}");
    }
    for kept in ["x-request-id", "traceparent"] {
        assert_eq!(seen(&answer, kept).len(), 1, "{kept}");
    }
    let identity = seen(&answer, "x-forwarded-client-cert");
    assert!(
        identity.len() == 1 && identity[0].ends_with("/svc/ingress"),
        "what api's sidecar has verified: {identity:?}"
    );
}

#[tokio::test]
async fn trusted_proxies_are_believed_what_proxies_say() {
    let gateway = Gateway::start(trusting(&["192.0.2.0/24", "127.0.0.0/8"])).await;
    let _app = gateway.app.mirror();
    let mut client = gateway.client().await;
    client.send(CLAIMS).await;
    let answer = client.message().await;
    let own = "127.0.0.1".to_owned();
    assert_eq!(seen(&answer, "x-forwarded-for"), ["203.0.113.9", &own], "{}", answer.text());
    assert_eq!(seen(&answer, "x-forwarded-proto"), ["https"]);
    assert_eq!(seen(&answer, "x-forwarded-host"), ["other"]);
    assert_eq!(seen(&answer, "forwarded"), ["for=203.0.113.9"]);
    for gone in ["x-envoy-retry-on", "x-starling-source"] {
        assert_eq!(seen(&answer, gone), [""; 0], "{gone}");
    }
    assert!(seen(&answer, "x-forwarded-client-cert")[0].ends_with("/svc/ingress"), "an identity is believed of nobody");
    // One that says nothing of it.
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let answer = client.message().await;
    assert_eq!(
        (seen(&answer, "x-forwarded-for"), seen(&answer, "x-forwarded-proto")),
        (vec![own], vec!["http".to_owned()])
    );
}

#[tokio::test]
async fn the_proxy_protocol_names_the_caller() {
    let behind = Edge { proxy_protocol: true, ..trusting(&["192.0.2.0/24"]) };
    let gateway = Gateway::start(behind).await;
    let _app = gateway.app.mirror();
    let request = b"GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.9.9.9\r\n\r\n".as_slice();
    let own = "127.0.0.1".to_owned();
    let v2 = |command: u8, family: u8, rest: &[u8]| {
        let length = u8::try_from(rest.len()).unwrap();
        [b"\r\n\r\n\0\r\nQUIT\n", &[command, family, 0, length][..], rest].concat()
    };
    let four = [198, 51, 100, 7, 127, 0, 0, 1, 0x1f, 0x90, 0, 80];
    let six = [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[7], &[0; 15], &[1], &[1, 2, 0, 80]].concat();
    let attached = [&four[..], b"\x04\0\x03abc"].concat();
    for (header, expected) in [
        (b"PROXY TCP4 198.51.100.7 127.0.0.1 8080 80\r\n".to_vec(), vec!["198.51.100.7"]),
        (b"PROXY TCP6 2001:db8::7 ::1 8080 80\r\n".to_vec(), vec!["2001:db8::7"]),
        (b"PROXY UNKNOWN\r\n".to_vec(), vec![own.as_str()]),
        (b"PROXY TCP4 192.0.2.1 127.0.0.1 8080 80\r\n".to_vec(), vec!["10.9.9.9", "192.0.2.1"]),
        (v2(0x21, 0x11, &four), vec!["198.51.100.7"]),
        (v2(0x21, 0x11, &attached), vec!["198.51.100.7"]),
        (v2(0x21, 0x21, &six), vec!["2001:db8::7"]),
        (v2(0x20, 0x00, &[]), vec![own.as_str()]),
    ] {
        let mut client = gateway.client().await;
        // In three pieces, of which the last holds the beginning of the request.
        let whole = [&header[..], request].concat();
        let (one, rest) = whole.split_at(9);
        let (two, three) = rest.split_at(header.len() - 9 - 1);
        for piece in [one, two, three] {
            client.send(piece).await;
            tokio::task::yield_now().await;
        }
        let answer = client.message().await;
        assert_eq!(seen(&answer, "x-forwarded-for"), expected, "{}", String::from_utf8_lossy(&header));
        // What follows on the connection has the same caller.
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert_eq!(seen(&client.message().await, "x-forwarded-for"), expected[expected.len() - 1..]);
    }
}

#[tokio::test]
async fn a_connection_without_a_proxy_header_is_refused_where_one_is_wanted() {
    let gateway = Gateway::start(Edge { proxy_protocol: true, ..edge(Protocol::Http, &["*"]) }).await;
    for bytes in [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".as_slice(),
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n",
    ] {
        let mut client = gateway.client().await;
        client.send(bytes).await;
        assert!(client.ends().await);
    }
    eventually("all of them are counted", || counted(&gateway.sidecar.engine)["malformed"] == 4).await;
    assert!(gateway.app.is_left_alone().await);
}
