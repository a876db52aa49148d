//! The aggregated discovery service of xDS on the wire.
//!
//! What is said on a stream is decided in `core/xds`; where a proxy's resources come from, by the [`ProxySource`] that
//! the program supplies. This crate owns sockets, TLS handshakes and HTTP/2, and their limits. Nothing here batches or
//! delays: a set that changes is looked at when the stream's task next runs, and only the newest is ever seen.

mod connection;
mod serve;
mod service;
mod source;
mod stream;

pub use connection::{DRAIN_TIMEOUT, PREFACE_TIMEOUT, Peer};
pub use serve::{
    CONNECTIONS_MAX, HANDSHAKE_TIMEOUT, LoopbackListener, NotLoopback, REQUEST_BYTES_MAX, ServeError, serve, serve_tls,
};
pub use source::{AttachError, ProxyFeed, ProxySource};
pub use stream::FIRST_REQUEST_TIMEOUT;
