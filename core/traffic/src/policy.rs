//! The policy of one destination: its intentions in order of precedence above a default.

use starling_model::{Action, IntentionSubject, ServiceName, SourceDecision};

/// Every rule that decides about calls to one service.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The service called.
    pub destination: ServiceName,
    /// What happens to a source that no rule covers, and to a request that no permission of its rule matches.
    pub default: Action,
    /// The rules, the one that decides first; each source stands at most once.
    pub rules: Vec<PolicyRule>,
}

/// One intention, as it applies to this destination.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyRule {
    /// Whom it covers.
    pub source: IntentionSubject,
    /// The destination as written: the service itself or `*`.
    pub written_for: IntentionSubject,
    /// Consul's precedence number; rules stand in falling order of it.
    pub precedence: u8,
    /// The verdict, for the connection or by request.
    pub decision: SourceDecision,
}
