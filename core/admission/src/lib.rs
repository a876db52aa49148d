//! Which connections a process holds, and who gives up a place when there is none left.
//!
//! | Module | Owns |
//! |---|---|
//! | [`gate`] | places of one kind of connection: limits, and the victim when they are reached |
//! | [`counts`] | how many of something each holder may have |
//! | [`shares`] | how many descriptors each part of a process may use |
//! | [`tally`] | how often a repeated event is logged |
//!
//! Nothing here reads a clock or a socket: callers pass the time, and close the connection that a [`Gate`]
//! names. Every listener of Starling that strangers can reach uses these rules.

pub mod counts;
pub mod gate;
pub mod shares;
pub mod tally;

pub use counts::Counts;
pub use gate::{Address, Entry, Gate, Limits, Origin, Refusal, Ticket};
pub use shares::{Share, Shares};
pub use tally::Tally;
