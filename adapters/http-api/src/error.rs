//! Refusals and failures as Consul tells them: a status and one line of plain text.

use http::StatusCode;
use starling_model::Revision;

use crate::parse::FieldError;
use crate::ports::{AgentFailure, CommitFailure};

/// An answer that is no success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
    /// For 404 of something that can be waited for.
    pub(crate) index: Option<Revision>,
    /// After how many seconds it may be asked again.
    pub(crate) retry_after: Option<u32>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), index: None, retry_after: None }
    }

    /// The line.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    pub(crate) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    pub(crate) fn at(mut self, index: Revision) -> Self {
        self.index = Some(index);
        self
    }
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<CommitFailure> for ApiError {
    fn from(failure: CommitFailure) -> Self {
        match failure {
            CommitFailure::Refused(refusal) => Self::bad_request(refusal.to_string()),
            CommitFailure::Denied(denied) => denied.into(),
            CommitFailure::Invalid(reason) => Self::bad_request(reason),
            CommitFailure::NoLeader(_) | CommitFailure::Unavailable(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, failure.to_string())
            }
        }
    }
}

impl From<AgentFailure> for ApiError {
    fn from(failure: AgentFailure) -> Self {
        match failure {
            AgentFailure::BadRequest { .. } => Self::bad_request(failure.to_string()),
            AgentFailure::NotFound => Self::not_found(failure.to_string()),
            AgentFailure::Internal(text) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, text),
        }
    }
}
