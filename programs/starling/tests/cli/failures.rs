//! What goes wrong between the binary and the API: the text, and the exit code.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use crate::api::{Api, run};

/// An address at which nobody listens.
fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("its address").to_string()
}

/// A server that says one thing to whoever comes, whatever is asked.
fn says(words: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(words);
        }
    });
    address
}

#[test]
fn an_api_that_is_not_there_is_said_to_be_so() {
    let address = nobody();
    let words = [address.as_str(), "connection refused", "does an agent or a server run there?", "STARLING_HTTP_ADDR"];
    for command in ["nodes", "services", "status", "can a b", "connect envoy -sidecar-for web-1 -bootstrap"] {
        run(&format!("{command} -http-addr {address}"), "", &[]).fails(3, &words);
    }
    run(&format!("-http-addr {address} nodes"), "", &[]).fails(3, &words);
    run("nodes", "", &[("CONSUL_HTTP_ADDR", &address)]).fails(3, &words);
    run("nodes", "", &[("CONSUL_HTTP_ADDR", "unix:///nowhere/starling.sock")]).fails(3, &["no such socket"]);
}

#[test]
fn something_that_is_no_api_is_said_to_be_so() {
    let ssh = says(b"SSH-2.0-OpenSSH_9.2\r\n");
    run("nodes", "", &[("STARLING_HTTP_ADDR", &ssh)]).fails(3, &["is it a Starling API?"]);
    let page = says(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>");
    run("nodes", "", &[("STARLING_HTTP_ADDR", &page)])
        .fails(3, &["/v1/catalog/nodes", "not what a Starling API gives"]);
    let half = says(b"HTTP/1.1 200 OK\r\ncontent-length: 60\r\n\r\n[");
    run("nodes", "", &[("STARLING_HTTP_ADDR", &half)]).fails(3, &["broke before the answer was there"]);
}

#[test]
fn the_servers_words_are_passed_on() {
    let can = "GET /starling/v1/can?source=a&destination=b";
    let api = Api::serve(&[(can, 400, "source: no such\nthing")]);
    api.run("can a b").fails(2, &["cannot tell whether a may call b", "source: no such\nthing (HTTP 400)"]);
    Api::serve(&[(can, 500, "the store is broken")]).run("can a b").fails(3, &["the store is broken (HTTP 500)"]);
    Api::serve(&[(can, 403, "Permission denied")]).run("can a b").fails(1, &["Permission denied (HTTP 403)"]);
    Api::serve(&[(can, 503, "")]).run("can a b").fails(3, &["the API refused (HTTP 503)"]);
}

#[test]
fn tokens_go_with_every_request() {
    let api = Api::serve(&[("GET /v1/catalog/nodes", 200, "[]")]);
    assert_eq!(api.run_with("nodes", "", &[("CONSUL_HTTP_TOKEN", "of-consul")]).code, 0);
    assert_eq!(api.run_with("nodes -token own", "", &[("CONSUL_HTTP_TOKEN", "of-consul")]).code, 0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "from-file\n").unwrap();
    assert_eq!(api.run(&format!("nodes -token-file={}", file.display())).code, 0);
    let nodes = "GET /v1/catalog/nodes token=";
    assert_eq!(api.seen(), ["of-consul", "own", "from-file"].map(|token| format!("{nodes}{token}")));
}

#[test]
fn a_unix_socket_is_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]").unwrap();
    });
    let address = format!("unix://{}", path.display());
    run("nodes", "", &[("CONSUL_HTTP_ADDR", &address)]).prints(0, "Node  ID  Address  DC\n");
    server.join().unwrap();
}

#[test]
fn a_name_and_a_password_are_for_whoever_is_in_front_of_the_api() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut head, mut piece) = (Vec::new(), [0; 1024]);
        while !head.ends_with(b"\r\n\r\n") {
            let read = stream.read(&mut piece).unwrap();
            assert!(read > 0);
            head.extend_from_slice(&piece[..read]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]").unwrap();
        String::from_utf8(head).unwrap().to_ascii_lowercase()
    });
    let variables =
        [("CONSUL_HTTP_ADDR", address.as_str()), ("CONSUL_HTTP_AUTH", "user:pass"), ("CONSUL_HTTP_TOKEN", "own")];
    run("nodes", "", &variables).prints(0, "Node  ID  Address  DC\n");
    let head = server.join().unwrap();
    assert!(
        head.contains("authorization: basic dxnlcjpwyxnz\r\n") && head.contains("x-consul-token: own\r\n"),
        "{head}"
    );
}

#[test]
fn a_secure_address_is_never_spoken_to_in_the_clear() {
    let api = Api::serve(&[("GET /v1/catalog/nodes", 200, "[]")]);
    let nobody_trusted = [("CONSUL_HTTP_SSL", "true"), ("SSL_CERT_FILE", "/dev/null"), ("SSL_CERT_DIR", "/nowhere")];
    api.run_with("nodes", "", &nobody_trusted).fails(2, &["--ca-file", "CONSUL_CACERT"]);
    let unverified = [("CONSUL_HTTP_SSL", "true"), ("CONSUL_HTTP_SSL_VERIFY", "false")];
    api.run_with("nodes", "", &unverified).fails(3, &["cannot reach"]);
    assert_eq!(api.seen(), [""; 0]);
}

#[test]
fn wrong_usage_has_one_exit_code() {
    for line in ["", "nodes --nonsense", "frobnicate", "can a", "nodes -o yaml", "dev --http-addr nowhere", "can a b c"]
    {
        run(line, "", &[]).fails(2, &["--help"]);
    }
    run("nodes -http-addr ftp://x", "", &[]).fails(2, &["\"ftp\" is not one of http, https, unix"]);
    run("-http-addr x:1 dev", "", &[]).fails(2, &["write `dev --http-addr"]);
    run("services register /nowhere/web.hcl", "", &[]).fails(2, &["/nowhere/web.hcl"]);
}
