//! Quarantine: stored records that this release cannot use.
//!
//! The store keeps their bytes, snapshot files include them, and operators see them. The catalog never acts on their content.
//! A record that could deny something is replaced by a stand-in that denies everything it could concern.
//!
//! | Record | In the catalog |
//! |---|---|
//! | unknown kind, malformed key | absent |
//! | `config/service-intentions/*` | denies every source |
//! | `config/mesh/mesh` | restricts captured calls to the mesh |
//! | `fence/*` | the fence: only its revision matters |
//! | `ca-root/*`, `ca-key/*` | the last readable version, while the server runs |
//! | ACL policy, ACL role | absent; tokens that link it have no rights |
//! | any other kind | absent |

use std::collections::BTreeMap;

use imbl::OrdMap;
use starling_model::acl::AclKey;
use starling_model::{
    AclGrants, Action, Change, ConfigEntry, ConfigEntryKey, ConfigKind, Enrolment, Holder, IntentionSubject, MeshEntry,
    NodeName, Record, RecordKey, Revision, ServiceIntentions, SourceDecision, SourceIntention, UnixSeconds, Versioned,
};

use crate::apply::Applied;
use crate::snapshot::Snapshot;

/// Bytes of a reason at most: it is shown in lists and logs.
const REASON_BYTES_MAX: usize = 256;

/// A stored record that this release cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Why it cannot be used.
    pub reason: String,
    /// Bytes of its value.
    pub bytes: usize,
}

/// One write of a stored transaction, as bytes.
#[derive(Debug, Clone, Copy)]
pub struct StoredWrite<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value; `None` deletes the record.
    pub value: Option<&'a [u8]>,
}

/// The catalog changes of a stored transaction.
#[derive(Debug, Clone, Default)]
pub struct Interpreted {
    /// Changes to readable records, and stand-ins for unreadable ones.
    pub changes: Vec<Change>,
    /// By key as text: the record enters quarantine, or leaves it.
    quarantine: BTreeMap<String, Option<Quarantined>>,
}

impl Interpreted {
    /// Reads the writes of one transaction.
    #[must_use]
    pub fn of<'a>(writes: impl IntoIterator<Item = StoredWrite<'a>>) -> Self {
        let mut interpreted = Self::default();
        for write in writes {
            interpreted.add(write);
        }
        interpreted
    }

    fn add(&mut self, write: StoredWrite<'_>) {
        let Some(value) = write.value else {
            self.changes.extend(parse_key(write.key).ok().map(Change::Delete));
            self.quarantine.insert(text_of(write.key), None);
            return;
        };
        match read(write.key, value) {
            Ok(record) => {
                self.quarantine.insert(text_of(write.key), None);
                self.changes.push(Change::Put(record));
            }
            Err(unreadable) => {
                self.changes.extend(match unreadable.instead {
                    Instead::Record(record) => Some(Change::Put(*record)),
                    Instead::Nothing(key) => Some(Change::Delete(key)),
                    Instead::LastReadable | Instead::Unknown => None,
                });
                self.quarantine.insert(text_of(write.key), Some(unreadable.record));
            }
        }
    }

    /// Records that enter quarantine, by key.
    pub fn quarantined(&self) -> impl Iterator<Item = (&str, &Quarantined)> {
        self.quarantine.iter().filter_map(|(key, record)| Some((key.as_str(), record.as_ref()?)))
    }
}

struct Unreadable {
    record: Quarantined,
    instead: Instead,
}

/// What the catalog holds in place of an unreadable record.
enum Instead {
    Record(Box<Record>),
    Nothing(RecordKey),
    LastReadable,
    Unknown,
}

/// The key as text: unreadable bytes are escaped.
fn text_of(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) => text.to_owned(),
        Err(_) => key.escape_ascii().to_string(),
    }
}

fn parse_key(key: &[u8]) -> Result<RecordKey, String> {
    let text = std::str::from_utf8(key).map_err(|_| "the key is not UTF-8".to_owned())?;
    let parsed = RecordKey::decode(text).map_err(|error| error.to_string())?;
    // A second spelling of a key would be a second record of the same thing.
    if parsed.encode() == text {
        Ok(parsed)
    } else {
        Err(format!("the canonical form of the key is {:?}", parsed.encode()))
    }
}

fn read(key: &[u8], value: &[u8]) -> Result<Record, Unreadable> {
    let quarantined = |mut reason: String| {
        let end = (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at));
        reason.truncate(end.unwrap_or_default());
        Quarantined { reason, bytes: value.len() }
    };
    let key = match parse_key(key) {
        Ok(key) => key,
        Err(reason) => return Err(Unreadable { record: quarantined(reason), instead: Instead::Unknown }),
    };
    Record::decode(&key, value).map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let reason = source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        Unreadable { record: quarantined(reason), instead: stand_in(key) }
    })
}

fn stand_in(key: RecordKey) -> Instead {
    match key {
        RecordKey::Config(ConfigEntryKey { kind: ConfigKind::ServiceIntentions, ref name }) => match name.parse() {
            Ok(destination) => {
                let entry = ConfigEntry::ServiceIntentions(deny_all(destination));
                Instead::Record(Box::new(Record::Config(entry)))
            }
            // No service can have this name.
            Err(_) => Instead::Nothing(key),
        },
        RecordKey::Config(ConfigEntryKey { kind: ConfigKind::Mesh, .. }) => {
            let entry = MeshEntry { mesh_destinations_only: true, ..MeshEntry::default() };
            Instead::Record(Box::new(Record::Config(ConfigEntry::Mesh(entry))))
        }
        RecordKey::Fence(fence) => Instead::Record(Box::new(Record::Fence(fence))),
        // Whose a name is cannot be told: nobody's, until somebody joins by a newer token.
        RecordKey::Enrolment(member) => {
            let (holder, since) = (Holder::Evicted, UnixSeconds(0));
            let nobodys = Enrolment { member, epoch: 0, holder, services: None, join_token: None, since };
            Instead::Record(Box::new(Record::Enrolment(nobodys)))
        }
        RecordKey::CaRoot(_) | RecordKey::CaKey(_) => Instead::LastReadable,
        RecordKey::Node(_)
        | RecordKey::Instance(_)
        | RecordKey::Check(..)
        | RecordKey::Config(_)
        | RecordKey::JoinToken(_)
        | RecordKey::VirtualAddress(_)
        | RecordKey::Server(_)
        | RecordKey::Leader
        | RecordKey::Attachment(_)
        | RecordKey::Coordination(_)
        | RecordKey::Acl(_) => Instead::Nothing(key),
    }
}

/// The stand-in for unreadable intentions: every source is denied.
#[must_use]
pub fn deny_all(destination: IntentionSubject) -> ServiceIntentions {
    let deny = SourceIntention {
        source: IntentionSubject::Any,
        decision: SourceDecision::Connection(Action::Deny),
        description: "the stored intentions cannot be read: see /starling/v1/quarantine".to_owned(),
        id: None,
    };
    ServiceIntentions { destination, sources: vec![deny], meta: BTreeMap::new() }
}

/// Quarantined records by key.
pub(crate) type Quarantine = OrdMap<String, Versioned<Quarantined>>;

/// One stored record, as bytes.
#[derive(Debug, Clone, Copy)]
pub struct StoredRecord<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The revision at which it was created.
    pub created: Revision,
    /// The revision of its last change.
    pub modified: Revision,
}

impl Snapshot {
    /// Builds the catalog from stored bytes. Records that cannot be used are quarantined.
    #[must_use]
    pub fn load_stored<'a>(revision: Revision, stored: impl IntoIterator<Item = StoredRecord<'a>>) -> Self {
        let mut quarantine = Quarantine::new();
        let mut records = Vec::new();
        for StoredRecord { key, value, created, modified } in stored {
            match read(key, value) {
                Ok(value) => records.push(Versioned { value, created, modified }),
                Err(Unreadable { record, instead }) => {
                    if let Instead::Record(value) = instead {
                        records.push(Versioned { value: *value, created, modified });
                    }
                    quarantine.insert(text_of(key), Versioned { value: record, created, modified });
                }
            }
        }
        Self { quarantine, ..Self::load(revision, records) }
    }

    /// The state after an interpreted transaction, committed as `revision`.
    #[must_use]
    pub fn apply_stored(&self, revision: Revision, interpreted: &Interpreted) -> Applied {
        let mut applied = self.apply(revision, &interpreted.changes);
        for (key, record) in &interpreted.quarantine {
            match record {
                Some(record) => {
                    let parsed = RecordKey::decode(key).ok();
                    let created = self.quarantine.get(key).map(|was| was.created);
                    let created = created.or_else(|| self.created(parsed.as_ref()?)).unwrap_or(revision);
                    let entry = Versioned { value: record.clone(), created, modified: revision };
                    applied.snapshot.quarantine.insert(key.clone(), entry);
                }
                None if applied.snapshot.quarantine.is_empty() => {}
                None => drop(applied.snapshot.quarantine.remove(key)),
            }
        }
        applied
    }

    /// Quarantined records, by key.
    pub fn quarantined(&self) -> impl ExactSizeIterator<Item = (&str, &Versioned<Quarantined>)> {
        self.quarantine.iter().map(|(key, record)| (key.as_str(), record))
    }

    /// The quarantined record under `key`.
    #[must_use]
    pub fn quarantined_at(&self, key: &RecordKey) -> Option<&Versioned<Quarantined>> {
        // Nearly always empty, and asked on every write.
        if self.quarantine.is_empty() { None } else { self.quarantine.get(&key.encode()) }
    }

    /// The servers that do not read `key` yet: nobody writes it before they are upgraded.
    pub fn servers_before<'a>(&'a self, key: &RecordKey) -> impl Iterator<Item = &'a NodeName> {
        let level = key.level();
        self.servers().map(|server| &server.value).filter(move |server| server.level < level).map(|server| &server.name)
    }

    /// Whether the last readable version of a record stays in force while its newest one is unreadable.
    pub(crate) fn keeps_last_readable(&self, key: &RecordKey) -> bool {
        matches!(key, RecordKey::CaRoot(_) | RecordKey::CaKey(_)) && self.quarantined_at(key).is_some()
    }

    /// Whether a policy or a role of these grants, or a policy of one of the roles, is quarantined: it may have denied something.
    pub(crate) fn links_quarantined(&self, grants: &AclGrants) -> bool {
        if self.quarantine.is_empty() {
            return false;
        }
        let is_quarantined = |key: AclKey| self.quarantined_at(&RecordKey::Acl(key)).is_some();
        let policies = |grants: &AclGrants| grants.policies.iter().any(|id| is_quarantined(AclKey::Policy(*id)));
        policies(grants)
            || grants.roles.iter().any(|id| is_quarantined(AclKey::Role(*id)))
            || grants.roles.iter().filter_map(|id| self.acl_role(*id)).any(|role| policies(&role.value.grants))
    }
}
