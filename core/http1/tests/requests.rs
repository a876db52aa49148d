//! Which heads are read, which are refused, and that neither depends on how they arrive.

use bytes::BytesMut;
use proptest::prelude::*;
use starling_http1::{BodyLength, Limits, RequestError, RequestHead, ResponseError, ResponseHead};

fn take(text: &str) -> Result<Option<RequestHead>, RequestError> {
    RequestHead::take(&mut BytesMut::from(text), &Limits::default())
}

fn status_of(text: &str) -> u16 {
    match take(text) {
        Ok(Some(head)) => panic!("{text:?} was read as {} {}", head.method(), head.target()),
        Ok(None) => panic!("{text:?} is waited for"),
        Err(error) => error.status(),
    }
}

#[test]
fn a_plain_request_is_read() {
    let mut buffer = BytesMut::from("\r\nGET /a?b=c HTTP/1.1\r\nHost: web:80\r\nX-A: 1 \r\nx-a:2\r\n\r\nrest");
    let head = RequestHead::take(&mut buffer, &Limits::default()).unwrap().unwrap();
    assert_eq!((head.method(), head.target(), head.authority(), head.version), ("GET", "/a?b=c", "web:80", 1));
    assert_eq!(head.heeded("X-a").collect::<Vec<_>>(), [b"1", b"2"]);
    assert_eq!((head.body, head.keep_alive, head.expects_continue), (BodyLength::Exactly(0), true, false));
    assert_eq!(&buffer[..], b"rest");
}

#[test]
fn an_absolute_target_is_a_path_and_a_host() {
    let head = take("GET http://Web/x?y HTTP/1.1\r\nhost: web\r\n\r\n").unwrap().unwrap();
    assert_eq!((head.target(), head.authority(), head.scheme), ("/x?y", "Web", Some("http")));
    let secure = take("GET HTTPS://web/ HTTP/1.1\r\nhost: web\r\n\r\n").unwrap().unwrap();
    assert_eq!(secure.scheme, Some("https"));
    assert_eq!(status_of("GET http://web/x HTTP/1.1\r\nhost: db\r\n\r\n"), 400);
    assert_eq!(status_of("GET http://web HTTP/1.1\r\nhost: web\r\n\r\n"), 400);
    assert_eq!(status_of("GET http:///x HTTP/1.1\r\nhost:\r\n\r\n"), 400);
    assert_eq!(status_of("GET http://a@web/ HTTP/1.1\r\nhost: a@web\r\n\r\n"), 400);
    assert_eq!(status_of("GET ftp://web/ HTTP/1.1\r\nhost: web\r\n\r\n"), 400);
}

#[test]
fn a_host_has_one_form() {
    let authority = |host: &str| {
        let head = take(&format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")).unwrap().unwrap();
        head.authority().to_owned()
    };
    for (host, plain) in [("web.", "web"), ("web.:80", "web:80"), ("Web", "Web"), (".", ""), ("", "")] {
        assert_eq!(authority(host), plain, "{host}");
    }
}

#[test]
fn what_two_readers_could_understand_differently_is_refused() {
    let with = |fields: &str| status_of(&format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}\r\n"));
    for fields in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        "content-length: 5\r\ncontent-length: 5\r\n",
        "content-length: 5, 5\r\n",
        "content-length: +5\r\n",
        "content-length: 0x5\r\n",
        "content-length: -1\r\n",
        "content-length:\r\n",
        "content-length: 99999999999999999999\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "x: a\r\n b\r\n",
        "x: a\n\r\n",
        "x: a\rb\r\n",
        "x : a\r\n",
        "content-length : 5\r\n",
        "x\r\n",
        "x: a\0\r\n",
        "host: b\r\n",
        "connection: host\r\n",
        "connection: close, X-Forwarded-For\r\n",
    ] {
        assert_eq!(with(fields), 400, "{fields:?}");
    }
    for fields in [
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: identity\r\n",
        "transfer-encoding: \x0bchunked\r\n",
    ] {
        assert!(matches!(with(fields), 400 | 501), "{fields:?}");
    }
    assert_eq!(status_of("GET / HTTP/1.1\nhost: a\n\n"), 400);
    assert_eq!(status_of("GET / HTTP/1.1\r\n\r\n"), 400);
    assert_eq!(status_of("GET / HTTP/1.1\r\nhost: a b\r\n\r\n"), 400);
    assert_eq!(status_of("GET / HTTP/1.1\r\nhost: a/b\r\n\r\n"), 400);
    assert_eq!(status_of("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"), 400);
    for line in ["GET  / HTTP/1.1", "GET /a b HTTP/1.1", "GET /  HTTP/1.1", "GET /", "GET / http/1.1"] {
        assert_eq!(status_of(&format!("{line}\r\nhost: a\r\n\r\n")), 400, "{line}");
    }
    assert_eq!(status_of("GET / HTTP/2.0\r\nhost: a\r\n\r\n"), 505);
    assert_eq!(status_of("get / HTTP/1.1\r\nhost: a\r\n\r\n"), 400);
    assert_eq!(status_of("CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n"), 405);
    assert_eq!(status_of("GET / HTTP/1.1\r\nhost: a\r\nexpect: more\r\n\r\n"), 417);
}

#[test]
fn limits_hold_before_a_head_is_all_there() {
    let limits = Limits { head_bytes: 1000, target_bytes: 100, fields: 4 };
    let status = |text: String| RequestHead::take(&mut BytesMut::from(&text[..]), &limits).unwrap_err().status();
    assert_eq!(status(format!("GET /{}", "a".repeat(200))), 414);
    assert_eq!(status(format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(101))), 414);
    assert_eq!(status(format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "a".repeat(1000))), 431);
    assert_eq!(status(format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(4))), 431);
    let fits = format!("GET /{} HTTP/1.1\r\nhost: a\r\n{}\r\n", "a".repeat(99), "x: y\r\n".repeat(3));
    assert!(RequestHead::take(&mut BytesMut::from(&fits[..]), &limits).unwrap().is_some());
}

#[test]
fn what_is_for_the_connection_is_told_apart() {
    let head = take(concat!(
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: close, x-mine, Cookie, Authorization\r\nx-mine: 1\r\nkeep-alive: 5\r\n",
        "te: trailers\r\nauthorization: b\r\nx-other: 2\r\n\r\n"
    ));
    let head = head.unwrap().unwrap();
    let kept: Vec<_> = head.end_to_end().map(|(name, _)| name).collect();
    assert_eq!(kept, ["host", "authorization", "x-other"]);
    assert!(!head.keep_alive);
    assert_eq!(head.upgrade(), None);
    let upgrade =
        take("GET / HTTP/1.1\r\nhost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap().unwrap();
    assert_eq!(upgrade.upgrade(), Some(&b"websocket"[..]));
    let unasked = take("GET / HTTP/1.1\r\nhost: a\r\nUpgrade: websocket\r\n\r\n").unwrap().unwrap();
    assert_eq!(unasked.upgrade(), None);
    let old = take("GET / HTTP/1.0\r\n\r\n").unwrap().unwrap();
    assert!(!old.keep_alive && old.authority().is_empty());
}

/// What the next hop does not hear, nobody decides by.
#[test]
fn nothing_is_decided_by_what_is_for_the_connection() {
    let heeded = |fields: &str, name: &str| {
        let head = take(&format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n")).unwrap().unwrap();
        head.heeded(name).count()
    };
    for (fields, name, expected) in [
        ("x-mine: 1\r\nX-MINE: 2\r\n", "x-mine", 2),
        ("x-mine: 1\r\nconnection: close, X-Mine\r\n", "x-mine", 0),
        ("connection: x-mine\r\nx-mine: 1\r\n", "connection", 0),
        ("cookie: 1\r\nconnection: cookie\r\n", "cookie", 1),
        ("keep-alive: 5\r\n", "keep-alive", 0),
        ("proxy-connection: close\r\n", "proxy-connection", 0),
        ("transfer-encoding: chunked\r\n", "transfer-encoding", 0),
        ("content-length: 0\r\n", "content-length", 1),
        ("te: trailers\r\n", "te", 1),
        ("connection: upgrade\r\nupgrade: websocket\r\n", "upgrade", 1),
        ("connection: close\r\nupgrade: websocket\r\n", "upgrade", 0),
        ("upgrade: websocket\r\n", "upgrade", 0),
    ] {
        assert_eq!(heeded(fields, name), expected, "{name} of {fields:?}");
    }
}

#[test]
fn responses_end_where_the_request_says() {
    let body = |method: &str, text: &str| {
        ResponseHead::take(&mut BytesMut::from(text), method, &Limits::default()).map(|head| head.unwrap().body)
    };
    assert_eq!(body("GET", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"), Ok(BodyLength::Exactly(3)));
    assert_eq!(body("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n"), Ok(BodyLength::Exactly(0)));
    assert_eq!(body("GET", "HTTP/1.1 304 No\r\ncontent-length: 3\r\n\r\n"), Ok(BodyLength::Exactly(0)));
    assert_eq!(body("GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"), Ok(BodyLength::Chunked));
    assert_eq!(body("GET", "HTTP/1.1 200 OK\r\n\r\n"), Ok(BodyLength::UntilClose));
    let both = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n";
    assert!(matches!(body("GET", both), Err(ResponseError::Ambiguous(_))));
    assert!(matches!(body("GET", "HTTP/1.1 200 OK\n\n"), Err(ResponseError::Malformed(_))));
}

proptest! {
    /// However the bytes are cut, the answer is that to the whole.
    #[test]
    fn arrival_does_not_matter(parts in prop::collection::vec(prop::sample::select(vec![
        "GET / HTTP/1.1\r\n", "POST /a HTTP/1.1\r\n", "host: a\r\n", "x: y\r\n", "content-length: 2\r\n", "\r\n", "\n",
        "transfer-encoding: chunked\r\n", " folded\r\n", "HTTP", "\0",
    ]), 1..7), cut in 0_usize..64) {
        let text = parts.concat();
        let whole = take(&text);
        let cut = cut.min(text.len());
        let mut buffer = BytesMut::from(&text[..cut]);
        let early = RequestHead::take(&mut buffer, &Limits::default());
        let verdict = match early {
            Ok(None) => {
                buffer.extend_from_slice(&text.as_bytes()[cut..]);
                RequestHead::take(&mut buffer, &Limits::default())
            }
            decided => decided,
        };
        let brief = |verdict: &Result<Option<RequestHead>, RequestError>| match verdict {
            Ok(head) => Ok(head.as_ref().map(|head| (head.method().to_owned(), head.target().to_owned(), head.body))),
            Err(_) => Err(()),
        };
        prop_assert_eq!(brief(&verdict), brief(&whole));
    }
}
