//! The PROXY header that a connection begins with, taken off it.

use std::io;
use std::net::SocketAddr;

use starling_traffic::proxy_protocol::{Header, parse};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Bytes looked at at a time: every header of version 1, and all that are usual of version 2.
const LOOK_BYTES: usize = 512;

/// Takes the header off a connection, and not a byte more: whoever has called, if it says so.
///
/// # Errors
/// When the connection ends or does not begin with one.
pub(crate) async fn take(tcp: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let (mut seen, mut look) = (Vec::new(), vec![0; LOOK_BYTES]);
    loop {
        let count = tcp.peek(&mut look).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let before = seen.len();
        seen.extend_from_slice(&look[..count]);
        let parsed = parse(&seen).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let whole = parsed.map_or(seen.len(), |(_, length)| length);
        // What was seen and belongs to it is there to be read.
        tcp.read_exact(&mut look[..whole - before]).await?;
        match parsed {
            None => {}
            Some((Header::Own, _)) => return Ok(None),
            Some((Header::Of { source, .. }, _)) => return Ok(Some(source)),
        }
    }
}
