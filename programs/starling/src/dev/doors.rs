//! The sockets, bound before anything else so that a port in use leaves no trace.

use std::net::SocketAddr;

use anyhow::Context;
use starling_rpc::{LoopbackListener, NotLoopback};
use tokio::net::{TcpListener, UdpSocket};

use crate::dev_args::DevArgs;
use crate::outcome::usage;

/// Bound, but not yet served: who connects waits.
pub(super) struct Doors {
    pub(super) http: TcpListener,
    pub(super) grpc: LoopbackListener,
    pub(super) grpc_tls: TcpListener,
    pub(super) dns_udp: UdpSocket,
    pub(super) dns_tcp: TcpListener,
}

impl Doors {
    pub(super) async fn bind(args: &DevArgs) -> anyhow::Result<Self> {
        let grpc = match LoopbackListener::bind(args.grpc_addr).await {
            Err(error) if error.get_ref().is_some_and(|inner| inner.is::<NotLoopback>()) => {
                return Err(usage(format!("--grpc-addr: {error}; for other machines there is --grpc-tls-addr")));
            }
            bound => bound.with_context(|| taken("xDS", args.grpc_addr, "--grpc-addr"))?,
        };
        let dns_udp =
            UdpSocket::bind(args.dns_addr).await.with_context(|| taken("DNS", args.dns_addr, "--dns-addr"))?;
        // With port 0 both halves of DNS still share one port.
        let dns = dns_udp.local_addr()?;
        Ok(Self {
            http: bind("the HTTP API", args.http_addr, "--http-addr").await?,
            grpc,
            grpc_tls: bind("xDS over TLS", args.grpc_tls_addr, "--grpc-tls-addr").await?,
            dns_tcp: bind("DNS", dns, "--dns-addr").await?,
            dns_udp,
        })
    }
}

async fn bind(what: &str, address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| taken(what, address, flag))
}

fn taken(what: &str, address: SocketAddr, flag: &str) -> String {
    format!("cannot listen on {address} for {what}; is another starling running? choose another with {flag}")
}
