//! Commands about single intentions, which are kept together by destination.

use starling_model::{
    ConfigEntry, ConfigKind, IntentionSubject, Record, RecordKey, ServiceIntentions, SourceIntention, Uuid,
};

use super::{Decision, Refusal, check_entry, concerns_protocols};
use crate::snapshot::Snapshot;

/// What is to become of an intention that is named by its identifier.
#[derive(Debug, Clone, PartialEq)]
pub enum IntentionById {
    /// It is to say this, and may get other names by it.
    Put {
        /// Its identifier.
        id: Uuid,
        /// The destination.
        destination: IntentionSubject,
        /// Source and decision.
        intention: SourceIntention,
    },
    /// It is to go; nothing happens if it is not there.
    Delete(Uuid),
}

/// Why a command about a single intention is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntentionRefusal {
    /// Nothing bears the identifier.
    #[error("intention {0} is not there")]
    Unknown(Uuid),
    /// The names that it would get are those of another.
    #[error("there is another intention from {from} to {to}; change or remove that one")]
    Taken {
        /// The source.
        from: IntentionSubject,
        /// The destination.
        to: IntentionSubject,
    },
}

pub(super) fn decide_by_id(
    snapshot: &Snapshot,
    command: &IntentionById,
    decision: &mut Decision,
) -> Result<(), Refusal> {
    let (id, to, put) = match command {
        IntentionById::Delete(id) => {
            if let Some((destination, source)) = find(snapshot, *id) {
                decide_delete(snapshot, &destination, &source, decision);
            }
            return Ok(());
        }
        IntentionById::Put { id, destination, intention } => {
            (id, destination, &SourceIntention { id: Some(*id), ..intention.clone() })
        }
    };
    let id = *id;
    let (from, source) = find(snapshot, id).ok_or(IntentionRefusal::Unknown(id))?;
    let is_itself = *to == from && put.source == source;
    if !is_itself && intentions_of(snapshot, to).sources.iter().any(|other| other.source == put.source) {
        return Err(IntentionRefusal::Taken { from: put.source.clone(), to: to.clone() }.into());
    }
    if *to != from {
        decide_delete(snapshot, &from, &source, decision);
        return decide_put(snapshot, to, put, decision);
    }
    let mut entry = intentions_of(snapshot, to);
    entry.sources.retain(|other| other.source != source);
    put_entry(snapshot, with(entry, put.clone()), decision)
}

/// The names of the intention that bears an identifier.
fn find(snapshot: &Snapshot, id: Uuid) -> Option<(IntentionSubject, IntentionSubject)> {
    snapshot.configs(ConfigKind::ServiceIntentions).find_map(|entry| {
        let ConfigEntry::ServiceIntentions(entry) = &entry.value else { return None };
        let source = entry.sources.iter().find(|source| source.id == Some(id))?;
        Some((entry.destination.clone(), source.source.clone()))
    })
}

pub(super) fn decide_put(
    snapshot: &Snapshot,
    destination: &IntentionSubject,
    intention: &SourceIntention,
    decision: &mut Decision,
) -> Result<(), Refusal> {
    let mut entry = intentions_of(snapshot, destination);
    let mut intention = intention.clone();
    // Written again by its names, it is the same one.
    let before = entry.sources.iter().find(|other| other.source == intention.source).and_then(|other| other.id);
    intention.id = before.or(intention.id);
    entry.sources.retain(|other| other.source != intention.source);
    put_entry(snapshot, with(entry, intention), decision)
}

fn with(mut entry: ServiceIntentions, intention: SourceIntention) -> ServiceIntentions {
    entry.sources.push(intention);
    let destination = entry.destination.clone();
    entry.sources.sort_by(|a, b| {
        b.precedence(&destination).cmp(&a.precedence(&destination)).then_with(|| a.source.cmp(&b.source))
    });
    entry
}

fn put_entry(snapshot: &Snapshot, entry: ServiceIntentions, decision: &mut Decision) -> Result<(), Refusal> {
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
