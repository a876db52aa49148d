//! A relay: it takes the stream from servers and serves agents, so that a fleet needs no more of a server than a few streams.
//!
//! What servers say is passed on in the bytes in which it came; what agents say of themselves goes to a server in batches, which
//! knows each node as if it were attached to it. What agents ask is asked of a server in their name. A relay writes nothing, has no
//! key of the CA, and keeps nothing on disk but by what it is known.
//!
//! | Module | Owns |
//! |---|---|
//! | `node` | one relay, put together |
//! | `streams` | the streams of agents and of relays below, around [`starling_attach::relay`] |
//! | `upstream` | the streams from servers, or from relays above |
//! | `door` | what agents ask, passed on |
//! | `identity` | the relay's certificate, and the roots |

mod door;
mod identity;
mod node;
mod streams;
mod upstream;

pub use node::{RelayConfig, RelayNode};
