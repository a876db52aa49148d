//! A rule of a service's routes as a route of Envoy's.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption, RuntimeFractionalPercent};
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::query_parameter_matcher::QueryParameterMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::redirect_action::{
    PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier,
};
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::hash_policy::{
    ConnectionProperties, Cookie, Header, PolicySpecifier, QueryParameter,
};
use envoy_types::pb::envoy::config::route::v3::route_action::{
    ClusterSpecifier, HashPolicy as HashMessage, RequestMirrorPolicy,
};
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::weighted_cluster::ClusterWeight;
use envoy_types::pb::envoy::config::route::v3::{
    HeaderMatcher, QueryParameterMatcher, RedirectAction, RetryPolicy as RetryMessage, Route, RouteAction, RouteMatch,
    WeightedCluster,
};
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatcher, StringMatcher};
use starling_model::{
    HashOn, HashPolicy, HeaderEdits, HeaderMatch, HeaderTest, PathMatch, Protocol, QueryMatch, QueryTest, RedirectPath,
    RedirectStatus, RequestMatch, RetryPolicy, RouteRedirect,
};
use starling_traffic::{Forward, RouteRule, RuleAction, WeightedTarget};

use super::timed;
use crate::render::fault;
use crate::render::proto::{any, duration, flag, fraction, number};

/// Envoy's name for statuses as a condition of a retry.
const ON_STATUSES: &str = "retriable-status-codes";

pub(in crate::render) fn render(rule: &RouteRule, protocol: Protocol) -> Route {
    let mut route = Route { r#match: Some(matcher(&rule.matches)), ..Default::default() };
    match &rule.action {
        RuleAction::Redirect(redirect) => route.action = Some(Action::Redirect(redirection(redirect))),
        RuleAction::Forward(forward) => {
            route.action = Some(Action::Route(action(forward, protocol)));
            let (add, remove) = edits(&forward.request_headers);
            (route.request_headers_to_add, route.request_headers_to_remove) = (add, remove);
            let (add, remove) = edits(&forward.response_headers);
            (route.response_headers_to_add, route.response_headers_to_remove) = (add, remove);
            if let Some(fault) = &forward.fault {
                let filter = (fault::HTTP_FILTER.to_owned(), any(&fault::per_route(fault)));
                route.typed_per_filter_config.extend([filter]);
            }
        }
    }
    route
}

fn matcher(matches: &RequestMatch) -> RouteMatch {
    let path = match &matches.path {
        None => PathSpecifier::Prefix("/".to_owned()),
        Some(PathMatch::Exact(path)) => PathSpecifier::Path(path.clone()),
        Some(PathMatch::Prefix(path)) => PathSpecifier::Prefix(path.clone()),
        Some(PathMatch::Regex(expression)) => PathSpecifier::SafeRegex(regex(expression)),
    };
    let method = (!matches.methods.is_empty()).then(|| {
        let pattern = match matches.methods.as_slice() {
            [one] => MatchPattern::Exact(one.clone()),
            // Methods are letters only.
            several => MatchPattern::SafeRegex(regex(&several.join("|"))),
        };
        header(":method", HeaderMatchSpecifier::StringMatch(text(pattern, false)))
    });
    RouteMatch {
        path_specifier: Some(path),
        case_sensitive: if matches.ignore_path_case { flag(false) } else { None },
        headers: method.into_iter().chain(matches.headers.iter().map(header_test)).collect(),
        query_parameters: matches.query.iter().map(query_test).collect(),
        ..Default::default()
    }
}

/// A field that is not there fails every test, so that inverted it holds: Envoy would say so only of an empty one.
fn header_test(test: &HeaderMatch) -> HeaderMatcher {
    let pattern = match &test.test {
        HeaderTest::Present => {
            let present = header(&test.name, HeaderMatchSpecifier::PresentMatch(true));
            return HeaderMatcher { invert_match: test.invert, ..present };
        }
        HeaderTest::Exact(value) => MatchPattern::Exact(value.clone()),
        HeaderTest::Prefix(value) => MatchPattern::Prefix(value.clone()),
        HeaderTest::Suffix(value) => MatchPattern::Suffix(value.clone()),
        HeaderTest::Contains(value) => MatchPattern::Contains(value.clone()),
        HeaderTest::Regex(expression) => MatchPattern::SafeRegex(regex(expression)),
    };
    HeaderMatcher {
        invert_match: test.invert,
        treat_missing_header_as_empty: test.invert,
        ..header(&test.name, HeaderMatchSpecifier::StringMatch(text(pattern, test.ignore_case)))
    }
}

fn query_test(test: &QueryMatch) -> QueryParameterMatcher {
    let specifier = match &test.test {
        QueryTest::Present => QueryParameterMatchSpecifier::PresentMatch(true),
        QueryTest::Exact(value) => {
            QueryParameterMatchSpecifier::StringMatch(text(MatchPattern::Exact(value.clone()), false))
        }
        QueryTest::Regex(expression) => {
            QueryParameterMatchSpecifier::StringMatch(text(MatchPattern::SafeRegex(regex(expression)), false))
        }
    };
    QueryParameterMatcher { name: test.name.clone(), query_parameter_match_specifier: Some(specifier) }
}

fn regex(expression: &str) -> RegexMatcher {
    RegexMatcher { regex: expression.to_owned(), ..Default::default() }
}

fn text(pattern: MatchPattern, ignore_case: bool) -> StringMatcher {
    StringMatcher { ignore_case, match_pattern: Some(pattern) }
}

fn header(name: &str, specifier: HeaderMatchSpecifier) -> HeaderMatcher {
    HeaderMatcher { name: name.to_owned(), header_match_specifier: Some(specifier), ..Default::default() }
}

fn action(forward: &Forward, protocol: Protocol) -> RouteAction {
    let bare = |target: &WeightedTarget| target.request_headers.is_empty() && target.response_headers.is_empty();
    let specifier = match forward.targets.as_slice() {
        [one] if bare(one) => ClusterSpecifier::Cluster(one.cluster.to_string()),
        several => ClusterSpecifier::WeightedClusters(WeightedCluster {
            clusters: several.iter().map(weighted).collect(),
            ..Default::default()
        }),
    };
    let mirror = forward.mirror.as_ref().map(|mirror| RequestMirrorPolicy {
        cluster: mirror.cluster.to_string(),
        runtime_fraction: Some(RuntimeFractionalPercent {
            default_value: Some(fraction(mirror.percent)),
            ..Default::default()
        }),
        ..Default::default()
    });
    RouteAction {
        cluster_specifier: Some(specifier),
        prefix_rewrite: forward.prefix_rewrite.clone().unwrap_or_default(),
        idle_timeout: forward.idle_timeout.map(duration),
        retry_policy: forward.retry.as_ref().map(|policy| retry(policy, forward.per_try_timeout)),
        request_mirror_policies: mirror.into_iter().collect(),
        hash_policy: forward.hash.iter().map(hash).collect(),
        ..timed(forward.timeout, protocol)
    }
}

fn weighted(target: &WeightedTarget) -> ClusterWeight {
    let (request_headers_to_add, request_headers_to_remove) = edits(&target.request_headers);
    let (response_headers_to_add, response_headers_to_remove) = edits(&target.response_headers);
    ClusterWeight {
        name: target.cluster.to_string(),
        weight: number(target.weight),
        request_headers_to_add,
        request_headers_to_remove,
        response_headers_to_add,
        response_headers_to_remove,
        ..Default::default()
    }
}

/// What is added and set, then what goes; Envoy removes first.
pub(in crate::render) fn edits(edits: &HeaderEdits) -> (Vec<HeaderValueOption>, Vec<String>) {
    let option = |(name, value): (&String, &String), action: HeaderAppendAction| HeaderValueOption {
        // A percent sign would begin one of Envoy's own expressions.
        header: Some(HeaderValue { key: name.clone(), value: value.replace('%', "%%"), ..Default::default() }),
        append_action: action.into(),
        keep_empty_value: true,
        ..Default::default()
    };
    let set = edits.set.iter().map(|field| option(field, HeaderAppendAction::OverwriteIfExistsOrAdd));
    let add = edits.add.iter().map(|field| option(field, HeaderAppendAction::AppendIfExistsOrAdd));
    (set.chain(add).collect(), edits.remove.iter().cloned().collect())
}

fn retry(policy: &RetryPolicy, per_try: Option<Duration>) -> RetryMessage {
    let mut on: Vec<&str> = policy.on.iter().map(|on| on.as_str()).collect();
    if !policy.on_statuses.is_empty() {
        on.push(ON_STATUSES);
    }
    RetryMessage {
        retry_on: on.join(","),
        num_retries: policy.retries.and_then(number),
        per_try_timeout: per_try.map(duration),
        retriable_status_codes: policy.on_statuses.iter().map(|status| u32::from(*status)).collect(),
        ..Default::default()
    }
}

fn hash(policy: &HashPolicy) -> HashMessage {
    let specifier = match &policy.on {
        HashOn::Header(name) => PolicySpecifier::Header(Header { header_name: name.clone(), ..Default::default() }),
        HashOn::Cookie { name, ttl, path, session } => PolicySpecifier::Cookie(Cookie {
            name: name.clone(),
            ttl: if *session { Some(duration(Duration::ZERO)) } else { ttl.map(duration) },
            path: path.clone().unwrap_or_default(),
            ..Default::default()
        }),
        HashOn::QueryParameter(name) => PolicySpecifier::QueryParameter(QueryParameter { name: name.clone() }),
        HashOn::SourceAddress => PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip: true }),
    };
    HashMessage { terminal: policy.terminal, policy_specifier: Some(specifier) }
}

fn redirection(redirect: &RouteRedirect) -> RedirectAction {
    let code = match redirect.status {
        RedirectStatus::MovedPermanently => RedirectResponseCode::MovedPermanently,
        RedirectStatus::Found => RedirectResponseCode::Found,
        RedirectStatus::SeeOther => RedirectResponseCode::SeeOther,
        RedirectStatus::Temporary => RedirectResponseCode::TemporaryRedirect,
        RedirectStatus::Permanent => RedirectResponseCode::PermanentRedirect,
    };
    let path = redirect.path.clone().map(|path| match path {
        RedirectPath::Whole(path) => PathRewriteSpecifier::PathRedirect(path),
        RedirectPath::Prefix(path) => PathRewriteSpecifier::PrefixRewrite(path),
    });
    RedirectAction {
        host_redirect: redirect.host.clone().unwrap_or_default(),
        port_redirect: redirect.port.map_or(0, |port| port.get().into()),
        response_code: code.into(),
        strip_query: redirect.strip_query,
        scheme_rewrite_specifier: redirect.https.then_some(SchemeRewriteSpecifier::HttpsRedirect(true)),
        path_rewrite_specifier: path,
    }
}
