//! Bytes in both directions, each until its own end.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::time::{Instant, sleep};

use crate::access_log::Event;
use crate::connections::Connection;
use crate::failure::Failure;
use crate::listener::Listening;
use crate::metrics::Ending;
use crate::served::{Peer, Side};
use crate::stream::{Conn, Stream};
use crate::timeouts::Timeouts;
use crate::upstream::{Lease, Wish};

/// Serves a client's connection to a service of which nothing is known but bytes.
pub(crate) async fn serve(stream: Stream, listening: Rc<Listening>, peer: Peer) {
    let side = listening.side();
    if !side.allows_connection(&peer) {
        return log(&side, &peer, Event::bare(&peer.connection, Ending::Failed(Failure::DENIED)));
    }
    pass_while(stream, listening, peer, Side::allows_connection).await;
}

fn log(side: &Side, peer: &Peer, event: Event<'_>) {
    if let Some(log) = side.log() {
        let took = peer.connection.since.elapsed();
        log.log(&Event { took, ..event });
    }
}

/// Passes a connection on, whatever the intentions say.
pub(crate) async fn pass(stream: Stream, listening: Rc<Listening>, peer: Peer) {
    pass_while(stream, listening, peer, |_, _| true).await;
}

/// Passes a connection on for as long as it is allowed, and both ends are trusted.
async fn pass_while(stream: Stream, listening: Rc<Listening>, peer: Peer, allows: impl Fn(&Side, &Peer) -> bool) {
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
    let is_denied = Cell::new(false);
    // A server outside the mesh is trusted by roots of its own, which the mesh's do not vouch for.
    let server = lease.conn.as_ref().filter(|_| to.is_in_mesh()).map(Conn::chain).unwrap_or_default();
    let until = async {
        let allowed = |side: &Side| allows(side, &peer);
        tokio::select! {
            () = listening.until_denied(peer.connection.chain(), allowed) => {}
            () = listening.until_denied(&server, |_| true), if !server.is_empty() => {}
        }
        is_denied.set(true);
    };
    let (received, sent) = splice(&mut Conn::new(stream), lease, &listening, &peer.connection, until).await;
    let ending = if is_denied.get() { Ending::Failed(Failure::DENIED) } else { Ending::Closed };
    log(Event { upstream, host, received, sent, ..Event::bare(&peer.connection, ending) });
}

/// Passes bytes on in both directions until both have ended; how many they were.
pub(crate) async fn splice(
    client: &mut Conn,
    mut lease: Lease,
    listening: &Listening,
    connection: &Connection,
    until: impl Future<Output = ()>,
) -> (u64, u64) {
    let Some(server) = &mut lease.conn else { return (0, 0) };
    let timeouts = &listening.timeouts;
    let (received, sent) = relay((client, server), connection, timeouts, until).await;
    listening.metrics.moved(received, sent);
    (received, sent)
}

/// Passes bytes on between two connections until both have ended, nothing has moved for too long, or `until` completes.
pub(crate) async fn relay(
    (client, server): (&mut Conn, &mut Conn),
    connection: &Connection,
    timeouts: &Timeouts,
    until: impl Future<Output = ()>,
) -> (u64, u64) {
    let (mut up, mut down) = (Half::default(), Half::default());
    let mut rest = pin!(sleep(timeouts.tcp_idle));
    let (mut seen, mut last, mut is_half) = (0, Instant::now(), false);
    let mut until = pin!(until);
    connection.relays();
    let moved = std::future::poll_fn(|cx| {
        if until.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok::<_, io::Error>("it is no longer allowed"));
        }
        let (over_up, over_down) = (up.poll(cx, client, server)?.is_ready(), down.poll(cx, server, client)?.is_ready());
        if over_up && over_down {
            return Poll::Ready(Ok("it has ended"));
        }
        if up.moved + down.moved != seen {
            (seen, last) = (up.moved + down.moved, Instant::now());
            connection.moved_at(last.into_std());
        }
        if (over_up || over_down) && !std::mem::replace(&mut is_half, true) {
            last = Instant::now();
            rest.as_mut().reset(last + timeouts.half_closed);
        }
        let patience = if is_half { timeouts.half_closed } else { timeouts.tcp_idle };
        while rest.as_mut().poll(cx).is_ready() {
            if last.elapsed() >= patience {
                return Poll::Ready(Ok("nothing has moved for too long"));
            }
            rest.as_mut().reset(last + patience);
        }
        Poll::Pending
    });
    match moved.await {
        Ok(reason) => tracing::trace!(remote = %connection.remote(), reason, "a connection is closed"),
        Err(error) => tracing::trace!(%error, "a connection broke off"),
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
