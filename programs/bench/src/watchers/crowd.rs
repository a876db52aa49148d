//! Those who wait: each with a connection of its own, asking again as soon as it was answered.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How long a query may wait; the server answers up to a sixteenth later.
const WAIT: &str = "600s";

/// Connections that are opened at once: more than a listener's queue holds are refused.
const OPENED_AT_ONCE: usize = 64;

/// Somebody was answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Woken {
    pub(super) watcher: u32,
    pub(super) at: Instant,
}

/// What a watcher tells.
#[derive(Debug)]
enum Told {
    /// The next question is sent.
    Parked,
    Woken(Woken),
    Failed(String),
}

pub(super) struct Crowd {
    watchers: u32,
    on_all: u32,
    services: u32,
    parked: i64,
    told: mpsc::UnboundedReceiver<Told>,
    _tasks: JoinSet<()>,
}

/// A service.
pub(super) fn name(service: u32) -> String {
    format!("service-{service}")
}

impl Crowd {
    /// Begins to park everybody; the first `on_all` wait for every check.
    pub(super) fn park(address: SocketAddr, watchers: u32, on_all: u32, services: u32) -> Self {
        let (tell, told) = mpsc::unbounded_channel();
        let opening = std::sync::Arc::new(tokio::sync::Semaphore::new(OPENED_AT_ONCE));
        let mut tasks = JoinSet::new();
        for watcher in 0..watchers {
            let target = if watcher < on_all {
                "/v1/health/state/any?consistent".to_owned()
            } else {
                format!("/v1/health/service/{}?stale", name(watcher % services))
            };
            let (tell, opening) = (tell.clone(), std::sync::Arc::clone(&opening));
            tasks.spawn(async move {
                if let Err(error) = watch(watcher, address, &target, &opening, &tell).await {
                    // Nobody listens at the end.
                    let _ = tell.send(Told::Failed(format!("{error:#}")));
                }
            });
        }
        Self { watchers, on_all, services, parked: 0, told, _tasks: tasks }
    }

    pub(super) fn is_concerned(&self, watcher: u32, service: u32) -> bool {
        watcher < self.on_all || watcher % self.services == service
    }

    /// How many a change of a service concerns.
    pub(super) fn concerned(&self, service: u32) -> usize {
        (0..self.watchers).filter(|watcher| self.is_concerned(*watcher, service)).count()
    }

    /// Returns once everybody is parked.
    ///
    /// # Errors
    /// When a watcher fails, or not all are in time.
    pub(super) async fn all_parked(&mut self, within: Duration, mut step: impl FnMut()) -> anyhow::Result<()> {
        let until = tokio::time::Instant::now() + within;
        while self.parked < i64::from(self.watchers) {
            let told = tokio::time::timeout_at(until, self.told.recv()).await;
            match told.with_context(|| format!("only {} of {} are parked", self.parked, self.watchers))? {
                Some(Told::Parked) => {
                    self.parked += 1;
                    step();
                }
                Some(Told::Woken(_)) => self.parked -= 1,
                Some(Told::Failed(reason)) => bail!("a watcher failed: {reason}"),
                None => bail!("every watcher has ended"),
            }
        }
        Ok(())
    }

    /// Who is woken, until `count` were and nobody else was for `quiet`, or the time is over.
    ///
    /// # Errors
    /// When a watcher fails.
    pub(super) async fn woken(
        &mut self,
        count: usize,
        within: Duration,
        quiet: Duration,
    ) -> anyhow::Result<Vec<Woken>> {
        let until = tokio::time::Instant::now() + within;
        let mut woken = Vec::new();
        loop {
            let now = tokio::time::Instant::now();
            let patience = if woken.len() < count { until } else { now + quiet };
            match tokio::time::timeout_at(patience, self.told.recv()).await {
                Err(_elapsed) => return Ok(woken),
                Ok(Some(Told::Woken(one))) => {
                    self.parked -= 1;
                    woken.push(one);
                }
                Ok(Some(Told::Parked)) => self.parked += 1,
                Ok(Some(Told::Failed(reason))) => bail!("a watcher failed: {reason}"),
                Ok(None) => bail!("every watcher has ended"),
            }
        }
    }
}

async fn watch(
    watcher: u32,
    address: SocketAddr,
    target: &str,
    opening: &tokio::sync::Semaphore,
    tell: &mpsc::UnboundedSender<Told>,
) -> anyhow::Result<()> {
    let place = opening.acquire().await?;
    let stream = TcpStream::connect(address).await.context("connecting")?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::with_capacity(1024, stream);
    ask(&mut stream, target).await?;
    let mut index = answer(&mut stream).await?;
    drop(place);
    loop {
        ask(&mut stream, &format!("{target}&index={index}&wait={WAIT}")).await?;
        tell.send(Told::Parked)?;
        index = answer(&mut stream).await?;
        tell.send(Told::Woken(Woken { watcher, at: Instant::now() }))?;
    }
}

async fn ask(stream: &mut BufReader<TcpStream>, target: &str) -> anyhow::Result<()> {
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes()).await.context("asking")
}

/// Reads an answer, and says of which index it is.
async fn answer(stream: &mut BufReader<TcpStream>) -> anyhow::Result<u64> {
    let (mut index, mut length, mut line) = (None, None, String::new());
    ensure!(stream.read_line(&mut line).await.context("reading")? > 0, "the server closed the connection");
    ensure!(line.starts_with("HTTP/1.1 200"), "answered {}", line.trim_end());
    loop {
        line.clear();
        stream.read_line(&mut line).await.context("reading")?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "x-consul-index" => index = Some(value.parse()?),
            "content-length" => length = Some(value.parse()?),
            _ => {}
        }
    }
    let length: u64 = length.context("an answer without a length")?;
    let mut body = stream.take(length);
    tokio::io::copy_buf(&mut body, &mut tokio::io::sink()).await.context("reading")?;
    index.context("an answer without an index")
}
