//! Where a request to a service goes: an ordered list of rules of which the first that matches decides.
//!
//! Owns the decision, and what follows from it for path and share; not the sending, and no randomness: whoever asks passes
//! a number in. Rules are those of `service-router` after everything that they name has been resolved to clusters.
//!
//! Cost model: [`RouteTable::new`] compiles each expression once and sorts rules by path. Finding costs one look-up for the
//! exact path, one for each length that some prefix of the table has, one test for each rule that those name, and one for
//! each rule that is found by no path (expressions, any path, paths without regard to case); nothing is allocated.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use starling_model::{
    Fault, HashPolicy, HeaderEdits, PathMatch, Percent, RedirectPath, RequestMatch, RetryPolicy, RouteRedirect,
};

use crate::authorise::{HeaderFields, Request};
use crate::host::split_port;
use crate::route_index::RouteIndex;

/// What the weights of a rule's targets sum to: steps of 0.01 % of steps of 1 %, so that a split of a split stays exact
/// where percentages are whole.
pub const WEIGHT_TOTAL: u32 = 1_000_000;

/// The rules of one service, in order. Equal rules are equal tables.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Vec<RouteRule>")]
pub struct RouteTable {
    rules: Vec<RouteRule>,
    index: RouteIndex,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RouteRule {
    /// The requests that it decides about.
    pub matches: RequestMatch,
    /// What becomes of them.
    pub action: RuleAction,
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RuleAction {
    /// It goes to one of these.
    Forward(Box<Forward>),
    /// The caller is told to go elsewhere.
    Redirect(RouteRedirect),
}

/// Where a request goes, and how.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Forward {
    /// Clusters to choose from, one at least; their weights sum to [`WEIGHT_TOTAL`].
    pub targets: Vec<WeightedTarget>,
    /// What takes the place of the path or prefix that matched.
    pub prefix_rewrite: Option<String>,
    /// Time for the whole request, all tries of it; `None` for no limit.
    pub timeout: Option<Duration>,
    /// Time for a single try.
    pub per_try_timeout: Option<Duration>,
    /// Time that request and response may stand still; `None` leaves it to the proxy.
    pub idle_timeout: Option<Duration>,
    /// When it is tried again; `None` for never.
    pub retry: Option<RetryPolicy>,
    /// What is done to the head of the request; a target's own edits come first.
    pub request_headers: HeaderEdits,
    /// What is done to the head of the response; a target's own edits come first.
    pub response_headers: HeaderEdits,
    /// Who gets a copy.
    pub mirror: Option<MirrorTo>,
    /// What is made to go wrong.
    pub fault: Option<Fault>,
    /// What the request's hash is taken of.
    pub hash: Vec<HashPolicy>,
}

/// A cluster and its share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WeightedTarget {
    /// The cluster's name.
    pub cluster: Arc<str>,
    /// Its share of [`WEIGHT_TOTAL`], at least 1.
    pub weight: u32,
    /// What is done to the head of a request that goes there.
    pub request_headers: HeaderEdits,
    /// What is done to the head of its response.
    pub response_headers: HeaderEdits,
}

/// Who gets a copy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MirrorTo {
    /// The cluster's name.
    pub cluster: Arc<str>,
    /// Of how many requests.
    pub percent: Percent,
}

impl PartialEq for RouteTable {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
    }
}

/// As its rules alone.
impl Serialize for RouteTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.rules.serialize(serializer)
    }
}

impl From<Vec<RouteRule>> for RouteTable {
    fn from(rules: Vec<RouteRule>) -> Self {
        Self::new(rules)
    }
}

impl RouteTable {
    /// Compiles rules. Expressions were checked at the door; one that cannot be compiled all the same matches nothing.
    #[must_use]
    pub fn new(rules: Vec<RouteRule>) -> Self {
        let index = RouteIndex::new(rules.iter().map(|rule| &rule.matches));
        Self { rules, index }
    }

    /// The rules, in order.
    #[must_use]
    pub fn rules(&self) -> &[RouteRule] {
        &self.rules
    }

    /// The first rule that matches.
    #[must_use]
    pub fn find(&self, request: &Request<'_>) -> Option<&RouteRule> {
        Some(&self.rules[self.index.find(request)?])
    }

    /// Every cluster that a request may go to, by name; those that get copies included.
    #[must_use]
    pub fn clusters(&self) -> BTreeSet<&str> {
        let forwards = self.rules.iter().filter_map(RouteRule::forward);
        forwards
            .flat_map(|forward| {
                let mirror = forward.mirror.as_ref().map(|mirror| &*mirror.cluster);
                forward.targets.iter().map(|target| &*target.cluster).chain(mirror)
            })
            .collect()
    }
}

impl RouteRule {
    /// Where it sends requests, if it does.
    #[must_use]
    pub fn forward(&self) -> Option<&Forward> {
        match &self.action {
            RuleAction::Forward(forward) => Some(forward),
            RuleAction::Redirect(_) => None,
        }
    }

    /// The target to forward, its path rewritten as the rule says; `target` is in normal form, and matched.
    #[must_use]
    pub fn rewrite<'a>(&self, target: &'a str) -> Cow<'a, str> {
        match self.forward().and_then(|forward| forward.prefix_rewrite.as_deref()) {
            Some(new) => Cow::Owned(self.replace(target, new)),
            None => Cow::Borrowed(target),
        }
    }

    /// Puts `new` in the place of what the rule matched of the path.
    fn replace(&self, target: &str, new: &str) -> String {
        let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
        let rest = match &self.matches.path {
            Some(PathMatch::Prefix(prefix)) => path.get(prefix.len()..).unwrap_or_default(),
            Some(PathMatch::Exact(_) | PathMatch::Regex(_)) | None => "",
        };
        format!("{new}{rest}{query}")
    }

    /// The address to tell a caller who asked for `target` (in normal form, and matched) of `authority` by `scheme`; `None`
    /// if the rule does not redirect.
    ///
    /// A port of the authority stays, unless another host or port is named, or it is the old scheme's own; as Envoy has it.
    #[must_use]
    pub fn location(&self, scheme: &str, authority: &str, target: &str) -> Option<String> {
        let RuleAction::Redirect(redirect) = &self.action else { return None };
        let new_scheme = if redirect.https { "https" } else { scheme };
        let (host, port) = split_port(authority);
        let port = match redirect.port {
            Some(port) => format!(":{port}"),
            None if redirect.host.is_some() || (new_scheme != scheme && port == ":80") => String::new(),
            None => port.to_owned(),
        };
        let (_, query) = target.split_at(target.find('?').unwrap_or(target.len()));
        let target = match &redirect.path {
            None => target.to_owned(),
            Some(RedirectPath::Whole(path)) => format!("{path}{query}"),
            Some(RedirectPath::Prefix(prefix)) => self.replace(target, prefix),
        };
        let target = if redirect.strip_query { target.split('?').next().unwrap_or_default() } else { &target };
        Some(format!("{new_scheme}://{}{port}{target}", redirect.host.as_deref().unwrap_or(host)))
    }
}

/// The scheme by which a caller asked: the one that the target names, else what a proxy in front says in
/// `x-forwarded-proto`; whoever comes without either comes by `http`.
#[must_use]
pub fn scheme<'a>(named: Option<&'a str>, headers: &dyn HeaderFields) -> &'a str {
    let (mut fields, mut secure) = (0, false);
    headers.any("x-forwarded-proto", &mut |value| {
        (fields, secure) = (fields + 1, value.eq_ignore_ascii_case(b"https"));
        false
    });
    // Of several, nobody knows which is meant.
    named.unwrap_or(if secure && fields == 1 { "https" } else { "http" })
}

impl Forward {
    /// The target for a request, by a number that is drawn evenly from all of them.
    #[must_use]
    pub fn pick(&self, random: u64) -> Option<&WeightedTarget> {
        let total: u64 = self.targets.iter().map(|target| u64::from(target.weight)).sum();
        let mut point = scale(random, total);
        self.targets.iter().find(|target| {
            let weight = u64::from(target.weight);
            let here = point < weight;
            point = point.saturating_sub(weight);
            here
        })
    }
}

/// Whether a share of requests is to have this one, by a number that is drawn evenly from all of them.
#[must_use]
pub fn hits(share: Percent, random: u64) -> bool {
    scale(random, u64::from(Percent::ALL.hundredths())) < u64::from(share.hundredths())
}

/// A number below `total`, evenly (Lemire, "Fast Random Integer Generation in an Interval", without rejection: the bias is
/// below `total` in 2^64).
fn scale(random: u64, total: u64) -> u64 {
    let product = u128::from(random) * u128::from(total);
    u64::try_from(product >> 64).expect("invariant: the upper half has 64 bits")
}
