//! Policies as Envoy's RBAC rules.
//!
//! A policy is an ordered list in which the first match decides; RBAC is an unordered list in which any match does.
//! The two are made equal by listing only what differs from the default, each entry without what an earlier one has
//! decided otherwise. Under a default of deny the rules say who is let through, under a default of allow who is not.

use std::collections::{BTreeMap, BTreeSet};

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::config::rbac::v3::permission::{self, Rule};
use envoy_types::pb::envoy::config::rbac::v3::principal::{self, Authenticated, Identifier};
use envoy_types::pb::envoy::config::rbac::v3::{Permission, Policy as Entry, Principal};
use envoy_types::pb::envoy::config::route::v3::HeaderMatcher;
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{PathMatcher, RegexMatcher, StringMatcher, path_matcher};
use prost::Message;
use starling_model::{
    Action, HeaderMatch, HeaderTest, IntentionPermission, IntentionSubject, PathMatch, ServiceName, SourceDecision,
};
use starling_traffic::Policy;

use super::MeshNames;
use super::proto::any_of;
use crate::resource::{Resource, ResourceType};
use crate::wire::{HttpRbac, HttpRbacPerRoute, NetworkRbac, RbacRules};

pub(super) const HTTP_FILTER: &str = "envoy.filters.http.rbac";
pub(super) const HTTP_TYPE_URL: &str = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
pub(super) const PER_ROUTE_TYPE_URL: &str = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBACPerRoute";
pub(super) const NETWORK_TYPE_URL: &str = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC";

/// `RBAC.Action` (envoy.config.rbac.v3).
const LET_THROUGH: i32 = 0;
const REFUSE: i32 = 1;

/// Lets nothing through.
pub(super) fn refuse_all() -> HttpRbac {
    HttpRbac { rules: Some(RbacRules { action: LET_THROUGH, policies: BTreeMap::new() }) }
}

/// The policy of an HTTP service, as its route has it. Refusals are answered 403, those of whole sources, too.
pub(super) fn per_route(policy: &Policy, names: &MeshNames) -> HttpRbacPerRoute {
    HttpRbacPerRoute { rbac: Some(HttpRbac { rules: Some(rules(policy, names, Level::Request)) }) }
}

/// The name of a TCP service's policy; the colon keeps it apart from built-in filters.
pub(super) fn extension_name(service: &ServiceName) -> String {
    format!("policy:{service}")
}

/// The policy of a TCP service, as a filter by itself.
pub(super) fn network_filter(policy: &Policy, names: &MeshNames) -> Resource {
    let name = extension_name(&policy.destination);
    let filter = NetworkRbac {
        rules: Some(rules(policy, names, Level::Connection)),
        stat_prefix: "public_listener.".to_owned(),
    };
    let message = TypedExtensionConfig { name: name.clone(), typed_config: Some(any_of(NETWORK_TYPE_URL, &filter)) };
    Resource::new(ResourceType::Extension, &name, &message.encode_to_vec())
}

/// What can be told apart where the rules act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// Connections only.
    Connection,
    /// Requests.
    Request,
}

pub(super) fn rules(policy: &Policy, names: &MeshNames, level: Level) -> RbacRules {
    let listed = match policy.default {
        Action::Allow => Action::Deny,
        Action::Deny => Action::Allow,
    };
    let mut policies = BTreeMap::new();
    let mut decided = BTreeSet::new();
    for (index, rule) in policy.rules.iter().enumerate() {
        let principal = match &rule.source {
            IntentionSubject::Service(service) if decided.contains(service) => continue,
            IntentionSubject::Service(service) => exactly(&names.identity_of(service)),
            IntentionSubject::Any => everyone_but(&decided, names, listed),
        };
        let permissions = listed_permissions(&rule.decision, listed, level);
        if !permissions.is_empty() {
            // Padded, so that the order of names is the order of rules for whoever reads a dump.
            policies.insert(
                format!("{index:04} {}", rule.source),
                Entry { permissions, principals: vec![principal], ..Default::default() },
            );
        }
        match &rule.source {
            IntentionSubject::Service(service) => decided.insert(service),
            // Every source is decided now.
            IntentionSubject::Any => break,
        };
    }
    let action = match listed {
        Action::Allow => LET_THROUGH,
        Action::Deny => REFUSE,
    };
    RbacRules { action, policies }
}

/// The requests of a source that are listed; any one matching is enough, none listed means none.
fn listed_permissions(decision: &SourceDecision, listed: Action, level: Level) -> Vec<Permission> {
    match (decision, level) {
        (SourceDecision::Connection(action), _) if *action == listed => vec![anything()],
        (SourceDecision::Connection(_), _) => Vec::new(),
        // Requests cannot be told apart here, so nobody gets in on their account.
        (SourceDecision::Requests(_), Level::Connection) => match listed {
            Action::Allow => Vec::new(),
            Action::Deny => vec![anything()],
        },
        (SourceDecision::Requests(permissions), Level::Request) => listed_requests(permissions, listed),
    }
}

fn listed_requests(permissions: &[IntentionPermission], listed: Action) -> Vec<Permission> {
    let mut result = Vec::new();
    let mut decided_otherwise = Vec::new();
    for permission in permissions {
        let matched = all_of(request_tests(permission));
        if permission.action == listed {
            let mut tests = vec![matched];
            tests.extend(decided_otherwise.iter().cloned().map(not));
            result.push(all_of(tests));
        } else {
            decided_otherwise.push(matched);
        }
    }
    result
}

fn request_tests(permission: &IntentionPermission) -> Vec<Permission> {
    let mut tests = Vec::new();
    tests.extend(permission.path.as_ref().map(path_test));
    if !permission.methods.is_empty() {
        let methods = permission.methods.iter().map(|method| method_test(method)).collect();
        tests.push(any_of_rules(methods));
    }
    tests.extend(permission.headers.iter().map(header_test));
    tests
}

/// `url_path` is the path without query and fragment.
fn path_test(path: &PathMatch) -> Permission {
    let pattern = match path {
        PathMatch::Exact(path) => Some(MatchPattern::Exact(path.clone())),
        PathMatch::Prefix(path) => part(path, MatchPattern::Prefix),
        PathMatch::Regex(expression) => Some(regex(expression)),
    };
    match pattern {
        Some(pattern) => {
            rule(Rule::UrlPath(PathMatcher { rule: Some(path_matcher::Rule::Path(text(pattern, false))) }))
        }
        None => anything(),
    }
}

fn method_test(method: &str) -> Permission {
    header(":method", HeaderMatchSpecifier::StringMatch(text(MatchPattern::Exact(method.to_owned()), false)))
}

/// Inversion is a rule around the matcher: the matcher's own never matches a field that is not there, and a missing
/// field fails every test, so its inverse must hold.
fn header_test(test: &HeaderMatch) -> Permission {
    let pattern = match &test.test {
        HeaderTest::Present => None,
        HeaderTest::Exact(value) => Some(MatchPattern::Exact(value.clone())),
        HeaderTest::Prefix(value) => part(value, MatchPattern::Prefix),
        HeaderTest::Suffix(value) => part(value, MatchPattern::Suffix),
        HeaderTest::Contains(value) => part(value, MatchPattern::Contains),
        HeaderTest::Regex(expression) => Some(regex(expression)),
    };
    let specifier = match pattern {
        Some(pattern) => HeaderMatchSpecifier::StringMatch(text(pattern, test.ignore_case)),
        None => HeaderMatchSpecifier::PresentMatch(true),
    };
    let matched = header(&test.name, specifier);
    if test.invert { not(matched) } else { matched }
}

/// A test for part of a text; `None` for the empty part, which every text has and Envoy does not take.
fn part(value: &str, pattern: impl FnOnce(String) -> MatchPattern) -> Option<MatchPattern> {
    (!value.is_empty()).then(|| pattern(value.to_owned()))
}

/// The whole text against RE2. `ignore_case` does not reach expressions, which have a flag of their own. Envoy does not
/// take the empty expression, which only the empty text matches.
fn regex(expression: &str) -> MatchPattern {
    if expression.is_empty() {
        return MatchPattern::Exact(String::new());
    }
    MatchPattern::SafeRegex(RegexMatcher { regex: expression.to_owned(), ..Default::default() })
}

fn text(pattern: MatchPattern, ignore_case: bool) -> StringMatcher {
    StringMatcher { ignore_case, match_pattern: Some(pattern) }
}

fn header(name: &str, specifier: HeaderMatchSpecifier) -> Permission {
    rule(Rule::Header(HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(specifier),
        ..Default::default()
    }))
}

fn rule(rule: Rule) -> Permission {
    Permission { rule: Some(rule) }
}

fn anything() -> Permission {
    rule(Rule::Any(true))
}

fn not(permission: Permission) -> Permission {
    rule(Rule::NotRule(Box::new(permission)))
}

fn all_of(mut tests: Vec<Permission>) -> Permission {
    match tests.len() {
        0 => anything(),
        1 => tests.remove(0),
        _ => rule(Rule::AndRules(permission::Set { rules: tests })),
    }
}

fn any_of_rules(mut tests: Vec<Permission>) -> Permission {
    if tests.len() == 1 { tests.remove(0) } else { rule(Rule::OrRules(permission::Set { rules: tests })) }
}

fn identifier(identifier: Identifier) -> Principal {
    Principal { identifier: Some(identifier) }
}

/// Whoever's certificate has this URI.
fn exactly(uri: &str) -> Principal {
    let name = text(MatchPattern::Exact(uri.to_owned()), false);
    identifier(Identifier::Authenticated(Authenticated { principal_name: Some(name) }))
}

/// Everyone whom no earlier rule has decided. To be let through takes a certificate; to be refused takes nothing.
fn everyone_but(decided: &BTreeSet<&ServiceName>, names: &MeshNames, listed: Action) -> Principal {
    let everyone = match listed {
        Action::Allow => identifier(Identifier::Authenticated(Authenticated::default())),
        Action::Deny => identifier(Identifier::Any(true)),
    };
    if decided.is_empty() {
        return everyone;
    }
    let decided = decided.iter().map(|service| exactly(&names.identity_of(service))).collect();
    let others =
        identifier(Identifier::NotId(Box::new(identifier(Identifier::OrIds(principal::Set { ids: decided })))));
    identifier(Identifier::AndIds(principal::Set { ids: vec![everyone, others] }))
}

#[cfg(test)]
mod tests;
