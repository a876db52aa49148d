//! Which instances belong to a subset: the part of Consul's filter language that speaks of metadata and tags.
//!
//! `Service.Meta.KEY == VALUE` (or `Service.Meta["KEY"]`) and `is empty`, `VALUE in Service.Tags`, the same of `Service.Meta` for its keys,
//! `is empty` of either, and all that [expressions](crate::expression) make of them. A key that is not there equals nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::expression::{Expression, FilterError, Operator, WrittenTest, parse_expression};

/// A test on an instance, kept as it was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Filter {
    text: String,
    expression: Expression<Test>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
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
        self.expression.holds(&mut |test| test.holds(tags, meta))
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
        Ok(Self { text: text.to_owned(), expression: parse_expression(text, Test::of)? })
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
    /// The test that was written, or what was expected in its place.
    fn of(WrittenTest { selector, operator }: WrittenTest) -> Result<Self, Cow<'static, str>> {
        let parts: Vec<&str> = selector.iter().map(String::as_str).collect();
        match (parts.as_slice(), operator) {
            (["Service", "Tags"], Operator::Contains(tag)) => Ok(Self::HasTag(tag)),
            (["Service", "Tags"], Operator::IsEmpty) => Ok(Self::NoTags),
            (["Service", "Meta"], Operator::Contains(key)) => Ok(Self::HasKey(key)),
            (["Service", "Meta"], Operator::IsEmpty) => Ok(Self::NoMeta),
            (["Service", "Tags" | "Meta"], Operator::Equals(_) | Operator::Matches(_)) => {
                Err("contains, in, or is empty for what holds several values".into())
            }
            (["Service", "Meta", key @ ..], Operator::Equals(value)) => Ok(Self::MetaIs(key.join("."), value)),
            (["Service", "Meta", key @ ..], Operator::IsEmpty) => Ok(Self::MetaIsEmpty(key.join("."))),
            (["Service", "Meta", ..], Operator::Contains(_) | Operator::Matches(_)) => {
                Err("==, !=, or is empty for a single value".into())
            }
            (_, _) => Err("Service.Meta.KEY, Service.Meta or Service.Tags".into()),
        }
    }

    fn holds(&self, tags: &[String], meta: &BTreeMap<String, String>) -> bool {
        match self {
            Self::MetaIs(key, value) => meta.get(key) == Some(value),
            Self::MetaIsEmpty(key) => meta.get(key).is_none_or(String::is_empty),
            Self::HasKey(key) => meta.contains_key(key),
            Self::HasTag(tag) => tags.contains(tag),
            Self::NoMeta => meta.is_empty(),
            Self::NoTags => tags.is_empty(),
        }
    }
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
    fn what_is_no_test_of_an_instance_is_refused_with_the_place() {
        for (text, message) in [
            ("", "filter: expected a value at byte 0"),
            ("Service.Port == 1", "filter: expected Service.Meta.KEY, Service.Meta or Service.Tags at byte 0"),
            ("a in Service.Meta.v", "filter: expected ==, !=, or is empty for a single value at byte 5"),
            (
                "Service.Tags matches \"x\"",
                "filter: expected contains, in, or is empty for what holds several values at byte 0",
            ),
        ] {
            assert_eq!(text.parse::<Filter>().expect_err(text).to_string(), message, "{text}");
        }
    }
}
