//! Bytes in both directions, each until its own end.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::listener::Listening;
use crate::served::Peer;
use crate::stream::{Conn, Stream};
use crate::upstream::Lease;

/// Serves a client's connection to a service of which nothing is known but bytes.
pub(crate) async fn serve(stream: Stream, listening: Rc<Listening>, peer: Peer) {
    let side = listening.side();
    if !side.allows_connection(&peer) {
        listening.metrics.refused(403);
        return;
    }
    let lease = match side.upstream().lease(true).await {
        Ok(lease) => lease,
        Err(error) => {
            tracing::debug!(%error, "a connection could not be passed on");
            listening.metrics.refused(503);
            return;
        }
    };
    splice(&mut Conn::new(stream), lease, &listening).await;
}

/// Passes bytes on in both directions until both have ended.
pub(crate) async fn splice(client: &mut Conn, mut lease: Lease, listening: &Listening) {
    let Some(server) = &mut lease.conn else { return };
    let (mut up, mut down) = (Half::default(), Half::default());
    let moved = std::future::poll_fn(|cx| {
        let up = up.poll(cx, client, server)?;
        let down = down.poll(cx, server, client)?;
        if up.is_ready() && down.is_ready() { Poll::Ready(Ok::<_, io::Error>(())) } else { Poll::Pending }
    });
    let ended = moved.await;
    if let Err(error) = ended {
        tracing::trace!(%error, "a connection broke off");
    }
    listening.metrics.moved(up.moved, down.moved);
}

/// One direction.
#[derive(Default)]
struct Half {
    moved: u64,
    ended: bool,
    shut: bool,
}

impl Half {
    fn poll(&mut self, cx: &mut Context<'_>, from: &mut Conn, to: &mut Conn) -> Poll<io::Result<()>> {
        loop {
            if self.shut {
                return Poll::Ready(Ok(()));
            }
            if !from.read.is_empty() && to.write.is_empty() {
                self.moved += from.read.len() as u64;
                std::mem::swap(&mut from.read, &mut to.write);
            }
            std::task::ready!(to.poll_write_out(cx))?;
            if self.ended {
                std::task::ready!(to.poll_shut(cx))?;
                self.shut = true;
                continue;
            }
            if from.read.is_empty() && std::task::ready!(from.poll_fill(cx))? == 0 {
                self.ended = true;
            }
        }
    }
}
