//! Connections that are passed on to where they were going, as they are.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::origin::reset;
use crate::metrics::Fate;
use crate::stream::{Conn, Stream};
use crate::tcp;

/// Time to connect; as to peers, where nobody says anything else.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Passes bytes on until both sides have ended; says what becomes of the connection once that is known. Nothing is read
/// before there is somebody to send it to, and what the server says first reaches the client first.
pub(super) async fn on(client: TcpStream, destination: SocketAddr, tell: impl FnOnce(Fate)) {
    let server = match timeout(CONNECT_TIMEOUT, TcpStream::connect(destination)).await {
        Ok(Ok(server)) => server,
        Ok(Err(_)) | Err(_) => {
            tracing::debug!(%destination, "nobody is where a connection was going");
            reset(&client);
            return tell(Fate::Unreachable);
        }
    };
    tell(Fate::Passed);
    if client.set_nodelay(true).is_ok() && server.set_nodelay(true).is_ok() {
        let (mut client, mut server) = (Conn::new(Stream::Plain(client)), Conn::new(Stream::Plain(server)));
        tcp::relay(&mut client, &mut server).await;
    }
}
