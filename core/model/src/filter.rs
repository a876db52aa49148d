//! Which instances belong to a subset: the part of Consul's filter language that speaks of metadata and tags.
//!
//! Grammar, after hashicorp/go-bexpr: tests joined by `and`, `or`, `not` and parentheses, `and` before `or`. A test is one of
//! `Service.Meta.KEY == VALUE` (or `Service.Meta["KEY"]`), `!=`, `VALUE in Service.Tags`, `Service.Tags contains VALUE`, the
//! same of `Service.Meta` for its keys, `is empty` and `is not empty`, and with `not` before `in` and `contains`. A value is
//! quoted, or a word. A key that is not there equals nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of a filter; Consul's users write some hundred.
pub const FILTER_BYTES_MAX: usize = 4 * 1024;

/// Parentheses and negations inside one another; bounds the recursion of reading and of testing.
pub const FILTER_NESTING_MAX: usize = 32;

/// A test on an instance, kept as it was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Filter {
    text: String,
    test: Test,
}

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
        expected: &'static str,
        /// Where, counted from 0.
        offset: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    All(Vec<Test>),
    Any(Vec<Test>),
    Not(Box<Test>),
    MetaIs(String, String),
    MetaIsEmpty(String),
    HasKey(String),
    HasTag(String),
    NoMeta,
    NoTags,
}

impl Filter {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether an instance with these belongs to the subset.
    #[must_use]
    pub fn admits(&self, tags: &[String], meta: &BTreeMap<String, String>) -> bool {
        self.test.holds(tags, meta)
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Filter {}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Filter {
    type Err = FilterError;
    fn from_str(text: &str) -> Result<Self, FilterError> {
        if text.len() > FILTER_BYTES_MAX {
            return Err(FilterError::TooLong);
        }
        let mut reader = Reader { text, at: 0 };
        let test = reader.any(0)?;
        if reader.peek().is_some() {
            return Err(reader.expected("and, or, or the end"));
        }
        Ok(Self { text: text.to_owned(), test })
    }
}

impl TryFrom<String> for Filter {
    type Error = FilterError;
    fn try_from(text: String) -> Result<Self, FilterError> {
        text.parse()
    }
}

impl From<Filter> for String {
    fn from(filter: Filter) -> Self {
        filter.text
    }
}

impl Test {
    fn holds(&self, tags: &[String], meta: &BTreeMap<String, String>) -> bool {
        match self {
            Self::All(tests) => tests.iter().all(|test| test.holds(tags, meta)),
            Self::Any(tests) => tests.iter().any(|test| test.holds(tags, meta)),
            Self::Not(test) => !test.holds(tags, meta),
            Self::MetaIs(key, value) => meta.get(key) == Some(value),
            Self::MetaIsEmpty(key) => meta.get(key).is_none_or(String::is_empty),
            Self::HasKey(key) => meta.contains_key(key),
            Self::HasTag(tag) => tags.contains(tag),
            Self::NoMeta => meta.is_empty(),
            Self::NoTags => tags.is_empty(),
        }
    }

    fn negated(self, negated: bool) -> Self {
        if negated { Self::Not(Box::new(self)) } else { self }
    }
}

/// What is looked at.
enum Selector {
    Tags,
    Meta,
    Key(String),
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn expected(&self, expected: &'static str) -> FilterError {
        FilterError::Expected { expected, offset: self.at }
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

    fn any(&mut self, depth: usize) -> Result<Test, FilterError> {
        let mut tests = vec![self.all(depth)?];
        while self.keyword("or") {
            tests.push(self.all(depth)?);
        }
        Ok(if tests.len() == 1 { tests.remove(0) } else { Test::Any(tests) })
    }

    fn all(&mut self, depth: usize) -> Result<Test, FilterError> {
        let mut tests = vec![self.one(depth)?];
        while self.keyword("and") {
            tests.push(self.one(depth)?);
        }
        Ok(if tests.len() == 1 { tests.remove(0) } else { Test::All(tests) })
    }

    fn one(&mut self, depth: usize) -> Result<Test, FilterError> {
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
        if let Some(selector) = self.selector()? {
            return self.comparison(selector);
        }
        // `VALUE in SELECTOR`.
        let value = self.value()?;
        let negated = self.keyword("not");
        if !self.keyword("in") {
            return Err(self.expected("in"));
        }
        match self.selector()? {
            Some(Selector::Tags) => Ok(Test::HasTag(value).negated(negated)),
            Some(Selector::Meta) => Ok(Test::HasKey(value).negated(negated)),
            Some(Selector::Key(_)) | None => Err(self.expected("Service.Tags or Service.Meta")),
        }
    }

    fn comparison(&mut self, selector: Selector) -> Result<Test, FilterError> {
        for (symbol, negated) in [("==", false), ("!=", true)] {
            if self.symbol(symbol) {
                let Selector::Key(key) = selector else { return Err(self.expected("contains, or is empty")) };
                return Ok(Test::MetaIs(key, self.value()?).negated(negated));
            }
        }
        if self.keyword("is") {
            let negated = self.keyword("not");
            if !self.keyword("empty") {
                return Err(self.expected("empty"));
            }
            let test = match selector {
                Selector::Tags => Test::NoTags,
                Selector::Meta => Test::NoMeta,
                Selector::Key(key) => Test::MetaIsEmpty(key),
            };
            return Ok(test.negated(negated));
        }
        let negated = self.keyword("not");
        if !self.keyword("contains") {
            return Err(self.expected("==, !=, contains, or is empty"));
        }
        let value = self.value()?;
        match selector {
            Selector::Tags => Ok(Test::HasTag(value).negated(negated)),
            Selector::Meta => Ok(Test::HasKey(value).negated(negated)),
            Selector::Key(_) => Err(self.expected("== or != for a single value")),
        }
    }

    /// A selector, if one comes next.
    fn selector(&mut self) -> Result<Option<Selector>, FilterError> {
        self.peek();
        let word = word(&self.text[self.at..]);
        let mut parts = word.splitn(3, '.');
        if parts.next() != Some("Service") {
            return Ok(None);
        }
        let (field, key) = (parts.next(), parts.next());
        let selector = match (field, key) {
            (Some("Tags"), None) => Selector::Tags,
            (Some("Meta"), None) => Selector::Meta,
            (Some("Meta"), Some(key)) if !key.is_empty() => Selector::Key(key.to_owned()),
            _ => return Err(self.expected("Service.Meta.KEY, Service.Meta or Service.Tags")),
        };
        self.at += word.len();
        if matches!(selector, Selector::Meta) && self.text[self.at..].starts_with('[') {
            self.at += 1;
            let key = self.value()?;
            return if self.symbol("]") { Ok(Some(Selector::Key(key))) } else { Err(self.expected("]")) };
        }
        Ok(Some(selector))
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
                    _ => return Err(self.expected("a quote or a backslash after the backslash")),
                },
                _ => value.push(character),
            }
        }
        Err(self.expected("a closing quote"))
    }
}

/// The word at the beginning of a text.
fn word(text: &str) -> &str {
    let end =
        text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/'))).unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(filter: &str, tags: &[&str], meta: &[(&str, &str)]) -> bool {
        let tags: Vec<_> = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let meta = meta.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        filter.parse::<Filter>().expect(filter).admits(&tags, &meta)
    }

    #[test]
    fn filters_tell_instances_apart() {
        let v1 = [("version", "v1"), ("empty", "")];
        for (filter, expected) in [
            ("Service.Meta.version == v1", true),
            ("Service.Meta.version == \"v1\"", true),
            ("Service.Meta[\"version\"] == `v1`", true),
            ("Service.Meta.version != v1", false),
            ("Service.Meta.version != v2", true),
            ("Service.Meta.missing == v1", false),
            ("Service.Meta.missing != v1", true),
            ("Service.Meta.missing is empty", true),
            ("Service.Meta.empty is empty", true),
            ("Service.Meta.version is not empty", true),
            ("Service.Meta contains version", true),
            ("missing in Service.Meta", false),
            ("Service.Tags contains blue", true),
            ("\"blue\" in Service.Tags", true),
            ("\"red\" not in Service.Tags", true),
            ("Service.Tags not contains blue", false),
            ("Service.Tags is empty", false),
            ("Service.Meta is not empty", true),
            ("not Service.Meta.version == v2 and not (red in Service.Tags)", true),
            ("red in Service.Tags or blue in Service.Tags and Service.Meta.version == v1", true),
            ("(red in Service.Tags or blue in Service.Tags) and Service.Meta.version == v2", false),
            ("Service.Meta.version==v1 AND blue in Service.Tags  ", true),
        ] {
            assert_eq!(admits(filter, &["blue"], &v1), expected, "{filter}");
        }
        assert!(admits(r#"Service.Meta.q == "a\"b\\""#, &[], &[("q", "a\"b\\")]));
    }

    #[test]
    fn what_is_no_filter_is_refused_with_the_place() {
        for (text, message) in [
            ("", "filter: expected a value at byte 0"),
            ("Service.Port == 1", "filter: expected Service.Meta.KEY, Service.Meta or Service.Tags at byte 0"),
            ("Service.Meta.v = 1", "filter: expected ==, !=, contains, or is empty at byte 15"),
            ("Service.Meta.v == \"1", "filter: expected a closing quote at byte 18"),
            ("(Service.Tags is empty", "filter: expected ) at byte 22"),
            ("Service.Tags is empty )", "filter: expected and, or, or the end at byte 22"),
            ("Service.Tags matches \"x\"", "filter: expected ==, !=, contains, or is empty at byte 13"),
        ] {
            assert_eq!(text.parse::<Filter>().expect_err(text).to_string(), message, "{text}");
        }
        let deep = format!("{}x in Service.Tags{}", "(".repeat(40), ")".repeat(40));
        assert_eq!(deep.parse::<Filter>(), Err(FilterError::TooDeep));
        assert_eq!("x".repeat(FILTER_BYTES_MAX + 1).parse::<Filter>(), Err(FilterError::TooLong));
    }
}
