//! Verdicts of a policy, one table per kind of rule.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use starling_model::{
    Action, HeaderMatch, HeaderTest, IntentionPermission, PathMatch, ServiceIntentions, ServiceName, SourceDecision,
    SourceIntention,
};
use starling_traffic::{CompiledPolicy, Decider, PathError, Policy, Request, Verdict, authorise};

fn name(text: &str) -> ServiceName {
    text.parse().unwrap()
}

fn entry(destination: &str, sources: Vec<(&str, SourceDecision)>) -> ServiceIntentions {
    let sources = sources.into_iter().map(|(source, decision)| SourceIntention {
        source: source.parse().unwrap(),
        decision,
        description: String::new(),
        id: None,
    });
    ServiceIntentions { destination: destination.parse().unwrap(), sources: sources.collect(), meta: BTreeMap::new() }
}

fn permission(action: Action) -> IntentionPermission {
    IntentionPermission { action, path: None, methods: Vec::new(), headers: Vec::new() }
}

fn by_request(permissions: Vec<IntentionPermission>) -> Policy {
    let entry = entry("api", vec![("web", SourceDecision::Requests(permissions))]);
    Policy::build(&name("api"), Action::Deny, [&entry])
}

fn ask(policy: &Policy, method: &str, target: &str, headers: &[(&str, &str)]) -> Action {
    let headers = headers.to_vec();
    let request = Request::new(method, target, &headers).unwrap();
    authorise(policy, &name("web"), Some(&request)).action
}

#[test]
fn the_rule_of_highest_precedence_decides_and_says_so() {
    let (allow, deny) = (SourceDecision::Connection(Action::Allow), SourceDecision::Connection(Action::Deny));
    let own = entry("api", vec![("web", allow.clone()), ("*", deny.clone())]);
    let any = entry("*", vec![("cron", allow.clone()), ("*", allow)]);
    let policy = Policy::build(&name("api"), Action::Allow, [&own, &any]);
    let compiled = CompiledPolicy::new(&policy);
    for (source, action, explanation) in [
        ("web", Action::Allow, "intention web -> api (precedence 9)"),
        ("other", Action::Deny, "intention * -> api (precedence 8)"),
        // Denied for everyone at 8 comes before allowed for cron at 6.
        ("cron", Action::Deny, "intention * -> api (precedence 8)"),
    ] {
        let verdict = compiled.authorise(&name(source), None);
        assert_eq!((verdict.action, verdict.explain(&policy).as_str()), (action, explanation), "{source}");
    }
    let nobody = Policy::build(&name("api"), Action::Deny, []);
    let verdict = authorise(&nobody, &name("web"), None);
    assert_eq!(verdict, Verdict { action: Action::Deny, decided_by: Decider::Default });
    assert_eq!(verdict.explain(&nobody), "the default policy");
}

#[test]
fn a_bare_connection_is_denied_where_requests_decide() {
    let policy = by_request(vec![permission(Action::Allow)]);
    let verdict = authorise(&policy, &name("web"), None);
    assert_eq!(verdict, Verdict { action: Action::Deny, decided_by: Decider::RequestNeeded { rule: 0 } });
}

#[test]
fn the_first_matching_permission_decides_and_none_falls_to_the_default() {
    let admin = IntentionPermission { path: Some(PathMatch::Prefix("/admin".to_owned())), ..permission(Action::Deny) };
    let read = IntentionPermission { methods: vec!["GET".to_owned()], ..permission(Action::Allow) };
    let policy = by_request(vec![admin, read]);
    let headers: Vec<(&str, &str)> = Vec::new();
    for (method, target, action, decided_by) in [
        ("GET", "/admin/x", Action::Deny, Decider::Permission { rule: 0, permission: 0 }),
        ("GET", "/a/%2e%2e/admin", Action::Deny, Decider::Permission { rule: 0, permission: 0 }),
        ("GET", "//admin", Action::Deny, Decider::Permission { rule: 0, permission: 0 }),
        ("GET", "/%61dmin", Action::Deny, Decider::Permission { rule: 0, permission: 0 }),
        ("GET", "/x?/admin", Action::Allow, Decider::Permission { rule: 0, permission: 1 }),
        ("POST", "/x", Action::Deny, Decider::NoPermission { rule: 0 }),
        ("get", "/x", Action::Deny, Decider::NoPermission { rule: 0 }),
    ] {
        let request = Request::new(method, target, &headers).unwrap();
        let verdict = authorise(&policy, &name("web"), Some(&request));
        assert_eq!(verdict, Verdict { action, decided_by }, "{method} {target}");
    }
    assert_eq!(Request::new("GET", "/a#b", &headers).err(), Some(PathError::Fragment));
}

#[test]
fn paths_match_whole_by_prefix_or_by_expression() {
    for (rule, target, action) in [
        (PathMatch::Exact("/v1".into()), "/v1?x=1", Action::Allow),
        (PathMatch::Exact("/v1".into()), "/v1/", Action::Deny),
        (PathMatch::Prefix("/v1".into()), "/v1x", Action::Allow),
        (PathMatch::Prefix("/v1".into()), "/v", Action::Deny),
        (PathMatch::Regex("/v[0-9]".into()), "/v1", Action::Allow),
        (PathMatch::Regex("/v[0-9]".into()), "/v1/x", Action::Deny),
        (PathMatch::Regex("/v|.*".into()), "/anything", Action::Allow),
    ] {
        let policy = by_request(vec![IntentionPermission { path: Some(rule.clone()), ..permission(Action::Allow) }]);
        assert_eq!(ask(&policy, "GET", target, &[]), action, "{rule:?} {target}");
    }
}

#[test]
fn headers_are_tested_one_by_one_inverted_and_without_case() {
    let header = |test: HeaderTest| HeaderMatch { name: "x-role".into(), test, invert: false, ignore_case: false };
    let inverted = |test: HeaderTest| HeaderMatch { invert: true, ..header(test) };
    let folded = |test: HeaderTest| HeaderMatch { ignore_case: true, ..header(test) };
    let text = |text: &str| text.to_owned();
    for (rule, values, holds) in [
        (header(HeaderTest::Present), vec![""], true),
        (header(HeaderTest::Present), vec![], false),
        (inverted(HeaderTest::Present), vec![], true),
        (header(HeaderTest::Exact(text("a"))), vec!["a"], true),
        (header(HeaderTest::Exact(text("a"))), vec!["A"], false),
        (folded(HeaderTest::Exact(text("a"))), vec!["A"], true),
        (header(HeaderTest::Exact(text("a"))), vec!["a", "b"], true),
        (header(HeaderTest::Exact(text("b"))), vec!["a", "b"], true),
        (inverted(HeaderTest::Exact(text("b"))), vec!["a", "b"], false),
        (header(HeaderTest::Exact(text("a,b"))), vec!["a", "b"], false),
        (inverted(HeaderTest::Exact(text("a"))), vec![], true),
        (inverted(HeaderTest::Exact(text("a"))), vec!["a"], false),
        (header(HeaderTest::Prefix(text("ad"))), vec!["admin"], true),
        (header(HeaderTest::Prefix(text("admin"))), vec!["ad"], false),
        (header(HeaderTest::Suffix(text("in"))), vec!["admin"], true),
        (folded(HeaderTest::Suffix(text("IN"))), vec!["admin"], true),
        (header(HeaderTest::Contains(text("dm"))), vec!["admin"], true),
        (folded(HeaderTest::Contains(text("DM"))), vec!["admin"], true),
        (header(HeaderTest::Contains(text("x"))), vec!["admin"], false),
        (header(HeaderTest::Regex(text("a.*n"))), vec!["admin"], true),
        (header(HeaderTest::Regex(text("a.*"))), vec!["xadmin"], false),
        (inverted(HeaderTest::Regex(text(".*"))), vec![], true),
    ] {
        let policy = by_request(vec![IntentionPermission { headers: vec![rule.clone()], ..permission(Action::Allow) }]);
        let fields: Vec<_> = values.iter().map(|value| ("X-Role", *value)).collect();
        let action = if holds { Action::Allow } else { Action::Deny };
        assert_eq!(ask(&policy, "GET", "/", &fields), action, "{rule:?} {values:?}");
    }
}

#[test]
fn a_broken_expression_never_lets_more_through() {
    let broken = Some(PathMatch::Regex("(".to_owned()));
    let allow = IntentionPermission { path: broken.clone(), ..permission(Action::Allow) };
    assert_eq!(ask(&by_request(vec![allow]), "GET", "/", &[]), Action::Deny);
    let deny = IntentionPermission { path: broken, ..permission(Action::Deny) };
    assert_eq!(ask(&by_request(vec![deny, permission(Action::Allow)]), "GET", "/", &[]), Action::Deny);
}
