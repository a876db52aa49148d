//! How a command ends: the exit codes, which scripts rely on.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use crate::client::ApiError;
use crate::consul::worded;
use crate::print::OutputClosed;

/// What every help page says about exit codes.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done; for `can` and `intention check`: allowed
  1  no: denied, not found, or refused by a proxy; or a failure without a code of its own
  2  the command line, a file or the request is wrong
  3  no answer: the API is unreachable, too slow, or failing
  4  the wait is over and something is still outstanding";

/// The end of a command that did what it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done, or yes.
    Done,
    /// No: denied, not there, or refused by a proxy.
    No,
    /// The wait is over.
    StillOutstanding,
}

impl Outcome {
    fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::StillOutstanding => 4,
        }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(outcome.code())
    }
}

/// What was asked for cannot be right: a flag, an argument or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// A wrong flag, argument or file, as an error.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(UsageError(text.into()))
}

/// Failures without a code of their own.
const FAILED: u8 = 1;

/// A wrong command line, file or request; clap's code, too.
const WRONG_USAGE: u8 = 2;

/// No answer worth the name.
const NO_ANSWER: u8 = 3;

/// The exit code that tells of an error, after saying it on standard error.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    // The reader of our output has gone, which `head` does and is no failure.
    if error.chain().any(|cause| cause.is::<OutputClosed>()) {
        return Outcome::Done.into();
    }
    // Standard error may be closed; the exit code still tells.
    let _ = writeln!(std::io::stderr(), "error: {}", worded(&format!("{error:#}")));
    ExitCode::from(code_of(error))
}

fn code_of(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<UsageError>() {
            return WRONG_USAGE;
        }
        if let Some(error) = cause.downcast_ref::<ApiError>() {
            return match error {
                ApiError::Unreachable { .. }
                | ApiError::Silent { .. }
                | ApiError::Broken { .. }
                | ApiError::TooLarge { .. }
                | ApiError::Garbled { .. } => NO_ANSWER,
                ApiError::Refused { status, .. } if status.is_server_error() => NO_ANSWER,
                ApiError::Refused { status, .. } => match *status {
                    http::StatusCode::NOT_FOUND
                    | http::StatusCode::FORBIDDEN
                    | http::StatusCode::UNAUTHORIZED
                    | http::StatusCode::CONFLICT => FAILED,
                    _ => WRONG_USAGE,
                },
            };
        }
    }
    FAILED
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use http::StatusCode;

    use super::*;

    fn refused(status: StatusCode) -> anyhow::Error {
        anyhow::Error::new(ApiError::Refused { status, text: "no".to_owned() }).context("cannot do it")
    }

    #[test]
    fn a_denial_and_a_wrong_request_have_different_codes() {
        assert_eq!(Outcome::No.code(), 1);
        assert_eq!(code_of(&refused(StatusCode::BAD_REQUEST)), 2);
        assert_eq!(code_of(&refused(StatusCode::NOT_FOUND)), 1);
        assert_eq!(code_of(&refused(StatusCode::INTERNAL_SERVER_ERROR)), 3);
        assert_eq!(code_of(&usage("-cas needs -modify-index")), 2);
    }

    #[test]
    fn the_cause_decides_whatever_the_context() {
        let unreachable = ApiError::Silent { address: "http://127.0.0.1:1".to_owned(), seconds: 10 };
        let error = Err::<(), _>(unreachable).context("inner").context("outer").expect_err("an error");
        assert_eq!(code_of(&error), 3);
        assert_eq!(code_of(&anyhow::anyhow!("disk full")), 1);
    }
}
