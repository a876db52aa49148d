//! Connections of TCP as the operating system has them.
//!
//! | Module | Owns |
//! |---|---|
//! | [`entrance`] | places of a listener that several tasks serve, by the rules of `core/admission` |
//! | [`complaint`] | log lines about floods, one a minute |
//! | [`liveness`] | keepalive and user timeout: peers that have vanished |

pub mod complaint;
pub mod entrance;
pub mod liveness;

pub use complaint::Complaint;
pub use entrance::{Busy, Entrance, Place};
pub use liveness::notice_dead_peers;
