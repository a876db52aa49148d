//! How the stream of an agent, or of a relay, comes to its end.

use starling_attach::ReplicaError;
use starling_rpc::CallError;

/// How a stream ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// It may be tried again.
    Lost(String),
    /// The server refuses the caller: another key holds its name, or it was evicted.
    Refused(String),
    /// The server has not what was heard before.
    Anew(String),
}

impl Ended {
    /// Why it ended.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Lost(reason) | Self::Refused(reason) | Self::Anew(reason) => reason,
        }
    }
}

impl From<CallError> for Ended {
    fn from(error: CallError) -> Self {
        match error {
            CallError::BeginAnew { reason } => Self::Anew(reason),
            CallError::Refused { reason } => Self::Refused(reason),
            CallError::Unavailable { reason } | CallError::Overloaded { reason, .. } => Self::Lost(reason),
        }
    }
}

impl From<ReplicaError> for Ended {
    fn from(error: ReplicaError) -> Self {
        match error {
            ReplicaError::Back { .. } => Self::Anew(error.to_string()),
            // What is there is good; what could not be read is sent again.
            ReplicaError::Message(_) | ReplicaError::Elsewhere { .. } | ReplicaError::BegunAnew => {
                Self::Lost(error.to_string())
            }
        }
    }
}
