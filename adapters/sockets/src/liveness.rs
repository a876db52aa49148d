//! Peers that have vanished without a word: the kernel asks idle ones for a sign of life, and gives up those that
//! acknowledge nothing.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Silence after which the kernel asks for a sign of life. Middleboxes forget connections after some minutes.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);

/// Time between two such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Unanswered questions after which a connection is given up: a peer that vanished while idle is noticed within a minute.
const KEEPALIVE_PROBES: u32 = 3;

/// Time for which sent bytes may stay unacknowledged, or a peer may have no room for more. Long enough for a reader that
/// pauses, short beside the quarter of an hour that TCP takes by itself.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(120);

/// Has the kernel end a connection whose peer has vanished.
///
/// # Errors
/// [`io::Error`] if the operating system refuses an option.
pub fn notice_dead_peers(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_PROBES))?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn the_kernel_is_told_how_long_a_peer_may_be_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("a connection");
        notice_dead_peers(&stream).expect("set");
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().expect("read"));
        assert_eq!(socket.tcp_keepalive_time().expect("read"), KEEPALIVE_AFTER);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().expect("read"), Some(USER_TIMEOUT));
    }
}
