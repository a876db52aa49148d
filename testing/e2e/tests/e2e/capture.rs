//! Connections that the kernel leads to a sidecar: each test has a network of its own.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use serde_json::json;
use starling_e2e::namespace::{Neighbour, as_user, in_namespace, ip};
use starling_e2e::{DEADLINE, Instance, Mesh, MeshOptions, Plane, Served, Workload, eventually};

/// As whom applications run that are captured; the mesh is root's.
const USER: u32 = 1_000;

/// This machine on the cable, and the one beside it.
const HERE: [&str; 2] = ["10.77.0.1", "fd77::1"];
const THERE: [&str; 2] = ["10.77.0.2", "fd77::2"];

/// A mesh on a machine with a neighbour, to whom everything goes that is not local.
async fn start(policy: &'static str) -> (Mesh, Neighbour) {
    let with = |addresses: [&str; 2]| [format!("{}/24", addresses[0]), format!("{}/64", addresses[1])];
    let (here, there) = (with(HERE), with(THERE));
    let cable = "cable0";
    let neighbour = Neighbour::join(cable, here.each_ref().map(String::as_str), there.each_ref().map(String::as_str));
    ip(&format!("route add default via {}", THERE[0]));
    ip(&format!("-6 route add default via {}", THERE[1]));
    let mesh = Mesh::start(MeshOptions { native: true, default_policy: Some(policy), ..MeshOptions::default() }).await;
    (mesh, neighbour)
}

/// `web`, whose calls are captured, and `api`, which it may call by name.
async fn web_calls_api(mesh: &Mesh, mode: &str) -> Instance<Served> {
    mesh.protocol("api", "http").await;
    mesh.intention("web", "api", "allow").await;
    let web = json!({"SidecarService": {"Proxy": {"Mode": "transparent", "MutualTLSMode": mode}}});
    let register = json!({"Name": "web", "Address": "127.0.0.1", "Port": 8_080, "Connect": web});
    let api = Workload::new("api").start_on(mesh, Plane::Native).await;
    let _ = mesh.register(&register).await;
    eventually("the sidecar of web takes what is captured", async || {
        for address in ["127.0.0.1:15001", "[::1]:15001", "127.0.0.1:15006", "[::1]:15006"] {
            tokio::net::TcpStream::connect(address).await?;
        }
        Ok(())
    })
    .await;
    api
}

/// Where a service is called by an address of its own: IPv4, then IPv6.
async fn addresses(mesh: &Mesh, service: &str) -> [IpAddr; 2] {
    let entries = mesh.get(&format!("/v1/health/connect/{service}")).await.success().json();
    let address = entries[0]["Service"]["TaggedAddresses"]["consul-virtual"]["Address"].as_str();
    let v4: IpAddr = address.unwrap_or_else(|| panic!("no virtual address: {entries:#}")).parse().expect("an address");
    [v4, v4]
}

async fn install(mesh: &Mesh, more: &[&str]) {
    let _ = mesh.cli(&[&["redirect", "install", "--proxy-uid", "0"], more].concat()).await.success();
}

/// What a client hears who sends this, until the other end closes; `Err` with what it heard until it broke.
fn exchange(to: SocketAddr, bytes: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(bytes)?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    Ok(heard)
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n").into_bytes()
}

#[test]
fn a_service_is_called_by_its_virtual_address_at_any_port() {
    in_namespace(async || {
        let (mesh, _neighbour) = start("deny").await;
        let api = web_calls_api(&mesh, "strict").await;
        install(&mesh, &[]).await;
        for address in addresses(&mesh, "api").await {
            for port in [80, 9_999] {
                let heard = as_user(USER, move || exchange(SocketAddr::new(address, port), &get("/"))).await;
                let heard = heard.unwrap_or_else(|error| panic!("{address}:{port}: {error}"));
                assert!(heard.starts_with("HTTP/1.1 200"), "{heard}");
                assert!(heard.contains(&format!("\"name\": \"{}\"", api.id)) || heard.contains("api"), "{heard}");
            }
        }
    });
}
