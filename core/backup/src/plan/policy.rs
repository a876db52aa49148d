//! The stages in which one set of rules takes the place of another; why there are three is said in [`super`].

use std::collections::BTreeSet;

use starling_model::{Change, ConfigEntry, ConfigKind, IntentionSubject, Record, RecordKey, ServiceIntentions};

use super::{Records, Stage, config_kind};

/// Changes that are made as one: what one transaction of the store takes, with room for its conditions.
const TOGETHER_MAX: usize = 100;

/// Bytes of these.
const TOGETHER_BYTES_MAX: usize = 512 * 1024;

/// The kinds that say who may call, and what is spoken.
const POLICY: [ConfigKind; 4] =
    [ConfigKind::Mesh, ConfigKind::ProxyDefaults, ConfigKind::ServiceDefaults, ConfigKind::ServiceIntentions];

const NAME: &str = "policy";

pub(super) fn stages(now: &Records, puts: &Records, deletes: &[RecordKey]) -> Vec<Stage> {
    let is_policy = |key: &RecordKey| config_kind(key).is_some_and(|kind| POLICY.contains(&kind));
    let puts: Vec<_> = puts.iter().filter(|(key, _)| is_policy(key)).map(|(_, record)| record.clone()).collect();
    let deletes: Vec<_> = deletes.iter().filter(|key| is_policy(key)).cloned().collect();
    let bytes: usize = puts.iter().map(|record| record.encode().len()).sum();
    if puts.len() + deletes.len() <= TOGETHER_MAX && bytes <= TOGETHER_BYTES_MAX {
        let puts = puts.into_iter().map(Change::Put);
        return vec![Stage { name: NAME, changes: puts.chain(deletes.into_iter().map(Change::Delete)).collect() }];
    }
    in_turn(now, puts, deletes)
}

/// New sources beside old ones, then the entry for every destination, then without the old sources.
pub(super) fn in_turn(now: &Records, puts: Vec<Record>, deletes: Vec<RecordKey>) -> Vec<Stage> {
    let [mut widened, mut every, mut trimmed] = [const { Vec::new() }; 3];
    for record in puts {
        match intentions(&record) {
            Some(new) if new.destination == IntentionSubject::Any => every.push(Change::Put(record)),
            Some(new) => {
                let both = now.get(&record.key()).and_then(intentions).and_then(|old| with_old_sources(new, old));
                match both {
                    None => widened.push(Change::Put(record)),
                    Some(both) => {
                        widened.push(Change::Put(Record::Config(ConfigEntry::ServiceIntentions(both))));
                        trimmed.push(Change::Put(record));
                    }
                }
            }
            // What is spoken comes first: rules about requests deny what they cannot tell apart.
            None => widened.insert(0, Change::Put(record)),
        }
    }
    for key in deletes {
        let is_every = matches!(&key, RecordKey::Config(key) if key.name == IntentionSubject::Any.as_str());
        let is_rule = config_kind(&key) == Some(ConfigKind::ServiceIntentions);
        if is_rule && is_every { every.push(Change::Delete(key)) } else { trimmed.push(Change::Delete(key)) }
    }
    [widened, every, trimmed].map(|changes| Stage { name: NAME, changes }).into()
}

fn intentions(record: &Record) -> Option<&ServiceIntentions> {
    if let Record::Config(ConfigEntry::ServiceIntentions(entry)) = record { Some(entry) } else { None }
}

/// The new entry, and what the old one says about sources of which the new one says nothing; `None` if that is nothing.
fn with_old_sources(new: &ServiceIntentions, old: &ServiceIntentions) -> Option<ServiceIntentions> {
    let named: BTreeSet<_> = new.sources.iter().map(|source| &source.source).collect();
    let kept: Vec<_> = old.sources.iter().filter(|source| !named.contains(&source.source)).cloned().collect();
    if kept.is_empty() {
        return None;
    }
    let mut both = new.clone();
    both.sources.extend(kept);
    let destination = both.destination.clone();
    both.sources.sort_by(|a, b| {
        b.precedence(&destination).cmp(&a.precedence(&destination)).then_with(|| a.source.cmp(&b.source))
    });
    Some(both)
}
