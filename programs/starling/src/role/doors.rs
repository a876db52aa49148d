//! Sockets, bound before anything else so that a port in use leaves no trace. Who connects waits until it is served.

use std::io::ErrorKind;
use std::net::SocketAddr;

use anyhow::Context;
use starling_rpc::{LoopbackListener, NotLoopback};
use tokio::net::{TcpListener, UdpSocket};

use crate::outcome::usage;

/// Both halves of DNS, on one port.
pub(crate) struct DnsSockets {
    pub(crate) udp: UdpSocket,
    pub(crate) tcp: TcpListener,
}

/// For the HTTP API.
pub(crate) async fn http(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| taken("the HTTP API", address, "--http-addr"))
}

/// For xDS in plaintext.
pub(crate) async fn grpc(address: SocketAddr) -> anyhow::Result<LoopbackListener> {
    match LoopbackListener::bind(address).await {
        Err(error) if error.get_ref().is_some_and(|inner| inner.is::<NotLoopback>()) => {
            Err(usage(format!("--grpc-addr: {error}; for other machines there is --grpc-tls-addr")))
        }
        bound => bound.with_context(|| taken("xDS", address, "--grpc-addr")),
    }
}

/// For agents, and xDS over TLS.
pub(crate) fn grpc_tls(address: SocketAddr) -> anyhow::Result<TcpListener> {
    starling_rpc::listen(address).with_context(|| taken("gRPC over TLS", address, "--grpc-tls-addr"))
}

/// Ports tried where any will do: what is free for UDP is often a connection's of TCP on a busy machine.
const PORTS_TRIED_MAX: u32 = 64;

/// For DNS, at each of these.
pub(crate) async fn dns(addresses: &[SocketAddr]) -> anyhow::Result<Vec<DnsSockets>> {
    let mut all = Vec::new();
    for address in addresses {
        all.push(dns_at(*address).await?);
    }
    Ok(all)
}

/// The port of the first of them.
pub(crate) fn port(sockets: &[DnsSockets]) -> Option<u16> {
    sockets.first().and_then(|first| first.udp.local_addr().ok()).map(|address| address.port())
}

async fn dns_at(address: SocketAddr) -> anyhow::Result<DnsSockets> {
    let what = || taken("DNS", address, "--dns-addr");
    for _ in 0..PORTS_TRIED_MAX {
        // With port 0 both halves still share one port.
        let udp = UdpSocket::bind(address).await.with_context(what)?;
        match TcpListener::bind(udp.local_addr()?).await {
            Ok(tcp) => return Ok(DnsSockets { udp, tcp }),
            Err(error) if address.port() == 0 && error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error).with_context(what),
        }
    }
    anyhow::bail!("{PORTS_TRIED_MAX} ports were tried, and none is free for DNS over both UDP and TCP")
}

pub(super) fn taken(what: &str, address: SocketAddr, flag: &str) -> String {
    format!("cannot listen on {address} for {what}; is another starling running? choose another with {flag}")
}
