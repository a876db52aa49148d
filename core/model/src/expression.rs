//! Expressions of Consul's filter language, as they are written: what is looked at, and how it is tested.
//!
//! Grammar, after hashicorp/go-bexpr: tests joined by `and`, `or`, `not` and parentheses, `and` before `or`. A test is one of
//! `SELECTOR == VALUE`, `!=`, `SELECTOR is empty`, `SELECTOR contains VALUE`, `VALUE in SELECTOR`, `SELECTOR matches VALUE`, and with
//! `not` before `in`, `contains`, `matches` and `empty`. A selector is words joined by `.`, of which a later one may stand in brackets
//! and quotes, `Meta["a.b"]`; or a JSON pointer in quotes, `"/Meta/a.b"`. A value is quoted by `"` or a backtick, or a word.

use std::borrow::Cow;

/// Bytes of an expression; Consul's users write some hundred.
pub const FILTER_BYTES_MAX: usize = 4 * 1024;

/// Parentheses and negations inside one another; bounds the recursion of reading and of testing.
pub const FILTER_NESTING_MAX: usize = 32;

/// Why a text is no filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Longer than [`FILTER_BYTES_MAX`].
    #[error("a filter has at most {FILTER_BYTES_MAX} bytes")]
    TooLong,
    /// Deeper than [`FILTER_NESTING_MAX`].
    #[error("a filter is at most {FILTER_NESTING_MAX} parentheses and negations deep")]
    TooDeep,
    /// Something else was expected.
    #[error("filter: expected {expected} at byte {offset}")]
    Expected {
        /// What.
        expected: Cow<'static, str>,
        /// Where, counted from 0.
        offset: usize,
    },
}

/// An expression; `T` is what a test has become for whoever reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression<T> {
    /// All of them hold; none is empty.
    All(Vec<Expression<T>>),
    /// One of them holds.
    Any(Vec<Expression<T>>),
    /// It does not hold.
    Not(Box<Expression<T>>),
    /// A test.
    Test(T),
}

/// A test as it is written, negations apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenTest {
    /// What is looked at.
    pub selector: Vec<String>,
    /// How.
    pub operator: Operator,
}

/// How something is tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operator {
    /// It is this.
    Equals(String),
    /// It has this: an element, a key, or a part of a text.
    Contains(String),
    /// There is nothing in it.
    IsEmpty,
    /// A regular expression finds itself in it.
    Matches(String),
}

impl<T> Expression<T> {
    /// Whether it holds, by whether each test does.
    pub fn holds(&self, test: &mut impl FnMut(&T) -> bool) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(test)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(test)),
            Self::Not(part) => !part.holds(test),
            Self::Test(own) => test(own),
        }
    }

    fn negated(self, negated: bool) -> Self {
        if negated { Self::Not(Box::new(self)) } else { self }
    }
}

/// Reads an expression. `take` makes of each test what it is to be, or says what was expected in the place of its selector or its value.
///
/// # Errors
/// [`FilterError`] with the place.
pub fn parse_expression<T>(
    text: &str,
    take: impl Fn(WrittenTest) -> Result<T, Cow<'static, str>>,
) -> Result<Expression<T>, FilterError> {
    if text.len() > FILTER_BYTES_MAX {
        return Err(FilterError::TooLong);
    }
    let mut reader = Reader { text, at: 0, take };
    let expression = reader.any(0)?;
    if reader.peek().is_some() {
        return Err(reader.expected("and, or, or the end"));
    }
    Ok(expression)
}

struct Reader<'a, F> {
    text: &'a str,
    at: usize,
    take: F,
}

impl<T, F: Fn(WrittenTest) -> Result<T, Cow<'static, str>>> Reader<'_, F> {
    fn any(&mut self, depth: usize) -> Result<Expression<T>, FilterError> {
        let mut parts = vec![self.all(depth)?];
        while self.keyword("or") {
            parts.push(self.all(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Any(parts) })
    }

    fn all(&mut self, depth: usize) -> Result<Expression<T>, FilterError> {
        let mut parts = vec![self.one(depth)?];
        while self.keyword("and") {
            parts.push(self.one(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::All(parts) })
    }

    fn one(&mut self, depth: usize) -> Result<Expression<T>, FilterError> {
        if depth > FILTER_NESTING_MAX {
            return Err(FilterError::TooDeep);
        }
        if self.keyword("not") {
            return Ok(self.one(depth + 1)?.negated(true));
        }
        if self.symbol("(") {
            let inner = self.any(depth + 1)?;
            return if self.symbol(")") { Ok(inner) } else { Err(self.expected(")")) };
        }
        // `VALUE in SELECTOR`, or a test that begins with its selector: the word behind tells them apart.
        self.peek();
        let begun = self.at;
        let value = self.value()?;
        let negated = self.keyword("not");
        if self.keyword("in") {
            self.peek();
            let place = self.at;
            let selector = self.selector()?;
            return self.test(selector, Operator::Contains(value), negated, place);
        }
        self.at = begun;
        let selector = self.selector()?;
        self.comparison(selector, begun)
    }

    fn comparison(&mut self, selector: Vec<String>, place: usize) -> Result<Expression<T>, FilterError> {
        for (symbol, negated) in [("==", false), ("!=", true)] {
            if self.symbol(symbol) {
                let value = self.value()?;
                return self.test(selector, Operator::Equals(value), negated, place);
            }
        }
        if self.keyword("is") {
            let negated = self.keyword("not");
            if !self.keyword("empty") {
                return Err(self.expected("empty"));
            }
            return self.test(selector, Operator::IsEmpty, negated, place);
        }
        let negated = self.keyword("not");
        if self.keyword("contains") {
            let value = self.value()?;
            return self.test(selector, Operator::Contains(value), negated, place);
        }
        if self.keyword("matches") {
            let value = self.value()?;
            return self.test(selector, Operator::Matches(value), negated, place);
        }
        Err(self.expected("==, !=, contains, matches, or is empty"))
    }

    fn test(
        &self,
        selector: Vec<String>,
        operator: Operator,
        negated: bool,
        place: usize,
    ) -> Result<Expression<T>, FilterError> {
        let taken = (self.take)(WrittenTest { selector, operator });
        let test = taken.map_err(|expected| FilterError::Expected { expected, offset: place })?;
        Ok(Expression::Test(test).negated(negated))
    }

    fn expected(&self, expected: &'static str) -> FilterError {
        FilterError::Expected { expected: expected.into(), offset: self.at }
    }

    fn peek(&mut self) -> Option<char> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.text[self.at..].chars().next()
    }

    /// Takes `symbol` if it comes next.
    fn symbol(&mut self, symbol: &str) -> bool {
        self.peek();
        let there = self.text[self.at..].starts_with(symbol);
        self.at += if there { symbol.len() } else { 0 };
        there
    }

    /// Takes a word if it comes next; letters of either case are equal, as in Consul.
    fn keyword(&mut self, keyword: &str) -> bool {
        self.peek();
        let word = word(&self.text[self.at..]);
        let there = word.eq_ignore_ascii_case(keyword);
        self.at += if there { word.len() } else { 0 };
        there
    }

    fn selector(&mut self) -> Result<Vec<String>, FilterError> {
        if matches!(self.peek(), Some('"' | '`')) {
            let pointer = self.value()?;
            let Some(path) = pointer.strip_prefix('/') else { return Err(self.expected("==, !=, in, or a selector")) };
            // RFC 6901, section 4.
            return Ok(path.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect());
        }
        let word = word(&self.text[self.at..]);
        if word.is_empty() || word.starts_with('.') || word.ends_with('.') {
            return Err(self.expected("a selector"));
        }
        let mut selector: Vec<String> = word.split('.').map(str::to_owned).collect();
        self.at += word.len();
        while self.text[self.at..].starts_with('[') {
            self.at += 1;
            selector.push(self.value()?);
            if !self.symbol("]") {
                return Err(self.expected("]"));
            }
        }
        Ok(selector)
    }

    /// A word, or a text in quotes or backticks; a backslash in quotes stands before a quote or a backslash.
    fn value(&mut self) -> Result<String, FilterError> {
        let quote = match self.peek() {
            Some(quote @ ('"' | '`')) => quote,
            _ => {
                let word = word(&self.text[self.at..]);
                if word.is_empty() {
                    return Err(self.expected("a value"));
                }
                self.at += word.len();
                return Ok(word.to_owned());
            }
        };
        let mut value = String::new();
        let mut rest = self.text[self.at + 1..].char_indices();
        while let Some((offset, character)) = rest.next() {
            match character {
                _ if character == quote => {
                    self.at += 1 + offset + 1;
                    return Ok(value);
                }
                '\\' if quote == '"' => match rest.next() {
                    Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                    // As in a regular expression, which is often what stands here.
                    Some((_, other)) => value.extend(['\\', other]),
                    None => break,
                },
                _ => value.push(character),
            }
        }
        Err(self.expected("a closing quote"))
    }
}

/// The word at the beginning of a text.
fn word(text: &str) -> &str {
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | ':')))
        .unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        fn shown(expression: &Expression<WrittenTest>) -> String {
            match expression {
                Expression::All(parts) => format!("({})", parts.iter().map(shown).collect::<Vec<_>>().join(" & ")),
                Expression::Any(parts) => format!("({})", parts.iter().map(shown).collect::<Vec<_>>().join(" | ")),
                Expression::Not(part) => format!("!{}", shown(part)),
                Expression::Test(test) => format!("{}{:?}", test.selector.join("/"), test.operator),
            }
        }
        parse_expression(text, Ok).map_or_else(|error| error.to_string(), |expression| shown(&expression))
    }

    #[test]
    fn tests_are_joined_and_negated_in_the_order_of_the_grammar() {
        for (text, expected) in [
            ("A == 1", "AEquals(\"1\")"),
            ("A.B != \"x y\"", "!A/BEquals(\"x y\")"),
            ("A[\"b.c\"].d == x", "filter: expected ==, !=, contains, matches, or is empty at byte 8"),
            ("A[\"b.c\"] == `x\\`", "A/b.cEquals(\"x\\\\\")"),
            ("\"/A/b~1c\" is not empty", "!A/b/cIsEmpty"),
            ("\"/x\" in A", "AContains(\"/x\")"),
            ("x not in A and B contains y or C is empty", "((!AContains(\"x\") & BContains(\"y\")) | CIsEmpty)"),
            (
                "not (A == 1 or A == 2) AND B not matches `^v[0-9]+$`",
                "(!(AEquals(\"1\") | AEquals(\"2\")) & !BMatches(\"^v[0-9]+$\"))",
            ),
            ("A matches \"v\\d\"", "AMatches(\"v\\\\d\")"),
            ("service:web in A", "AContains(\"service:web\")"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused_with_the_place() {
        for (text, expected) in [
            ("", "filter: expected a value at byte 0"),
            ("A", "filter: expected ==, !=, contains, matches, or is empty at byte 1"),
            ("A == ", "filter: expected a value at byte 5"),
            ("A == \"x", "filter: expected a closing quote at byte 5"),
            ("A is not", "filter: expected empty at byte 8"),
            ("(A == 1", "filter: expected ) at byte 7"),
            ("A == 1 B == 2", "filter: expected and, or, or the end at byte 7"),
            ("\"A\" == 1", "filter: expected ==, !=, in, or a selector at byte 3"),
            ("A. == 1", "filter: expected a selector at byte 0"),
            ("A[\"b\" == 1", "filter: expected ] at byte 6"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        let deep = format!("{}x in A{}", "(".repeat(40), ")".repeat(40));
        assert_eq!(parse_expression(&deep, Ok::<_, Cow<'static, str>>).unwrap_err(), FilterError::TooDeep);
        let long = "x".repeat(FILTER_BYTES_MAX + 1);
        assert_eq!(parse_expression(&long, Ok::<_, Cow<'static, str>>).unwrap_err(), FilterError::TooLong);
    }
}
