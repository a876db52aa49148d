//! Whether the server at the other end of a connection is still there.
//!
//! A partition between two machines closes nothing. A connection on which calls wait and nothing comes is asked for a sign
//! of life by PING, rarely, since servers count PINGs that come without data: gRPC's end a connection at the third within
//! five minutes.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{sleep, timeout};

use crate::stream::Conn;

/// Silence, while calls wait, after which a sign of life is asked for.
const QUIET: Duration = Duration::from_secs(15);

/// The next silence is this many times as long, up to [`QUIET_MAX`].
const QUIETER: u32 = 5;

/// The longest silence.
const QUIET_MAX: Duration = Duration::from_secs(300);

/// Time for a sign of life to come.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// A connection that counts what is read from it.
pub(super) struct Heard {
    conn: Conn,
    count: Rc<Cell<u64>>,
}

impl Heard {
    pub(super) fn new(conn: Conn, count: &Rc<Cell<u64>>) -> Self {
        Self { conn, count: Rc::clone(count) }
    }
}

impl AsyncRead for Heard {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.conn).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.count.set(this.count.get() + 1);
        }
        read
    }
}

impl AsyncWrite for Heard {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().conn).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().conn).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().conn).poll_shutdown(cx)
    }
}

/// Completes when the server does not answer a PING while calls wait.
pub(super) async fn lost(ping: Option<PingPong>, heard: &Cell<u64>, calls: &Cell<usize>) {
    let Some(mut ping) = ping else { return std::future::pending().await };
    let mut quiet = QUIET;
    loop {
        let before = heard.get();
        sleep(quiet).await;
        if heard.get() != before || calls.get() == 0 {
            quiet = QUIET;
            continue;
        }
        match timeout(ANSWERED_WITHIN, ping.ping(Ping::opaque())).await {
            Ok(Ok(_)) => quiet = (quiet * QUIETER).min(QUIET_MAX),
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::time::Instant;

    use super::*;

    /// A connection with a server that reads, or does not.
    async fn until_lost(answers: bool, calls: usize) -> Option<Duration> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let server = tokio::spawn(async move {
            let mut connection = h2::server::handshake(far).await.expect("a handshake");
            if answers {
                connection.accept().await;
            }
            std::future::pending::<()>().await;
        });
        let (sender, mut connection) =
            h2::client::Builder::new().handshake::<_, Bytes>(near).await.expect("a handshake");
        let (ping, began) = (connection.ping_pong(), Instant::now());
        let (heard, calls) = (Cell::new(0), Cell::new(calls));
        let lost = async {
            tokio::select! {
                _ = &mut connection => panic!("the connection ends"),
                () = lost(ping, &heard, &calls) => began.elapsed(),
            }
        };
        let lost = timeout(Duration::from_secs(3_600), lost).await.ok();
        drop(sender);
        server.abort();
        lost
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_answers_nothing_is_given_up_while_calls_wait() {
        let lost = until_lost(false, 1).await.expect("it is given up");
        assert!(lost >= QUIET && lost <= QUIET + 2 * ANSWERED_WITHIN, "{lost:?}");
        assert_eq!(until_lost(false, 0).await, None, "nobody waits for it");
        assert_eq!(until_lost(true, 1).await, None, "it answers");
    }
}
