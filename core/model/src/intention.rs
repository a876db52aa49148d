//! Intentions: who may call whom, and with which requests.
//!
//! Consul's model: one entry per destination, in it one decision per source. Terms follow Consul's
//! `service-intentions` config entry.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::{NameError, ServiceName};
use crate::uuid::Uuid;

/// A side of an intention: one service, or every service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum IntentionSubject {
    /// This service.
    Service(ServiceName),
    /// Every service, `*`.
    Any,
}

impl IntentionSubject {
    /// The name or `*`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Service(name) => name.as_str(),
            Self::Any => "*",
        }
    }

    /// The service; `None` for every service.
    #[must_use]
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::Service(name) => Some(name),
            Self::Any => None,
        }
    }

    /// Whether `service` is meant.
    #[must_use]
    pub fn covers(&self, service: &ServiceName) -> bool {
        match self {
            Self::Service(name) => name == service,
            Self::Any => true,
        }
    }
}

impl FromStr for IntentionSubject {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        if text == "*" { Ok(Self::Any) } else { ServiceName::new(text).map(Self::Service) }
    }
}

impl TryFrom<String> for IntentionSubject {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<IntentionSubject> for String {
    fn from(subject: IntentionSubject) -> String {
        subject.as_str().to_owned()
    }
}

impl fmt::Display for IntentionSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The verdict of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Let through.
    Allow,
    /// Refuse.
    Deny,
}

impl Action {
    /// Consul's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// Every intention towards one destination (Consul's `service-intentions` entry).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceIntentions {
    /// The destination.
    pub destination: IntentionSubject,
    /// One decision per source, each source at most once, in order of precedence (exact before wildcard).
    pub sources: Vec<SourceIntention>,
    /// Free metadata.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
}

/// What one source may do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceIntention {
    /// The source.
    pub source: IntentionSubject,
    /// The decision.
    pub decision: SourceDecision,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// By what it is found, if it was made one by one: it stays while its names change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
}

impl SourceIntention {
    /// Consul's precedence number for this source towards `destination`: the higher decides.
    ///
    /// Source: Consul documentation, "Intention precedence": 9 exact to exact, 8 any to exact, 6 exact to any, 5 any to any.
    #[must_use]
    pub fn precedence(&self, destination: &IntentionSubject) -> u8 {
        match (&self.source, destination) {
            (IntentionSubject::Service(_), IntentionSubject::Service(_)) => 9,
            (IntentionSubject::Any, IntentionSubject::Service(_)) => 8,
            (IntentionSubject::Service(_), IntentionSubject::Any) => 6,
            (IntentionSubject::Any, IntentionSubject::Any) => 5,
        }
    }
}

/// A decision: for the whole connection, or request by request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceDecision {
    /// The same for every connection (L4).
    Connection(Action),
    /// The first permission that matches a request decides; none matching falls to the default policy (L7).
    Requests(Vec<IntentionPermission>),
}

impl SourceDecision {
    /// Whether anything may pass: whoever writes permissions means calls.
    #[must_use]
    pub fn may_allow(&self) -> bool {
        match self {
            Self::Connection(action) => *action == Action::Allow,
            Self::Requests(_) => true,
        }
    }
}

/// One L7 rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IntentionPermission {
    /// Its verdict.
    pub action: Action,
    /// On the path; `None` matches every path.
    #[serde(default)]
    pub path: Option<PathMatch>,
    /// Methods in upper case; empty matches every method.
    #[serde(default)]
    pub methods: Vec<String>,
    /// On header fields; all must hold.
    #[serde(default)]
    pub headers: Vec<HeaderMatch>,
}

/// A test on the normalised path, query excluded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathMatch {
    /// The whole path.
    Exact(String),
    /// The beginning of the path, as text.
    Prefix(String),
    /// The whole path against an RE2 expression.
    Regex(String),
}

/// A test on a header field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderMatch {
    /// Field name in lower case.
    pub name: String,
    /// The test.
    pub test: HeaderTest,
    /// Whether the test must fail instead.
    #[serde(default)]
    pub invert: bool,
    /// Whether letters of either case are equal.
    #[serde(default)]
    pub ignore_case: bool,
}

/// The tests on a header field's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderTest {
    /// The field is there.
    Present,
    /// The whole value.
    Exact(String),
    /// The beginning.
    Prefix(String),
    /// The end.
    Suffix(String),
    /// A part.
    Contains(String),
    /// The whole value against an RE2 expression.
    Regex(String),
}
