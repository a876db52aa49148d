//! Connections that the kernel leads to a sidecar: each test has a network of its own, with a neighbour on a cable.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use rustls::version::TLS13;
use serde_json::{Value, json};
use starling_e2e::namespace::{Neighbour, as_user, in_namespace, ip};
use starling_e2e::tls::{self, Credentials};
use starling_e2e::{
    DEADLINE, Mesh, MeshOptions, Output, OwnProxy, Plane, Sidecar, Workload, Xds, eventually, free_port,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

/// As whom applications run that are captured; the mesh is root's.
const USER: u32 = 1_000;

/// This machine on the cable, and the one beside it, which has two addresses of each kind.
const HERE: [&str; 2] = ["10.77.0.1", "fd77::1"];
const THERE: [&str; 2] = ["10.77.0.2", "fd77::2"];
const ALSO_THERE: [&str; 2] = ["10.77.0.3", "fd77::3"];

/// Where databases listen.
const DATABASE: u16 = 3_306;

/// Longest time for a greeting that nobody holds up: half of what a proxy would wait that looks at first bytes.
const GREETING_TIME_MAX: Duration = Duration::from_millis(50);

/// A mesh on a machine with a neighbour, to whom everything goes that is not local.
async fn start() -> (Mesh, Neighbour) {
    start_with(true).await
}

/// The same; the sidecars are the agent's if it is `native`, and else processes of their own.
async fn start_with(native: bool) -> (Mesh, Neighbour) {
    let cable = "cable0";
    let ends = [HERE, THERE].map(|[v4, v6]| [format!("{v4}/24"), format!("{v6}/64")]);
    let [here, there] = ends.each_ref().map(|end| end.each_ref().map(String::as_str));
    let neighbour = Neighbour::join(cable, here, there).await;
    ip(&format!("route add default via {}", THERE[0]));
    ip(&format!("-6 route add default via {}", THERE[1]));
    let mesh = Mesh::start(MeshOptions { native, default_policy: Some("deny"), ..MeshOptions::default() }).await;
    (mesh, neighbour)
}

/// `web` with its calls, and what it is sent, captured.
fn web(mode: &str) -> Value {
    let proxy = json!({"Mode": "transparent", "MutualTLSMode": mode});
    let connect = json!({"SidecarService": {"Port": 21_000, "Proxy": proxy}});
    json!({"Name": "web", "Address": "127.0.0.1", "Port": 8_080, "Connect": connect})
}

async fn register_web(mesh: &Mesh, mode: &str) {
    let registered = mesh.register(&web(mode)).await.index();
    web_captures(mesh, registered).await;
}

/// Waits until the sidecar of web is there, as registered.
async fn web_captures(mesh: &Mesh, registered: u64) {
    eventually("the sidecar of web takes what is captured", async || {
        for address in ["127.0.0.1:15001", "[::1]:15001", "127.0.0.1:15006", "[::1]:15006", "127.0.0.1:21000"] {
            tokio::net::TcpStream::connect(address).await?;
        }
        Ok(())
    })
    .await;
    mesh.settled(registered).await;
}

/// A service in the mesh whose application speaks first.
async fn register_database(mesh: &Mesh) {
    greet("127.0.0.1:3306");
    let db = json!({"Name": "db", "Address": "127.0.0.1", "Port": DATABASE, "Connect": {"SidecarService": {"Port": 21_001}}});
    let _ = mesh.register(&db).await;
    starling_e2e::wait::listens(&[21_001]).await;
    let allowed = mesh.intention("web", "db", "allow").await.index();
    mesh.settled(allowed).await;
}

/// What `SERVICE.virtual.consul` is: IPv4, then IPv6.
fn addresses(mesh: &Mesh, service: &str) -> [IpAddr; 2] {
    let ask = |kind: u8| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_read_timeout(Some(DEADLINE)).expect("a time limit");
        let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in [service, "virtual", "consul"] {
            query.push(u8::try_from(label.len()).expect("a short label"));
            query.extend(label.as_bytes());
        }
        query.extend([0, 0, kind, 0, 1]);
        socket.send_to(&query, &mesh.addresses.dns).expect("sent");
        let mut answer = vec![0; 512];
        let count = socket.recv(&mut answer).expect("an answer");
        answer.truncate(count);
        assert_eq!((answer[3] & 0xf, answer[7]), (0, 1), "no such name: {answer:?}");
        answer
    };
    let v4: [u8; 4] = *ask(1).last_chunk().expect("an address");
    let v6: [u8; 16] = *ask(28).last_chunk().expect("an address");
    [IpAddr::from(v4), IpAddr::V6(Ipv6Addr::from(v6))]
}

async fn install(mesh: &Mesh, more: &[&str]) {
    let _ = mesh.cli(&[&["redirect", "install", "--proxy-uid", "0"], more].concat()).await.success();
}

async fn show(mesh: &Mesh) -> Output {
    mesh.cli(&["redirect", "show", "-o", "json"]).await
}

/// Listens in the namespace of this thread, and tells each client at once the port that it comes from.
fn greet(address: &str) {
    let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("a client");
            let port = client.peer_addr().expect("its address").port();
            // It may be gone.
            let _ = writeln!(client, "hello {port}");
            thread::spawn(move || client.read_to_end(&mut Vec::new()));
        }
    });
}

/// How a greeting came.
#[derive(Debug)]
struct Greeting {
    /// Whether the client's own connection reached the server, and not one that somebody made for it.
    direct: bool,
    took: Duration,
}

/// Waits for a server's greeting, without a word.
fn listen_to(to: SocketAddr) -> std::io::Result<Greeting> {
    speak_to(to, &[])
}

/// The same with some words first.
fn speak_to(to: SocketAddr, words: &[u8]) -> std::io::Result<Greeting> {
    let start = Instant::now();
    let mut stream = TcpStream::connect_timeout(&to, DEADLINE)?;
    stream.write_all(words)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let own = stream.local_addr()?.port();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let seen = line.trim().strip_prefix("hello ").and_then(|port| port.parse::<u16>().ok());
    let seen = seen.ok_or_else(|| std::io::Error::other(format!("no greeting: {line:?}")))?;
    Ok(Greeting { direct: seen == own, took: start.elapsed() })
}

/// What a client hears who sends this in pieces, until the other end closes.
fn exchange(to: SocketAddr, bytes: &[u8], piece: usize) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, DEADLINE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    for bytes in bytes.chunks(piece) {
        stream.write_all(bytes)?;
    }
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    Ok(heard)
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n").into_bytes()
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}

/// How often a connection had this outcome.
async fn outcomes(mesh: &Mesh, direction: &str, outcome: &str) -> u64 {
    let metrics = mesh.get("/v1/agent/metrics?format=prometheus").await.success().text();
    outcomes_in(&metrics, direction, outcome)
}

fn outcomes_in(metrics: &str, direction: &str, outcome: &str) -> u64 {
    let labels = [format!("direction=\"{direction}\""), format!("outcome=\"{outcome}\"")];
    let lines = metrics.lines().filter(|line| line.starts_with("starling_proxy_captured_connections_total"));
    let mut lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    lines.next().and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn a_service_is_called_by_its_virtual_address_and_its_policy_holds_however_bytes_come() {
    in_namespace(async || {
        let (mesh, _neighbour) = start().await;
        mesh.protocol("api", "http").await;
        let permissions = json!([{"Action": "allow", "HTTP": {"PathPrefix": "/open"}}]);
        let (_, api) = tokio::join!(register_web(&mesh, "strict"), Workload::new("api").start_on(&mesh, Plane::Native));
        let allowed = mesh.permissions("web", "api", &permissions).await.index();
        mesh.settled(allowed).await;
        install(&mesh, &[]).await;
        for address in addresses(&mesh, "api") {
            for (port, path, status) in [(80, "/open", 200), (9_999, "/open", 200), (80, "/closed", 403)] {
                for piece in [1, 1_000] {
                    let to = SocketAddr::new(address, port);
                    let heard = as_user(USER, move || exchange(to, &get(path), piece)).await;
                    let heard = heard.unwrap_or_else(|error| panic!("{to}{path}: {error}"));
                    assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{to}{path} in {piece}s: {heard}");
                    assert_eq!(heard.contains(&api.id), status == 200, "{heard}");
                }
            }
            // What is no HTTP is no way around it.
            for bytes in
                [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b"SSH-2.0-OpenSSH\r\n", b"\0\0\0\0\r\n\r\n"]
            {
                let to = SocketAddr::new(address, 80);
                let heard = as_user(USER, move || exchange(to, bytes, 1)).await;
                let refused = heard.as_ref().is_ok_and(|heard| heard.is_empty() || heard.starts_with("HTTP/1.1 400 "));
                // One that is closed with bytes unread is reset.
                assert!(refused || heard.is_err(), "{heard:?}");
            }
        }
        // Nobody has it, and nobody is to wait for that.
        let heard = as_user(USER, || exchange(at("240.0.0.1", 80), &get("/open"), 1_000)).await;
        assert!(heard.is_err(), "{heard:?}");
        assert_eq!(outcomes(&mesh, "outbound", "no_service").await, 1);
    });
}

#[test]
fn a_server_that_speaks_first_is_heard_at_once() {
    in_namespace(async || {
        let (mesh, neighbour) = start().await;
        register_web(&mesh, "strict").await;
        register_database(&mesh).await;
        neighbour.run(|| greet("[::]:3306")).await;
        install(&mesh, &[]).await;
        let mesh_addresses = addresses(&mesh, "db");
        let elsewhere = THERE.map(|address| address.parse().expect("an address"));
        for address in mesh_addresses.into_iter().chain(elsewhere) {
            let to = SocketAddr::new(address, DATABASE);
            let mut fastest = Duration::MAX;
            for _ in 0..5 {
                let greeting = as_user(USER, move || listen_to(to)).await;
                let greeting = greeting.unwrap_or_else(|error| panic!("{to}: {error}"));
                assert!(!greeting.direct, "{to} was not captured");
                fastest = fastest.min(greeting.took);
            }
            assert!(fastest < GREETING_TIME_MAX, "{to}: {fastest:?}");
        }
        assert_eq!(outcomes(&mesh, "outbound", "mesh").await, 10);
        assert_eq!(outcomes(&mesh, "outbound", "passed").await, 10);
        let only = json!({"Kind": "mesh", "TransparentProxy": {"MeshDestinationsOnly": true}});
        let only = mesh.config(&only).await.index();
        mesh.settled(only).await;
        for address in THERE {
            let heard = as_user(USER, move || listen_to(at(address, DATABASE))).await;
            assert!(heard.is_err(), "{heard:?}");
        }
        assert_eq!(outcomes(&mesh, "outbound", "not_mesh").await, 2);
        let to = SocketAddr::new(mesh_addresses[0], DATABASE);
        as_user(USER, move || listen_to(to)).await.expect("the mesh goes on");
        assert_eq!(show(&mesh).await.success().json()["outbound_connections"], 23);
    });
}

#[test]
fn what_is_excluded_is_left_alone() {
    in_namespace(async || {
        let (mesh, neighbour) = start().await;
        register_web(&mesh, "strict").await;
        let more = move || {
            ip(&format!("address add {}/24 dev cable0", ALSO_THERE[0]));
            ip(&format!("address add {}/64 dev cable0 nodad", ALSO_THERE[1]));
            ["[::]:3306", "[::]:4000"].into_iter().for_each(greet);
        };
        neighbour.run(more).await;
        let none = show(&mesh).await;
        assert_eq!((none.code, &none.json()), (1, &json!({"installed": false})));
        let networks = ALSO_THERE.map(|address| format!("--exclude-cidr={address}"));
        install(&mesh, &["--exclude-port", "4000-4001", "--exclude-uid", "1001", &networks[0], &networks[1]]).await;
        let captured = async |user: u32, to: SocketAddr| {
            let greeting = as_user(user, move || listen_to(to)).await;
            !greeting.unwrap_or_else(|error| panic!("{to} for {user}: {error}")).direct
        };
        for place in 0..2 {
            assert!(captured(USER, at(THERE[place], DATABASE)).await);
            assert!(!captured(USER, at(THERE[place], 4_000)).await, "the port is excluded");
            assert!(!captured(USER, at(ALSO_THERE[place], DATABASE)).await, "the network is excluded");
            assert!(!captured(1_001, at(THERE[place], DATABASE)).await, "the user is excluded");
            assert!(!captured(0, at(THERE[place], DATABASE)).await, "it is the proxy's user");
        }
        let shown = show(&mesh).await.success().json();
        assert_eq!(shown["excluded_networks"], json!(ALSO_THERE), "{shown:#}");
        assert_eq!(shown["excluded_ports"], json!(["4000-4001"]), "{shown:#}");
        // The second time replaces the first.
        install(&mesh, &[]).await;
        for (there, also_there) in THERE.into_iter().zip(ALSO_THERE) {
            assert!(captured(USER, at(also_there, 4_000)).await);
            assert!(captured(1_001, at(there, DATABASE)).await);
        }
        let _ = mesh.cli(&["redirect", "remove"]).await.success();
        assert_eq!(show(&mesh).await.code, 1);
        for there in THERE {
            assert!(!captured(USER, at(there, DATABASE)).await);
        }
        let left = std::process::Command::new("nft").args(["list", "ruleset"]).output().expect("nft");
        assert_eq!(String::from_utf8_lossy(&left.stdout), "", "remove leaves nothing");
    });
}

#[test]
fn nobody_is_led_around_in_circles() {
    in_namespace(async || {
        let (mut mesh, neighbour) = start().await;
        register_web(&mesh, "strict").await;
        neighbour.run(|| greet("[::]:3306")).await;
        install(&mesh, &[]).await;
        for to in ["127.0.0.1:15001", "[::1]:15001"] {
            let to: SocketAddr = to.parse().expect("an address");
            let heard = as_user(USER, move || listen_to(to)).await;
            assert!(heard.is_err(), "{to} serves itself: {heard:?}");
        }
        let before = outcomes(&mesh, "outbound", "loop").await;
        assert!(before >= 2);
        // A mistake: this is not whom the proxy runs as, so what it calls comes back to it.
        let _ = mesh.cli(&["redirect", "install", "--proxy-uid", "4711"]).await.success();
        for there in THERE {
            let to = at(there, DATABASE);
            let heard = as_user(USER, move || listen_to(to)).await;
            assert!(heard.is_err(), "{heard:?}");
        }
        assert_eq!(
            outcomes(&mesh, "outbound", "loop").await,
            before + 2,
            "each is refused the first time it comes back"
        );
        assert!(mesh.server().log().contains("--proxy-uid"), "whoever made the rules is told");
    });
}

/// What the neighbour hears of this machine's application, and of a port that is nobody's of the mesh.
struct Heard {
    application: std::io::Result<Greeting>,
    other_port: std::io::Result<Greeting>,
    /// Over mutual TLS, at the sidecar's port.
    mesh: anyhow::Result<String>,
}

/// Calls from the neighbour; the client speaks first where nothing is heard, so that no time limit is waited for.
async fn calls_from(neighbour: &Neighbour, address: &'static str, identity: &Credentials) -> Heard {
    let identity = identity.clone();
    let calls = move || {
        let speak_first = |to| speak_to(to, b"hello\r\n");
        let over_tls = async || {
            let mut stream = tls::connect(&at(address, 21_000).to_string(), Some(&identity), &TLS13).await?;
            let mut greeting = vec![0; 6];
            stream.read_exact(&mut greeting).await?;
            Ok(String::from_utf8_lossy(&greeting).into_owned())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Heard {
            application: speak_first(at(address, 8_080)),
            other_port: speak_first(at(address, 9_000)),
            mesh: runtime.block_on(over_tls()),
        }
    };
    neighbour.run(calls).await
}

#[test]
fn an_application_is_sent_what_its_mode_admits_by_either_way() {
    in_namespace(async || {
        let (mesh, neighbour) = start().await;
        greet("127.0.0.1:8080");
        greet("[::]:9000");
        let allowed = mesh.intention("api", "web", "allow").await.index();
        let api = json!({"Name": "api", "Port": 8_081, "Connect": {"SidecarService": {"Port": 21_002}}});
        let _ = mesh.register(&api).await;
        register_web(&mesh, "strict").await;
        mesh.settled(allowed).await;
        let leaf = mesh.get("/v1/agent/connect/ca/leaf/api").await.success().json();
        let identity = Credentials::of_leaf(&leaf);
        for mode in ["strict", "permissive"] {
            register_web(&mesh, mode).await;
            for way in ["redirect", "tproxy"] {
                install(&mesh, &["--mode", way]).await;
                for address in HERE {
                    let heard = calls_from(&neighbour, address, &identity).await;
                    let told = format!("{mode} by {way} at {address}");
                    assert_eq!(heard.mesh.unwrap_or_else(|error| panic!("{told}: {error:#}")), "hello ");
                    for (what, plain) in [("application", heard.application), ("other port", heard.other_port)] {
                        assert_eq!(plain.is_ok(), mode == "permissive", "{told}: {what}: {plain:?}");
                        assert!(
                            plain.is_err() || !plain.expect("a greeting").direct,
                            "{told}: {what} was not captured"
                        );
                    }
                }
                assert_ne!(show(&mesh).await.success().json()["inbound_connections"], 0);
            }
            // What is excluded reaches whoever listens, whatever the mode.
            install(&mesh, &["--exclude-inbound-port", "9000"]).await;
            let excluded = neighbour.run(|| listen_to(at(HERE[0], 9_000))).await.expect("a greeting");
            assert!(excluded.direct);
        }
        // Who calls the port of capture itself was led by nobody.
        let before = outcomes(&mesh, "inbound", "loop").await;
        for address in HERE {
            let heard = neighbour.run(move || listen_to(at(address, 15_006))).await;
            assert!(heard.is_err(), "{heard:?}");
        }
        assert_eq!(outcomes(&mesh, "inbound", "loop").await, before + 2);
    });
}

/// Speaks the mesh's TLS in the namespace of this thread, and greets whoever does, too.
fn greet_over_tls(address: String, identity: &Credentials) {
    let listener = TcpListener::bind(&address).unwrap_or_else(|error| panic!("{address}: {error}"));
    listener.set_nonblocking(true).expect("a socket for a runtime");
    let acceptor = TlsAcceptor::from(identity.server());
    let serve = async move {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        loop {
            let (client, remote) = listener.accept().await.expect("a client");
            // Who speaks anything else is sent nothing.
            if let Ok(mut client) = acceptor.accept(client).await {
                let _ = client.write_all(format!("hello {}\n", remote.port()).as_bytes()).await;
                let _ = client.read_to_end(&mut Vec::new()).await;
            }
        }
    };
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(serve);
    });
}

#[test]
fn an_endpoint_that_is_called_by_its_own_address_is_called_over_the_mesh() {
    in_namespace(async || {
        let (mesh, neighbour) = start().await;
        register_web(&mesh, "strict").await;
        let far = json!({"Name": "far", "Address": THERE[0], "Port": 7_000, "Connect": {"Native": true}});
        let _ = mesh.register(&far).await;
        let leaf = mesh.get("/v1/agent/connect/ca/leaf/far").await.success().json();
        let identity = Credentials::of_leaf(&leaf);
        neighbour.run(move || greet_over_tls(format!("{}:7000", THERE[0]), &identity)).await;
        let allowed = mesh.intention("web", "far", "allow").await.index();
        mesh.settled(allowed).await;
        let plain = as_user(USER, || speak_to(at(THERE[0], 7_000), b"hello\r\n")).await;
        assert!(plain.is_err(), "it speaks TLS only: {plain:?}");
        install(&mesh, &[]).await;
        let captured = as_user(USER, || listen_to(at(THERE[0], 7_000))).await.expect("a greeting");
        assert!(!captured.direct);
        assert_eq!(outcomes(&mesh, "outbound", "mesh").await, 1);
    });
}

#[test]
fn a_proxy_in_a_process_of_its_own_is_led_to_as_the_agent_is() {
    in_namespace(async || {
        let (mesh, neighbour) = start_with(false).await;
        mesh.protocol("api", "http").await;
        greet("127.0.0.1:8080");
        greet("[::]:9000");
        neighbour.run(|| greet("[::]:3306")).await;
        let registered = mesh.register(&web("strict")).await.index();
        let proxy = OwnProxy::spawn(&mesh, "web", &[]);
        let (api, ()) = tokio::join!(Workload::new("api").start_on(&mesh, Plane::Own), web_captures(&mesh, registered));
        let open = json!([{"Action": "allow", "HTTP": {"PathPrefix": "/open"}}]);
        let allowed = mesh.permissions("web", "api", &open).await.index();
        mesh.settled(allowed).await;
        install(&mesh, &[]).await;
        for address in addresses(&mesh, "api") {
            for (path, status) in [("/open", 200), ("/closed", 403)] {
                let to = SocketAddr::new(address, 80);
                let heard = as_user(USER, move || exchange(to, &get(path), 1_000)).await;
                let heard = heard.unwrap_or_else(|error| panic!("{to}{path}: {error}"));
                assert!(heard.starts_with(&format!("HTTP/1.1 {status} ")), "{to}{path}: {heard}");
                assert_eq!(heard.contains(&api.id), status == 200, "{heard}");
            }
        }
        for there in THERE {
            let greeting = as_user(USER, move || listen_to(at(there, DATABASE))).await.expect("a greeting");
            assert!(!greeting.direct, "{there} was not captured");
        }
        let nobody = as_user(USER, || exchange(at("240.0.0.1", 80), &get("/open"), 1_000)).await;
        assert!(nobody.is_err(), "{nobody:?}");

        let allowed = mesh.intention("api", "web", "allow").await.index();
        mesh.settled(allowed).await;
        let leaf = mesh.get("/v1/agent/connect/ca/leaf/api").await.success().json();
        let identity = Credentials::of_leaf(&leaf);
        for address in HERE {
            let heard = calls_from(&neighbour, address, &identity).await;
            assert_eq!(heard.mesh.unwrap_or_else(|error| panic!("{address}: {error:#}")), "hello ");
            assert!(heard.application.is_err() && heard.other_port.is_err(), "{address}: it is strict");
        }
        let stats = proxy.get("/stats").await.text();
        let counted = [("mesh", 4), ("passed", 2), ("no_service", 1)];
        assert_eq!(counted.map(|(outcome, _)| (outcome, outcomes_in(&stats, "outbound", outcome))), counted, "{stats}");
        assert_eq!(outcomes(&mesh, "outbound", "mesh").await, 0, "the agent has no part in it");
    });
}

#[tokio::test]
async fn whoever_has_an_envoy_capture_is_told_that_it_does_not() {
    let mesh = Mesh::start(MeshOptions::default()).await;
    let port = free_port();
    let web = |mode: &str| {
        let proxy = json!({"Mode": mode});
        json!({"Name": "web", "Port": free_port(), "Connect": {"SidecarService": {"Port": port, "Proxy": proxy}}})
    };
    let _ = mesh.register(&web("transparent")).await;
    let _sidecar = Sidecar::start(&mesh, "web", &[port], Xds::default()).await;
    let status = mesh.cli(&["status"]).await.success();
    assert!(status.stdout.contains("web-sidecar-proxy: Proxy.Mode: it is transparent"), "{status}");
    assert!(status.stdout.contains("leave it to the native data plane"), "{status}");
    let direct = mesh.register(&web("direct")).await.index();
    mesh.settled(direct).await;
    let status = mesh.cli(&["status"]).await.success();
    assert!(!status.stdout.contains("Proxy.Mode"), "{status}");
}
