//! The policies of several services that share what is written for `*`.
//!
//! Cost model: an entry costs its compilation and a copy of the table's references, whatever the number of services that it
//! covers; a policy costs a look-up by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use starling_model::{Action, IntentionSubject, ServiceIntentions, ServiceName};

use crate::authorise::{CompiledPolicy, CompiledRules};
use crate::policy::{Policy, PolicyRule};

/// Every intention known, ready to decide. Cloning costs two reference counts.
#[derive(Debug, Clone)]
pub struct PolicyTable {
    default: Action,
    any: Arc<CompiledRules>,
    own: Arc<BTreeMap<ServiceName, Arc<CompiledRules>>>,
}

impl PolicyTable {
    /// No intentions above a default.
    #[must_use]
    pub fn new(default: Action) -> Self {
        Self { default, any: Arc::default(), own: Arc::default() }
    }

    /// The policy of one service, as it is.
    #[must_use]
    pub fn of_policy(policy: &Policy) -> Self {
        let (any, own): (Vec<_>, Vec<_>) =
            policy.rules.iter().cloned().partition(|rule| rule.written_for == IntentionSubject::Any);
        let own = BTreeMap::from([(policy.destination.clone(), Arc::new(CompiledRules::new(&own)))]);
        Self { default: policy.default, any: Arc::new(CompiledRules::new(&any)), own: Arc::new(own) }
    }

    /// What is written for `destination` is now this.
    pub fn set(&mut self, destination: &IntentionSubject, entry: Option<&ServiceIntentions>) {
        let compiled = entry.map(|entry| {
            let mut rules: Vec<_> = PolicyRule::of(entry).collect();
            rules.sort_by_key(|rule| std::cmp::Reverse(rule.precedence));
            Arc::new(CompiledRules::new(&rules))
        });
        match (destination, compiled) {
            (IntentionSubject::Any, compiled) => self.any = compiled.unwrap_or_default(),
            (IntentionSubject::Service(service), Some(compiled)) => {
                Arc::make_mut(&mut self.own).insert(service.clone(), compiled);
            }
            (IntentionSubject::Service(service), None) => {
                if self.own.contains_key(service) {
                    Arc::make_mut(&mut self.own).remove(service);
                }
            }
        }
    }

    /// Who may call `service`. Its verdicts count the rules written for the service, then those written for `*`, each in
    /// falling order of precedence.
    #[must_use]
    pub fn policy(&self, service: &ServiceName) -> CompiledPolicy {
        let own = self.own.get(service).cloned().unwrap_or_default();
        CompiledPolicy::layered(self.default, own, Arc::clone(&self.any))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use starling_model::{SourceDecision, SourceIntention};

    use super::*;

    const NAMES: [&str; 4] = ["api", "web", "db", "*"];

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![Just(Action::Allow), Just(Action::Deny)]
    }

    fn decision() -> impl Strategy<Value = SourceDecision> {
        prop_oneof![4 => action().prop_map(SourceDecision::Connection), 1 => Just(SourceDecision::Requests(Vec::new()))]
    }

    /// An entry for one of the names; `None` deletes what is there.
    fn change() -> impl Strategy<Value = (IntentionSubject, Option<ServiceIntentions>)> {
        let sources = prop::collection::btree_map(prop::sample::select(&NAMES[..]), decision(), 1..4);
        (prop::sample::select(&NAMES[..]), prop::option::weighted(0.8, sources)).prop_map(|(destination, sources)| {
            let destination: IntentionSubject = destination.parse().unwrap();
            let entry = sources.map(|sources| ServiceIntentions {
                destination: destination.clone(),
                sources: sources
                    .into_iter()
                    .map(|(source, decision)| SourceIntention {
                        source: source.parse().unwrap(),
                        decision,
                        description: String::new(),
                        id: None,
                    })
                    .collect(),
                meta: BTreeMap::new(),
            });
            (destination, entry)
        })
    }

    proptest! {
        #[test]
        fn decides_as_the_policy_built_of_all_entries(
            default in action(), changes in prop::collection::vec(change(), 0..8)
        ) {
            let mut table = PolicyTable::new(default);
            let mut entries = BTreeMap::new();
            for (destination, entry) in changes {
                table.set(&destination, entry.as_ref());
                entries.insert(destination, entry);
            }
            for called in &NAMES[..3] {
                let called: ServiceName = called.parse().unwrap();
                let policy = Policy::build(&called, default, entries.values().flatten());
                let whole = CompiledPolicy::new(&policy);
                let alone = PolicyTable::of_policy(&policy).policy(&called);
                for source in ["api", "web", "other"] {
                    let source: ServiceName = source.parse().unwrap();
                    let (found, expected) =
                        (table.policy(&called).authorise(&source, None), whole.authorise(&source, None));
                    prop_assert_eq!(found.action, expected.action, "{} -> {}", source, called);
                    prop_assert_eq!(alone.authorise(&source, None), expected);
                    prop_assert_eq!(found.rule().is_some(), expected.rule().is_some());
                    if let (Some(found), Some(expected)) = (found.rule(), expected.rule()) {
                        let rule = &policy.rules[expected];
                        let written = (rule.source.to_string(), rule.written_for.to_string());
                        for (policy, rule) in [(&table.policy(&called), found), (&alone, expected)] {
                            let (from, to) = policy.written(rule, &source, &called);
                            prop_assert_eq!((from, to), (&*written.0, &*written.1));
                        }
                    }
                }
            }
        }
    }
}
