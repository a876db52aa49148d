//! Sockets to which the kernel leads connections, and where these were going.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::listener::BACKLOG;

/// A socket at which captured connections arrive, beside those of other workers. Where it may be led connections without
/// address translation (TPROXY), it asks for the right to have them; without that right it can be led translated ones only.
pub(super) fn listen(address: SocketAddr, transparent: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        // What comes over IPv4 has a socket of its own, which alone is told where it was going.
        socket.set_only_v6(true)?;
    }
    if transparent {
        let asked =
            if address.is_ipv6() { socket.set_ip_transparent_v6(true) } else { socket.set_ip_transparent_v4(true) };
        if let Err(error) = asked {
            tracing::debug!(%address, %error, "TPROXY is not to be had; REDIRECT needs no right");
        }
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Whether this machine, or its network namespace, has no IPv6.
pub(super) fn is_without_ipv6(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// Where a connection was going before the kernel led it here. One that was led without translation is there: its own
/// address is the one that was called.
pub(super) fn destination(tcp: &TcpStream) -> Option<SocketAddr> {
    let own = tcp.local_addr().ok()?;
    let socket = SockRef::from(tcp);
    let original = if own.is_ipv6() { socket.original_dst_v6() } else { socket.original_dst_v4() };
    Some(original.ok().and_then(|address| address.as_socket()).unwrap_or(own))
}

/// Has a connection end with a reset when it is dropped, as that of a client whom nobody answers would.
pub(super) fn reset(tcp: &TcpStream) {
    // Where that is not possible it ends all the same.
    let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
}
