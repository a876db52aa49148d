//! The compiled rules against a naive reading of the policy.

use proptest::prelude::*;
use starling_identity::Layout;
use starling_model::{Datacenter, Namespace, TrustDomain};
use starling_traffic::PolicyRule;

use super::*;

const SERVICES: [&str; 3] = ["web", "api", "cron"];

fn names() -> MeshNames {
    MeshNames {
        layout: Layout::Consul,
        trust_domain: TrustDomain::new("mesh.consul").unwrap(),
        namespace: Namespace::new("default").unwrap(),
        datacenter: Datacenter::new("dc1").unwrap(),
    }
}

#[derive(Debug, Clone)]
struct Call {
    source: ServiceName,
    path: String,
    method: String,
    headers: BTreeMap<String, String>,
}

/// What the policy says: the first rule that covers the source, in it the first permission that matches.
fn reference(policy: &Policy, call: &Call, level: Level) -> bool {
    let rule = policy.rules.iter().find(|rule| rule.source.covers(&call.source));
    let action = match rule.map(|rule| &rule.decision) {
        None => policy.default,
        Some(SourceDecision::Connection(action)) => *action,
        Some(SourceDecision::Requests(_)) if level == Level::Connection => Action::Deny,
        Some(SourceDecision::Requests(permissions)) => permissions
            .iter()
            .find(|permission| permits(permission, call))
            .map_or(policy.default, |permission| permission.action),
    };
    action == Action::Allow
}

/// What `starling can` says.
fn shown(policy: &Policy, call: &Call, level: Level) -> bool {
    let headers: Vec<_> = call.headers.iter().collect();
    let request = starling_traffic::Request::new(&call.method, &call.path, &headers).unwrap();
    let request = (level == Level::Request).then_some(&request);
    starling_traffic::authorise(policy, &call.source, request).action == Action::Allow
}

fn permits(permission: &IntentionPermission, call: &Call) -> bool {
    let path = match &permission.path {
        None => true,
        Some(PathMatch::Exact(text)) => call.path == *text,
        Some(PathMatch::Prefix(text)) => call.path.starts_with(text.as_str()),
        Some(PathMatch::Regex(text)) => whole(text, &call.path),
    };
    let method = permission.methods.is_empty() || permission.methods.contains(&call.method);
    path && method && permission.headers.iter().all(|test| header_holds(test, call) != test.invert)
}

fn header_holds(test: &HeaderMatch, call: &Call) -> bool {
    let Some(value) = call.headers.get(&test.name) else { return false };
    let fold = |text: &str| if test.ignore_case { text.to_lowercase() } else { text.to_owned() };
    let value = fold(value);
    match &test.test {
        HeaderTest::Present => true,
        HeaderTest::Exact(text) => value == fold(text),
        HeaderTest::Prefix(text) => value.starts_with(&fold(text)),
        HeaderTest::Suffix(text) => value.ends_with(&fold(text)),
        HeaderTest::Contains(text) => value.contains(&fold(text)),
        HeaderTest::Regex(text) => whole(text, &call.headers[&test.name]),
    }
}

fn whole(expression: &str, text: &str) -> bool {
    regex::Regex::new(&format!("^(?:{expression})$")).unwrap().is_match(text)
}

/// What Envoy makes of the rules.
fn envoy(rules: &RbacRules, call: &Call) -> bool {
    let uri = names().identity_of(&call.source);
    let matched = rules.policies.values().any(|entry| {
        entry.permissions.iter().any(|permission| permission_holds(permission, call))
            && entry.principals.iter().any(|principal| principal_holds(principal, &uri))
    });
    matched == (rules.action == LET_THROUGH)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "what is not emitted is not interpreted")]
fn principal_holds(principal: &Principal, uri: &str) -> bool {
    match principal.identifier.as_ref().unwrap() {
        Identifier::AndIds(set) => set.ids.iter().all(|id| principal_holds(id, uri)),
        Identifier::OrIds(set) => set.ids.iter().any(|id| principal_holds(id, uri)),
        Identifier::NotId(id) => !principal_holds(id, uri),
        Identifier::Any(any) => *any,
        Identifier::Authenticated(Authenticated { principal_name: None }) => true,
        Identifier::Authenticated(Authenticated { principal_name: Some(name) }) => text_holds(name, uri),
        other => panic!("not used: {other:?}"),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "what is not emitted is not interpreted")]
fn permission_holds(permission: &Permission, call: &Call) -> bool {
    match permission.rule.as_ref().unwrap() {
        Rule::AndRules(set) => set.rules.iter().all(|rule| permission_holds(rule, call)),
        Rule::OrRules(set) => set.rules.iter().any(|rule| permission_holds(rule, call)),
        Rule::NotRule(rule) => !permission_holds(rule, call),
        Rule::Any(any) => *any,
        Rule::UrlPath(PathMatcher { rule: Some(path_matcher::Rule::Path(matcher)) }) => text_holds(matcher, &call.path),
        Rule::Header(matcher) => {
            assert!(!matcher.invert_match);
            let value = if matcher.name == ":method" { Some(&call.method) } else { call.headers.get(&matcher.name) };
            match matcher.header_match_specifier.as_ref().unwrap() {
                HeaderMatchSpecifier::PresentMatch(present) => value.is_some() == *present,
                HeaderMatchSpecifier::StringMatch(text) => value.is_some_and(|value| text_holds(text, value)),
                other => panic!("not used: {other:?}"),
            }
        }
        other => panic!("not used: {other:?}"),
    }
}

fn text_holds(matcher: &StringMatcher, text: &str) -> bool {
    let fold = |text: &str| if matcher.ignore_case { text.to_lowercase() } else { text.to_owned() };
    let value = fold(text);
    match matcher.match_pattern.as_ref().unwrap() {
        MatchPattern::Exact(pattern) => value == fold(pattern),
        // Envoy refuses a configuration with an empty one of these.
        MatchPattern::Prefix(pattern) => !pattern.is_empty() && value.starts_with(&fold(pattern)),
        MatchPattern::Suffix(pattern) => !pattern.is_empty() && value.ends_with(&fold(pattern)),
        MatchPattern::Contains(pattern) => !pattern.is_empty() && value.contains(&fold(pattern)),
        MatchPattern::SafeRegex(regex) => whole(&regex.regex, text),
        other => panic!("not used: {other:?}"),
    }
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![Just(Action::Allow), Just(Action::Deny)]
}

fn path() -> impl Strategy<Value = String> {
    "/([ab]{1,2}(/[ab])?)?"
}

fn header_match() -> impl Strategy<Value = HeaderMatch> {
    let test = prop_oneof![
        Just(HeaderTest::Present),
        "[aA]{1,2}".prop_map(HeaderTest::Exact),
        "[aA]?".prop_map(HeaderTest::Prefix),
        "[bB]?".prop_map(HeaderTest::Suffix),
        "[aB]?".prop_map(HeaderTest::Contains),
        prop::sample::select(vec!["a+|b", "(?i)a"]).prop_map(|text| HeaderTest::Regex(text.to_owned())),
    ];
    ("x-[ab]", test, any::<bool>(), any::<bool>()).prop_map(|(name, test, invert, ignore_case)| HeaderMatch {
        name,
        test,
        invert,
        ignore_case,
    })
}

fn permission() -> impl Strategy<Value = IntentionPermission> {
    let path = prop_oneof![
        path().prop_map(PathMatch::Exact),
        path().prop_map(PathMatch::Prefix),
        Just(PathMatch::Prefix(String::new())),
        Just(PathMatch::Regex("/a.*|/b".to_owned())),
    ];
    let methods = prop::sample::subsequence(vec!["GET", "POST", "PUT"], 0..=2);
    (action(), prop::option::of(path), methods, prop::collection::vec(header_match(), 0..=2)).prop_map(
        |(action, path, methods, headers)| IntentionPermission {
            action,
            path,
            methods: methods.into_iter().map(str::to_owned).collect(),
            headers,
        },
    )
}

fn policy() -> impl Strategy<Value = Policy> {
    let decision = prop_oneof![
        action().prop_map(SourceDecision::Connection),
        prop::collection::vec(permission(), 1..=4).prop_map(SourceDecision::Requests),
    ];
    let source = prop::sample::select(vec!["web", "api", "*"]);
    let rule = (source, decision).prop_map(|(source, decision)| PolicyRule {
        source: source.parse().unwrap(),
        written_for: IntentionSubject::Any,
        precedence: 0,
        decision,
    });
    (action(), prop::collection::vec(rule, 0..=4)).prop_map(|(default, mut rules)| {
        let mut named = BTreeSet::new();
        rules.retain(|rule| named.insert(rule.source.clone()));
        Policy { destination: ServiceName::new("db").unwrap(), default, rules }
    })
}

fn call() -> impl Strategy<Value = Call> {
    let headers = prop::collection::btree_map("x-[ab]", "[aAbB]{0,3}", 0..=2);
    (prop::sample::select(SERVICES.to_vec()), path(), prop::sample::select(vec!["GET", "POST", "DELETE"]), headers)
        .prop_map(|(source, path, method, headers)| Call {
            source: ServiceName::new(source).unwrap(),
            path,
            method: method.to_owned(),
            headers,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn compiled_rules_say_what_the_policy_says(policy in policy(), calls in prop::collection::vec(call(), 1..8)) {
        for level in [Level::Request, Level::Connection] {
            let rules = rules(&policy, &names(), level);
            for call in &calls {
                let expected = reference(&policy, call, level);
                prop_assert_eq!(envoy(&rules, call), expected, "{:?} {:?}", level, call);
                prop_assert_eq!(shown(&policy, call, level), expected, "{:?} {:?}", level, call);
            }
        }
    }
}

#[test]
fn the_filter_without_a_route_refuses() {
    let call = Call {
        source: ServiceName::new("web").unwrap(),
        path: "/".to_owned(),
        method: "GET".to_owned(),
        headers: BTreeMap::new(),
    };
    assert!(!envoy(&refuse_all().rules.unwrap(), &call));
}

#[test]
fn the_bytes_are_envoys_and_always_the_same() {
    use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::RbacPerRoute;
    let rule = |source: &str, action| PolicyRule {
        source: source.parse().unwrap(),
        written_for: IntentionSubject::Any,
        precedence: 9,
        decision: SourceDecision::Connection(action),
    };
    let policy = Policy {
        destination: ServiceName::new("db").unwrap(),
        default: Action::Deny,
        rules: vec![rule("web", Action::Allow), rule("api", Action::Allow), rule("*", Action::Deny)],
    };
    let bytes = per_route(&policy, &names()).encode_to_vec();
    let decoded = RbacPerRoute::decode(bytes.as_slice()).unwrap();
    let mut keys: Vec<_> = decoded.rbac.unwrap().rules.unwrap().policies.into_keys().collect();
    keys.sort();
    assert_eq!(keys, ["0000 web", "0001 api"]);
    for _ in 0..20 {
        assert_eq!(per_route(&policy, &names()).encode_to_vec(), bytes);
    }
}
