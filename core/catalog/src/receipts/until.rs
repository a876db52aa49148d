//! Barriers: what a writer may wait for before it is answered.

use std::fmt;
use std::str::FromStr;

use starling_model::{NameError, NodeName};

/// What is waited for.
///
/// In text:
///
/// | Text | Holds when |
/// |---|---|
/// | `applied:all` | everyone whom the change concerns has applied it |
/// | `applied:N%`, N from 1 to 100 | at least so many of them have |
/// | `node=NAME` | that node, and each proxy on it that reports by itself, has applied it or has nothing to do |
///
/// A change that concerns nobody is applied by all. Source: DESIGN §7.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Until {
    /// `applied:all`.
    AppliedAll,
    /// `applied:N%`.
    AppliedPercent(u8),
    /// `node=NAME`.
    AppliedNode(NodeName),
}

/// How it stands with a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    /// It holds.
    Met,
    /// It does not hold yet. A node that was never attached here has not applied anything yet.
    NotYet,
    /// It will never hold, because of those who refused the change.
    Never,
}

/// Why a text is no barrier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UntilError {
    /// Not of a known form.
    #[error("until {text:?} is not of the form applied:all, applied:N% with N from 1 to 100, or node=NAME")]
    Form {
        /// The text as given.
        text: String,
    },
    /// The name is not a node's.
    #[error("until {text:?} does not name a node")]
    Node {
        /// The text as given.
        text: String,
        /// What is wrong with the name.
        source: NameError,
    },
}

impl FromStr for Until {
    type Err = UntilError;

    fn from_str(text: &str) -> Result<Self, UntilError> {
        if let Some(name) = text.strip_prefix("node=") {
            let node = name.parse().map_err(|source| UntilError::Node { text: text.to_owned(), source })?;
            return Ok(Self::AppliedNode(node));
        }
        let share = text.strip_prefix("applied:").and_then(|share| {
            let percent = share.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
            match (share, percent.and_then(|digits| digits.parse().ok())) {
                ("all", _) => Some(Self::AppliedAll),
                (_, Some(percent @ 1..=100)) => Some(Self::AppliedPercent(percent)),
                (_, Some(_) | None) => None,
            }
        });
        share.ok_or_else(|| UntilError::Form { text: text.to_owned() })
    }
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AppliedAll => f.write_str("applied:all"),
            Self::AppliedPercent(percent) => write!(f, "applied:{percent}%"),
            Self::AppliedNode(name) => write!(f, "node={name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_read_as_it_is_written() {
        for text in ["applied:all", "applied:1%", "applied:99%", "applied:100%", "node=n-1"] {
            assert_eq!(text.parse::<Until>().map(|until| until.to_string()).as_deref(), Ok(text));
        }
        for text in
            ["", "all", "applied", "applied:", "applied:0%", "applied:101%", "applied:+9%", "applied:99", "applied:%"]
        {
            assert_eq!(text.parse::<Until>(), Err(UntilError::Form { text: text.to_owned() }));
        }
        let nameless = "node=".parse::<Until>().expect_err("no name");
        assert_eq!(nameless.to_string(), "until \"node=\" does not name a node");
    }
}
