//! Backups: the snapshot file, and what a restore onto a running mesh changes, in which order.
//!
//! A snapshot file holds the records of a store as bytes by key, so that it outlives the meaning of any of them; see
//! [`mod@file`]. [`plan`] knows what they mean, and which of them are never set back. Files, sockets and stores are the
//! business of those who call this.

pub mod file;
pub mod plan;
mod summary;

pub use summary::{SEALED_KEY_KIND, Summary, is_saved, kind_of};
