//! How an agent is kept current: the stream between a server and the agents attached to it, without its sockets.
//!
//! | Module | Owns |
//! |---|---|
//! | [`message`] | what is said on the stream, and its bytes |
//! | [`projection`] | what each subject looks like from afar, and what a commit changes about that |
//! | [`fleet`] | the server's side: one window of frames per subject, one pending set per stream |
//! | [`relay`] | a relay's side of both: what it holds of what servers say, and what it tells them of the nodes behind it |
//! | [`relayed`] | what a relay says of the nodes behind it, and its bytes |
//! | [`request`] | a request for many subjects, in parts |
//! | [`balance`] | how many agents a server directs to another |
//! | [`lineage`] | whether what an agent has heard is of the store's own past |
//! | [`intake`] | the agent's side of one stream: what it says, until its `Through` |
//! | [`replica`] | the agent's side of all: what concerns its node, as a planner reads it |
//!
//! Cost model: a commit is projected for the keys that it touches; each item that differs is encoded once and noted as
//! pending by name for each stream concerned; a stream that takes it copies a reference. See docs/adr/0010.

pub mod balance;
pub mod fleet;
pub mod intake;
pub mod lineage;
pub mod message;
pub mod projection;
pub mod relay;
pub mod relayed;
pub mod replica;
pub mod request;
mod window;

pub use fleet::{Fleet, Published, Source, StreamId, SubscribeError};
pub use intake::{HandedOver, Hearer, Intake};
pub use lineage::{Epoch, Lineage};
pub use message::{FromAgent, FromServer, MessageError};
pub use projection::{Item, ItemChange, ItemKey};
pub use replica::{Replica, ReplicaError};
pub use request::Parts;
