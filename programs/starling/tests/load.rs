//! `starling load` as a script calls it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

/// Answers every request on every connection until this process ends.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

fn answer(mut stream: TcpStream) {
    let mut head = [0; 1024];
    while stream.read(&mut head).is_ok_and(|length| length > 0) {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    }
}

fn load(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.env_clear().arg("load").args(arguments).stdin(Stdio::null());
    command.output().expect("the binary")
}

#[test]
fn the_figures_are_written_for_scripts() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("load.json");
    let url = format!("http://{}/", server());
    let json = path.to_str().expect("a path");
    for pace in [["--closed", "-n50"], ["--rate=500", "-d200ms"]] {
        let output = load(&[&url, "-c", "4", pace[0], pace[1], "--json", json]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(" successes/s, 0 errors") && text.contains("99.9 %"), "{text}");
        let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
        // A machine that is busy otherwise may not let the generator keep its schedule, which has to be said then.
        assert_eq!(output.status.success(), figures["void"].is_null(), "{output:?}");
        assert_eq!(
            figures["void"].is_null(),
            figures["slip_ms"]["p99"].as_f64().is_none_or(|late| late <= 5.0),
            "{text}"
        );
        let requests = figures["requests"].as_u64().expect("a count");
        assert_eq!(
            (requests, &figures["status"]["200"]),
            (if pace[0] == "--closed" { 50 } else { 100 }, &requests.into())
        );
        assert!(figures["latency_ms"]["p999"].as_f64() > Some(0.0), "{figures}");
        assert_eq!(figures["slip_ms"].is_null(), pace[0] == "--closed");
    }
}

#[test]
fn nobody_there_is_no_figure() {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let output = load(&[&format!("http://{address}/"), "-n", "1"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains(&address.to_string()), "{text}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let output = load(&["ftp://x/"]);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("grpc://"), "{output:?}");
}
