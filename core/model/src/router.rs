//! Where each request to a service goes (Consul's `service-router`).
//!
//! Redirects, mirrors, faults, the timeout of a single try and the budget of retries are Starling's own; everything else is
//! Consul's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::intention::{HeaderMatch, PathMatch};
use crate::name::{ServiceName, SubsetName};
use crate::percent::Percent;

/// Where the requests to one service go; the first route that matches decides, and what no route matches goes to the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceRouter {
    /// The service.
    pub service: ServiceName,
    /// The routes in order.
    pub routes: Vec<ServiceRoute>,
    /// Free metadata.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
}

/// One route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceRoute {
    /// The requests that take it.
    #[serde(default)]
    pub matches: RequestMatch,
    /// What becomes of them.
    pub action: RouteAction,
}

/// A test on a request; every part must hold, and one that says nothing holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RequestMatch {
    /// On the path in normal form, query excluded; a prefix is compared as text.
    #[serde(default)]
    pub path: Option<PathMatch>,
    /// Whether letters of either case are equal in an exact path or a prefix.
    #[serde(default)]
    pub ignore_path_case: bool,
    /// On header fields; all must hold.
    #[serde(default)]
    pub headers: Vec<HeaderMatch>,
    /// On the query; all must hold.
    #[serde(default)]
    pub query: Vec<QueryMatch>,
    /// Methods in upper case; empty matches every method.
    #[serde(default)]
    pub methods: Vec<String>,
}

/// A test on a parameter of the query: on the first of its name, as it stands there, without unescaping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryMatch {
    /// The parameter.
    pub name: String,
    /// The test.
    pub test: QueryTest,
}

/// The tests on a parameter's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueryTest {
    /// The parameter is there.
    Present,
    /// The whole value.
    Exact(String),
    /// The whole value against an RE2 expression.
    Regex(String),
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteAction {
    /// It goes on.
    Forward(Box<RouteDestination>),
    /// The caller is told to go elsewhere. Starling's own.
    Redirect(RouteRedirect),
}

/// Where a request goes, and how.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RouteDestination {
    /// The service called; `None` is the router's own.
    #[serde(default)]
    pub service: Option<ServiceName>,
    /// The subset called; `None` is the service's default, or what its splitter says.
    #[serde(default)]
    pub subset: Option<SubsetName>,
    /// What takes the place of the path or prefix that matched.
    #[serde(default)]
    pub prefix_rewrite: Option<String>,
    /// Time for the whole request, all tries of it.
    #[serde(default)]
    pub request_timeout: Option<Duration>,
    /// Time for a single try. Starling's own.
    #[serde(default)]
    pub per_try_timeout: Option<Duration>,
    /// Time that request and response may stand still.
    #[serde(default)]
    pub idle_timeout: Option<Duration>,
    /// When a request is tried again.
    #[serde(default)]
    pub retry: RetryPolicy,
    /// What is done to the head of the request.
    #[serde(default)]
    pub request_headers: HeaderEdits,
    /// What is done to the head of the response.
    #[serde(default)]
    pub response_headers: HeaderEdits,
    /// Who gets a copy, whose answers are thrown away. Starling's own.
    #[serde(default)]
    pub mirror: Option<Mirror>,
    /// What is made to go wrong. Starling's own.
    #[serde(default)]
    pub fault: Option<Fault>,
}

/// When a request is tried again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Tries beyond the first; `None` is one, if anything is said of when.
    #[serde(default)]
    pub retries: Option<u32>,
    /// When.
    #[serde(default)]
    pub on: BTreeSet<RetryOn>,
    /// On which answers.
    #[serde(default)]
    pub on_statuses: BTreeSet<u16>,
    /// How many at once. Starling's own.
    #[serde(default)]
    pub budget: Option<RetryBudget>,
}

impl RetryPolicy {
    /// Whether anything is ever tried again.
    #[must_use]
    pub fn retries_at_all(&self) -> bool {
        self.retries != Some(0) && !(self.on.is_empty() && self.on_statuses.is_empty())
    }
}

/// How many retries may be under way at once, by what else is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RetryBudget {
    /// The share of the requests under way.
    pub percent: Percent,
    /// So many always.
    pub min_concurrency: u32,
}

/// Conditions of a retry, under Envoy's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RetryOn {
    /// Any 5xx, no answer at all, or a connection that breaks.
    ServerError,
    /// 502, 503 or 504.
    GatewayError,
    /// The connection broke without an answer.
    Reset,
    /// The connection broke before the request was sent.
    ResetBeforeRequest,
    /// No connection could be made.
    ConnectFailure,
    /// 409.
    Retriable4xx,
    /// The other end refused the stream unseen.
    RefusedStream,
    /// gRPC status 1.
    Cancelled,
    /// gRPC status 4.
    DeadlineExceeded,
    /// gRPC status 13.
    Internal,
    /// gRPC status 8.
    ResourceExhausted,
    /// gRPC status 14.
    Unavailable,
}

impl RetryOn {
    /// Every condition.
    pub const ALL: [Self; 12] = [
        Self::ServerError,
        Self::GatewayError,
        Self::Reset,
        Self::ResetBeforeRequest,
        Self::ConnectFailure,
        Self::Retriable4xx,
        Self::RefusedStream,
        Self::Cancelled,
        Self::DeadlineExceeded,
        Self::Internal,
        Self::ResourceExhausted,
        Self::Unavailable,
    ];

    /// Envoy's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ServerError => "5xx",
            Self::GatewayError => "gateway-error",
            Self::Reset => "reset",
            Self::ResetBeforeRequest => "reset-before-request",
            Self::ConnectFailure => "connect-failure",
            Self::Retriable4xx => "retriable-4xx",
            Self::RefusedStream => "refused-stream",
            Self::Cancelled => "cancelled",
            Self::DeadlineExceeded => "deadline-exceeded",
            Self::Internal => "internal",
            Self::ResourceExhausted => "resource-exhausted",
            Self::Unavailable => "unavailable",
        }
    }
}

impl FromStr for RetryOn {
    type Err = UnknownRetryOn;
    fn from_str(text: &str) -> Result<Self, UnknownRetryOn> {
        Self::ALL.into_iter().find(|on| on.as_str() == text).ok_or_else(|| UnknownRetryOn(text.to_owned()))
    }
}

impl TryFrom<String> for RetryOn {
    type Error = UnknownRetryOn;
    fn try_from(text: String) -> Result<Self, UnknownRetryOn> {
        text.parse()
    }
}

impl From<RetryOn> for String {
    fn from(on: RetryOn) -> Self {
        on.as_str().to_owned()
    }
}

impl fmt::Display for RetryOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no condition of a retry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no condition of a retry; it is one of 5xx, gateway-error, reset, reset-before-request, connect-failure, retriable-4xx, refused-stream, cancelled, deadline-exceeded, internal, resource-exhausted, unavailable"
)]
pub struct UnknownRetryOn(pub String);

/// What is done to the head of a message: fields are removed, then set, then added.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct HeaderEdits {
    /// Fields that get one more value, by name in lower case.
    #[serde(default)]
    pub add: BTreeMap<String, String>,
    /// Fields that get this value instead of theirs, by name in lower case.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// Fields that go, by name in lower case.
    #[serde(default)]
    pub remove: BTreeSet<String>,
}

impl HeaderEdits {
    /// Whether nothing is done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.set.is_empty() && self.remove.is_empty()
    }
}

/// Who gets a copy of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    /// The service.
    pub service: ServiceName,
    /// Its subset; `None` is its default.
    #[serde(default)]
    pub subset: Option<SubsetName>,
    /// Of how many requests.
    pub percent: Percent,
}

/// What is made to go wrong, to see what callers do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fault {
    /// Requests that wait first.
    #[serde(default)]
    pub delay: Option<FaultDelay>,
    /// Requests that are answered without being sent on.
    #[serde(default)]
    pub abort: Option<FaultAbort>,
}

/// Requests that wait first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultDelay {
    /// For how long.
    pub duration: Duration,
    /// How many of them.
    pub percent: Percent,
}

/// Requests that are answered without being sent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultAbort {
    /// With this status, 200 to 599.
    pub status: u16,
    /// How many of them.
    pub percent: Percent,
}

/// Where the caller is told to go; what is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRedirect {
    /// The status of the answer.
    pub status: RedirectStatus,
    /// Whether the new address is `https`.
    #[serde(default)]
    pub https: bool,
    /// The host.
    #[serde(default)]
    pub host: Option<String>,
    /// The port.
    #[serde(default)]
    pub port: Option<crate::name::Port>,
    /// The path.
    #[serde(default)]
    pub path: Option<RedirectPath>,
    /// Whether the query is left out.
    #[serde(default)]
    pub strip_query: bool,
}

/// The path that a caller is told to go to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RedirectPath {
    /// This one.
    Whole(String),
    /// This instead of the path or prefix that matched.
    Prefix(String),
}

/// The statuses of a redirect (RFC 9110 section 15.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub enum RedirectStatus {
    /// 301.
    MovedPermanently,
    /// 302.
    Found,
    /// 303.
    SeeOther,
    /// 307.
    Temporary,
    /// 308.
    Permanent,
}

impl TryFrom<u16> for RedirectStatus {
    type Error = String;
    fn try_from(status: u16) -> Result<Self, String> {
        match status {
            301 => Ok(Self::MovedPermanently),
            302 => Ok(Self::Found),
            303 => Ok(Self::SeeOther),
            307 => Ok(Self::Temporary),
            308 => Ok(Self::Permanent),
            _ => Err(format!("{status} is no status of a redirect; it is one of 301, 302, 303, 307, 308")),
        }
    }
}

impl From<RedirectStatus> for u16 {
    fn from(status: RedirectStatus) -> u16 {
        match status {
            RedirectStatus::MovedPermanently => 301,
            RedirectStatus::Found => 302,
            RedirectStatus::SeeOther => 303,
            RedirectStatus::Temporary => 307,
            RedirectStatus::Permanent => 308,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_and_statuses_survive_the_round_trip() {
        for on in RetryOn::ALL {
            assert_eq!(on.as_str().parse(), Ok(on));
        }
        assert!("sometimes".parse::<RetryOn>().is_err());
        for status in [301_u16, 302, 303, 307, 308] {
            assert_eq!(RedirectStatus::try_from(status).map(u16::from), Ok(status));
        }
        assert!(RedirectStatus::try_from(304).is_err());
    }

    #[test]
    fn a_policy_without_conditions_retries_nothing() {
        let policy = |retries, on: &[RetryOn]| RetryPolicy {
            retries,
            on: on.iter().copied().collect(),
            ..RetryPolicy::default()
        };
        assert!(!policy(Some(3), &[]).retries_at_all());
        assert!(!policy(Some(0), &[RetryOn::Reset]).retries_at_all());
        assert!(policy(None, &[RetryOn::Reset]).retries_at_all());
    }
}
