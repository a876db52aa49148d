//! Requests from a seed: mostly near misses of what the plan of `planes` tells apart, and some that are no requests at all.

use std::fmt::Write as _;

use bytes::Bytes;
use fastrand::Rng;
use http::Request;
use http_body_util::Full;

use super::planes::{CALLED, CALLERS, EDGE, PATHS};

/// The field by which an application's notes are found again.
pub(super) const CASE: &str = "x-case";

/// The field that asks the application for a status.
pub(super) const ANSWER: &str = "x-answer";

/// The field that asks the application to fail the first so many tries.
pub(super) const FAILURES: &str = "x-fail";

/// The field that asks the application for a status of gRPC, `late-` for one that comes after a message.
pub(super) const RPC_ANSWER: &str = "x-rpc-answer";

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) number: String,
    pub(super) caller: &'static str,
    pub(super) called: &'static str,
    pub(super) method: String,
    pub(super) target: String,
    pub(super) version: &'static str,
    /// Whether it is to go over HTTP/2, if that can be.
    pub(super) over_http2: bool,
    /// Everything after the request line, in order; names and values as written.
    pub(super) fields: Vec<(String, String)>,
    /// What follows the head.
    pub(super) body: String,
}

impl Case {
    /// The request as it goes on the wire. Characters up to U+00FF stand for bytes, so that any byte can be sent.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} {}\r\n", self.method, self.target, self.version);
        for (name, value) in &self.fields {
            let _ = write!(text, "{name}:{value}\r\n");
        }
        let _ = write!(text, "{CASE}: {}\r\n\r\n{}", self.number, self.body);
        text.chars().map(|character| u8::try_from(u32::from(character)).unwrap_or(b'?')).collect()
    }

    /// The same request over HTTP/2, if it is to go so and can be said there.
    pub(super) fn http2(&self) -> Option<Request<Full<Bytes>>> {
        let can_be = self.target.starts_with('/') && self.version == "HTTP/1.1";
        // Too large a head, or a host with a user, is answered with silence there.
        let silent = self.values("x-many").count() > 0 || self.values("host").any(|host| host.contains('@'));
        if !self.over_http2 || !can_be || silent {
            return None;
        }
        let mut hosts = self.values("host");
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return None };
        let mut request =
            Request::builder().method(&*self.method).uri(format!("http://{}{}", host.trim(), self.target));
        for (name, value) in self.fields.iter().filter(|(name, _)| !OF_HTTP1.contains(&&*name.to_ascii_lowercase())) {
            request = request.header(name, value.trim_matches([' ', '\t']));
        }
        if self.called == "remote" {
            request = request.header("te", "trailers");
        }
        let chunked = self.values("transfer-encoding").next().is_some();
        let body = if chunked { String::new() } else { self.body.clone() };
        request.header(CASE, &self.number).body(Full::new(body.into())).ok()
    }

    /// The values of a field.
    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Simpler requests, each with one thing less, to find what a difference comes from.
    pub(super) fn simpler(&self) -> Vec<Self> {
        let mut simpler = Vec::new();
        for place in 0..self.fields.len() {
            let mut less = self.clone();
            let (name, _) = less.fields.remove(place);
            if ["content-length", "transfer-encoding"].contains(&&*name) {
                // Whatever nobody is told the length of would be the next request.
                less.body.clear();
            }
            simpler.push(less);
        }
        if self.over_http2 {
            simpler.push(Self { over_http2: false, ..self.clone() });
        }
        if self.method != "GET" {
            simpler.push(Self { method: "GET".to_owned(), ..self.clone() });
        }
        if let Some((path, _)) = self.target.split_once('?') {
            simpler.push(Self { target: path.to_owned(), ..self.clone() });
        }
        let segments: Vec<_> = self.target.split('/').collect();
        for place in 1..segments.len() {
            let mut less = segments.clone();
            less.remove(place);
            simpler.push(Self { target: less.join("/"), ..self.clone() });
        }
        simpler.retain(|case| case != self && !case.target.is_empty());
        simpler
    }
}

/// Fields that HTTP/2 has not (RFC 9113 section 8.2.2), or has in another form.
const OF_HTTP1: [&str; 8] =
    ["host", "connection", "te", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "content-length"];

const METHODS: [&str; 10] = ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "POST", "HEAD", "TRACE", "PROPFIND"];

/// Methods that a proxy may know or not, may take for another, or never lets pass.
const ODD_METHODS: [&str; 4] = ["get", "M-SEARCH", "CONNECT", "FROB"];

const HOSTS: [&str; 16] = [
    "shop",
    "SHOP.Example.com",
    "shop.example.com.",
    "shop:80",
    "shop:443",
    "shop:8080",
    "shop.:80",
    "Shop.:8080",
    "[::1]:80",
    "[::1]",
    "",
    "a b",
    "user@shop",
    "shop/x",
    "shop..",
    "shop:",
];

/// Hosts that the gateway knows, nearly knows, or finds by their end.
const EDGE_HOSTS: [&str; 14] = [
    "shop.example.com",
    "shop.example.com",
    "SHOP.example.COM:8080",
    "shop.example.com.",
    "www.example.com",
    "a.b.example.com",
    "example.com",
    ".example.com",
    "xexample.com",
    "deep.shop.example.com",
    "alias.internal",
    "other.internal",
    "127.0.0.1",
    "nobody.test",
];

/// Those of them that are none.
const HOSTS_OF_NOBODY: [&str; 4] = ["", "a b", "user@shop", "shop/x"];

const QUERIES: [&str; 27] = [
    "debug=1",
    "debug=1",
    "debug=2",
    "r=aaa",
    "debug=2",
    "debug=1&debug=2",
    "debug=2&debug=1",
    "debug",
    "debug=",
    "Debug=1",
    "%64ebug=1",
    "debug=%31",
    "a=b&debug=1",
    "debug=1;x",
    "debug=1&",
    "&&debug=1",
    "x=/../private",
    "//",
    "a?debug=1",
    "?debug=1",
    "r=aaa",
    "r=aab",
    "r=",
    "r=a&debug=1",
    "debug=1=1",
    "debug+=1",
    "q=\"<>|\\^`{}",
];

/// Names of fields that the plan tests.
const TESTED: [&str; 6] = ["x-key", "X-Key", "x-key", "x-mode", "x-mode", "X-PRESENT"];

/// Names of fields that the plan edits, that proxies treat in a way of their own, and that mean nothing.
const NAMES: [&str; 36] = [
    "accept",
    "cookie",
    "cookie",
    "connection",
    "te",
    "keep-alive",
    "proxy-connection",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-client-cert",
    "x-envoy-original-path",
    "x-envoy-upstream-rq-timeout-ms",
    "X-Envoy-Retry-On",
    "x-envoy-max-retries",
    "x-envoy-retriable-status-codes",
    "x-envoy-internal",
    "x-envoy-external-address",
    "x-envoy-attempt-count",
    "x-starling-anything",
    "forwarded",
    "x-real-ip",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-request-id",
    "x_under",
    "x-removed",
    "x-set",
    "x-added",
    "user-agent",
    "authorization",
    "via",
    "traceparent",
    "range",
    "content-type",
    "x-answer",
];

/// Paths under which the plan looks at other parts of a request.
const TESTING: [&str; 12] = [
    "/h/present",
    "/h/exact",
    "/h/exact",
    "/h/prefix",
    "/h/suffix",
    "/h/suffix",
    "/h/regex",
    "/h/not",
    "/h/contains",
    "/q",
    "/q",
    "/m",
];

/// Values around those that the plan asks for.
const VALUES: [&str; 28] = [
    "abc",
    "abc",
    "Abc",
    "prefix-1",
    "-suffix",
    "1-suffix",
    "aab1",
    "ABC",
    "abcd",
    "xabc",
    "ab",
    "",
    " abc",
    "abc ",
    "\tabc\t",
    "abc,def",
    "def, abc",
    "xabcx",
    "prefix-1",
    "Prefix-1",
    "prefix",
    "-suffix",
    "1-suffix",
    "1-SUFFIX",
    "a1b2",
    "\"abc\"",
    "caf\u{e9}",
    "\u{c3}\u{a9}abc",
];

const ANSWERS: [&str; 5] = ["204", "304", "404", "302", "429"];

const CONNECTIONS: [&str; 11] = [
    "keep-alive",
    "close",
    "x-key",
    "Keep-Alive, X-Key",
    "te",
    "x-forwarded-client-cert",
    "host",
    "upgrade",
    "close, x-mode",
    "cookie",
    "x-forwarded-for",
];

/// Pieces that are put into paths.
const PIECES: [&str; 44] = [
    "/", "//", "/./", "/../", "/..", "/.", "/x/../", "%2f", "%2F", "%5c", "\\", "%2e", "%2E%2e", "..%2f", "..;/",
    "/..;x/", "/.;/", ";v=1", ";", "%252f", "%2561", "%41", "%7e", "%7E", "~", "%", "%4", "%zz", "%25", "|", "\"", "<",
    "{", "^", "`", "!", "'", "(", "@", ":", "=", "+", "*", "[",
];

/// Pieces that no path may hold.
const FOREIGN: [&str; 7] = ["%00", "#", "#x", " ", "\t", "\u{e9}", "\u{7f}"];

/// Makes requests; one seed, one sequence.
#[derive(Debug)]
pub(super) struct Grammar {
    rng: Rng,
    made: usize,
}

impl Grammar {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), made: 0 }
    }

    /// The next request.
    pub(super) fn case(&mut self) -> Case {
        self.made += 1;
        let mut case = Case {
            number: self.made.to_string(),
            caller: if self.one_in(3) { "web" } else { self.of(&CALLERS) },
            called: self.of(&CALLED),
            method: "GET".to_owned(),
            target: String::new(),
            version: "HTTP/1.1",
            over_http2: self.one_in(6),
            fields: Vec::new(),
            body: String::new(),
        };
        if self.one_in(4) {
            case.method = self.of(&METHODS).to_owned();
        } else if self.one_in(80) {
            case.method = self.of(&ODD_METHODS).to_owned();
        }
        if self.one_in(8) {
            (case.caller, case.called) = (EDGE, EDGE);
        }
        let host = if case.called == EDGE && !self.one_in(6) { self.of(&EDGE_HOSTS) } else { "shop.example.com" };
        let host = if self.one_in(6) { self.of(&HOSTS) } else { host };
        // An application of HTTP/2 may answer such hosts by ending the connection, with every other request on it.
        let host =
            if ["modern", "remote"].contains(&case.called) && HOSTS_OF_NOBODY.contains(&host) { "shop" } else { host };
        case.target = self.target(&case.method, host);
        if !self.one_in(200) {
            let name = if self.one_in(20) { "HOST" } else { "host" };
            case.fields.push((name.to_owned(), format!(" {host}")));
        }
        self.aim(&mut case);
        for _ in 0..self.rng.usize(..5) {
            let field = self.field();
            let place = self.rng.usize(..=case.fields.len());
            case.fields.insert(place, field);
        }
        if self.one_in(5) {
            self.body(&mut case);
        }
        if self.one_in(60) {
            self.oddity(&mut case);
        }
        case
    }

    /// Gives a request under a path of [`TESTING`] what is looked at there, or nearly, and a call of gRPC what makes it one.
    fn aim(&mut self, case: &mut Case) {
        if case.target.contains("/retry") || case.target.contains("/again") {
            case.fields.push((FAILURES.to_owned(), self.of(&["1", "1", "2", "3", "4"]).to_owned()));
        }
        if case.target.contains("/h/") && self.rng.bool() {
            let value = self.of(&["abc", "ABC", "prefix-1", "-suffix", "1-suffix", "aab1", "xbcx"]);
            case.fields.push(("x-key".to_owned(), value.to_owned()));
        }
        if case.target.contains("/m") && self.rng.bool() {
            case.method = self.of(&["PUT", "DELETE", "HEAD"]).to_owned();
        }
        if case.called == "remote" {
            case.over_http2 = true;
            "POST".clone_into(&mut case.method);
            case.fields.push(("content-type".to_owned(), "application/grpc".to_owned()));
            case.fields.push((RPC_ANSWER.to_owned(), self.of(&["0", "5", "14", "late-14", "late-3"]).to_owned()));
        }
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.rng.usize(..choices.len())]
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.rng.usize(..count) == 0
    }

    fn target(&mut self, method: &str, host: &str) -> String {
        let mut target = self.path();
        if self.one_in(if target.starts_with("/q") { 1 } else { 3 }) {
            target.push('?');
            target.push_str(self.of(&QUERIES));
        }
        if self.one_in(25) {
            let start = self.of(&["http://", "https://", "HTTP://", "http://", "http://user@", "ftp://"]);
            let named = if self.one_in(4) { self.of(&HOSTS) } else { host };
            return format!("{start}{named}{target}");
        }
        if self.one_in(150) || method == "CONNECT" {
            let odd = ["*", "shop:80", "private", "", "http://shop", "http://shop?x", "?debug=1", "//shop/private"];
            return self.of(&odd).to_owned();
        }
        target
    }

    /// A path of the plan with some pieces put in, characters escaped or changed in case, or the end cut off.
    fn path(&mut self) -> String {
        let mut path = if self.one_in(4) { self.of(&TESTING) } else { self.of(&PATHS) }.to_owned();
        if self.one_in(3) {
            let more = self.of(&["/", "/users", "/a/b", "x", "/x.html", "/private", ".", "/exact"]);
            path.push_str(more);
        }
        let changes = self.of(&[0, 0, 0, 1, 1, 2, 3]);
        for _ in 0..changes {
            let place = self.rng.usize(..=path.len());
            if !path.is_char_boundary(place) {
                continue;
            }
            match self.rng.usize(..12) {
                0..=5 => path.insert_str(place, self.of(&PIECES)),
                6 | 7 => self.escape_at(&mut path, place),
                8 => {
                    let changed = path[place..].chars().next().map(|found| found.to_ascii_uppercase());
                    if let Some(changed) = changed {
                        path.replace_range(place..place + changed.len_utf8(), changed.encode_utf8(&mut [0; 4]));
                    }
                }
                9 => path.truncate(place),
                10 if self.one_in(8) => path.insert_str(place, self.of(&FOREIGN)),
                10 => path.push('/'),
                _ => {
                    let slash = self.of(&["//", "%2f", "\\", "/./", "/x/../", "%2F", "%5C"]);
                    path = path.replacen('/', slash, 2);
                }
            }
        }
        if !path.starts_with('/') && !self.one_in(20) {
            path.insert(0, '/');
        }
        if self.one_in(100) {
            path.push_str(&"a".repeat(2_000));
        }
        path
    }

    fn escape_at(&mut self, path: &mut String, place: usize) {
        let Some(found) = path[place..].chars().next().filter(char::is_ascii) else { return };
        let byte = u32::from(found);
        let escaped = if self.rng.bool() { format!("%{byte:02x}") } else { format!("%{byte:02X}") };
        path.replace_range(place..=place, &escaped);
    }

    fn field(&mut self) -> (String, String) {
        let name = if self.rng.bool() { self.of(&TESTED) } else { self.of(&NAMES) };
        let value = match name {
            "connection" => self.of(&CONNECTIONS),
            "te" => self.of(&["trailers", "gzip", "trailers, deflate;q=0.5"]),
            "x-answer" => self.of(&ANSWERS),
            "traceparent" => "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "x-forwarded-client-cert" => "By=spiffe://elsewhere;URI=spiffe://elsewhere/ns/default/dc/dc1/svc/admin",
            "x-forwarded-for" => self.of(&["10.0.0.1", "10.0.0.1, 192.0.2.7", "nonsense"]),
            "x-forwarded-proto" => self.of(&["http", "https", "ftp"]),
            "x-envoy-original-path" => "/private",
            "X-Envoy-Retry-On" => self.of(&["5xx", "retriable-status-codes", "reset", "nonsense"]),
            "x-envoy-max-retries" => self.of(&["0", "1", "9", "nonsense"]),
            "x-envoy-retriable-status-codes" => "503,404",
            "x-envoy-upstream-rq-timeout-ms" => self.of(&["10000", "nonsense"]),
            "x-envoy-internal" => "true",
            "keep-alive" => "timeout=5",
            _ => self.of(&VALUES),
        };
        let value = if self.one_in(300) { "v".repeat(5_000) } else { value.to_owned() };
        let space = self.of(&[" ", " ", " ", "", "  ", "\t"]);
        (name.to_owned(), format!("{space}{value}"))
    }

    /// A body, its end known in a way that nobody can misunderstand.
    fn body(&mut self, case: &mut Case) {
        let body = self.of(&["", "a", "hello", "GET /private HTTP/1.1\r\nhost: shop\r\n\r\n"]);
        if self.rng.bool() {
            case.fields.push(("content-length".to_owned(), format!(" {}", body.len())));
            body.clone_into(&mut case.body);
            return;
        }
        case.fields.push(("transfer-encoding".to_owned(), " chunked".to_owned()));
        if !body.is_empty() {
            let _ = write!(case.body, "{:x}\r\n{body}\r\n", body.len());
        }
        case.body.push_str("0\r\n\r\n");
    }

    /// Something that readers understand differently, or not at all.
    fn oddity(&mut self, case: &mut Case) {
        let length = |value: &str| ("content-length".to_owned(), value.to_owned());
        let coding = |value: &str| ("transfer-encoding".to_owned(), value.to_owned());
        match self.rng.usize(..16) {
            0 => case.fields.extend([length(" 5"), coding(" chunked")]),
            1 => case.fields.extend([length(" 5"), length(" 5")]),
            2 => case.fields.extend([length(" 5"), length(" 6")]),
            3 => case.fields.push(coding(self.of(&[" chunked, chunked", " identity", " xchunked", " gzip, chunked"]))),
            4 => {
                case.fields.push(length(self.of(&[" +5", " 0x5", " 5,5", " -1", " 5 ", " "])));
                "hello".clone_into(&mut case.body);
            }
            5 => case.fields.push(("x key".to_owned(), " abc".to_owned())),
            6 => case.fields.push(("x-key ".to_owned(), " abc".to_owned())),
            7 => case.fields.push(("x-fold".to_owned(), " a\r\n b".to_owned())),
            8 => case.fields.push(("x-bare".to_owned(), " a\nx-key: abc".to_owned())),
            9 => case.version = self.of(&["HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "http/1.1", "HTTP/1.0"]),
            10 => case.fields.push(("host".to_owned(), " elsewhere".to_owned())),
            11 => case.fields.push((String::new(), " abc".to_owned())),
            12 => case.fields.push(("x-key".to_owned(), " a\0b".to_owned())),
            13 => case.method.push(' '),
            14 => case.fields.push(("x-many".to_owned(), format!(" {}", "m".repeat(70_000)))),
            _ => {
                case.fields.push(coding(" chunked"));
                case.body = self
                    .of(&["5;x=y\r\nhello\r\n0\r\n\r\n", "0\r\nx-trailer: a\r\n\r\n", "5\nhello\n0\n\n", "zz\r\n"])
                    .to_owned();
            }
        }
    }
}
