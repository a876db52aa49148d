//! What can go wrong, one type per operation, with the HTTP status by which the API answers.

use starling_model::{CheckId, InstanceId};

use crate::journal::JournalError;
use crate::sidecar::FieldError;

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What it kept cannot be used.
    #[error("cannot use what the agent kept")]
    Journal(#[from] JournalError),
}

/// Why a change was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The server will never take it. Nothing has changed.
    #[error("refused by the server: {0}")]
    Refused(String),
    /// The server could not take it now. The agent keeps it and goes on trying.
    #[error("the server is unavailable, the change will be written when it is back: {0}")]
    Unavailable(String),
    /// It could not be kept on disk. The agent goes on trying.
    #[error("cannot keep the change on disk: {0}")]
    Disk(String),
    /// The agent is shutting down.
    #[error("the agent is shutting down")]
    Stopped,
}

/// Why something could not be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// A field is at fault (HTTP 400).
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The check speaks of a service that is not registered here (HTTP 404).
    #[error("unknown service id {0:?}")]
    UnknownService(InstanceId),
    /// It could not be written (HTTP 400 if refused, 500 otherwise).
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why something could not be deregistered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeregisterError {
    /// No such service here (HTTP 404).
    #[error("unknown service id {0:?}; it must be the id, not the name")]
    UnknownService(InstanceId),
    /// No such check here (HTTP 404).
    #[error("unknown check id {0:?}; it must be the id, not the name")]
    UnknownCheck(CheckId),
    /// It could not be written (HTTP 400 if refused, 500 otherwise).
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why a check could not be updated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateCheckError {
    /// No such check here (HTTP 404).
    #[error("unknown check id {0:?}; it must be the id, not the name")]
    UnknownCheck(CheckId),
    /// The check has a way of its own to its status (HTTP 400).
    #[error("check {0:?} is not a TTL check; its status cannot be set")]
    NotTtl(CheckId),
    /// It could not be written (HTTP 400 if refused, 500 otherwise).
    #[error(transparent)]
    Write(#[from] WriteError),
}
