//! The floods, each in a process of its own.

use std::time::Duration;

use anyhow::bail;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// Pause before a connection that was closed, or could not be made, is opened again. Without one this would be a flood of
/// SYNs, which measures the kernel and this machine's cores.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Connections of five bytes are held so long, unless they are closed: as long as a handshake may take.
const HELD: Duration = Duration::from_secs(10);

/// Ticks a second at which connections of five bytes are begun.
const TICKS: u32 = 100;

/// Pause between the beginnings of idle connections: all of them within some seconds.
const SPREAD: Duration = Duration::from_micros(400);

/// Floods until it is ended.
pub(crate) async fn run(kind: &str, address: &str, size: usize) -> anyhow::Result<()> {
    match kind {
        "idle" => held(address, size, None).await,
        "waits" => {
            let index = newest_index(address).await;
            let path = format!("/v1/connect/ca/roots?index={index}&wait=10m");
            held(address, size, Some(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))).await
        }
        "hellos" => hellos(address, size).await,
        other => bail!("there is no flood called {other:?}: idle, waits, hellos"),
    }
}

/// Holds so many connections on which `says` was said, and opens those again that are closed.
async fn held(address: &str, size: usize, says: Option<String>) -> anyhow::Result<()> {
    for _ in 0..size {
        let (address, says) = (address.to_owned(), says.clone());
        tokio::spawn(async move {
            loop {
                if let Ok(mut stream) = TcpStream::connect(&address).await {
                    if let Some(says) = &says {
                        let _ = stream.write_all(says.as_bytes()).await;
                    }
                    let mut piece = [0; 4096];
                    while matches!(stream.read(&mut piece).await, Ok(1..)) {}
                }
                sleep(AGAIN_AFTER).await;
            }
        });
        sleep(SPREAD).await;
    }
    std::future::pending().await
}

async fn newest_index(address: &str) -> String {
    let answer = starling_e2e::http::get(address, "/v1/connect/ca/roots").await;
    answer.map_or_else(|_| "1".to_owned(), |answer| answer.index().to_string())
}

/// Begins so many handshakes a second, of which five bytes come.
async fn hellos(address: &str, a_second: usize) -> anyhow::Result<()> {
    let mut ticks = interval(Duration::from_secs(1) / TICKS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let began = Instant::now();
    let mut begun = 0_f64;
    loop {
        ticks.tick().await;
        #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
        let due = began.elapsed().as_secs_f64() * a_second as f64;
        while begun < due {
            begun += 1.0;
            let address = address.to_owned();
            tokio::spawn(async move {
                let Ok(mut stream) = TcpStream::connect(&address).await else { return };
                let _ = stream.write_all(b"\x16\x03\x01\x02\x00").await;
                let mut end = [0; 64];
                let _ = tokio::time::timeout(HELD, stream.read(&mut end)).await;
            });
        }
    }
}
