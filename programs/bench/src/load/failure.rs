//! Why a request did not succeed.

use std::io::ErrorKind;

use nix::errno::Errno;

/// A request that came to nothing, or was answered that something is wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// No TLS.
    #[error("TLS handshake failed: {0}")]
    Tls(String),
    /// The connection broke.
    #[error("connection broke: {0}")]
    Broken(ErrorKind),
    /// The peer closed before it had answered.
    #[error("connection closed without an answer")]
    Closed,
    /// The answer is not of the protocol.
    #[error("answer not understood: {0}")]
    Malformed(String),
    /// An answer of 400 or above.
    #[error("status {0}")]
    Status(u16),
    /// gRPC's own status, in an answer of HTTP status 200.
    #[error("gRPC status {0}")]
    Grpc(String),
    /// HTTP/2 ended the stream.
    #[error("HTTP/2: {0}")]
    Http2(String),
    /// Nothing within the limit.
    #[error("not answered in time")]
    TimedOut,
    /// Every connection was busy until the end.
    #[error("due, but never sent")]
    NeverSent,
}

impl Failure {
    /// A connection that could not be opened.
    pub(super) fn connect(error: &std::io::Error) -> Self {
        let none_left = [Errno::EMFILE, Errno::ENFILE].map(|errno| errno as i32);
        Self::Connect(match error.raw_os_error() {
            Some(errno) if none_left.contains(&errno) => "too few file descriptors (ulimit -n)".to_owned(),
            _ => error.kind().to_string(),
        })
    }

    /// The HTTP status, if that is what is wrong.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Status(status) => Some(*status),
            Self::Grpc(_) => Some(200),
            Self::Connect(_)
            | Self::Tls(_)
            | Self::Broken(_)
            | Self::Closed
            | Self::Malformed(_)
            | Self::Http2(_)
            | Self::TimedOut
            | Self::NeverSent => None,
        }
    }
}

impl From<h2::Error> for Failure {
    fn from(error: h2::Error) -> Self {
        match error.get_io() {
            Some(io) => Self::Broken(io.kind()),
            None => Self::Http2(error.to_string()),
        }
    }
}
