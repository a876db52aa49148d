//! The application behind a proxy that is measured: HTTP/1.1, HTTP/2 and gRPC on one port, bytes on another, and as little
//! work as can be.
//!
//! A request with a body gets it back, one without gets a few bytes; a gRPC call gets its message back. It has one thread,
//! as each proxy has one worker.

mod http1;
mod http2;
pub(crate) mod identity;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use bytes::BytesMut;
use futures::FutureExt;
use futures::future::BoxFuture;
use starling_http1::is_http2_preface;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// What is read at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// Connections that may wait to be accepted: thousands are opened at once where idle ones are counted.
const BACKLOG: u32 = 4096;

/// Be the application behind measured proxies.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where HTTP/1.1, HTTP/2 and gRPC listen
    #[arg(long)]
    http: SocketAddr,
    /// Where bytes are sent back
    #[arg(long)]
    tcp: SocketAddr,
    /// Where what --http takes is taken over mutual TLS, too
    #[arg(long, requires = "identity")]
    tls: Option<SocketAddr>,
    /// The folder with chain.pem, key.pem and roots.pem of who takes it
    #[arg(long, requires = "tls")]
    identity: Option<PathBuf>,
    /// Milliseconds that pass before a request over HTTP/1.1 is answered
    #[arg(long, default_value_t = 0, value_name = "MS")]
    service_time: u64,
}

/// Serves on a runtime of one thread until the process is ended.
///
/// # Errors
/// When it cannot listen.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let serving = tokio::task::spawn_blocking(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot make a runtime")?;
        runtime.block_on(async {
            let (http, tcp) = (listen(args.http)?, listen(args.tcp)?);
            let service_time = Duration::from_millis(args.service_time);
            let plain = async { futures::join!(serve(http, self::http(service_time)), serve(tcp, tcp_connection)) };
            if let Some((address, folder)) = args.tls.zip(args.identity) {
                let acceptor = identity::acceptor(&folder)?;
                let over_tls = move |stream| {
                    let accepting = acceptor.accept(stream);
                    async move { any_http(accepting.await?, service_time).await }
                };
                futures::join!(plain, serve(listen(address)?, over_tls));
            } else {
                plain.await;
            }
            Ok(())
        })
    });
    serving.await?
}

/// Listens with room for many at once.
///
/// # Errors
/// When the address is in use.
pub(crate) fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let socket = TcpSocket::new_v4().context("cannot make a socket")?;
    socket.set_reuseaddr(true).context("cannot set SO_REUSEADDR")?;
    socket.bind(address).with_context(|| format!("cannot listen on {address}"))?;
    socket.listen(BACKLOG).with_context(|| format!("cannot listen on {address}"))
}

/// Serves every connection of a listener in a task of its own.
pub(crate) async fn serve<F>(listener: TcpListener, connection: impl Fn(TcpStream) -> F)
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    loop {
        // Out of descriptors: the next round may find one.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let serving = connection(stream);
        tokio::spawn(async move {
            // Whoever called hears of it by the end of the connection.
            let _ = serving.await;
        });
    }
}

/// HTTP/1.1, or HTTP/2 with prior knowledge; each request over HTTP/1.1 is answered so long after it came.
pub(crate) fn http(service_time: Duration) -> impl Fn(TcpStream) -> BoxFuture<'static, anyhow::Result<()>> {
    move |stream| any_http(stream, service_time).boxed()
}

async fn any_http<S>(mut stream: S, service_time: Duration) -> anyhow::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut buffer = BytesMut::with_capacity(BUFFER_BYTES / 4);
    loop {
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
        match is_http2_preface(&buffer) {
            Some(true) => return http2::serve(stream, buffer.freeze()).await,
            Some(false) => return http1::serve(stream, buffer, service_time).await,
            None => {}
        }
    }
}

/// Sends back what it reads.
pub(crate) async fn tcp_connection(mut stream: TcpStream) -> anyhow::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(stream.shutdown().await?);
        }
        stream.write_all(&buffer[..length]).await?;
    }
}
