//! The policy of one destination: its intentions in order of precedence above a default.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use starling_model::{Action, IntentionSubject, ServiceIntentions, ServiceName, SourceDecision};

/// Every rule that decides about calls to one service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// The service called.
    pub destination: ServiceName,
    /// What happens to a source that no rule covers, and to a request that no permission of its rule matches.
    pub default: Action,
    /// The rules, the one that decides first; each source stands at most once.
    pub rules: Vec<PolicyRule>,
}

/// One intention, as it applies to this destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

impl PolicyRule {
    /// What an entry says.
    pub fn of(entry: &ServiceIntentions) -> impl Iterator<Item = Self> {
        entry.sources.iter().map(|intention| Self {
            source: intention.source.clone(),
            written_for: entry.destination.clone(),
            precedence: intention.precedence(&entry.destination),
            decision: intention.decision.clone(),
        })
    }
}

impl Policy {
    /// Gathers what `entries` say about calls of `destination`; entries written for another service are passed over.
    ///
    /// A source that several entries name keeps its rule of highest precedence only. Rules of equal precedence, which
    /// then have different sources, stand in the order of their sources' names.
    ///
    /// Source: Consul documentation, "Intention precedence and match order".
    pub fn build<'a>(
        destination: &ServiceName,
        default: Action,
        entries: impl IntoIterator<Item = &'a ServiceIntentions>,
    ) -> Self {
        let entries = entries.into_iter().filter(|entry| entry.destination.covers(destination));
        let mut rules: Vec<_> = entries.flat_map(PolicyRule::of).collect();
        rules.sort_by(|a, b| b.precedence.cmp(&a.precedence).then_with(|| a.source.cmp(&b.source)));
        let mut named = BTreeSet::new();
        rules.retain(|rule| named.insert(rule.source.clone()));
        Self { destination: destination.clone(), default, rules }
    }

    /// The same policy where requests cannot be told apart: rules by request become denials of the connection.
    ///
    /// Also answers which rules those were, by index. Never wider than what was written.
    #[must_use]
    pub fn for_connections(mut self) -> (Self, Vec<usize>) {
        let mut closed = Vec::new();
        for (index, rule) in self.rules.iter_mut().enumerate() {
            match rule.decision {
                SourceDecision::Connection(_) => {}
                SourceDecision::Requests(_) => {
                    rule.decision = SourceDecision::Connection(Action::Deny);
                    closed.push(index);
                }
            }
        }
        (self, closed)
    }
}

#[cfg(test)]
mod tests {
    use starling_model::SourceIntention;

    use super::*;

    fn entry(destination: &str, sources: &[(&str, Action)]) -> ServiceIntentions {
        let sources = sources.iter().map(|(source, action)| SourceIntention {
            source: source.parse().unwrap(),
            decision: SourceDecision::Connection(*action),
            description: String::new(),
            id: None,
        });
        ServiceIntentions {
            destination: destination.parse().unwrap(),
            sources: sources.collect(),
            meta: std::collections::BTreeMap::new(),
        }
    }

    fn lines(policy: &Policy) -> Vec<String> {
        let line = |rule: &PolicyRule| format!("{} {} -> {}", rule.precedence, rule.source, rule.written_for);
        policy.rules.iter().map(line).collect()
    }

    #[test]
    fn exact_comes_before_wildcard_and_each_source_stands_once() {
        let api: ServiceName = "api".parse().unwrap();
        let any = entry("*", &[("web", Action::Deny), ("*", Action::Deny), ("cron", Action::Allow)]);
        let own = entry("api", &[("*", Action::Allow), ("web", Action::Allow), ("admin", Action::Allow)]);
        let other = entry("db", &[("web", Action::Allow)]);
        for entries in [[&any, &own, &other], [&own, &other, &any]] {
            let policy = Policy::build(&api, Action::Deny, entries);
            assert_eq!(lines(&policy), ["9 admin -> api", "9 web -> api", "8 * -> api", "6 cron -> *"]);
        }
    }

    #[test]
    fn without_requests_a_rule_by_request_denies() {
        let api: ServiceName = "api".parse().unwrap();
        let mut own = entry("api", &[("web", Action::Allow), ("admin", Action::Allow)]);
        own.sources[1].decision = SourceDecision::Requests(Vec::new());
        let (policy, closed) = Policy::build(&api, Action::Allow, [&own]).for_connections();
        assert_eq!(closed, [0]);
        assert_eq!(policy.rules[0].decision, SourceDecision::Connection(Action::Deny));
        assert_eq!(policy.rules[1].decision, SourceDecision::Connection(Action::Allow));
    }
}
