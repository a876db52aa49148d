//! What goes over the mesh's own ports: the aggregated discovery service of xDS for proxies, and the stream and the calls
//! of agents, both ends of them.
//!
//! | Module | Owns |
//! |---|---|
//! | [`serve`](fn@serve), [`serve_tls`] | listeners; TLS handshakes are in `handshake` |
//! | [`ProxySource`] | xDS: what is said on a stream is decided in `core/xds` |
//! | [`agents`] | the server's side of agents: what is sent on a stream is decided in `core/attach` |
//! | [`client`] | the agents' side |
//!
//! The programs supply what is behind the doors; this crate owns sockets, TLS handshakes and HTTP/2, and their limits.
//! Nothing here batches or delays, and nothing queues ahead of a slow reader: a set that changes is looked at, and a
//! pending set taken, when there is room to send, and only the newest is ever seen.

pub mod agents;
mod api;
mod call;
pub mod client;
mod connection;
mod handshake;
mod http2;
mod pulse;
mod serve;
mod service;
mod socket;
mod source;
mod stream;

pub use agents::{AgentDoor, AgentStream, AliasView, Credential, JoinAnswer, JoinRequest, LeafRequest, OwnRecords};
pub use api::Api;
pub use call::{CallError, whole_request};
pub use client::{
    AgentSender, ApiBody, ConnectError, Follows, Framed, NATIVE_PROXY, PROCESS, PlanMirror, PlanStream,
    PlanStreamError, ServerClient, ServerFrames,
};
pub use connection::{DRAIN_TIMEOUT, PREFACE_TIMEOUT, Peer, STRANGER_TIMEOUT};
pub use handshake::{HANDSHAKE_TIMEOUT, HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS_MAX, STRANGERS_MAX, TURN_WAIT_MAX};
pub use http2::Doors;
pub use pulse::SILENCE_MAX;
pub use serve::{CONNECTIONS_MAX, LoopbackListener, NotLoopback, REQUEST_BYTES_MAX, ServeError, serve, serve_tls};
pub use socket::listen;
pub use source::{AttachError, ProxyFeed, ProxySource};
pub use starling_xds::ProxyNode;
pub use stream::FIRST_REQUEST_TIMEOUT;
