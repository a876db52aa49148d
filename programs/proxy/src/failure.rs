//! Why the proxy answers in the server's place, and what it says then.

use crate::http2::Http2Error;
use crate::upstream::CallError;

/// What went wrong with a request, or was decided about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// An answer that was decided on without a server.
    Decided { status: u16, text: &'static str },
    /// No endpoint is in order.
    NoEndpoint,
    /// Too much is under way already.
    Overloaded,
    /// The endpoint cannot be connected to.
    Connect,
    /// The endpoint broke off before it answered.
    Reset,
    /// The endpoint's answer is none.
    Protocol,
    /// Time for the whole request is up.
    Timeout,
    /// The client's request has stood still for too long.
    Still,
}

impl Failure {
    /// No intention allows it.
    pub(crate) const DENIED: Self = Self::Decided { status: 403, text: "RBAC: access denied" };

    /// What the client sends is no body.
    pub(crate) const NO_BODY: Self = Self::Decided { status: 400, text: "malformed body" };

    /// Those that are counted, in the order of [`Failure::place`].
    pub(crate) const REASONS: [&str; 7] =
        ["no_endpoint", "overloaded", "connect", "reset", "protocol", "timeout", "still"];

    /// The place among those that are counted.
    pub(crate) fn place(self) -> Option<usize> {
        match self {
            Self::Decided { .. } => None,
            Self::NoEndpoint => Some(0),
            Self::Overloaded => Some(1),
            Self::Connect => Some(2),
            Self::Reset => Some(3),
            Self::Protocol => Some(4),
            Self::Timeout => Some(5),
            Self::Still => Some(6),
        }
    }

    /// The status that the client gets.
    pub(crate) fn status(self) -> u16 {
        match self {
            Self::Decided { status, .. } => status,
            Self::NoEndpoint | Self::Overloaded | Self::Connect | Self::Reset => 503,
            Self::Protocol => 502,
            Self::Timeout => 504,
            Self::Still => 408,
        }
    }

    /// The words that the client gets, as Envoy has them.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Decided { text, .. } => text,
            Self::NoEndpoint => "no healthy upstream",
            Self::Overloaded => "upstream overloaded",
            Self::Connect => "upstream connect failure",
            Self::Reset => "upstream reset before response started",
            Self::Protocol => "upstream protocol error",
            Self::Timeout => "upstream request timeout",
            Self::Still => "request timeout",
        }
    }

    /// Envoy's `RESPONSE_FLAGS`.
    pub(crate) fn flag(self) -> Option<&'static str> {
        match self {
            Self::Decided { .. } => None,
            Self::NoEndpoint => Some("UH"),
            Self::Overloaded => Some("UO"),
            Self::Connect => Some("UF"),
            Self::Reset => Some("UC"),
            Self::Protocol => Some("UPE"),
            Self::Timeout => Some("UT"),
            Self::Still => Some("SI"),
        }
    }
}

/// Of a call over HTTP/2.
impl From<&Http2Error> for Failure {
    fn from(error: &Http2Error) -> Self {
        match error {
            Http2Error::Call(error) => error.into(),
            Http2Error::Stream(_) | Http2Error::Server | Http2Error::Stale => Self::Reset,
            Http2Error::Client | Http2Error::Again(..) => Self::Reset,
            Http2Error::TimedOut => Self::Timeout,
            Http2Error::Response(_) | Http2Error::Head(_) => Self::Protocol,
            Http2Error::Body(_) => Self::NO_BODY,
        }
    }
}

impl From<&CallError> for Failure {
    fn from(error: &CallError) -> Self {
        match error {
            CallError::NoEndpoint(_) => Self::NoEndpoint,
            CallError::Overloaded(_) => Self::Overloaded,
            CallError::Connect { .. } => Self::Connect,
        }
    }
}
