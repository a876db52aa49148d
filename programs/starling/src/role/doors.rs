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
pub(crate) fn http(address: SocketAddr) -> anyhow::Result<TcpListener> {
    starling_rpc::listen(address).with_context(|| taken("the HTTP API", address, "--http-addr"))
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

/// Refuses two doors that would be at one address and port, each by what it is.
///
/// # Errors
/// The first two of them.
pub(crate) fn apart<'a>(doors: impl IntoIterator<Item = (&'a str, &'a [SocketAddr])>) -> anyhow::Result<()> {
    let mut known: Vec<(&str, SocketAddr)> = Vec::new();
    for (door, addresses) in doors {
        // At port 0 each gets one of its own.
        for address in addresses.iter().filter(|address| address.port() != 0) {
            if let Some((other, _)) = known.iter().find(|(_, other)| overlap(*other, *address)) {
                return Err(usage(format!(
                    "{other} and {door} cannot both be at {address}: give each a port of its own"
                )));
            }
            known.push((door, *address));
        }
    }
    Ok(())
}

/// Whether whoever listens at one of them keeps others from the other.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    // Linux serves IPv4 at [::], too.
    let has = |all: SocketAddr, one: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    one.port() == other.port() && (one.ip() == other.ip() || has(one, other) || has(other, one))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_are_apart_unless_one_keeps_others_from_another() {
        let judged = |texts: &[&str]| {
            let addresses: Vec<[SocketAddr; 1]> = texts.iter().map(|text| [text.parse().expect(text)]).collect();
            let names = ["the HTTP API", "DNS", "xDS"];
            apart(names.into_iter().zip(addresses.iter().map(<[SocketAddr; 1]>::as_slice)))
        };
        for fine in [
            &["127.0.0.1:1", "127.0.0.1:2"][..],
            &["127.0.0.1:0", "127.0.0.1:0"],
            &["127.0.0.1:1", "127.0.0.2:1", "[::1]:1"],
            &["0.0.0.0:1", "[::1]:1"],
        ] {
            judged(fine).expect("apart");
        }
        for taken in [
            &["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1"][..],
            &["0.0.0.0:1", "10.0.0.1:1"],
            &["10.0.0.1:1", "[::]:1"],
            &["[::1]:1", "[::]:1"],
        ] {
            let error = judged(taken).expect_err("at one place").to_string();
            assert!(error.starts_with("the HTTP API and ") && error.contains(":1: give each"), "{error}");
        }
    }
}
