//! Expressions that users write: which are admitted, and how they match.
//!
//! Envoy matches with RE2 over bytes; here the `regex` crate does, over bytes and without Unicode classes, so that both
//! give one answer. The door admits only what both read alike: what one refuses would be a listener refused by Envoy, and
//! what both read differently would be a verdict shown that is not the verdict enforced.
//!
//! Envoy also counts an expression's program against the runtime value `re2.max_program_size.error_level`, which is 100
//! unless the bootstrap raises it; the limits below hold only with it raised.

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ast::{self, Ast};

/// Bytes in an expression; several times the longest seen in published policies.
pub const REGEX_BYTES_MAX: usize = 1_024;

/// Bytes of a compiled expression, so that a policy of a hundred of them stays below 16 MB in a proxy.
pub const REGEX_PROGRAM_BYTES_MAX: usize = 128 * 1_024;

/// Groups inside one another; bounds the recursion of every reader of the expression.
pub const REGEX_NESTING_MAX: u32 = 50;

/// Repetitions that a counted expression may come to, nested counts multiplied; RE2's own bound.
pub const REGEX_REPETITIONS_MAX: u32 = 1_000;

/// Why an expression is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Nothing was given.
    #[error("expression is empty")]
    Empty,
    /// Longer than [`REGEX_BYTES_MAX`].
    #[error("expression is {len} bytes long; at most {REGEX_BYTES_MAX} are allowed")]
    TooLong {
        /// Bytes given.
        len: usize,
    },
    /// It holds a character outside ASCII, which RE2 would take byte by byte.
    #[error("expression holds {0:?}, which is not ASCII")]
    NotAscii(char),
    /// It is no expression.
    #[error("expression cannot be read: {reason} at byte {offset}")]
    Syntax {
        /// What is wrong.
        reason: String,
        /// Where, counted from 0.
        offset: usize,
    },
    /// It uses something that RE2 does not have or reads differently.
    #[error("expression uses {what} at byte {offset}, which is not RE2")]
    NotRe2 {
        /// What it uses.
        what: &'static str,
        /// Where, counted from 0.
        offset: usize,
    },
    /// Its counts multiply to more than [`REGEX_REPETITIONS_MAX`].
    #[error("expression repeats a part more than {REGEX_REPETITIONS_MAX} times")]
    Repetitions,
    /// Its program is larger than [`REGEX_PROGRAM_BYTES_MAX`].
    #[error("expression compiles to more than {REGEX_PROGRAM_BYTES_MAX} bytes")]
    TooLarge,
}

/// Tells whether an expression may be used in a permission.
///
/// # Errors
/// [`PatternError`] names what stands against it.
/// Source: RE2 syntax page; Envoy `RegexMatcher`.
pub fn check_regex(expression: &str) -> Result<(), PatternError> {
    compile(expression).map(drop)
}

/// Compiles an expression so that it matches whole values only.
pub(crate) fn compile(expression: &str) -> Result<Regex, PatternError> {
    if expression.is_empty() {
        return Err(PatternError::Empty);
    }
    if expression.len() > REGEX_BYTES_MAX {
        return Err(PatternError::TooLong { len: expression.len() });
    }
    if let Some(character) = expression.chars().find(|character| !character.is_ascii()) {
        return Err(PatternError::NotAscii(character));
    }
    let parsed = ast::parse::ParserBuilder::new()
        .nest_limit(REGEX_NESTING_MAX)
        .build()
        .parse(expression)
        .map_err(|error| syntax(error.kind().to_string(), error.span()))?;
    check(&parsed, expression, 1)?;
    RegexBuilder::new(&format!(r"\A(?:{expression})\z"))
        .unicode(false)
        .size_limit(REGEX_PROGRAM_BYTES_MAX)
        .dfa_size_limit(REGEX_PROGRAM_BYTES_MAX)
        .build()
        .map_err(|error| {
            if let regex::Error::CompiledTooBig(_) = error {
                PatternError::TooLarge
            } else {
                PatternError::Syntax { reason: one_line(&error.to_string()), offset: 0 }
            }
        })
}

fn syntax(reason: String, span: &ast::Span) -> PatternError {
    PatternError::Syntax { reason, offset: span.start.offset }
}

fn one_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim().to_owned()
}

fn refuse(what: &'static str, span: &ast::Span) -> Result<(), PatternError> {
    Err(PatternError::NotRe2 { what, offset: span.start.offset })
}

/// Walks the expression; `repeated` is how often the part at hand is written out already.
fn check(part: &Ast, text: &str, repeated: u32) -> Result<(), PatternError> {
    match part {
        Ast::Empty(_) | Ast::Dot(_) | Ast::ClassPerl(_) => Ok(()),
        Ast::Flags(set) => check_flags(&set.flags),
        Ast::Literal(literal) => check_literal(literal, text),
        Ast::Assertion(assertion) => check_assertion(assertion),
        Ast::ClassUnicode(class) => refuse("a Unicode class", &class.span),
        Ast::ClassBracketed(class) => check_set(&class.kind, text),
        Ast::Repetition(repetition) => check_repetition(repetition, text, repeated),
        Ast::Group(group) => {
            check_group(&group.kind)?;
            check(&group.ast, text, repeated)
        }
        Ast::Alternation(alternation) => alternation.asts.iter().try_for_each(|part| check(part, text, repeated)),
        Ast::Concat(concat) => concat.asts.iter().try_for_each(|part| check(part, text, repeated)),
    }
}

fn check_flags(flags: &ast::Flags) -> Result<(), PatternError> {
    for item in &flags.items {
        match item.kind {
            ast::FlagsItemKind::Negation
            | ast::FlagsItemKind::Flag(
                ast::Flag::CaseInsensitive | ast::Flag::MultiLine | ast::Flag::DotMatchesNewLine | ast::Flag::SwapGreed,
            ) => {}
            ast::FlagsItemKind::Flag(ast::Flag::Unicode | ast::Flag::CRLF | ast::Flag::IgnoreWhitespace) => {
                return refuse("the flag u, R or x", &item.span);
            }
        }
    }
    Ok(())
}

fn check_group(kind: &ast::GroupKind) -> Result<(), PatternError> {
    match kind {
        ast::GroupKind::CaptureIndex(_) => Ok(()),
        ast::GroupKind::CaptureName { name, .. } => {
            let word = name.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if word { Ok(()) } else { refuse("a group name with punctuation", &name.span) }
        }
        ast::GroupKind::NonCapturing(flags) => check_flags(flags),
    }
}

fn check_literal(literal: &ast::Literal, text: &str) -> Result<(), PatternError> {
    if !literal.c.is_ascii() {
        return refuse("a character outside ASCII", &literal.span);
    }
    let written = &text[literal.span.start.offset..literal.span.end.offset];
    // `\u0041` and `\U00000041` exist on one side only.
    if written.starts_with(r"\u") || written.starts_with(r"\U") {
        return refuse("a Unicode escape", &literal.span);
    }
    Ok(())
}

fn check_assertion(assertion: &ast::Assertion) -> Result<(), PatternError> {
    use ast::AssertionKind as Kind;
    match assertion.kind {
        Kind::StartLine
        | Kind::EndLine
        | Kind::StartText
        | Kind::EndText
        | Kind::WordBoundary
        | Kind::NotWordBoundary => Ok(()),
        Kind::WordBoundaryStart
        | Kind::WordBoundaryEnd
        | Kind::WordBoundaryStartAngle
        | Kind::WordBoundaryEndAngle
        | Kind::WordBoundaryStartHalf
        | Kind::WordBoundaryEndHalf => refuse("a one-sided word boundary", &assertion.span),
    }
}

fn check_set(set: &ast::ClassSet, text: &str) -> Result<(), PatternError> {
    match set {
        ast::ClassSet::BinaryOp(operation) => refuse("set arithmetic in a class", &operation.span),
        ast::ClassSet::Item(item) => check_set_item(item, text),
    }
}

fn check_set_item(item: &ast::ClassSetItem, text: &str) -> Result<(), PatternError> {
    match item {
        ast::ClassSetItem::Empty(_) | ast::ClassSetItem::Ascii(_) | ast::ClassSetItem::Perl(_) => Ok(()),
        ast::ClassSetItem::Literal(literal) => check_literal(literal, text),
        ast::ClassSetItem::Range(range) => {
            check_literal(&range.start, text)?;
            check_literal(&range.end, text)
        }
        ast::ClassSetItem::Unicode(class) => refuse("a Unicode class", &class.span),
        ast::ClassSetItem::Bracketed(class) => refuse("a class inside a class", &class.span),
        ast::ClassSetItem::Union(union) => union.items.iter().try_for_each(|item| check_set_item(item, text)),
    }
}

fn check_repetition(repetition: &ast::Repetition, text: &str, repeated: u32) -> Result<(), PatternError> {
    if let Ast::Repetition(_) = *repetition.ast {
        return refuse("a repetition of a repetition", &repetition.op.span);
    }
    // RE2 takes `{,3}` as text.
    if text[repetition.op.span.start.offset..].starts_with("{,") {
        return refuse("a count without a lower bound", &repetition.op.span);
    }
    let count = match &repetition.op.kind {
        ast::RepetitionKind::ZeroOrOne | ast::RepetitionKind::ZeroOrMore | ast::RepetitionKind::OneOrMore => 1,
        ast::RepetitionKind::Range(
            ast::RepetitionRange::Exactly(count)
            | ast::RepetitionRange::AtLeast(count)
            | ast::RepetitionRange::Bounded(_, count),
        ) => (*count).max(1),
    };
    let repeated = repeated.saturating_mul(count);
    if repeated > REGEX_REPETITIONS_MAX {
        return Err(PatternError::Repetitions);
    }
    check(&repetition.ast, text, repeated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_engines_read_alike_is_admitted() {
        for good in [
            "/v[0-9]+/.*",
            r"(?i)/Admin(/.*)?",
            r"\d{1,4}-\w+\.json",
            "[[:alpha:]_-]+",
            "(?P<n>a)|(?:b|c)*",
            "a{1000}",
            "[]a]",
            r"\x41\-\/",
            "(?s-m:.)",
        ] {
            assert_eq!(check_regex(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn what_re2_refuses_or_reads_otherwise_is_refused() {
        for bad in [
            "[a[b]]",
            "[a-z&&b]",
            "[a--b]",
            "[a~~b]",
            "(?x)a b",
            "(?R)a",
            "(?u)a",
            "(?-u)a",
            r"\b{start}a",
            r"\<a",
            r"\u0041",
            r"\x{1234}",
            r"\pL",
            r"\p{Greek}",
            r"[\pL]",
            "a**",
            "a{,3}",
            "(?P<a.b>x)",
            r"\xff",
        ] {
            let refused = check_regex(bad);
            assert!(
                matches!(refused, Err(PatternError::NotRe2 { .. } | PatternError::Syntax { .. })),
                "{bad} {refused:?}"
            );
        }
        for bad in ["(", "a)", "*", "[b-a]", r"\", "(?=a)", r"\1", "a)(b"] {
            assert!(matches!(check_regex(bad), Err(PatternError::Syntax { .. })), "{bad}");
        }
    }

    #[test]
    fn limits_hold() {
        assert_eq!(check_regex(""), Err(PatternError::Empty));
        assert_eq!(check_regex(&"a".repeat(REGEX_BYTES_MAX)), Ok(()));
        assert_eq!(check_regex(&"a".repeat(REGEX_BYTES_MAX + 1)), Err(PatternError::TooLong { len: 1_025 }));
        assert_eq!(check_regex("é"), Err(PatternError::NotAscii('é')));
        assert_eq!(check_regex("a{1001}"), Err(PatternError::Repetitions));
        assert_eq!(check_regex("(a{40}){30}"), Err(PatternError::Repetitions));
        assert_eq!(check_regex(&format!("(?:{}){{100}}", "ab".repeat(400))), Err(PatternError::TooLarge));
        let deep = format!("{}a{}", "(".repeat(60), ")".repeat(60));
        assert!(matches!(check_regex(&deep), Err(PatternError::Syntax { .. })));
    }

    #[test]
    fn whole_values_only() {
        let regex = compile("a|b+").unwrap();
        for (value, matches) in [("a", true), ("bb", true), ("ab", false), ("xa", false), ("a\n", false), ("", false)] {
            assert_eq!(regex.is_match(value.as_bytes()), matches, "{value:?}");
        }
    }
}
