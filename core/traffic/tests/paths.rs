//! Normal forms of paths: the table that Envoy 1.40 answered with, and properties over arbitrary targets.

use std::borrow::Cow;

use proptest::prelude::*;
use starling_model::PathMatch;
use starling_traffic::path::can_match;
use starling_traffic::{PathError, http2_form, normalise};

/// One line per target: as sent, and as Envoy forwarded it (`400` where it refused).
const ENVOY: &str = include_str!("envoy_paths.txt");

#[test]
fn the_form_is_the_one_that_envoy_gives() {
    let lines = ENVOY.lines().filter(|line| !line.starts_with('#'));
    let mut compared = 0;
    for line in lines {
        let (sent, forwarded) = line.split_once(' ').expect(line);
        let normal = normalise(sent).map_or("400".to_owned(), Cow::into_owned);
        assert_eq!(normal, forwarded, "{sent}");
        compared += 1;
    }
    assert!(compared > 100, "only {compared} lines");
}

#[test]
fn what_is_normal_is_not_copied() {
    for target in ["/", "/a/b.json?x=/../y", "/%20", "/a.b/c%C3%A9"] {
        assert!(matches!(normalise(target), Ok(Cow::Borrowed(_))), "{target}");
    }
}

#[test]
fn errors_say_what_is_wrong() {
    for (target, error) in [
        ("", PathError::NotAbsolute),
        ("*", PathError::NotAbsolute),
        ("a/b", PathError::NotAbsolute),
        ("/a#b", PathError::Fragment),
        ("/a?b#c", PathError::Fragment),
        ("/a b", PathError::Byte(b' ')),
        ("/a\tb", PathError::Byte(b'\t')),
        ("/é", PathError::Byte(0xc3)),
        ("/%00", PathError::Nul),
    ] {
        assert_eq!(normalise(target), Err(error), "{target:?}");
    }
}

#[test]
fn rules_that_no_request_can_meet_are_told() {
    let exact = |path: &str| can_match(&PathMatch::Exact(path.to_owned()));
    let prefix = |path: &str| can_match(&PathMatch::Prefix(path.to_owned()));
    assert!(exact("/a") && exact("/a%20b") && exact("/"));
    assert!(!exact("/a//b") && !exact("/a?b") && !exact("/%41") && !exact("a") && !exact("/a/../b") && !exact(""));
    assert!(prefix("/a/.") && prefix("/a%2") && prefix("/") && prefix("//") && prefix("") && exact("//"));
    assert!(!prefix("/a//") && !prefix("/%2f") && !prefix("/../") && !prefix("x") && !prefix("/a?"));
}

/// Targets made of the pieces that matter, so that they meet often.
fn target() -> impl Strategy<Value = String> {
    let pieces = [
        "/", "//", ".", "..", "%2e", "%2E", "%2f", "%5C", "\\", "%", "%2", "%%", "%25", "%32", "%66", "%46", "f", "2",
        "5", "c", "a", "%41", "%7e", "%20", "?", "<", "%c3", "%00", "~", "e", ";", "..;", ".;",
    ];
    proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 0..14)
        .prop_map(|parts| format!("/{}", parts.concat()))
}

#[test]
fn a_query_has_no_foreign_characters_over_http2() {
    for (target, form) in
        [("/a?b=c", "/a?b=c"), ("/a?q=\"<>|\\^`{}", "/a?q=%22%3C%3E|\\^`{}"), ("/a?q=%3C", "/a?q=%3C")]
    {
        assert_eq!(http2_form(target), form);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn normal_forms_are_stable_and_hold_no_tricks(target in target()) {
        let Ok(normal) = normalise(&target) else { return Ok(()) };
        let path = normal.split('?').next().unwrap_or_default();
        // Parameters behind dots that were escaped, or behind a backslash, are left by the one pass that there is.
        if !path.split('/').any(|segment| segment.starts_with(".;") || segment.starts_with("..;")) {
            let again = normalise(&normal);
            prop_assert_eq!(again.as_deref(), Ok(normal.as_ref()));
        }
        prop_assert!(path.starts_with('/'));
        prop_assert!(path.split('/').all(|segment| segment != "." && segment != ".."), "{}", path);
        prop_assert!((path == "//" || !path.contains("//")) && !path.contains('\\'));
        let lower = path.to_ascii_lowercase();
        prop_assert!(!["%2f", "%5c", "%2e"].iter().any(|escape| lower.contains(escape)), "{}", path);
        let query = |text: &str| text.split_once('?').map(|(_, query)| query.to_owned());
        prop_assert_eq!(query(&target), query(&normal));
    }

    #[test]
    fn no_text_is_too_strange(target in ".{0,40}") {
        let _ = normalise(&target);
        let _ = normalise(&format!("/{target}"));
    }
}
