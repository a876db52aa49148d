//! Connections that are passed on to where they were going, as they are.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::origin::reset;
use crate::connections::Connection;
use crate::listener::prepare;
use crate::metrics::Fate;
use crate::room::may_keep;
use crate::stream::{Conn, Stream};
use crate::tcp;
use crate::timeouts::Timeouts;

/// Time to connect; as to peers, where nobody says anything else.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Passes bytes on until both sides have ended; says what becomes of the connection once that is known. Nothing is read
/// before there is somebody to send it to, and what the server says first reaches the client first.
pub(super) async fn on(
    (client, destination): (TcpStream, SocketAddr),
    connection: &Connection,
    timeouts: &Timeouts,
    tell: impl FnOnce(Fate),
) {
    let server = match timeout(CONNECT_TIMEOUT, TcpStream::connect(destination)).await {
        Ok(Ok(server)) => server,
        Ok(Err(_)) | Err(_) => {
            tracing::debug!(%destination, "nobody is where a connection was going");
            reset(&client);
            return tell(Fate::Unreachable);
        }
    };
    if may_keep(&server).is_err() {
        return tell(Fate::Unreachable);
    }
    tell(Fate::Passed);
    if prepare(&client, connection.remote()).is_ok() && prepare(&server, destination).is_ok() {
        let (mut client, mut server) = (Conn::new(Stream::Plain(client)), Conn::new(Stream::Plain(server)));
        tcp::relay((&mut client, &mut server), connection, timeouts, std::future::pending()).await;
    }
}
