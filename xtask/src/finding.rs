//! One broken rule at one place, in words that say what to do about it.

use std::fmt;

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// File, relative to the workspace root.
    pub path: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Short name of the rule.
    pub rule: &'static str,
    /// What is there.
    pub what: String,
    /// Why the rule exists.
    pub why: String,
    /// What to do.
    pub fix: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}: [{}] {}", self.path, self.line, self.rule, self.what)?;
        writeln!(f, "    why: {}", self.why)?;
        write!(f, "    fix: {}", self.fix)
    }
}
