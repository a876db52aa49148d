//! One thread of the generator: a runtime of its own, lanes that send, and the clock of the open loop.
//!
//! A lane is what has at most one request under way: a connection, or a stream of one. Nothing is shared between threads
//! but a count for the progress.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use super::alarm::Alarm;
use super::arrivals::Schedule;
use super::dispatch::Dispatch;
use super::failure::Failure;
use super::plan::{Load, Pace, Protocol, Share};
use super::tally::Tally;
use super::wire::Wire;
use super::{http1, http2, tcp};

/// Pause of a lane whose request failed, so that a server that is gone is not called as fast as this machine can.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(10);

/// Connections that are opened at the same time: fewer than a listener's usual backlog.
const OPENED_AT_ONCE: usize = 64;

/// What threads have in common.
pub(super) struct Common {
    /// Requests that have come to an end.
    pub(super) done: AtomicU64,
    /// Those of them that failed.
    pub(super) failed: AtomicU64,
    /// Ends the run early.
    pub(super) stop: AtomicBool,
    /// Passed when every thread has its connections.
    pub(super) ready: Barrier,
    /// When the first thread began to send.
    pub(super) begun: OnceLock<Instant>,
}

/// What a thread has seen, and how long it was at it.
pub(super) struct Seen {
    pub(super) tally: Tally,
    /// From the first request that counts to the planned end, or to the last answer if that came before.
    pub(super) elapsed: Duration,
}

/// Does a thread's share.
///
/// # Errors
/// When the first connections cannot be opened.
pub(super) fn run(share: &Share, common: &Common) -> anyhow::Result<Seen> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot make a runtime")?;
    LocalSet::new().block_on(&runtime, async {
        let opened = open(share).await;
        common.ready.wait();
        drive(share, opened?, common).await
    })
}

/// What lanes of a connection have in common.
type SharedConnection = Rc<tokio::sync::Mutex<Option<http2::Connection>>>;

enum Client {
    Http1(Option<http1::Connection>),
    Http2(SharedConnection),
    Tcp(Option<tcp::Connection>),
}

/// Opens every connection, unless each request has its own.
async fn open(share: &Share) -> anyhow::Result<Vec<Client>> {
    let not_opened = |number: u32, failure: &Failure| {
        let Load { peer, connections, .. } = &*share.load;
        anyhow::anyhow!("connection {} of {connections} to {}: {failure}", number + 1, peer.address)
    };
    if !share.load.keep_alive {
        // A server that is not there is said at once, and not by every request.
        let tried = timeout(share.load.timeout, Wire::open(&share.load.peer)).await;
        tried.unwrap_or(Err(Failure::TimedOut)).map_err(|failure| not_opened(0, &failure))?;
    }
    let mut opening: JoinSet<Result<Vec<Client>, (u32, Failure)>> = JoinSet::new();
    let mut clients = Vec::new();
    for number in 0..share.connections {
        if opening.len() >= OPENED_AT_ONCE
            && let Some(opened) = opening.join_next().await
        {
            clients.extend(opened?.map_err(|(number, failure)| not_opened(number, &failure))?);
        }
        let load = Arc::clone(&share.load);
        opening.spawn_local(async move {
            let opened = timeout(load.timeout, connect(&load)).await.unwrap_or(Err(Failure::TimedOut));
            opened.map_err(|failure| (number, failure))
        });
    }
    while let Some(opened) = opening.join_next().await {
        clients.extend(opened?.map_err(|(number, failure)| not_opened(number, &failure))?);
    }
    Ok(clients)
}

/// The lanes of one connection.
async fn connect(load: &Load) -> Result<Vec<Client>, Failure> {
    Ok(match load.protocol {
        Protocol::Http1 if load.keep_alive => vec![Client::Http1(Some(http1::Connection::open(&load.peer).await?))],
        Protocol::Http1 => vec![Client::Http1(None)],
        Protocol::Tcp if load.keep_alive => {
            vec![Client::Tcp(Some(tcp::Connection::open(&load.peer, load.message.written().len()).await?))]
        }
        Protocol::Tcp => vec![Client::Tcp(None)],
        Protocol::Http2 | Protocol::Grpc => {
            let connection = if load.keep_alive { Some(http2::Connection::open(&load.peer).await?) } else { None };
            let shared = Rc::new(tokio::sync::Mutex::new(connection));
            // Streams without a connection to share have one each.
            let of_lane = |_| {
                let own = || Rc::new(tokio::sync::Mutex::new(None));
                Client::Http2(if load.keep_alive { Rc::clone(&shared) } else { own() })
            };
            (0..load.streams.max(1)).map(of_lane).collect()
        }
    })
}

async fn drive(share: &Share, clients: Vec<Client>, common: &Common) -> anyhow::Result<Seen> {
    let load = &share.load;
    let begun = Instant::now();
    common.begun.get_or_init(|| begun);
    let counted_from = begun + load.warm_up;
    let end = match load.length {
        super::plan::Length::Time(length) => Some(counted_from + length),
        super::plan::Length::Requests(_) => None,
    };
    let dispatch = Rc::new(match load.pace {
        Pace::Closed => Dispatch::closed(counted_from, end, share.requests),
        Pace::Open { .. } => Dispatch::open(),
    });
    let tally = Rc::new(RefCell::new(Tally { each: load.keep_each.then(Vec::new), ..Tally::default() }));
    let mut lanes = JoinSet::new();
    for client in clients {
        let lane = Lane { load: Arc::clone(load), client, tally: Rc::clone(&tally), counted_from, end };
        lanes.spawn_local(lane.run(Rc::clone(&dispatch)));
    }
    let waiting = async { while lanes.join_next().await.is_some() {} };
    let driving = async {
        arrive(share, &dispatch, &tally, (begun, counted_from, end), common).await?;
        anyhow::Ok(())
    };
    let watching = async {
        let (mut told, mut told_failed) = (0, 0);
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let (done, failed) = (tally.borrow().requests(), tally.borrow().errors);
            common.done.fetch_add(done - told, Ordering::Relaxed);
            common.failed.fetch_add(failed - told_failed, Ordering::Relaxed);
            (told, told_failed) = (done, failed);
            if common.stop.load(Ordering::Relaxed) {
                dispatch.close();
            }
        }
    };
    let lanes_and_clock = async {
        let (driven, ()) = futures::join!(driving, waiting);
        driven
    };
    tokio::select! {
        driven = lanes_and_clock => driven?,
        () = watching => {}
        () = give_up(end, load.timeout) => {}
    }
    let mut tally = tally.take();
    let elapsed = match end {
        // An answer that took beyond the end belongs to the run, but made it no longer.
        Some(end) if Instant::now() >= end => end - counted_from,
        _ => counted_from.elapsed(),
    };
    for due in dispatch.give_up() {
        tally.keep(due, None);
        tally.fail(&Failure::NeverSent, 1);
    }
    Ok(Seen { tally, elapsed })
}

/// Past the end, an answer is waited for as long as any other.
async fn give_up(end: Option<Instant>, timeout: Duration) {
    match end {
        Some(end) => tokio::time::sleep_until((end + timeout).into()).await,
        None => std::future::pending().await,
    }
}

/// The clock of an open loop; a closed one has none.
async fn arrive(
    share: &Share,
    dispatch: &Dispatch,
    tally: &RefCell<Tally>,
    (begun, counted_from, end): (Instant, Instant, Option<Instant>),
    common: &Common,
) -> anyhow::Result<()> {
    let Pace::Open { rate, arrivals } = share.load.pace else { return Ok(()) };
    let alarm = Alarm::new()?;
    let of_this = rate / f64::from(share.threads);
    let mut left = share.requests;
    let schedule = Schedule::new(arrivals, of_this, (share.number, share.threads), fastrand::u64(..));
    for offset in schedule.with_jitter(share.load.jitter) {
        let due = begun + offset;
        if end.is_some_and(|end| due >= end) || left == Some(0) || common.stop.load(Ordering::Relaxed) {
            break;
        }
        alarm.until(due).await?;
        if due >= counted_from {
            tally.borrow_mut().slip.record(due.elapsed());
            left = left.map(|left| left - 1);
        }
        dispatch.arrive(due);
    }
    dispatch.close();
    Ok(())
}

struct Lane {
    load: Arc<Load>,
    client: Client,
    tally: Rc<RefCell<Tally>>,
    counted_from: Instant,
    end: Option<Instant>,
}

impl Lane {
    async fn run(mut self, dispatch: Rc<Dispatch>) {
        while let Some(due) = dispatch.next().await {
            let (limit, sent) = (self.load.timeout, Instant::now());
            let outcome = match timeout(limit, self.exchange()).await {
                Ok(Ok(status)) if status >= 400 => Err(Failure::Status(status)),
                Ok(outcome) => outcome,
                Err(_) => {
                    // What was given up halfway cannot be used again; an HTTP/2 stream can be.
                    self.drop_connection();
                    Err(Failure::TimedOut)
                }
            };
            let failed = outcome.is_err();
            if due >= self.counted_from {
                self.tally.borrow_mut().record((due, sent), self.end, outcome);
            }
            if failed {
                tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
            }
        }
    }

    fn drop_connection(&mut self) {
        match &mut self.client {
            Client::Http1(connection) => *connection = None,
            Client::Tcp(connection) => *connection = None,
            Client::Http2(_) => {}
        }
    }

    async fn exchange(&mut self) -> Result<u16, Failure> {
        let Load { peer, message, keep_alive, protocol, .. } = &*self.load;
        match &mut self.client {
            Client::Http1(kept) => {
                let mut connection = match kept.take() {
                    Some(connection) => connection,
                    None => http1::Connection::open(peer).await?,
                };
                let (status, reusable) = connection.exchange(message.written(), message.method()).await?;
                *kept = (reusable && *keep_alive).then_some(connection);
                Ok(status)
            }
            Client::Tcp(kept) => {
                let mut connection = match kept.take() {
                    Some(connection) => connection,
                    None => tcp::Connection::open(peer, message.written().len()).await?,
                };
                connection.exchange(message.written()).await?;
                *kept = keep_alive.then_some(connection);
                Ok(200)
            }
            Client::Http2(shared) => {
                let connection = {
                    let mut shared = shared.lock().await;
                    match &*shared {
                        Some(connection) if *keep_alive && !connection.is_over() => connection.clone(),
                        _ => shared.insert(http2::Connection::open(peer).await?).clone(),
                    }
                };
                let status =
                    connection.exchange(message.as_http2(*protocol), message.body(), *protocol == Protocol::Grpc);
                let status = status.await;
                if !keep_alive {
                    connection.close();
                }
                status
            }
        }
    }
}
