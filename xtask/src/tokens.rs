//! Words and punctuation of a split source, and the two shapes the rules look for: paths and attributes.

use crate::source::Source;

/// One word or one punctuation character; `::` counts as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// The text.
    pub text: String,
    /// Line, counted from 1.
    pub line: usize,
}

impl Token {
    /// Whether this is an identifier, a keyword or a number.
    pub(crate) fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphanumeric() || c == '_')
    }
}

/// A path as it would read written out: `use a::{b, c::d}` gives `a::b` and `a::c::d`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CodePath {
    /// The segments.
    pub segments: Vec<String>,
    /// Line of the last segment, counted from 1.
    pub line: usize,
}

impl CodePath {
    /// Whether `pattern` occurs in the path, segment by segment.
    pub(crate) fn contains(&self, pattern: &[&str]) -> bool {
        self.segments.windows(pattern.len()).any(|window| window == pattern)
    }
}

/// The tokens of the code.
pub(crate) fn tokens(source: &Source) -> Vec<Token> {
    let mut found = Vec::new();
    for (index, line) in source.code.iter().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if first.is_alphanumeric() || first == '_' {
                rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (text, after) = rest.split_at(length);
            found.push(Token { text: text.to_owned(), line: index + 1 });
            rest = after.trim_start();
        }
    }
    found
}

/// Every path in the code, with `use` trees written out.
pub(crate) fn paths(tokens: &[Token]) -> Vec<CodePath> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if token.text == "use" {
            at += 1;
            expand_use(tokens, &mut at, &[], &mut found);
        } else if token.is_word() {
            let mut segments = vec![token.text.clone()];
            let mut line = token.line;
            at += 1;
            while let (Some(colons), Some(next)) = (tokens.get(at), tokens.get(at + 1)) {
                if colons.text != "::" || !next.is_word() {
                    break;
                }
                segments.push(next.text.clone());
                line = next.line;
                at += 2;
            }
            found.push(CodePath { segments, line });
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one branch of a `use` tree and leaves `at` on the token that ends it.
fn expand_use(tokens: &[Token], at: &mut usize, prefix: &[String], found: &mut Vec<CodePath>) {
    let mut segments = prefix.to_vec();
    let mut line = tokens.get(*at).map_or(0, |token| token.line);
    while let Some(token) = tokens.get(*at) {
        match token.text.as_str() {
            "{" => {
                *at += 1;
                while tokens.get(*at).is_some_and(|token| token.text != "}" && token.text != ";") {
                    expand_use(tokens, at, &segments, found);
                    if tokens.get(*at).is_some_and(|token| token.text == ",") {
                        *at += 1;
                    }
                }
                *at += 1;
                return;
            }
            "," | "}" | ";" => break,
            "::" => *at += 1,
            // The new name does not matter: the old one is what the code depends on.
            "as" => *at += 2,
            // `use a::{self}` is `a`.
            "self" if !segments.is_empty() => *at += 1,
            _ => {
                segments.push(token.text.clone());
                line = token.line;
                *at += 1;
            }
        }
    }
    found.push(CodePath { segments, line });
}

/// The tokens inside each attribute, `#[…]` and `#![…]`.
pub(crate) fn attributes(tokens: &[Token]) -> Vec<&[Token]> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let opening = match (text(tokens, at), text(tokens, at + 1), text(tokens, at + 2)) {
            ("#", "[", _) => 2,
            ("#", "!", "[") => 3,
            _ => {
                at += 1;
                continue;
            }
        };
        let start = at + opening;
        let mut end = start;
        let mut depth = 1;
        while depth > 0 && end < tokens.len() {
            match text(tokens, end) {
                "[" => depth += 1,
                "]" => depth -= 1,
                _ => {}
            }
            end += 1;
        }
        found.push(&tokens[start..end.saturating_sub(1).max(start)]);
        at = end;
    }
    found
}

fn text(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| token.text.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written_out(text: &str) -> Vec<String> {
        paths(&tokens(&Source::parse("a.rs", text))).iter().map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn use_trees_are_written_out() {
        assert_eq!(
            written_out("use std::{collections::{BTreeMap, HashMap as Map}, fs::{self, File}, env};"),
            ["std::collections::BTreeMap", "std::collections::HashMap", "std::fs", "std::fs::File", "std::env"],
        );
        assert_eq!(written_out("use a::b::*; use c;"), ["a::b::*", "c"]);
    }

    #[test]
    fn a_broken_use_ends_at_the_end_of_the_file() {
        assert_eq!(written_out("use a::{b, c"), ["a::b", "a::c"]);
    }

    #[test]
    fn inline_paths_are_found_with_their_line() {
        let found = paths(&tokens(&Source::parse("a.rs", "fn f() {\n    std::fs::read(x)\n}")));
        let read = found.iter().find(|path| path.contains(&["fs", "read"])).expect("the path is there");
        assert_eq!(read.line, 2);
        assert!(read.contains(&["std", "fs"]));
        assert!(!read.contains(&["std", "read"]));
    }

    #[test]
    fn attributes_reach_to_their_bracket() {
        let tokens = tokens(&Source::parse("a.rs", "#![forbid(x)]\n#[cfg_attr(a,\n  doc = [1])]\nlet a = [1];"));
        let found: Vec<String> = attributes(&tokens)
            .iter()
            .map(|inside| inside.iter().map(|token| token.text.as_str()).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(found, ["forbid ( x )", "cfg_attr ( a , doc = [ 1 ] )"]);
    }
}
