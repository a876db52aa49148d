//! What the API is served at: a port, a port over TLS, or a Unix socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;

/// Where callers come in.
#[derive(Debug)]
pub enum Door {
    /// A port, in plaintext.
    Tcp(TcpListener),
    /// A port, over TLS, each connection as it is configured then.
    Tls(TcpListener, watch::Receiver<Arc<ServerConfig>>),
    /// A Unix socket.
    Unix(UnixListener),
}

impl From<TcpListener> for Door {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

/// A caller that has come in.
#[derive(Debug)]
pub(super) enum Incoming {
    Tcp(TcpStream),
    Tls(TcpStream, Arc<ServerConfig>),
    Unix(UnixStream),
}

impl Door {
    pub(super) async fn accept(&self) -> io::Result<Incoming> {
        match self {
            Self::Tcp(listener) => Ok(Incoming::Tcp(listener.accept().await?.0)),
            Self::Tls(listener, config) => {
                let (stream, _) = listener.accept().await?;
                Ok(Incoming::Tls(stream, Arc::clone(&config.borrow())))
            }
            Self::Unix(listener) => Ok(Incoming::Unix(listener.accept().await?.0)),
        }
    }

    /// Whether every page that a browser of this machine shows can ask here, under whatever name; over TLS the name is one that the
    /// certificate has.
    pub(super) fn is_plain_loopback(&self) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|address| address.ip().is_loopback()),
            Self::Tls(..) | Self::Unix(_) => false,
        }
    }
}

impl Incoming {
    /// The caller's address; at a Unix socket that of this machine.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) | Self::Tls(stream, _) => stream.peer_addr().ok().map(|address| address.ip()),
            Self::Unix(_) => Some(Ipv4Addr::LOCALHOST.into()),
        }
    }

    /// The caller's address; an unknown one counts as this machine.
    pub(super) fn from(&self) -> IpAddr {
        self.address().unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    pub(super) fn descriptor(&self) -> RawFd {
        match self {
            Self::Tcp(stream) | Self::Tls(stream, _) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}
