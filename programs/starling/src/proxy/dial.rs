//! The way to the agent's xDS: TCP, a Unix socket, or TLS.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::client::tls::trusting;
use crate::connect::bootstrap::Endpoint;
use crate::connect::xds::Xds;

/// Time for a connection to come about, TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Where xDS is, and how it is reached.
pub(super) struct Dial {
    endpoint: Endpoint,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl fmt::Display for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.endpoint {
            Endpoint::Tcp { host, port } => write!(f, "{host}:{port}"),
            Endpoint::Unix { path } => f.write_str(path),
        }
    }
}

/// A connection.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

impl Dial {
    /// # Errors
    /// If a file does not hold what it should.
    pub(super) fn new(xds: Xds) -> anyhow::Result<Self> {
        let tls = match xds.tls {
            None => None,
            Some(tls) => {
                let mut config = trusting(&tls.authorities, Some((&tls.certificate, &tls.key)))?;
                config.alpn_protocols = vec![b"h2".to_vec()];
                let name = ServerName::try_from(tls.name).context("the name of the server of xDS")?;
                Some((Arc::new(config), name))
            }
        };
        Ok(Self { endpoint: xds.endpoint, tls })
    }

    pub(super) async fn connect(&self) -> anyhow::Result<Box<dyn Connection>> {
        let (stream, address) = match &self.endpoint {
            Endpoint::Tcp { host, port } => {
                let address = format!("{host}:{port}");
                let connecting = timeout(CONNECT_WITHIN, TcpStream::connect((host.as_str(), *port))).await;
                let stream = connecting.context("no answer").flatten_into(&address)?;
                stream.set_nodelay(true)?;
                (stream, address)
            }
            Endpoint::Unix { path } => {
                let stream = UnixStream::connect(path).await;
                return Ok(Box::new(stream.with_context(|| format!("cannot reach the agent at {path}"))?));
            }
        };
        let Some((config, name)) = &self.tls else { return Ok(Box::new(stream)) };
        let shaking = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream);
        let shaken = timeout(CONNECT_WITHIN, shaking).await;
        Ok(Box::new(shaken.context("no answer").flatten_into(&address)?))
    }
}

/// Both ways in which reaching somebody fails, as one.
trait FlattenInto<T> {
    fn flatten_into(self, address: &str) -> anyhow::Result<T>;
}

impl<T> FlattenInto<T> for anyhow::Result<std::io::Result<T>> {
    fn flatten_into(self, address: &str) -> anyhow::Result<T> {
        let reached = self.and_then(|reached| reached.map_err(anyhow::Error::from));
        reached.with_context(|| format!("cannot reach the agent at {address}"))
    }
}
