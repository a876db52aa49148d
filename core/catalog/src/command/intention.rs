//! Commands about single intentions, which are kept together by destination.

use starling_model::{ConfigEntry, IntentionSubject, Record, RecordKey, ServiceIntentions, SourceIntention};

use super::{Decision, Refusal, check_entry, concerns_protocols};
use crate::snapshot::Snapshot;

pub(super) fn decide_put(
    snapshot: &Snapshot,
    destination: &IntentionSubject,
    intention: &SourceIntention,
    decision: &mut Decision,
) -> Result<(), Refusal> {
    let mut entry = intentions_of(snapshot, destination);
    entry.sources.retain(|other| other.source != intention.source);
    entry.sources.push(intention.clone());
    entry.sources.sort_by(|a, b| {
        b.precedence(destination).cmp(&a.precedence(destination)).then_with(|| a.source.cmp(&b.source))
    });
    let entry = ConfigEntry::ServiceIntentions(entry);
    check_entry(snapshot, &entry)?;
    decision.see(snapshot, RecordKey::Config(entry.key()));
    decision.put(snapshot, Record::Config(entry.clone()));
    decision.fence(snapshot, concerns_protocols(&entry));
    Ok(())
}

pub(super) fn decide_delete(
    snapshot: &Snapshot,
    destination: &IntentionSubject,
    source: &IntentionSubject,
    decision: &mut Decision,
) {
    let mut entry = intentions_of(snapshot, destination);
    entry.sources.retain(|other| other.source != *source);
    let key = ConfigEntry::ServiceIntentions(entry.clone()).key();
    decision.see(snapshot, RecordKey::Config(key.clone()));
    if entry.sources.is_empty() {
        decision.delete(snapshot, RecordKey::Config(key));
    } else {
        decision.put(snapshot, Record::Config(ConfigEntry::ServiceIntentions(entry)));
    }
}

pub(super) fn intentions_of(snapshot: &Snapshot, destination: &IntentionSubject) -> ServiceIntentions {
    let empty = || ServiceIntentions {
        destination: destination.clone(),
        sources: Vec::new(),
        meta: std::collections::BTreeMap::new(),
    };
    match snapshot.intentions(destination).map(|entry| &entry.value) {
        Some(ConfigEntry::ServiceIntentions(entry)) => entry.clone(),
        Some(_) | None => empty(),
    }
}
