//! What is asked of the operating system about connections of the mesh.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connections that wait to be accepted: a fleet that comes back at once. Linux caps it at `net.core.somaxconn`, 4,096
/// unless set.
const BACKLOG: u32 = 16_384;

/// How often a connection on which nothing is under way is asked whether the other machine is there; only one that is
/// blocked by flow control is ever so still.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(2);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes that the operating system takes before it has sent those it has: what it holds can no longer coalesce.
const UNSENT_BYTES_MAX: u32 = 16 * 1024;

/// A listener with room for a fleet that comes back at once.
///
/// # Errors
/// [`io::Error`] of the operating system.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A server that is restarted takes its port over from connections that have just ended.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Sets what holds for every connection of the mesh: small messages leave at once, and an end that has vanished is noticed.
///
/// There is no limit to the time that bytes wait to be acknowledged (`TCP_USER_TIMEOUT`): Linux ends by it a connection
/// whose other end has had no room for as long, and who is slow to read is not dead. Who is dead is found out by
/// [`Pulse`](crate::pulse::Pulse).
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_INTERVAL))?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    }
    Ok(())
}
