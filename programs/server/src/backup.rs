//! Backups of a running server: its records saved as they are at one revision, and set back by ordinary transactions.

mod incoming;
mod restoring;
mod saving;
#[cfg(test)]
mod tests;

pub use incoming::{Incoming, IncomingError, Unreadable};
pub use restoring::{RestoreFailure, Restored};
pub use saving::Saved;
