//! What applications coordinate themselves by: entries of the key-value store, and the sessions that hold locks on them.
//!
//! Shapes as in Consul 1.22 (developer.hashicorp.com/consul/api-docs/kv, …/session). Times are the store's own: whoever needs to know
//! when something ends asks the server that leads.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::name::{CheckId, NodeName};
use crate::uuid::Uuid;

/// Bytes in a key: what a store's key of 1,024 leaves for it, with the longest kind in front. Consul has no limit of its own; the longest
/// keys seen in use are some 300.
pub const KV_KEY_BYTES_MAX: usize = 1_024 - "lock-delay/".len();

/// Folders that can be waited for, one inside another; what is deeper counts to the last of them. Each is remembered by name.
const FOLDER_DEPTH_MAX: usize = 16;

/// Bytes in a value: Consul's `kv_max_value_size`, as it is unless an operator changes it.
pub const KV_VALUE_BYTES_MAX: usize = 512 * 1024;

/// A key: any text but none. Parts are joined by `/` where readers want folders; nothing here depends on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KvKey(Arc<str>);

/// A text is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KvKeyError {
    /// Nothing was given.
    #[error("missing key name")]
    Empty,
    /// Longer than [`KV_KEY_BYTES_MAX`].
    #[error("the key is {0} bytes long; at most {KV_KEY_BYTES_MAX} are allowed")]
    TooLong(usize),
}

impl KvKey {
    /// Parses a key.
    ///
    /// # Errors
    /// [`KvKeyError`] if it is empty or too long.
    pub fn new(text: &str) -> Result<Self, KvKeyError> {
        match text.len() {
            0 => Err(KvKeyError::Empty),
            1..=KV_KEY_BYTES_MAX => Ok(Self(text.into())),
            long => Err(KvKeyError::TooLong(long)),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The folders that it is in, the outermost, which is empty, first: of `a/b/c` these are ``, `a/` and `a/b/`. A key that ends with a
    /// slash is in the folder of that name. Sixteen of them at most.
    pub fn folders(&self) -> impl Iterator<Item = &str> {
        folder_ends(&self.0).map(|end| &self.0[..end])
    }
}

fn folder_ends(text: &str) -> impl Iterator<Item = usize> {
    std::iter::once(0).chain(text.match_indices('/').map(|(at, _)| at + 1)).take(FOLDER_DEPTH_MAX)
}

/// The innermost folder that can be waited for in which every key lies that begins with `prefix`.
#[must_use]
pub fn folder_of(prefix: &str) -> &str {
    &prefix[..folder_ends(prefix).last().unwrap_or_default()]
}

impl Borrow<str> for KvKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for KvKey {
    type Err = KvKeyError;

    fn from_str(text: &str) -> Result<Self, KvKeyError> {
        Self::new(text)
    }
}

impl TryFrom<String> for KvKey {
    type Error = KvKeyError;

    fn try_from(text: String) -> Result<Self, KvKeyError> {
        Self::new(&text)
    }
}

impl From<KvKey> for String {
    fn from(key: KvKey) -> Self {
        key.0.as_ref().to_owned()
    }
}

impl fmt::Display for KvKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value: bytes, shared among all who read them.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct KvValue(Arc<[u8]>);

/// A value is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the value is {0} bytes long; at most {KV_VALUE_BYTES_MAX} are allowed")]
pub struct KvValueError(usize);

impl KvValue {
    /// Takes bytes.
    ///
    /// # Errors
    /// [`KvValueError`] past [`KV_VALUE_BYTES_MAX`].
    pub fn new(bytes: &[u8]) -> Result<Self, KvValueError> {
        if bytes.len() > KV_VALUE_BYTES_MAX { Err(KvValueError(bytes.len())) } else { Ok(Self(bytes.into())) }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes in base64, with padding (RFC 4648, section 4).
    #[must_use]
    pub fn to_base64(&self) -> String {
        STANDARD.encode(&self.0)
    }
}

impl fmt::Debug for KvValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values are often secrets.
        write!(f, "KvValue({} bytes)", self.0.len())
    }
}

impl Serialize for KvValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_base64())
    }
}

impl<'de> Deserialize<'de> for KvValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Self::new(&bytes).map_err(serde::de::Error::custom)
    }
}

/// An entry of the key-value store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvEntry {
    /// Under which key.
    pub key: KvKey,
    /// What.
    pub value: KvValue,
    /// A number of the application's own.
    #[serde(default)]
    pub flags: u64,
    /// How often it was locked by a session that did not have it.
    #[serde(default)]
    pub lock_index: u64,
    /// Who has locked it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Uuid>,
}

/// What becomes of what a session has locked when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionBehavior {
    /// It is unlocked.
    #[default]
    Release,
    /// It is removed.
    Delete,
}

impl SessionBehavior {
    /// Consul's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Delete => "delete",
        }
    }
}

/// A session: holds locks as long as its node and its checks are well, and as long as it is renewed, if it has to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its identifier.
    pub id: Uuid,
    /// A name for people; may be empty.
    #[serde(default)]
    pub name: String,
    /// On which node.
    pub node: NodeName,
    /// Checks of the node that end it by turning critical.
    #[serde(default)]
    pub node_checks: Vec<CheckId>,
    /// Checks of services on it that do.
    #[serde(default)]
    pub service_checks: Vec<CheckId>,
    /// Milliseconds for which nobody may lock what it had locked when it ended other than in order.
    #[serde(default)]
    pub lock_delay_ms: u64,
    /// What becomes of what it has locked.
    #[serde(default)]
    pub behavior: SessionBehavior,
    /// Within which time it has to be renewed, as its maker wrote it; empty for never.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ttl: String,
    /// The same in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

impl Session {
    /// Whether a check ends it by turning critical.
    #[must_use]
    pub fn hangs_on(&self, check: &CheckId) -> bool {
        self.node_checks.iter().chain(&self.service_checks).any(|own| own == check)
    }
}

/// When a session was last renewed. Apart from it, since no reader of sessions waits for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRenewal {
    /// Which session.
    pub session: Uuid,
    /// When, in milliseconds since 1970, by the server that was asked.
    pub at_ms: u64,
}

/// A key that nobody may lock for a while, since a session that had it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockDelay {
    /// Which key.
    pub key: KvKey,
    /// For how long, from when the server that leads sees it.
    pub delay_ms: u64,
    /// Until when, in milliseconds since 1970, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

/// All of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoordinationRecord {
    /// An entry of the key-value store.
    Kv(KvEntry),
    /// A session.
    Session(Session),
    /// A renewal of one.
    Renewal(SessionRenewal),
    /// A key that nobody may lock.
    LockDelay(LockDelay),
}

/// The key of a [`CoordinationRecord`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoordinationKey {
    /// An entry of the key-value store.
    Kv(KvKey),
    /// A session.
    Session(Uuid),
    /// A renewal of one.
    Renewal(Uuid),
    /// A key that nobody may lock.
    LockDelay(KvKey),
}

impl CoordinationKey {
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Kv(key) => format!("kv/{key}"),
            Self::Session(id) => format!("session/{id}"),
            Self::Renewal(id) => format!("session-renewal/{id}"),
            Self::LockDelay(key) => format!("lock-delay/{key}"),
        }
    }

    pub(crate) fn parse(kind: &str, rest: &str) -> Option<Self> {
        match kind {
            "kv" => Some(Self::Kv(rest.parse().ok()?)),
            "session" => Some(Self::Session(rest.parse().ok()?)),
            "session-renewal" => Some(Self::Renewal(rest.parse().ok()?)),
            "lock-delay" => Some(Self::LockDelay(rest.parse().ok()?)),
            _ => None,
        }
    }
}

impl CoordinationRecord {
    pub(crate) fn key(&self) -> CoordinationKey {
        match self {
            Self::Kv(entry) => CoordinationKey::Kv(entry.key.clone()),
            Self::Session(session) => CoordinationKey::Session(session.id),
            Self::Renewal(renewal) => CoordinationKey::Renewal(renewal.session),
            Self::LockDelay(delay) => CoordinationKey::LockDelay(delay.key.clone()),
        }
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        match self {
            Self::Kv(value) => serde_json::to_vec(value),
            Self::Session(value) => serde_json::to_vec(value),
            Self::Renewal(value) => serde_json::to_vec(value),
            Self::LockDelay(value) => serde_json::to_vec(value),
        }
    }

    pub(crate) fn from_json(key: &CoordinationKey, bytes: &[u8]) -> Result<Self, serde_json::Error> {
        match key {
            CoordinationKey::Kv(_) => serde_json::from_slice(bytes).map(Self::Kv),
            CoordinationKey::Session(_) => serde_json::from_slice(bytes).map(Self::Session),
            CoordinationKey::Renewal(_) => serde_json::from_slice(bytes).map(Self::Renewal),
            CoordinationKey::LockDelay(_) => serde_json::from_slice(bytes).map(Self::LockDelay),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_knows_its_folders_and_a_prefix_its_own() {
        for (key, folders) in [
            ("a", &[""][..]),
            ("a/b/c", &["", "a/", "a/b/"]),
            ("a/b/", &["", "a/", "a/b/"]),
            ("/", &["", "/"]),
            ("//x", &["", "/", "//"]),
        ] {
            let key = KvKey::new(key).expect("a key");
            assert_eq!(key.folders().collect::<Vec<_>>(), folders, "{key}");
        }
        assert_eq!(["", "a", "a/", "a/b", "a/b/c"].map(folder_of), ["", "", "a/", "a/", "a/b/"]);
        let deep = "/".repeat(100);
        let key = KvKey::new(&deep).expect("a key");
        assert_eq!((key.folders().count(), key.folders().last()), (16, Some(folder_of(&deep))));
        assert_eq!(KvKey::new(""), Err(KvKeyError::Empty));
        // The store takes it under every kind.
        let longest = KvKey::new(&"k".repeat(KV_KEY_BYTES_MAX)).expect("a key");
        assert_eq!(CoordinationKey::LockDelay(longest).encode().len(), 1_024);
        assert_eq!(KvKey::new(&"k".repeat(1_025)), Err(KvKeyError::TooLong(1_025)));
    }

    #[test]
    fn values_are_any_bytes_up_to_a_limit_and_are_not_shown() {
        let value = KvValue::new(&[0, 255, b'x']).expect("small");
        let json = serde_json::to_string(&value).expect("JSON");
        assert_eq!(json, "\"AP94\"");
        assert_eq!(serde_json::from_str::<KvValue>(&json).expect("a value"), value);
        assert!(serde_json::from_str::<KvValue>("\"*\"").is_err());
        assert_eq!(format!("{value:?}"), "KvValue(3 bytes)");
        assert!(KvValue::new(&vec![0; KV_VALUE_BYTES_MAX]).is_ok());
        assert_eq!(KvValue::new(&vec![0; KV_VALUE_BYTES_MAX + 1]), Err(KvValueError(KV_VALUE_BYTES_MAX + 1)));
    }
}
