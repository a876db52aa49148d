//! Where operators are served: a loopback address, or a socket in the file system.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tokio::net::{TcpListener, UnixListener, UnixStream};

/// For the socket's owner alone.
const SOCKET_MODE: u32 = 0o600;

/// Where operators are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminAddress {
    /// A loopback address.
    Loopback(SocketAddr),
    /// A socket in the file system, for its owner alone.
    Unix(PathBuf),
}

/// Not such an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminAddressError {
    /// It is of neither form.
    #[error("{0:?} is neither IP:PORT nor unix:PATH")]
    Malformed(String),
    /// Others could reach it.
    #[error("{0} is no loopback address: whoever reaches the interface may drain the proxy")]
    NotLoopback(SocketAddr),
}

impl FromStr for AdminAddress {
    type Err = AdminAddressError;

    fn from_str(text: &str) -> Result<Self, AdminAddressError> {
        let malformed = || AdminAddressError::Malformed(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(malformed()) } else { Ok(Self::Unix(PathBuf::from(path))) };
        }
        let address: SocketAddr = text.parse().map_err(|_| malformed())?;
        if address.ip().is_loopback() {
            Ok(Self::Loopback(address))
        } else {
            Err(AdminAddressError::NotLoopback(address))
        }
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A bound address.
#[derive(Debug)]
pub enum AdminListener {
    /// At a loopback address.
    Tcp(TcpListener),
    /// In the file system.
    Unix(Socket),
}

/// A socket in the file system; its file goes with it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Whoever has taken it away already has done what is to be done.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl AdminListener {
    /// Binds an address. A socket that somebody left behind is replaced.
    ///
    /// # Errors
    /// When the address is taken, or cannot be had.
    pub async fn bind(address: &AdminAddress) -> io::Result<Self> {
        match address {
            AdminAddress::Loopback(address) => TcpListener::bind(address).await.map(Self::Tcp),
            AdminAddress::Unix(path) => bind_unix(path).await.map(Self::Unix),
        }
    }

    /// Where it is, if it is at an address.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }
}

async fn bind_unix(path: &Path) -> io::Result<Socket> {
    if UnixStream::connect(path).await.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        std::fs::remove_file(path)?;
    }
    let socket = Socket { listener: UnixListener::bind(path)?, path: path.to_owned() };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_of_this_machine_alone() {
        for text in ["127.0.0.1:19000", "127.8.0.1:0", "[::1]:19000", "unix:/run/proxy.sock"] {
            assert_eq!(text.parse::<AdminAddress>().expect(text).to_string(), text);
        }
        for text in ["0.0.0.0:19000", "10.0.0.1:1", "[::]:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1"] {
            assert!(matches!(text.parse::<AdminAddress>(), Err(AdminAddressError::NotLoopback(_))), "{text}");
        }
        for text in ["", "19000", "unix:", "localhost:1"] {
            assert!(matches!(text.parse::<AdminAddress>(), Err(AdminAddressError::Malformed(_))), "{text}");
        }
    }
}
