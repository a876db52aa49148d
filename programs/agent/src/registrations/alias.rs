//! Alias checks of this node: derived from the checks they look at, in the same step that changes those.
//!
//! An alias is as bad as the worst check that can be reached through it, other aliases being passed through. Seen this
//! way two instances that look at each other recover together; taking an alias's own last status into account would
//! hold both critical for ever.

use std::collections::BTreeSet;
use std::time::Instant;

use starling_model::{CheckId, CheckStatus, InstanceId, OnNode};

use super::{Health, Registrations, Touched};
use crate::checks::alias::{ALL_PASSING, NO_CHECKS, failing, not_found};

impl Registrations {
    /// Recomputes the aliases that depend on anything touched.
    pub(super) fn settle_aliases(&mut self, touched: &mut Touched, now: Instant) {
        for alias in self.aliases_affected(touched) {
            if let Some(health) = self.alias_health(&alias) {
                self.set_health(&alias, health, now, touched);
            }
        }
    }

    fn aliases_affected(&self, touched: &Touched) -> BTreeSet<CheckId> {
        let mut found = BTreeSet::new();
        let mut queue: Vec<Option<InstanceId>> = Vec::new();
        for key in &touched.keys {
            match key.on_node() {
                Some(OnNode::Instance(key)) => queue.push(Some(key.id.clone())),
                Some(OnNode::Check(_, id)) => {
                    let before = touched.before.checks.get(id).and_then(Option::as_ref);
                    queue.extend(self.checks.get(id).or(before).map(|check| check.owner().cloned()));
                    // A new alias must be looked at even if nothing that it sees has changed.
                    found.extend(
                        self.checks.get(id).filter(|c| self.alias_target(c.definition()).is_some()).map(|_| id.clone()),
                    );
                }
                Some(OnNode::Node(_)) | None => {}
            }
        }
        let mut seen = BTreeSet::new();
        while let Some(owner) = queue.pop() {
            if !seen.insert(owner.clone()) {
                continue;
            }
            // The node's own checks count for every alias of an instance as well.
            let looking: Vec<&CheckId> = match &owner {
                None => self.aliases.values().flatten().collect(),
                Some(_) => self.aliases.get(&owner).into_iter().flatten().collect(),
            };
            for alias in looking {
                found.insert(alias.clone());
                queue.push(self.checks[alias].owner().cloned());
            }
        }
        found
    }

    fn alias_health(&self, alias: &CheckId) -> Option<Health> {
        let target = self.alias_target(self.checks.get(alias)?.definition())?;
        if let Some(service) = target.as_ref().filter(|service| !self.services.contains_key(*service)) {
            return Some(not_found(service, &self.node.name));
        }
        let mut worst: Option<(CheckStatus, &CheckId)> = None;
        let mut seen = BTreeSet::from([alias.clone()]);
        let mut queue = vec![None, target];
        let mut visited = BTreeSet::new();
        while let Some(owner) = queue.pop() {
            if !visited.insert(owner.clone()) {
                continue;
            }
            for id in self.checks_of(owner.as_ref()) {
                if !seen.insert(id.clone()) {
                    continue;
                }
                match self.alias_target(self.checks[id].definition()) {
                    Some(next) if next.as_ref().is_none_or(|next| self.services.contains_key(next)) => queue.push(next),
                    Some(_) | None => {
                        let status = self.checks[id].record.status;
                        if worst.is_none_or(|(known, _)| status > known) {
                            worst = Some((status, id));
                        }
                    }
                }
            }
        }
        Some(match worst {
            None => Health { status: CheckStatus::Passing, output: NO_CHECKS.to_owned() },
            Some((CheckStatus::Passing, _)) => Health { status: CheckStatus::Passing, output: ALL_PASSING.to_owned() },
            Some((status, id)) => failing(status, &self.checks[id].record),
        })
    }
}
