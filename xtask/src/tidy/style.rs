//! Rules for a file by itself: its length, its name and the names in it, unfinished work, attributes, the crate header.

use std::collections::BTreeSet;

use crate::finding::Finding;
use crate::source::Source;
use crate::tokens::{Token, attributes, tokens};

/// Lines in a file, tests included; past this nobody reads it top-down.
const FILE_LINES_MAX: usize = 600;

/// Names that say nothing, as a word of a file, folder or module name.
const VAGUE_WORDS: &[&str] = &[
    "util",
    "utils",
    "common",
    "helper",
    "helpers",
    "misc",
    "manager",
    "managers",
    "processor",
    "processors",
    "info",
    "infos",
];

/// Names that say nothing, as the last word of a type name.
const VAGUE_SUFFIXES: &[&str] = &["Util", "Utils", "Helper", "Helpers", "Misc", "Manager", "Processor", "Info"];

/// What people write where work is missing; with capitals as given.
const UNFINISHED_MARKERS: &[&str] = &["TODO", "FIXME", "XXX", "To be filled"];

/// The keywords in front of a type's name.
const TYPE_KEYWORDS: &[&str] = &["struct", "enum", "union", "trait", "type"];

/// Checks one file.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let tokens = tokens(source);
    let mut findings = Vec::new();
    length(source, &mut findings);
    file_name(source, &mut findings);
    declared_names(source, &tokens, &mut findings);
    unfinished(source, &mut findings);
    lint_attributes(source, &tokens, &mut findings);
    crate_header(source, &mut findings);
    findings
}

fn finding(source: &Source, line: usize, rule: &'static str, what: String, why: &str, fix: &str) -> Finding {
    Finding { path: source.path.clone(), line, rule, what, why: why.to_owned(), fix: fix.to_owned() }
}

fn length(source: &Source, findings: &mut Vec<Finding>) {
    let lines = source.code.len();
    if lines > FILE_LINES_MAX {
        findings.push(finding(
            source,
            FILE_LINES_MAX + 1,
            "file-length",
            format!("{lines} lines, {FILE_LINES_MAX} are allowed"),
            "the long tail of files is what makes a tree hard to change",
            "move one idea into foo/bar.rs, or the tests into foo/tests.rs or tests/",
        ));
    }
}

fn file_name(source: &Source, findings: &mut Vec<Finding>) {
    if source.stem() == "mod" {
        findings.push(finding(
            source,
            1,
            "mod-rs",
            "a file called mod.rs".to_owned(),
            "ten tabs called mod.rs tell nothing",
            "foo.rs beside the folder foo/; shared test code is a named file included with #[path] or a crate",
        ));
    }
    for word in source.path.trim_end_matches(".rs").split(['/', '_', '-']) {
        if VAGUE_WORDS.contains(&word) {
            findings.push(vague(source, 1, &format!("\"{word}\" in the path")));
        }
    }
}

fn vague(source: &Source, line: usize, what: &str) -> Finding {
    finding(
        source,
        line,
        "vague-name",
        what.to_owned(),
        "a name that fits anything attracts everything",
        "name it after what it holds or does, with the words of docs/glossary.md",
    )
}

fn declared_names(source: &Source, tokens: &[Token], findings: &mut Vec<Finding>) {
    let foreign = named_by_traits(tokens);
    for (at, pair) in tokens.windows(2).enumerate() {
        let (keyword, name) = (&pair[0], &pair[1]);
        if foreign.contains(&at) {
            continue;
        }
        if keyword.text == "mod" && name.text.split('_').any(|word| VAGUE_WORDS.contains(&word)) {
            findings.push(vague(source, name.line, &format!("module {}", name.text)));
        }
        let is_type = TYPE_KEYWORDS.contains(&keyword.text.as_str());
        if is_type && VAGUE_SUFFIXES.iter().any(|suffix| name.text.ends_with(suffix)) {
            findings.push(vague(source, name.line, &format!("{} {}", keyword.text, name.text)));
        }
    }
}

/// Where associated types are named in `impl … for …`: the trait has chosen those names.
fn named_by_traits(tokens: &[Token]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    // For each open brace, whether it is the body of such an impl.
    let mut bodies = Vec::new();
    // Whether an impl's body is ahead, and if so whether `for` has been met.
    let mut header = None;
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            // Elsewhere than where an item may begin, `impl` is a type and opens no body.
            "impl" if begins_item(tokens, at) => header = Some(false),
            // `for<'a>` binds lifetimes and names no implementor.
            "for" if tokens.get(at + 1).is_none_or(|next| next.text != "<") => {
                header = header.map(|_| true);
            }
            "{" => bodies.push(header.take().unwrap_or(false)),
            "}" => drop(bodies.pop()),
            "type" if bodies.last() == Some(&true) => drop(found.insert(at)),
            _ => {}
        }
    }
    found
}

fn begins_item(tokens: &[Token], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|before| tokens.get(before)).map(|token| token.text.as_str());
    matches!(before, None | Some("{" | "}" | ";" | "]" | "unsafe" | "default"))
}

fn unfinished(source: &Source, findings: &mut Vec<Finding>) {
    for (index, comment) in source.comments.iter().enumerate() {
        for marker in UNFINISHED_MARKERS.iter().filter(|marker| holds_word(comment, marker)) {
            findings.push(finding(
                source,
                index + 1,
                "unfinished",
                format!("\"{marker}\" in a comment"),
                "work that is only noted in the source is not planned anywhere",
                "do it, or open an issue and say here what holds today",
            ));
        }
    }
}

/// Whether `word` occurs in `text` with no letter or digit on either side.
fn holds_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(start, found)| {
        let before = text[..start].chars().next_back();
        let after = text[start + found.len()..].chars().next();
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    })
}

fn lint_attributes(source: &Source, tokens: &[Token], findings: &mut Vec<Finding>) {
    for attribute in attributes(tokens) {
        let Some(first) = attribute.first() else { continue };
        let says = |word: &str| attribute.iter().any(|token| token.text == word);
        for pair in attribute.windows(2) {
            let silences = ["allow", "expect"].contains(&pair[0].text.as_str()) && pair[1].text == "(";
            if silences && !says("reason") {
                findings.push(finding(
                    source,
                    pair[0].line,
                    "silenced-lint",
                    format!("{}(…) without a reason", pair[0].text),
                    "a silenced lint that nobody can judge stays for ever",
                    "#[expect(lint, reason = \"…\")]: it also tells when it is no longer needed",
                ));
            }
        }
        let skips = first.text == "ignore" || (first.text == "cfg_attr" && says("ignore"));
        if skips {
            findings.push(finding(
                source,
                first.line,
                "skipped-test",
                "an ignored test".to_owned(),
                "a skipped test is a failed test that nobody sees",
                "make it fast and deterministic, give it the tool it needs (cargo xtask install), or delete it",
            ));
        }
    }
}

fn crate_header(source: &Source, findings: &mut Vec<Finding>) {
    let is_root = ["src/lib.rs", "src/main.rs"].iter().any(|root| source.path.ends_with(root));
    if is_root && !source.first_line.starts_with("//!") {
        findings.push(finding(
            source,
            1,
            "crate-header",
            "the crate does not begin with //!".to_owned(),
            "the header is what one reads to know whether one is in the right place",
            "say in a few lines what the crate owns and what it does not",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        check(&Source::parse(path, text)).into_iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    const FINE: &str = "core/model/src/name.rs";

    #[test]
    fn a_good_file_has_no_findings() {
        let text = "//! Names.\n\n/// A name.\npub struct Name(String);\n\n#[expect(dead_code, reason = \"wire form\")]\nfn f() {}\n";
        assert_eq!(rules("core/model/src/lib.rs", text), []);
    }

    #[test]
    fn a_file_may_have_600_lines_and_no_more() {
        assert_eq!(rules(FINE, &"fn f() {}\n".repeat(600)), []);
        assert_eq!(rules(FINE, &"fn f() {}\n".repeat(601)), [(601, "file-length")]);
    }

    #[test]
    fn vague_file_names_are_refused() {
        assert_eq!(rules("core/model/src/utils.rs", ""), [(1, "vague-name")]);
        assert_eq!(rules("core/model/src/string_helpers.rs", ""), [(1, "vague-name")]);
        assert_eq!(rules("core/plan/tests/common/mod.rs", ""), [(1, "mod-rs"), (1, "vague-name")]);
        assert_eq!(rules("core/model/src/information.rs", ""), []);
    }

    #[test]
    fn vague_declared_names_are_refused() {
        assert_eq!(rules(FINE, "mod http_util {}\n"), [(1, "vague-name")]);
        assert_eq!(rules(FINE, "\npub struct SessionManager;\n"), [(2, "vague-name")]);
        assert_eq!(rules(FINE, "enum NodeInfo { A }\ntrait Processor {}\n"), [(1, "vague-name"), (2, "vague-name")]);
        assert_eq!(rules(FINE, "fn f(x: HttpConnectionManager) {}\nstruct Managed;\n"), []);
    }

    #[test]
    fn associated_types_are_named_by_their_trait() {
        assert_eq!(rules(FINE, "impl Connected for Stream {\n    type ConnectInfo = Peer;\n}\n"), []);
        assert_eq!(
            rules(FINE, "impl<T: for<'a> Fn(&'a u8)> A for B<T> where T: C {\n    type X = Y; type AInfo = T;\n}\n"),
            []
        );
        assert_eq!(rules(FINE, "trait Connected {\n    type ConnectInfo;\n}\n"), [(2, "vague-name")]);
        assert_eq!(rules(FINE, "impl A for B {\n    fn f() { type CInfo = u8; }\n}\n"), [(2, "vague-name")]);
        assert_eq!(rules(FINE, "impl A for B {}\ntype DInfo = u8;\n"), [(2, "vague-name")]);
        assert_eq!(rules(FINE, "impl<T: for<'a> Fn(&'a u8)> B<T> {\n    type EInfo = u8;\n}\n"), [(2, "vague-name")]);
        assert_eq!(rules(FINE, "fn f(x: impl A) { for y in z { struct GInfo; } }\n"), [(1, "vague-name")]);
    }

    #[test]
    fn unfinished_work_is_refused_in_comments_only() {
        assert_eq!(rules(FINE, "// TODO: later\n/* FIXME */\n//! To be filled.\n").len(), 3);
        assert_eq!(rules(FINE, "const A: &str = \"TODO\"; // METHODOLOGY, TODOS\n"), []);
    }

    #[test]
    fn silenced_lints_need_a_reason() {
        assert_eq!(rules(FINE, "#[allow(dead_code)]\nfn f() {}\n"), [(1, "silenced-lint")]);
        assert_eq!(rules(FINE, "#![expect(dead_code)]\n"), [(1, "silenced-lint")]);
        assert_eq!(rules(FINE, "#[cfg_attr(test, allow(\n  dead_code\n))]\n"), [(1, "silenced-lint")]);
        assert_eq!(rules(FINE, "#[expect(\n  dead_code,\n  reason = \"why\",\n)]\nfn f() { x.expect(\"y\") }\n"), []);
    }

    #[test]
    fn ignored_tests_are_refused() {
        assert_eq!(rules(FINE, "#[test]\n#[ignore]\nfn f() {}\n"), [(2, "skipped-test")]);
        assert_eq!(rules(FINE, "#[ignore = \"slow\"]\nfn f() {}\n"), [(1, "skipped-test")]);
        assert_eq!(rules(FINE, "#[cfg_attr(not(linux), ignore)]\nfn f() {}\n"), [(1, "skipped-test")]);
        assert_eq!(rules(FINE, "// #[ignore]\nfn ignore() {}\n"), []);
    }

    #[test]
    fn a_crate_begins_with_its_header() {
        assert_eq!(rules("core/model/src/lib.rs", "pub mod name;\n"), [(1, "crate-header")]);
        assert_eq!(rules("programs/starling/src/main.rs", "\n//! The binary.\nfn main() {}\n"), []);
        assert_eq!(rules(FINE, "pub struct Name;\n"), []);
    }
}
