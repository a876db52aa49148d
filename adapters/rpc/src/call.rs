//! Why a call was not answered, as both ends of it understand it.

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use starling_attach::message::Subscribe;
use starling_attach::{Parts, SubscribeError};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Milliseconds after which an overloaded server asks to be asked again.
const RETRY_AFTER: &str = "starling-retry-after-ms";

/// What is assumed where an overloaded server names no pause.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

/// Bytes of a reason; it travels in a header, and the rest is cut.
const REASON_BYTES_MAX: usize = 4 * 1024;

/// Why a call was not answered, or why a stream ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It never will be: the request itself is at fault, or the caller may not ask for it.
    #[error("refused: {reason}")]
    Refused {
        /// For people.
        reason: String,
    },
    /// The agent has heard what this server has not said: it must forget what it heard, and begin with nothing.
    #[error("out of step with the server: {reason}")]
    BeginAnew {
        /// For people.
        reason: String,
    },
    /// Not now; trying again may help, here or at another server. A write may have been done all the same.
    #[error("unavailable: {reason}")]
    Unavailable {
        /// For people.
        reason: String,
    },
    /// There is more to do than the server takes on at once; nothing was done.
    #[error("overloaded: {reason}")]
    Overloaded {
        /// For people.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
}

impl CallError {
    /// [`CallError::Refused`].
    pub fn refused(reason: impl ToString) -> Self {
        Self::Refused { reason: reason.to_string() }
    }

    /// [`CallError::Unavailable`].
    pub fn unavailable(reason: impl ToString) -> Self {
        Self::Unavailable { reason: reason.to_string() }
    }
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused { reason } => Status::permission_denied(bounded(reason)),
            CallError::BeginAnew { reason } => Status::failed_precondition(bounded(reason)),
            CallError::Unavailable { reason } => Status::unavailable(bounded(reason)),
            CallError::Overloaded { reason, retry_after } => {
                let mut status = Status::resource_exhausted(bounded(reason));
                let after = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
                status.metadata_mut().insert(RETRY_AFTER, MetadataValue::from(after));
                status
            }
        }
    }
}

impl From<SubscribeError> for CallError {
    fn from(error: SubscribeError) -> Self {
        match error {
            SubscribeError::Future { .. } | SubscribeError::OtherPast { .. } => {
                Self::BeginAnew { reason: error.to_string() }
            }
            SubscribeError::Crowded => Self::unavailable(error),
            SubscribeError::NotSent(_) | SubscribeError::TooMany | SubscribeError::Foreign(_) => Self::refused(error),
        }
    }
}

/// The request of which this is the last part; `None` if more are to come.
///
/// # Errors
/// [`CallError::Refused`] if it is for more than `subjects_max`.
pub fn whole_request(
    parts: &Mutex<Parts>,
    part: Subscribe,
    subjects_max: usize,
) -> Result<Option<Subscribe>, CallError> {
    // A panic while holding the lock leaves some of the parts, of a stream that ends.
    let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(parts.add(part, subjects_max)?)
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        let reason = reason(&status);
        match status.code() {
            Code::PermissionDenied
            | Code::InvalidArgument
            | Code::Unauthenticated
            | Code::NotFound
            | Code::AlreadyExists
            | Code::OutOfRange
            | Code::Unimplemented => Self::Refused { reason },
            Code::FailedPrecondition => Self::BeginAnew { reason },
            Code::ResourceExhausted => {
                let after = status.metadata().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
                Self::Overloaded { reason, retry_after: after.map_or(RETRY_AFTER_DEFAULT, Duration::from_millis) }
            }
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss => Self::Unavailable { reason },
        }
    }
}

/// The server's words; where the connection broke, what broke it.
fn reason(status: &Status) -> String {
    let mut reason = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        let text = error.to_string();
        if !reason.contains(&text) {
            reason.push_str(": ");
            reason.push_str(&text);
        }
        source = error.source();
    }
    reason
}

fn bounded(mut reason: String) -> String {
    reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_survive_the_wire() {
        let reason = || "because".to_owned();
        for error in [
            CallError::Refused { reason: reason() },
            CallError::BeginAnew { reason: reason() },
            CallError::Unavailable { reason: reason() },
            CallError::Overloaded { reason: reason(), retry_after: Duration::from_millis(250) },
        ] {
            assert_eq!(CallError::from(Status::from(error.clone())), error);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let status = Status::from(CallError::refused("é".repeat(REASON_BYTES_MAX)));
        assert_eq!(status.message().len(), REASON_BYTES_MAX);
        let status = Status::from(CallError::refused(format!("x{}", "é".repeat(REASON_BYTES_MAX))));
        assert_eq!(status.message().len(), REASON_BYTES_MAX - 1);
    }
}
