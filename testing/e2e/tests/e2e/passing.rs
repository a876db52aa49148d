//! What has to pass between two services, and what has not, whoever serves as their sidecars.

use serde_json::json;
use starling_e2e::{Connection, Instance, Mesh, MeshOptions, Method, Plane, Served, Workload, eventually, http};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const HANDLE: &str = "/FakeService/Handle";
const GRPC_OK: u32 = 0;
const PERMISSION_DENIED: u32 = 7;

/// A mesh in which web calls a service of each protocol; `caller` is web's sidecar, `called` that of all others.
pub(crate) struct Passing {
    mesh: Mesh,
    web: Instance<Served>,
    called: Vec<Instance<Served>>,
    /// The application that speaks WebSocket.
    chat: TcpListener,
}

impl Passing {
    pub(crate) async fn start(caller: Plane, called: Plane) -> Self {
        let mesh = Mesh::start(MeshOptions { native: true, ..MeshOptions::default() }).await;
        for (service, protocol) in [("h1", "http"), ("h2", "http2"), ("rpc", "grpc"), ("chat", "http")] {
            mesh.protocol(service, protocol).await;
        }
        let chat = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = chat.local_addr().expect("an address").port();
        let web = Workload::new("web").calls("h1").calls("h2").calls_grpc("rpc").calls("raw").calls("chat");
        let (web, h1, h2, rpc, raw, talks) = tokio::join!(
            web.start_on(&mesh, caller),
            Workload::new("h1").start_on(&mesh, called),
            Workload::new("h2").start_on(&mesh, called),
            Workload::new("rpc").env("SERVER_TYPE", "grpc").start_on(&mesh, called),
            Workload::new("raw").start_on(&mesh, called),
            Workload::new("chat").field("Port", json!(port)).start_on(&mesh, called),
        );
        Self { mesh, web, called: vec![h1, h2, rpc, raw, talks], chat }
    }

    /// Everything passes, and is known by the caller's certificate.
    pub(crate) async fn all_passes(&self) {
        for (service, over_http2) in [("h1", false), ("h1", true), ("h2", false), ("h2", true)] {
            let authority = self.web.upstream(service);
            let what = format!("{service} answers, over HTTP/2: {over_http2}");
            let answer = eventually(&what, async || {
                let mut connection = match over_http2 {
                    false => Connection::open(&authority).await?,
                    true => Connection::open_http2(&authority).await?,
                };
                let answer = connection.get("/shop/../shop//x?basket=7").await?;
                anyhow::ensure!(answer.status == 200, "{}: {}", answer.status, answer.text());
                Ok(answer.json())
            })
            .await;
            assert_eq!((&answer["name"], &answer["request"]["path"]), (&json!(service), &json!("/shop/x")), "{what}");
            let certificate = answer["request"]["headers"]["x-forwarded-client-cert"].as_str().unwrap_or("");
            assert!(certificate.ends_with("/ns/default/dc/dc1/svc/web"), "{what}: {certificate}");
        }
        self.grpc(GRPC_OK).await;
        let raw = eventually("raw answers", async || http::get(&self.web.upstream("raw"), "/").await).await;
        assert_eq!(raw.json()["name"], "raw");
        let body = vec![b'x'; 4 * 1024 * 1024];
        for service in ["h1", "h2"] {
            let sent = http::request(Method::POST, &self.web.upstream(service), "/large", &[], body.clone()).await;
            assert_eq!(sent.expect("an answer").status, 200, "a large body to {service}");
        }
        self.websocket().await;
        self.envoys_carry_it().await;
    }

    /// Where an Envoy is the sidecar, it is the one that carries the traffic.
    async fn envoys_carry_it(&self) {
        if let Some(caller) = self.web.sidecar.envoy() {
            assert!(caller.stat("cluster.h1.", ".upstream_rq_total").await > 0, "web's Envoy has called nobody");
        }
        for called in self.called.iter().filter_map(|instance| instance.sidecar.envoy()) {
            assert!(called.stat("cluster.local_app.", "upstream_cx_total").await > 0, "an Envoy was not called");
        }
    }

    async fn websocket(&self) {
        let mut client = TcpStream::connect(self.web.upstream("chat")).await.expect("a connection");
        let upgrade = "GET /chat HTTP/1.1\r\nhost: chat\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                       sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        client.write_all(upgrade.as_bytes()).await.expect("to be able to send");
        let mut app = eventually("the application is asked", async || {
            let (mut app, _) = self.chat.accept().await?;
            let asked = head(&mut app).await?;
            // Checks connect, too, and say nothing.
            anyhow::ensure!(asked.to_lowercase().contains("upgrade: websocket\r\n"), "{asked}");
            Ok(app)
        })
        .await;
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
        app.write_all(agreed.as_bytes()).await.expect("to be able to send");
        let answer = head(&mut client).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        for round in 0..3_u8 {
            client.write_all(&[round; 1_000]).await.expect("to be able to send");
            let mut seen = [0; 1_000];
            app.read_exact(&mut seen).await.expect("what was sent");
            app.write_all(&seen).await.expect("to be able to send");
            client.read_exact(&mut seen).await.expect("what was sent");
            assert_eq!(seen, [round; 1_000]);
        }
        drop(app);
        assert_eq!(client.read(&mut [0; 1]).await.unwrap_or(0), 0, "the end passes, too");
    }

    /// What intentions deny is denied, by request and by connection, and passes again when they are gone.
    pub(crate) async fn intentions_decide(&self) {
        let deny_admin = json!([{"Action": "deny", "HTTP": {"PathPrefix": "/admin"}}]);
        for service in ["h1", "h2"] {
            let change = self.mesh.permissions("web", service, &deny_admin).await.index();
            self.mesh.settled(change).await;
            for (path, status) in [
                ("/admin", 403),
                ("/shop/../admin/x", 403),
                ("//admin", 403),
                ("/%61dmin", 403),
                ("/shop/..%2fadmin", 403),
                ("/shop", 200),
            ] {
                let answer = http::get(&self.web.upstream(service), path).await.expect("an answer");
                assert_eq!(answer.status, status, "{path} of {service}: {}", answer.text());
                assert!(status == 200 || answer.text() == "RBAC: access denied", "{}", answer.text());
            }
        }
        for service in ["rpc", "raw", "chat"] {
            let change = self.mesh.intention("web", service, "deny").await.index();
            self.mesh.settled(change).await;
        }
        self.grpc(PERMISSION_DENIED).await;
        assert!(http::get(&self.web.upstream("raw"), "/").await.is_err(), "the connection is closed");
        let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
        let refused = http::request(Method::GET, &self.web.upstream("chat"), "/chat", &upgrade, "").await;
        assert_eq!(refused.expect("an answer").status, 403);
        for service in ["h1", "h2", "rpc", "raw", "chat"] {
            let change = self.mesh.delete_intention("web", service).await.index();
            self.mesh.settled(change).await;
        }
        self.all_passes().await;
    }

    async fn grpc(&self, expected: u32) {
        let headers = [("content-type", "application/grpc"), ("te", "trailers")];
        eventually(&format!("the gRPC call ends with {expected}"), async || {
            let mut connection = Connection::open_http2(&self.web.upstream("rpc")).await?;
            let answer = connection.send(Method::POST, HANDLE, &headers, vec![0; 5]).await?;
            anyhow::ensure!(answer.status == 200, "{}", answer.status);
            let code = answer.header("grpc-status").map_or(Ok(GRPC_OK), str::parse)?;
            anyhow::ensure!(code == expected, "{code}");
            anyhow::ensure!(code != GRPC_OK || answer.body.len() > 5, "no message");
            Ok(())
        })
        .await;
    }
}

async fn head(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(head)?)
}
