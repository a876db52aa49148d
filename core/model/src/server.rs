//! The servers of a mesh that share a store, and which of them each node is attached to.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::NodeName;
use crate::time::UnixSeconds;

/// The newest level of record kinds that this release reads and writes.
///
/// A release that adds a kind raises it, and gives the kind that level in [`RecordKey::level`](crate::RecordKey::level). No server
/// writes a kind before every server on the store announces its level.
pub const RECORD_LEVEL: u32 = 1;

/// Names one run of one server: a restarted one is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerId(u64);

/// A text is not the identifier of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a server's id is 16 lower-case hexadecimal digits")]
pub struct ServerIdError;

impl ServerId {
    /// Makes an identifier of 64 random bits.
    #[must_use]
    pub fn from_random(bits: u64) -> Self {
        Self(bits)
    }
}

impl FromStr for ServerId {
    type Err = ServerIdError;

    fn from_str(text: &str) -> Result<Self, ServerIdError> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 16 || !text.bytes().all(is_digit) {
            return Err(ServerIdError);
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| ServerIdError)
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl TryFrom<String> for ServerId {
    type Error = ServerIdError;

    fn try_from(text: String) -> Result<Self, ServerIdError> {
        text.parse()
    }
}

impl From<ServerId> for String {
    fn from(id: ServerId) -> Self {
        id.to_string()
    }
}

/// A server that runs. The record is bound to a lease of its own: it goes when the server does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Which run.
    pub id: ServerId,
    /// The server's name.
    pub name: NodeName,
    /// Where its HTTP API is reached, `HOST:PORT`.
    pub http: String,
    /// Where agents reach it, `HOST:PORT`.
    pub agents: String,
    /// The version of its program.
    pub version: String,
    /// Since when it runs.
    pub since: UnixSeconds,
    /// Whether it is about to end: nobody is to come to it any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// The record kinds that it reads: all up to this [`RECORD_LEVEL`]. 0 before servers announced one.
    #[serde(default)]
    pub level: u32,
}

/// The server that has the duties of which there is only one: see `docs/adr/0017-members.md`. Bound to a lease of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// Which one.
    pub server: ServerId,
}

/// That the agent of a node is attached to a server, or was and is waited for. It outlives the server: then it says who is
/// to be looked after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentRecord {
    /// The node.
    pub node: NodeName,
    /// To which server.
    pub server: ServerId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_a_release_before_levels_announces_none() {
        let json = r#"{"id":"00000000000000ab","name":"s1","http":"a:1","agents":"a:2","version":"0.1.0","since":7}"#;
        let record: ServerRecord = serde_json::from_str(json).expect("readable");
        assert_eq!(record.level, 0);
    }

    #[test]
    fn identifiers_have_one_text() {
        let id = ServerId::from_random(0xab);
        assert_eq!(id.to_string(), "00000000000000ab");
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "ab", "00000000000000AB", "+0000000000000ab", "00000000000000ab0"] {
            assert!(text.parse::<ServerId>().is_err(), "{text:?}");
        }
    }
}
