//! A connection's bytes, in plaintext or in TLS.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use anyhow::Context;
use http::Uri;
use http::uri::Scheme;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::failure::Failure;
use super::plan::Protocol;
use super::tls::TlsArgs;

/// How long one address of several is tried.
const TRIED_FOR: Duration = Duration::from_secs(2);

/// An open connection.
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Where and how to connect.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// With the name that the server is asked for.
    pub(crate) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Peer {
    /// Whom a URL names.
    ///
    /// # Errors
    /// When its host has no address, or files of TLS cannot be read.
    pub(crate) async fn of(uri: &Uri, protocol: Protocol, tls: &TlsArgs) -> anyhow::Result<Self> {
        let over_tls = uri.scheme() == Some(&Scheme::HTTPS);
        let port = uri.port_u16().unwrap_or(if over_tls { 443 } else { 80 });
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let found = tokio::net::lookup_host((host, port)).await.with_context(|| format!("cannot resolve {host}"))?;
        let address = first_that_answers(found.collect()).await.with_context(|| format!("{host} has no address"))?;
        let tls = if over_tls { Some(tls.configuration(host, protocol)?) } else { None };
        Ok(Self { address, tls })
    }
}

/// The first address at which somebody listens, or else the first.
async fn first_that_answers(addresses: Vec<SocketAddr>) -> Option<SocketAddr> {
    if addresses.len() > 1 {
        for address in &addresses {
            let tried = tokio::time::timeout(TRIED_FOR, TcpStream::connect(address)).await;
            if matches!(tried, Ok(Ok(_))) {
                return Some(*address);
            }
        }
    }
    addresses.first().copied()
}

impl Wire {
    /// Connects.
    pub(crate) async fn open(peer: &Peer) -> Result<Self, Failure> {
        let stream = TcpStream::connect(peer.address).await.map_err(|error| Failure::connect(&error))?;
        // A small request must not wait for the acknowledgement of the one before.
        stream.set_nodelay(true).map_err(|error| Failure::connect(&error))?;
        let Some((config, name)) = &peer.tls else { return Ok(Self::Plain(stream)) };
        let connecting = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream);
        let stream = connecting.await.map_err(|error| Failure::Tls(explain(&error)))?;
        let wants_http2 = config.alpn_protocols.iter().any(|protocol| protocol == b"h2");
        if wants_http2 && stream.get_ref().1.alpn_protocol().is_none() {
            return Err(Failure::Tls("the server does not offer HTTP/2 (ALPN h2)".to_owned()));
        }
        Ok(Self::Tls(Box::new(stream)))
    }
}

/// What went wrong in a handshake, with what helps.
fn explain(error: &std::io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            "the server's certificate is not of a CA that is trusted; name it with --ca, or take any with --insecure"
                .to_owned()
        }
        Some(rustls::Error::InvalidMessage(_)) => format!("the server does not speak TLS ({error})"),
        _ => error.to_string(),
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut task::Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut task::Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
