//! Bytes through one TCP stream, there and back, as fast as they go.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Written and read at once.
const BLOCK_BYTES: usize = 256 * 1024;

/// Longest wait for the bytes that are still on their way at the end.
const REST_WITHIN: Duration = Duration::from_secs(10);

/// Megabytes a second that come back from an echo server.
///
/// # Errors
/// When the stream breaks, or not every byte comes back.
pub(super) async fn megabytes_per_second(address: SocketAddr, length: Duration) -> anyhow::Result<f64> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    let (mut from, mut to) = stream.into_split();
    let begun = Instant::now();
    let writing = tokio::spawn(async move {
        let block = vec![b'x'; BLOCK_BYTES];
        let mut sent = 0_u64;
        while begun.elapsed() < length {
            to.write_all(&block).await?;
            sent += u64::try_from(block.len())?;
        }
        to.shutdown().await?;
        anyhow::Ok(sent)
    });
    let mut block = vec![0; BLOCK_BYTES];
    let mut received = 0_u64;
    let reading = async {
        loop {
            match from.read(&mut block).await.context("the stream broke")? {
                0 => return anyhow::Ok(()),
                length => received += u64::try_from(length)?,
            }
        }
    };
    let read = tokio::time::timeout(length + REST_WITHIN, reading).await;
    let elapsed = begun.elapsed();
    read.context("the stream did not end")??;
    let sent = writing.await??;
    if sent != received {
        bail!("of {sent} bytes that were sent through {address}, {received} came back");
    }
    #[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 bytes")]
    Ok(received as f64 / 1e6 / elapsed.as_secs_f64())
}
