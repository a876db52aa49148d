//! Join tokens as the store has them: what proves that somebody holds one, never the token itself.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::enrolment::ServicePattern;
use crate::name::{JoinTokenDescription, NodeName};
use crate::time::UnixSeconds;

/// Names one join token; public, and the part of it by which people speak of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JoinTokenId(u64);

/// A text is not the identifier of a join token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a join token's id is 16 lower-case hexadecimal digits")]
pub struct JoinTokenIdError;

impl JoinTokenId {
    /// Makes an identifier of 64 random bits.
    #[must_use]
    pub fn from_random(bits: u64) -> Self {
        Self(bits)
    }
}

impl FromStr for JoinTokenId {
    type Err = JoinTokenIdError;

    fn from_str(text: &str) -> Result<Self, JoinTokenIdError> {
        hex_bytes::<8>(text).map(|bytes| Self(u64::from_be_bytes(bytes))).ok_or(JoinTokenIdError)
    }
}

impl fmt::Display for JoinTokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl TryFrom<String> for JoinTokenId {
    type Error = JoinTokenIdError;

    fn try_from(text: String) -> Result<Self, JoinTokenIdError> {
        text.parse()
    }
}

impl From<JoinTokenId> for String {
    fn from(id: JoinTokenId) -> Self {
        id.to_string()
    }
}

/// SHA-256 of a join token's secret. The secret is random, so nothing can be learnt from its hash; it is not shown all the
/// same. Two are compared in a time that does not tell where they differ.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretHash(pub [u8; 32]);

impl PartialEq for SecretHash {
    fn eq(&self, other: &Self) -> bool {
        let different = self.0.iter().zip(&other.0).fold(0, |different, (a, b)| black_box(different | (a ^ b)));
        different == 0
    }
}

impl Eq for SecretHash {}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

impl TryFrom<String> for SecretHash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        hex_bytes(&text).map(Self).ok_or("a secret's hash is 64 lower-case hexadecimal digits")
    }
}

impl From<SecretHash> for String {
    fn from(hash: SecretHash) -> Self {
        hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The bytes of exactly as many pairs of lower-case hexadecimal digits.
pub(crate) fn hex_bytes<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let mut bytes = [0; BYTES];
    if pairs.len() != BYTES {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// A join token as it is stored. Whoever reads the store can join nobody with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinTokenRecord {
    /// Its name.
    pub id: JoinTokenId,
    /// What the secret that is shown must hash to.
    pub secret_hash: SecretHash,
    /// What it is for, in the words of whoever made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<JoinTokenDescription>,
    /// Whether it lets relays in, which speak for the nodes behind them, and no node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_relays: bool,
    /// The services that a node which joins by it may register; `None` leaves that to the mesh's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Vec<ServicePattern>>,
    /// For how many nodes it is good.
    pub uses: JoinTokenUses,
    /// When it was made.
    pub created_at: UnixSeconds,
    /// From when on it is good for nothing.
    pub expires_at: UnixSeconds,
}

/// For how many nodes a join token is good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JoinTokenUses {
    /// For any number.
    Reusable,
    /// For one.
    OneTime {
        /// By whom, if it was used; it is kept until it expires, so that a second use can be told from a wrong token.
        used: Option<JoinTokenUse>,
    },
}

/// That a one-time join token was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinTokenUse {
    /// By the agent of which node.
    pub node: NodeName,
    /// When.
    pub at: UnixSeconds,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_have_one_text() {
        let id = JoinTokenId::from_random(0xab);
        assert_eq!(id.to_string(), "00000000000000ab");
        assert_eq!("00000000000000ab".parse(), Ok(id));
        for bad in ["", "ab", "00000000000000AB", "+0000000000000ab", "00000000000000ab0", "0000000000000é0"] {
            assert_eq!(bad.parse::<JoinTokenId>(), Err(JoinTokenIdError), "{bad:?}");
        }
    }

    #[test]
    fn hashes_differ_in_any_bit_and_survive_the_store() {
        let hash = SecretHash(std::array::from_fn(|index| u8::try_from(index).unwrap() * 7));
        for bit in 0..256 {
            let mut other = hash;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(hash, other, "{bit}");
        }
        let text = serde_json::to_string(&hash).unwrap();
        assert_eq!(serde_json::from_str::<SecretHash>(&text).unwrap(), hash);
        assert!(serde_json::from_str::<SecretHash>("\"00\"").is_err());
    }

    #[test]
    fn a_record_says_whether_it_was_used() {
        let mut record = JoinTokenRecord {
            id: JoinTokenId::from_random(1),
            secret_hash: SecretHash([0; 32]),
            description: None,
            for_relays: false,
            services: None,
            uses: JoinTokenUses::Reusable,
            created_at: UnixSeconds(10),
            expires_at: UnixSeconds(20),
        };
        let stored = |record: &JoinTokenRecord| {
            let value = serde_json::to_value(record).unwrap();
            assert_eq!(&serde_json::from_value::<JoinTokenRecord>(value.clone()).unwrap(), record);
            value["uses"].to_string()
        };
        assert_eq!(stored(&record), r#""reusable""#);
        record.uses = JoinTokenUses::OneTime { used: None };
        assert_eq!(stored(&record), r#"{"one-time":{"used":null}}"#);
        let used = JoinTokenUse { node: NodeName::new("n1").unwrap(), at: UnixSeconds(15) };
        record.uses = JoinTokenUses::OneTime { used: Some(used) };
        assert_eq!(stored(&record), r#"{"one-time":{"used":{"node":"n1","at":15}}}"#);
    }
}
