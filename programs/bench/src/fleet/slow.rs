//! Nodes that read slowly: what the server sends them goes through a relay that takes only so many bytes a second from
//! its socket.
//!
//! The relay has a small receive buffer, so that its socket is soon full, and what follows waits at the server, as it does
//! for a peer behind a bad line or without time to read. What nodes say is passed on at once. Which nodes read slowly, and
//! what they have to read, is decided elsewhere.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use starling_model::Revision;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Moment;
use super::node::SimulatedNode;
use super::orders::{CatchUp, Collected, SlowNodes};

/// Asked of the operating system, which doubles it for its own needs: a few seconds' reading.
const RECEIVE_BUFFER_BYTES: u32 = 4 * 1024;

/// Time between two reads of a slow reader. Often enough to be no silence, and seldom enough that a hundred relays take
/// nothing from the cores on which is measured.
const TICK: Duration = Duration::from_millis(250);

/// Bytes taken at once while nobody is to be slow.
const PIECE_BYTES: usize = 16 * 1024;

/// Pause between two looks at whether nodes know what they should: they take seconds.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Nodes that are named as examples.
const EXAMPLES_MAX: usize = 5;

/// Bytes that a slow reader takes in a second; `None` for as many as there are.
type Rate = Option<NonZeroU32>;

/// A relay to the server, for nodes that read slowly. Its connections end when it is dropped.
pub(super) struct Relay {
    address: SocketAddr,
    rate: watch::Sender<Rate>,
    ended: Arc<AtomicU32>,
    _accepting: JoinSet<()>,
}

impl Relay {
    /// Opens it on a free port, without a limit.
    ///
    /// # Errors
    /// When no port is free.
    pub(super) async fn open(server: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((server.ip(), 0)).await.context("no port for nodes that read slowly")?;
        let address = listener.local_addr().context("the relay's listener has no address")?;
        let rate = watch::Sender::new(None);
        let ended = Arc::new(AtomicU32::new(0));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, server, rate.subscribe(), Arc::clone(&ended)));
        Ok(Self { address, rate, ended, _accepting: accepting })
    }

    /// Where nodes find it.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on every connection takes so many bytes a second.
    pub(super) fn limit(&self, rate: Rate) {
        self.rate.send_replace(rate);
    }

    /// Connections that have ended, whoever ended them.
    pub(super) fn ended(&self) -> u32 {
        self.ended.load(Ordering::Relaxed)
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, rate: watch::Receiver<Rate>, ended: Arc<AtomicU32>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((node, _)) = accepted else { continue };
                let (rate, ended) = (rate.clone(), Arc::clone(&ended));
                connections.spawn(async move {
                    // What went wrong is the business of the two ends, who notice it.
                    let _ = relay(node, server, rate).await;
                    ended.fetch_add(1, Ordering::Relaxed);
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Passes bytes on, until either end is done.
async fn relay(mut node: TcpStream, server: SocketAddr, rate: watch::Receiver<Rate>) -> io::Result<()> {
    let mut server = dial(server).await?;
    node.set_nodelay(true)?;
    let passed = {
        let ((from_server, mut to_server), (mut from_node, to_node)) = (server.split(), node.split());
        tokio::select! {
            passed = trickle(from_server, to_node, rate) => passed,
            passed = tokio::io::copy(&mut from_node, &mut to_server) => passed.map(drop),
        }
    };
    if passed.is_err() {
        // What was reset at one end is reset at the other: no polite close hides it.
        server.set_zero_linger()?;
        node.set_zero_linger()?;
    }
    passed
}

async fn dial(server: SocketAddr) -> io::Result<TcpStream> {
    let socket = if server.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Before the connection is made, so that no more is ever promised to the server.
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    let server = socket.connect(server).await?;
    server.set_nodelay(true)?;
    Ok(server)
}

async fn trickle(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, mut rate: watch::Receiver<Rate>) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let limit = *rate.borrow_and_update();
        let most = limit.map_or(PIECE_BYTES, bytes_in_a_tick);
        let read = tokio::select! {
            read = from.read(&mut buffer[..most]) => read?,
            changed = rate.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return Ok(()),
            },
        };
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
        if limit.is_some() {
            // Ends early when there is no limit any more, or the relay is gone, which is noticed above.
            let _ = tokio::time::timeout(TICK, rate.changed()).await;
        }
    }
}

fn bytes_in_a_tick(rate: NonZeroU32) -> usize {
    let bytes = u128::from(rate.get()) * TICK.as_millis() / 1000;
    usize::try_from(bytes).unwrap_or(PIECE_BYTES).clamp(1, PIECE_BYTES)
}

/// Waits until every node that can be slow knows what it should, and tells when each was first seen to; each counts with
/// its workloads.
///
/// # Errors
/// When the clock cannot be read.
pub(super) async fn catch_up(nodes: &[SimulatedNode], catch_up: &CatchUp) -> anyhow::Result<Collected> {
    let deadline = Instant::now() + catch_up.within;
    let mut waiting: Vec<_> = nodes.iter().filter(|node| node.is_slow()).collect();
    let mut collected =
        Collected { workloads: waiting.iter().map(|node| u64::from(node.size())).sum(), ..Collected::default() };
    loop {
        let at = Moment::now()?;
        let mut late = Vec::new();
        for node in waiting {
            if is_current(node, catch_up)? {
                collected.reached.push((at, node.size()));
            } else {
                late.push(node);
            }
        }
        if late.is_empty() {
            return Ok(collected);
        }
        if Instant::now() > deadline {
            collected.amiss = u32::try_from(late.len()).unwrap_or(u32::MAX);
            let named = late.iter().take(EXAMPLES_MAX);
            collected
                .examples
                .extend(named.map(|node| format!("{} heard through {}", node.name(), node.heard_through())));
            return Ok(collected);
        }
        waiting = late;
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

fn is_current(node: &SimulatedNode, catch_up: &CatchUp) -> anyhow::Result<bool> {
    if node.heard_through() < Revision(catch_up.revision) {
        return Ok(false);
    }
    for expected in &catch_up.expected {
        if !node.knows(*expected)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How the nodes that can be slow are.
pub(super) fn look(nodes: &[SimulatedNode], relay: Option<&Relay>, revision: Revision) -> SlowNodes {
    let behind = nodes.iter().filter(|node| node.is_slow() && node.heard_through() < revision).count();
    SlowNodes { behind: u32::try_from(behind).unwrap_or(u32::MAX), ended: relay.map_or(0, Relay::ended) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes a second.
    const RATE: NonZeroU32 = NonZeroU32::new(4096).unwrap();

    /// A node's and a server's end of a relayed connection.
    async fn ends() -> (Relay, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = Relay::open(listener.local_addr().unwrap()).await.unwrap();
        let node = TcpStream::connect(relay.address()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (relay, node, server)
    }

    #[tokio::test]
    async fn what_a_slow_reader_does_not_take_waits_at_the_server() {
        let (relay, mut node, server) = ends().await;
        relay.limit(Some(RATE));
        let begun = Instant::now();
        // As much as anybody on the way takes; then the server's own socket is full.
        let mut taken = 0;
        while let Ok(Ok(())) = tokio::time::timeout(TICK / 2, server.writable()).await {
            taken += server.try_write(&[7; PIECE_BYTES]).unwrap_or(0);
        }
        let mut read = 0;
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(more) = tokio::time::timeout_at(begun + TICK * 6, node.read(&mut buffer)).await {
            read += more.unwrap();
        }
        let allowed =
            bytes_in_a_tick(RATE) * usize::try_from(begun.elapsed().as_millis() / TICK.as_millis() + 2).unwrap();
        assert!(read > 0 && read <= allowed, "{read} bytes of {taken}, at most {allowed} in {:?}", begun.elapsed());
        assert!(taken > read, "nothing waits");
        // Nothing is lost, and without a limit all of it comes at once.
        relay.limit(None);
        node.read_exact(&mut vec![0; taken - read]).await.unwrap();
    }

    #[tokio::test]
    async fn what_a_slow_reader_says_is_passed_on_at_once_and_its_end_too() {
        let (relay, mut node, mut server) = ends().await;
        relay.limit(Some(NonZeroU32::MIN));
        let said = vec![9; 100 * PIECE_BYTES];
        let (written, ()) = tokio::join!(node.write_all(&said), async {
            server.read_exact(&mut vec![0; 100 * PIECE_BYTES]).await.unwrap();
        });
        written.unwrap();
        assert_eq!(relay.ended(), 0);
        drop(server);
        assert_eq!(node.read(&mut [0]).await.unwrap(), 0);
        while relay.ended() == 0 {
            tokio::task::yield_now().await;
        }
    }
}
