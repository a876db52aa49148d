//! UDP checks: a datagram that is answered passes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::UdpSocket;

use super::dial;
use super::failure::Failure;
use super::passing;
use crate::registrations::Health;

/// What is sent: a line, which most text protocols answer with an error at least.
const DATAGRAM: &[u8] = b"Starling health check\n";

pub(super) async fn run(address: &str) -> Result<Health, Failure> {
    let answered = ask(address).await.map_err(|failure| failure.of(&format!("UDP {address}")))?;
    Ok(passing(format!("UDP {address}: {answered} bytes came back")))
}

/// Bytes of the first answer, as far as they were read.
async fn ask(address: &str) -> Result<usize, Failure> {
    let to = dial::resolve(address).await?.into_iter().next().ok_or_else(|| "has no address".to_owned())?;
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    // Nobody else's datagrams count, and where nobody listens that is told.
    socket.connect(to).await?;
    socket.send(DATAGRAM).await?;
    Ok(socket.recv(&mut [0; 512]).await?)
}
