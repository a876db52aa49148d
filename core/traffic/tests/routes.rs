//! Routes: what is found is what comparing with every rule in order finds.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use proptest::prelude::*;
use starling_model::{
    HeaderEdits, HeaderMatch, HeaderTest, PathMatch, Percent, QueryMatch, QueryTest, RedirectPath, RedirectStatus,
    RequestMatch, RouteRedirect,
};
use starling_traffic::{Forward, Request, RouteRule, RouteTable, RuleAction, WeightedTarget, hits, scheme};

fn forward(cluster: &str, weight: u32) -> WeightedTarget {
    let edits = HeaderEdits::default;
    WeightedTarget { cluster: cluster.into(), weight, request_headers: edits(), response_headers: edits() }
}

fn rule(matches: RequestMatch, name: &str) -> RouteRule {
    let targets = vec![forward(name, 1_000_000)];
    RouteRule { matches, action: RuleAction::Forward(Box::new(Forward { targets, ..Forward::default() })) }
}

type Headers = Vec<(String, String)>;

/// Compares as the documentation of the entry says, one rule after the other.
fn naive(rules: &[RequestMatch], method: &str, target: &str, headers: &Headers) -> Option<usize> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let whole =
        |expression: &str, text: &str| regex::Regex::new(&format!("^(?:{expression})$")).unwrap().is_match(text);
    let path_holds = |rule: &RequestMatch| {
        let fold = |text: &str| if rule.ignore_path_case { text.to_ascii_lowercase() } else { text.to_owned() };
        match &rule.path {
            None => true,
            Some(PathMatch::Exact(wanted)) => fold(wanted) == fold(path),
            Some(PathMatch::Prefix(wanted)) => fold(path).starts_with(&fold(wanted)),
            Some(PathMatch::Regex(wanted)) => whole(wanted, path),
        }
    };
    let header_holds = |test: &HeaderMatch| {
        let values: Vec<_> = headers.iter().filter(|(name, _)| *name == test.name).map(|(_, v)| v.as_str()).collect();
        let passes = |value: &str| match &test.test {
            HeaderTest::Present => true,
            HeaderTest::Exact(wanted) => value == *wanted,
            HeaderTest::Prefix(wanted) => value.starts_with(wanted),
            HeaderTest::Suffix(wanted) => value.ends_with(wanted),
            HeaderTest::Contains(wanted) => value.contains(wanted),
            HeaderTest::Regex(wanted) => whole(wanted, value),
        };
        values.into_iter().any(passes) != test.invert
    };
    let query_holds = |test: &QueryMatch| {
        let pairs = query.split('&').filter(|_| target.contains('?'));
        let mut pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let value = pairs.find(|(key, _)| *key == test.name).map(|(_, value)| value);
        value.is_some_and(|value| match &test.test {
            QueryTest::Present => true,
            QueryTest::Exact(wanted) => value == wanted,
            QueryTest::Regex(wanted) => whole(wanted, value),
        })
    };
    rules.iter().position(|rule| {
        path_holds(rule)
            && (rule.methods.is_empty() || rule.methods.iter().any(|wanted| wanted == method))
            && rule.headers.iter().all(header_holds)
            && rule.query.iter().all(query_holds)
    })
}

const PATHS: [&str; 8] = ["/", "/a", "/A", "/ab", "/a/b", "/a/b/c", "/b", "/a/B/"];
const VALUES: [&str; 4] = ["", "x", "xy", "y"];

fn path_match() -> impl Strategy<Value = Option<PathMatch>> {
    let path = || prop::sample::select(&PATHS[..]).prop_map(str::to_owned);
    prop_oneof![
        1 => Just(None),
        3 => path().prop_map(|path| Some(PathMatch::Exact(path))),
        4 => path().prop_map(|path| Some(PathMatch::Prefix(path))),
        1 => prop::sample::select(&["/a.*", "/[ab]", ".*b"][..]).prop_map(|e| Some(PathMatch::Regex(e.to_owned()))),
    ]
}

fn header_match() -> impl Strategy<Value = HeaderMatch> {
    let value = || prop::sample::select(&VALUES[1..]).prop_map(str::to_owned);
    let test = prop_oneof![
        Just(HeaderTest::Present),
        value().prop_map(HeaderTest::Exact),
        value().prop_map(HeaderTest::Prefix),
        value().prop_map(HeaderTest::Suffix),
        value().prop_map(HeaderTest::Contains),
        Just(HeaderTest::Regex("x.*".to_owned())),
    ];
    (prop::sample::select(&["h", "i"][..]), test, any::<bool>()).prop_map(|(name, test, invert)| HeaderMatch {
        name: name.to_owned(),
        test,
        invert,
        ignore_case: false,
    })
}

fn query_match() -> impl Strategy<Value = QueryMatch> {
    let test = prop_oneof![
        Just(QueryTest::Present),
        prop::sample::select(&VALUES[..]).prop_map(|value| QueryTest::Exact(value.to_owned())),
        Just(QueryTest::Regex("x?".to_owned())),
    ];
    (prop::sample::select(&["p", "q"][..]), test).prop_map(|(name, test)| QueryMatch { name: name.to_owned(), test })
}

fn request_match() -> impl Strategy<Value = RequestMatch> {
    let methods = prop::sample::subsequence(vec!["GET".to_owned(), "POST".to_owned()], 0..2);
    let (headers, query) = (prop::collection::vec(header_match(), 0..2), prop::collection::vec(query_match(), 0..2));
    (path_match(), any::<bool>(), headers, query, methods).prop_map(
        |(path, ignore_path_case, headers, query, methods)| RequestMatch {
            path,
            ignore_path_case,
            headers,
            query,
            methods,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_finds_what_comparing_with_every_rule_finds(
        rules in prop::collection::vec(request_match(), 0..12),
        method in prop::sample::select(&["GET", "POST", "PUT"][..]),
        path in prop::sample::select(&PATHS[..]),
        query in prop::sample::select(&["", "?", "?p", "?p=x", "?q=&p=xy", "?p=x&p=y&q"][..]),
        headers in prop::collection::vec((prop::sample::select(&["h", "i", "j"][..]), prop::sample::select(&VALUES[..])), 0..4),
    ) {
        let headers: Headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let target = format!("{path}{query}");
        let table = RouteTable::new(rules.iter().enumerate().map(|(n, m)| rule(m.clone(), &n.to_string())).collect());
        let request = Request::new(method, &target, &headers).unwrap();
        let found = table.find(&request).map(|rule| rule.forward().unwrap().targets[0].cluster.to_string());
        let wanted = naive(&rules, method, &target, &headers).map(|number| number.to_string());
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn a_target_gets_its_share(weights in prop::collection::vec(1..1_000_u32, 1..6)) {
        const STEPS: u64 = 20_000;
        let targets: Vec<_> = weights.iter().enumerate().map(|(n, weight)| forward(&n.to_string(), *weight)).collect();
        let forward = Forward { targets, ..Forward::default() };
        let mut counts = vec![0_u64; weights.len()];
        for step in 0..STEPS {
            let picked = forward.pick(step * (u64::MAX / STEPS)).unwrap();
            counts[picked.cluster.parse::<usize>().unwrap()] += 1;
        }
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        for (count, weight) in counts.iter().zip(&weights) {
            prop_assert!(count.abs_diff(STEPS * u64::from(*weight) / total) <= 2, "{count} of {STEPS} for {weight} of {total}");
        }
        prop_assert!(forward.pick(u64::MAX).is_some());
    }
}

#[test]
fn shares_hit_as_often_as_they_say() {
    let of = |hundredths| Percent::of_hundredths(hundredths).unwrap();
    assert!(!hits(of(0), 0) && hits(of(1), 0) && hits(of(10_000), u64::MAX) && !hits(of(9_999), u64::MAX));
    let hit = (0..10_000_u64).filter(|n| hits(of(2_500), n * (u64::MAX / 10_000))).count();
    assert!(hit.abs_diff(2_500) <= 1, "{hit}");
}

fn path(path: PathMatch) -> RequestMatch {
    RequestMatch { path: Some(path), ..RequestMatch::default() }
}

#[test]
fn what_matched_is_replaced_and_the_query_stays() {
    let rewritten = |matches: PathMatch, new: &str, target: &str| {
        let forward = Forward { prefix_rewrite: Some(new.to_owned()), ..Forward::default() };
        let rule = RouteRule { matches: path(matches), action: RuleAction::Forward(Box::new(forward)) };
        rule.rewrite(target).into_owned()
    };
    let prefix = |text: &str| PathMatch::Prefix(text.to_owned());
    assert_eq!(rewritten(prefix("/api/"), "/", "/api/v1?x=/api/"), "/v1?x=/api/");
    assert_eq!(rewritten(prefix("/api"), "/v2", "/api"), "/v2");
    assert_eq!(rewritten(PathMatch::Exact("/old".to_owned()), "/new", "/old?q"), "/new?q");
    assert_eq!(rule(path(prefix("/api")), "x").rewrite("/api?q"), "/api?q");
}

#[test]
fn a_redirect_names_what_changes_and_keeps_the_rest() {
    let plain = RouteRedirect {
        status: RedirectStatus::Found,
        https: false,
        host: None,
        port: None,
        path: None,
        strip_query: false,
    };
    let location = |redirect: RouteRedirect, authority: &str| {
        let matches = path(PathMatch::Prefix("/old".to_owned()));
        let rule = RouteRule { matches, action: RuleAction::Redirect(redirect) };
        rule.location("http", authority, "/old/x?q=1").unwrap()
    };
    let https = RouteRedirect { https: true, ..plain.clone() };
    assert_eq!(location(https.clone(), "a.test:8080"), "https://a.test:8080/old/x?q=1");
    assert_eq!(location(https.clone(), "a.test:80"), "https://a.test/old/x?q=1");
    let to_port = RouteRedirect { port: Some(8443.try_into().unwrap()), strip_query: true, ..https };
    assert_eq!(location(to_port, "[::1]:80"), "https://[::1]:8443/old/x");
    let whole = RouteRedirect { path: Some(RedirectPath::Whole("/y".to_owned())), ..plain.clone() };
    assert_eq!(location(whole, "a.test:8080"), "http://a.test:8080/y?q=1");
    let prefix =
        RouteRedirect { path: Some(RedirectPath::Prefix("/new".to_owned())), host: Some("b.test".to_owned()), ..plain };
    assert_eq!(location(prefix, "a.test:8080"), "http://b.test/new/x?q=1");
}

#[test]
fn a_caller_comes_by_the_scheme_that_is_said() {
    for (named, forwarded, expected) in [
        (None, &[][..], "http"),
        (None, &["HTTPS"], "https"),
        (None, &["ftp"], "http"),
        (None, &["https", "http"], "http"),
        (Some("https"), &["http"], "https"),
        (Some("http"), &["https"], "http"),
    ] {
        let said: Vec<_> = forwarded.iter().map(|value| ("x-forwarded-proto", *value)).collect();
        assert_eq!(scheme(named, &said), expected, "{named:?} {forwarded:?}");
    }
}

#[test]
fn a_table_names_every_cluster_that_it_sends_to() {
    let mut first = rule(RequestMatch::default(), "b");
    if let RuleAction::Forward(forward) = &mut first.action {
        forward.mirror = Some(starling_traffic::MirrorTo { cluster: Arc::from("a"), percent: Percent::ALL });
    }
    let table = RouteTable::new(vec![first, rule(RequestMatch::default(), "c")]);
    assert_eq!(table.clusters().into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
}
