//! Bytes in both directions, each until its own end.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::access_log::Event;
use crate::failure::Failure;
use crate::listener::Listening;
use crate::metrics::Ending;
use crate::served::{Peer, Side};
use crate::stream::{Conn, Stream};
use crate::upstream::{Lease, Wish};

/// Serves a client's connection to a service of which nothing is known but bytes.
pub(crate) async fn serve(stream: Stream, listening: Rc<Listening>, peer: Peer) {
    let side = listening.side();
    if !side.allows_connection(&peer) {
        return log(&side, &peer, Event::bare(&peer.connection, Ending::Failed(Failure::DENIED)));
    }
    pass(stream, listening, peer).await;
}

fn log(side: &Side, peer: &Peer, event: Event<'_>) {
    if let Some(log) = side.log() {
        let took = peer.connection.since.elapsed();
        log.log(&Event { took, ..event });
    }
}

/// Passes a connection on, whatever the intentions say.
pub(crate) async fn pass(stream: Stream, listening: Rc<Listening>, peer: Peer) {
    let side = listening.side();
    let log = |event| log(&side, &peer, event);
    let Some(to) = side.upstream() else { return };
    let upstream = Some(&*to.name);
    let lease = match to.lease(true, Wish::default()).await {
        Ok(lease) => lease,
        Err(error) => {
            tracing::debug!(%error, "a connection could not be passed on");
            let failure = Failure::from(&error);
            listening.metrics.failed(failure);
            return log(Event { upstream, ..Event::bare(&peer.connection, Ending::Failed(failure)) });
        }
    };
    let host = lease.address();
    let (received, sent) = splice(&mut Conn::new(stream), lease, &listening).await;
    log(Event { upstream, host, received, sent, ..Event::bare(&peer.connection, Ending::Closed) });
}

/// Passes bytes on in both directions until both have ended; how many they were.
pub(crate) async fn splice(client: &mut Conn, mut lease: Lease, listening: &Listening) -> (u64, u64) {
    let Some(server) = &mut lease.conn else { return (0, 0) };
    let (received, sent) = relay(client, server).await;
    listening.metrics.moved(received, sent);
    (received, sent)
}

/// The same between any two connections.
pub(crate) async fn relay(client: &mut Conn, server: &mut Conn) -> (u64, u64) {
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
    (up.moved, down.moved)
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
            if from.read.is_empty() {
                match std::task::ready!(from.poll_relay(cx, to))? {
                    0 => self.ended = true,
                    moved => self.moved += moved as u64,
                }
            }
        }
    }
}
