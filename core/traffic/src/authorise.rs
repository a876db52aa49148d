//! The verdict on a call: which rule decides, and how.
//!
//! A question without a request is about the connection alone. There a rule by request answers deny, whatever its
//! permissions: that is what Consul's intention check documents, since allowing the connection would promise more than any
//! single permission does.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use regex::bytes::Regex;
use starling_model::{
    Action, HeaderMatch, HeaderTest, IntentionPermission, IntentionSubject, PathMatch, ServiceName, SourceDecision,
};

use crate::path::{PathError, normalise};
use crate::pattern;
use crate::policy::{Policy, PolicyRule};

/// The header fields of a request.
pub trait HeaderFields {
    /// Whether one value of the field `name`, which is given in lower case, passes the test. Each of several fields of
    /// that name is tested by itself, as Envoy does it: joined, one value could hide another from a denial.
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

impl<K: AsRef<str>, V: AsRef<[u8]>> HeaderFields for Vec<(K, V)> {
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.iter().any(|(key, value)| key.as_ref().eq_ignore_ascii_case(name) && test(value.as_ref()))
    }
}

/// A request, its path in normal form.
#[derive(Clone)]
pub struct Request<'a> {
    method: &'a str,
    target: Cow<'a, str>,
    headers: &'a dyn HeaderFields,
}

impl<'a> Request<'a> {
    /// Reads a request as received.
    ///
    /// # Errors
    /// [`PathError`] if the target has no normal form; proxies answer such a request with 400 before any policy.
    pub fn new(method: &'a str, target: &'a str, headers: &'a dyn HeaderFields) -> Result<Self, PathError> {
        Ok(Self { method, target: normalise(target)?, headers })
    }

    /// The normal form of the target, query included: what is to be forwarded.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.method
    }

    /// Its header fields.
    #[must_use]
    pub fn headers(&self) -> &'a dyn HeaderFields {
        self.headers
    }

    /// As [`Request::target`], to be kept.
    #[must_use]
    pub fn into_target(self) -> Cow<'a, str> {
        self.target
    }

    /// The normal form of the path, query excluded: what rules are compared with.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }
}

/// What decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decider {
    /// No rule covers the source, so the default did.
    Default,
    /// A rule for the whole connection.
    Connection {
        /// Index into [`Policy::rules`].
        rule: usize,
    },
    /// A permission of a rule by request.
    Permission {
        /// Index into [`Policy::rules`].
        rule: usize,
        /// Index into the rule's permissions.
        permission: usize,
    },
    /// A rule by request of which no permission matched, so the default did.
    NoPermission {
        /// Index into [`Policy::rules`].
        rule: usize,
    },
    /// A rule by request where no request was given; the connection alone is denied.
    RequestNeeded {
        /// Index into [`Policy::rules`].
        rule: usize,
    },
}

/// Whether a call may pass, and by what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Verdict {
    /// Whether it may pass.
    pub action: Action,
    /// What decided.
    pub decided_by: Decider,
}

impl Verdict {
    /// The rule that covers the source, as index into [`Policy::rules`].
    #[must_use]
    pub fn rule(&self) -> Option<usize> {
        match self.decided_by {
            Decider::Default => None,
            Decider::Connection { rule }
            | Decider::Permission { rule, .. }
            | Decider::NoPermission { rule }
            | Decider::RequestNeeded { rule } => Some(rule),
        }
    }

    /// The permission that matched, as index into its rule's permissions.
    #[must_use]
    pub fn permission(&self) -> Option<usize> {
        match self.decided_by {
            Decider::Permission { permission, .. } => Some(permission),
            Decider::Default
            | Decider::Connection { .. }
            | Decider::NoPermission { .. }
            | Decider::RequestNeeded { .. } => None,
        }
    }

    /// What decided, in words; `policy` is the one that was asked.
    #[must_use]
    pub fn explain(&self, policy: &Policy) -> String {
        let rule = self.rule().and_then(|rule| policy.rules.get(rule)).map_or_else(
            || "the default policy".to_owned(),
            |rule| format!("intention {} -> {} (precedence {})", rule.source, rule.written_for, rule.precedence),
        );
        match self.decided_by {
            Decider::Default | Decider::Connection { .. } => rule,
            Decider::Permission { permission, .. } => format!("{rule}, permission {}", permission + 1),
            Decider::NoPermission { .. } => format!("{rule}, no permission matches, so the default policy"),
            Decider::RequestNeeded { .. } => format!("{rule}, which decides by request and denies bare connections"),
        }
    }
}

/// Decides once, compiling what it needs; [`CompiledPolicy`] is for deciding often.
#[must_use]
pub fn authorise(policy: &Policy, source: &ServiceName, request: Option<&Request<'_>>) -> Verdict {
    CompiledPolicy::new(policy).authorise(source, request)
}

/// A policy ready to decide per request. Cloning costs two reference counts.
#[derive(Debug, Clone)]
pub struct CompiledPolicy {
    default: Action,
    /// What is written for the service itself.
    own: Arc<CompiledRules>,
    /// What is written for `*`, which comes after it.
    any: Arc<CompiledRules>,
}

/// Rules in order of precedence, ready to decide; shared by the policies that they are part of.
#[derive(Debug, Clone, Default)]
pub struct CompiledRules {
    by_source: BTreeMap<ServiceName, usize>,
    any: Option<usize>,
    decisions: Vec<Decision>,
}

#[derive(Debug, Clone)]
enum Decision {
    Connection(Action),
    Requests(Vec<Permission>),
}

#[derive(Debug, Clone)]
struct Permission {
    action: Action,
    /// An allowing permission with a test that cannot be compiled.
    never: bool,
    path: Option<Test>,
    methods: Vec<String>,
    headers: Vec<HeaderRule>,
}

/// A test on a header field, compiled.
#[derive(Debug, Clone)]
pub(crate) struct HeaderRule {
    name: String,
    /// `None` asks for presence only.
    test: Option<Test>,
    invert: bool,
}

#[derive(Debug, Clone)]
enum Test {
    Exact(Text),
    Prefix(Text),
    Suffix(Text),
    Contains(Text),
    Regex(Regex),
}

#[derive(Debug, Clone)]
struct Text {
    bytes: Vec<u8>,
    ignore_case: bool,
}

impl CompiledRules {
    /// Compiles every rule.
    ///
    /// Expressions were checked at the door ([`crate::check_regex`]). One that cannot be compiled all the same makes its
    /// permission narrower, never wider: an allowing permission never matches, a denying one goes without that test.
    #[must_use]
    pub fn new(rules: &[PolicyRule]) -> Self {
        let mut by_source = BTreeMap::new();
        let mut any = None;
        for (index, rule) in rules.iter().enumerate() {
            match &rule.source {
                IntentionSubject::Service(source) => {
                    by_source.entry(source.clone()).or_insert(index);
                }
                IntentionSubject::Any => any = any.or(Some(index)),
            }
        }
        let decision = |decision: &SourceDecision| match decision {
            SourceDecision::Connection(action) => Decision::Connection(*action),
            SourceDecision::Requests(permissions) => {
                Decision::Requests(permissions.iter().map(Permission::compile).collect())
            }
        };
        Self { by_source, any, decisions: rules.iter().map(|rule| decision(&rule.decision)).collect() }
    }

    /// The first rule that covers `source`.
    fn covering(&self, source: &ServiceName) -> Option<usize> {
        self.by_source.get(source).copied().into_iter().chain(self.any).min()
    }
}

impl CompiledPolicy {
    /// Compiles every rule.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self {
            default: policy.default,
            own: Arc::new(CompiledRules::new(&policy.rules)),
            any: Arc::new(CompiledRules::default()),
        }
    }

    /// The rules written for a service above those written for `*`: a wildcard source towards this service comes before
    /// this source towards all. Verdicts count the rules of both, `own` first.
    #[must_use]
    pub fn layered(default: Action, own: Arc<CompiledRules>, any: Arc<CompiledRules>) -> Self {
        Self { default, own, any }
    }

    /// The verdict on a call from `source`; without a request, on its connection alone.
    #[must_use]
    pub fn authorise(&self, source: &ServiceName, request: Option<&Request<'_>>) -> Verdict {
        let own = self.own.covering(source).map(|rule| (rule, &self.own.decisions[rule]));
        let covering = own.or_else(|| {
            let rule = self.any.covering(source)?;
            Some((self.own.decisions.len() + rule, &self.any.decisions[rule]))
        });
        let Some((rule, decision)) = covering else {
            return Verdict { action: self.default, decided_by: Decider::Default };
        };
        let permissions = match decision {
            Decision::Connection(action) => {
                return Verdict { action: *action, decided_by: Decider::Connection { rule } };
            }
            Decision::Requests(permissions) => permissions,
        };
        let Some(request) = request else {
            return Verdict { action: Action::Deny, decided_by: Decider::RequestNeeded { rule } };
        };
        match permissions.iter().position(|permission| permission.matches(request)) {
            Some(permission) => {
                Verdict { action: permissions[permission].action, decided_by: Decider::Permission { rule, permission } }
            }
            None => Verdict { action: self.default, decided_by: Decider::NoPermission { rule } },
        }
    }
}

impl CompiledPolicy {
    /// Source and destination of a rule that covers `source`, as they are written: by name, or `*`.
    #[must_use]
    pub fn written<'a>(
        &self,
        rule: usize,
        source: &'a ServiceName,
        destination: &'a ServiceName,
    ) -> (&'a str, &'a str) {
        let (rules, rule, destination) = match rule.checked_sub(self.own.decisions.len()) {
            None => (&self.own, rule, destination.as_str()),
            Some(rule) => (&self.any, rule, "*"),
        };
        let named = rules.by_source.get(source) == Some(&rule);
        (if named { source.as_str() } else { "*" }, destination)
    }
}

impl Permission {
    fn compile(permission: &IntentionPermission) -> Self {
        let path = permission.path.as_ref().map(Test::of_path);
        let headers: Vec<_> = permission.headers.iter().map(HeaderRule::compile).collect();
        let broken = matches!(path, Some(None)) || headers.iter().any(Option::is_none);
        Self {
            action: permission.action,
            never: broken && permission.action == Action::Allow,
            path: path.flatten(),
            methods: permission.methods.clone(),
            headers: headers.into_iter().flatten().collect(),
        }
    }

    fn matches(&self, request: &Request<'_>) -> bool {
        !self.never
            && (self.methods.is_empty() || self.methods.iter().any(|method| method == request.method))
            && self.path.as_ref().is_none_or(|test| test.matches(request.path().as_bytes()))
            && self.headers.iter().all(|header| header.matches(request.headers))
    }
}

impl HeaderRule {
    /// `None` if the test cannot be compiled.
    pub(crate) fn compile(header: &HeaderMatch) -> Option<Self> {
        let text = |text: &String| Text { bytes: text.clone().into_bytes(), ignore_case: header.ignore_case };
        let test = match &header.test {
            HeaderTest::Present => None,
            HeaderTest::Exact(value) => Some(Test::Exact(text(value))),
            HeaderTest::Prefix(value) => Some(Test::Prefix(text(value))),
            HeaderTest::Suffix(value) => Some(Test::Suffix(text(value))),
            HeaderTest::Contains(value) => Some(Test::Contains(text(value))),
            // Case is the expression's own matter, as in Envoy's `StringMatcher.ignore_case`.
            HeaderTest::Regex(expression) => Some(Test::Regex(pattern::compile(expression).ok()?)),
        };
        Some(Self { name: header.name.clone(), test, invert: header.invert })
    }

    /// A field that is not there fails every test, so that inverted it holds.
    pub(crate) fn matches(&self, headers: &dyn HeaderFields) -> bool {
        let mut test = |value: &[u8]| self.test.as_ref().is_none_or(|test| test.matches(value));
        headers.any(&self.name, &mut test) != self.invert
    }
}

impl Test {
    /// `None` if the test cannot be compiled.
    fn of_path(path: &PathMatch) -> Option<Self> {
        let text = |text: &String| Text { bytes: text.clone().into_bytes(), ignore_case: false };
        match path {
            PathMatch::Exact(path) => Some(Self::Exact(text(path))),
            PathMatch::Prefix(path) => Some(Self::Prefix(text(path))),
            PathMatch::Regex(expression) => pattern::compile(expression).ok().map(Self::Regex),
        }
    }

    fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(text) => text.is(value),
            Self::Prefix(text) => value.get(..text.bytes.len()).is_some_and(|start| text.is(start)),
            Self::Suffix(text) => value.len().checked_sub(text.bytes.len()).is_some_and(|from| text.is(&value[from..])),
            Self::Contains(text) => text.bytes.is_empty() || value.windows(text.bytes.len()).any(|part| text.is(part)),
            Self::Regex(regex) => regex.is_match(value),
        }
    }
}

impl Text {
    fn is(&self, value: &[u8]) -> bool {
        if self.ignore_case { self.bytes.eq_ignore_ascii_case(value) } else { self.bytes == value }
    }
}
