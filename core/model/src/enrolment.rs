//! Enrolments: the key by which a node or a relay holds its name, and the services that it may register.
//!
//! An enrolment is written when a join token is used. It outlives the node's other records: it is the memory of an eviction.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::join_token::{JoinTokenId, hex_bytes};
use crate::name::{NameError, NodeName, ServiceName};
use crate::time::UnixSeconds;

/// A party that joins by a token. Nodes and relays have names of their own: one of each may share a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Member {
    /// The agent of a node.
    Node(NodeName),
    /// A relay.
    Relay(NodeName),
}

impl Member {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &NodeName {
        match self {
            Self::Node(name) | Self::Relay(name) => name,
        }
    }

    /// `KIND/NAME`, the form of keys in the store.
    #[must_use]
    pub fn encode(&self) -> String {
        match self {
            Self::Node(name) => format!("node/{name}"),
            Self::Relay(name) => format!("relay/{name}"),
        }
    }

    /// Reads what [`Member::encode`] wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, name) = text.split_once('/')?;
        match kind {
            "node" => Some(Self::Node(name.parse().ok()?)),
            "relay" => Some(Self::Relay(name.parse().ok()?)),
            _ => None,
        }
    }
}

/// `node NAME` or `relay NAME`, for people.
impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::Relay(name) => write!(f, "relay {name}"),
        }
    }
}

/// SHA-256 of a public key: of the DER of its `SubjectPublicKeyInfo` (RFC 5280, section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyFingerprint(pub [u8; 32]);

impl fmt::Display for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFingerprint({self})")
    }
}

impl TryFrom<String> for KeyFingerprint {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        hex_bytes(&text).map(Self).ok_or("a key's fingerprint is 64 lower-case hexadecimal digits")
    }
}

impl From<KeyFingerprint> for String {
    fn from(fingerprint: KeyFingerprint) -> Self {
        fingerprint.to_string()
    }
}

/// Services by name (`web`), by prefix (`pay-*`), or all (`*`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ServicePattern {
    /// One service.
    Name(ServiceName),
    /// Every service whose name starts so. The empty prefix is all services.
    Prefix(String),
}

/// Why a text is not a [`ServicePattern`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServicePatternError {
    /// It names one service, by a name that is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A star stands anywhere but at the end, or no service name starts with what is before it.
    #[error("invalid service pattern {0:?}: expected a service name, a prefix followed by *, or * alone")]
    Prefix(String),
}

impl ServicePattern {
    /// Whether the pattern covers a service.
    #[must_use]
    pub fn covers(&self, service: &ServiceName) -> bool {
        match self {
            Self::Name(name) => name == service,
            Self::Prefix(prefix) => service.as_str().starts_with(prefix.as_str()),
        }
    }
}

impl FromStr for ServicePattern {
    type Err = ServicePatternError;

    fn from_str(text: &str) -> Result<Self, ServicePatternError> {
        match text.strip_suffix('*') {
            None => Ok(Self::Name(text.parse()?)),
            Some("") => Ok(Self::Prefix(String::new())),
            // What names start with is a name itself once something follows, as it does after a hyphen.
            Some(prefix) if format!("{prefix}a").parse::<ServiceName>().is_ok() => Ok(Self::Prefix(prefix.to_owned())),
            Some(_) => Err(ServicePatternError::Prefix(text.to_owned())),
        }
    }
}

impl fmt::Display for ServicePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

impl TryFrom<String> for ServicePattern {
    type Error = ServicePatternError;

    fn try_from(text: String) -> Result<Self, ServicePatternError> {
        text.parse()
    }
}

impl From<ServicePattern> for String {
    fn from(pattern: ServicePattern) -> Self {
        pattern.to_string()
    }
}

/// Patterns in one join token: a node runs some tens of services, and a token is read at each registration.
pub const SERVICE_PATTERNS_MAX: usize = 256;

/// Former keys that count. A certificate is renewed in the middle third of its lifetime, so at most two that have not
/// expired precede the newest; the third allows for one answer that was lost.
pub const PREVIOUS_KEYS_MAX: usize = 3;

/// The right of a party to a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holder {
    /// Whoever has the key.
    Key {
        /// The key of the certificate that was issued last.
        current: KeyFingerprint,
        /// The keys before it, newest first, at most [`PREVIOUS_KEYS_MAX`]. They count as well: the answer to a renewal
        /// may be lost, and open connections stay.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        previous: Vec<KeyFingerprint>,
    },
    /// Nobody: an operator evicted the holder. A join token made after that lets another in.
    Evicted,
    /// Nobody: an operator released the name. Any join token lets another in.
    Released,
}

/// Under which key, and for which services, a party is in the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolment {
    /// Whose it is.
    pub member: Member,
    /// Raised whenever the name passes to another key by more than a renewal, and at an eviction.
    pub epoch: u64,
    /// Who holds the name.
    pub holder: Holder,
    /// The services that the node may register and receive certificates for. `None` if the join token named none: then
    /// the mesh's default decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Vec<ServicePattern>>,
    /// The join token that was used; `None` for a party that joined before enrolments were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_token: Option<JoinTokenId>,
    /// When the epoch began.
    pub since: UnixSeconds,
}

impl Enrolment {
    /// Makes `key` the current one. The key that was shown stays in use, and so does the current one unless the answer
    /// with its certificate was lost. A name without a holder stays without.
    pub fn renew(&mut self, key: KeyFingerprint, shown: Option<&KeyFingerprint>) {
        let Holder::Key { current, previous } = &mut self.holder else { return };
        if *current == key {
            return;
        }
        let mut former: Vec<KeyFingerprint> = Vec::with_capacity(PREVIOUS_KEYS_MAX);
        for kept in shown.into_iter().chain([&*current]).chain(previous.iter()) {
            if *kept != key && !former.contains(kept) && former.len() < PREVIOUS_KEYS_MAX {
                former.push(*kept);
            }
        }
        (*current, *previous) = (key, former);
    }

    /// Whether a key is the holder's.
    #[must_use]
    pub fn is_held_by(&self, key: &KeyFingerprint) -> bool {
        match &self.holder {
            Holder::Key { current, previous } => current == key || previous.contains(key),
            Holder::Evicted | Holder::Released => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> ServiceName {
        ServiceName::new(name).unwrap()
    }

    #[test]
    fn patterns_cover_names_prefixes_and_everything() {
        let covers = |pattern: &str, name: &str| pattern.parse::<ServicePattern>().unwrap().covers(&service(name));
        assert!(covers("web", "web") && !covers("web", "web-2") && !covers("web", "we"));
        assert!(covers("pay-*", "pay-1") && !covers("pay-*", "payments"));
        assert!(covers("*", "web"));
        for text in ["web", "pay-*", "*"] {
            assert_eq!(text.parse::<ServicePattern>().unwrap().to_string(), text);
        }
        for bad in ["", "**", "a*b", "*a", "../*", "a b*"] {
            assert!(bad.parse::<ServicePattern>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_the_holders_keys_count() {
        let [old, new, other] = [1, 2, 3].map(|byte| KeyFingerprint([byte; 32]));
        let mut enrolment = Enrolment {
            member: Member::Node(NodeName::new("n1").unwrap()),
            epoch: 1,
            holder: Holder::Key { current: new, previous: vec![old] },
            services: None,
            join_token: None,
            since: UnixSeconds(0),
        };
        assert_eq!([old, new, other].map(|key| enrolment.is_held_by(&key)), [true, true, false]);
        for holder in [Holder::Evicted, Holder::Released] {
            enrolment.holder = holder;
            assert!(![old, new, other].iter().any(|key| enrolment.is_held_by(key)));
        }
    }

    #[test]
    fn an_enrolment_survives_the_store() {
        let enrolment = Enrolment {
            member: Member::Relay(NodeName::new("r1").unwrap()),
            epoch: 3,
            holder: Holder::Key { current: KeyFingerprint([0xab; 32]), previous: Vec::new() },
            services: Some(vec!["web".parse().unwrap(), "pay-*".parse().unwrap()]),
            join_token: Some(JoinTokenId::from_random(7)),
            since: UnixSeconds(10),
        };
        let text = serde_json::to_string(&enrolment).unwrap();
        assert_eq!(serde_json::from_str::<Enrolment>(&text).unwrap(), enrolment);
        assert_eq!(Member::parse(&enrolment.member.encode()), Some(enrolment.member));
        for bad in ["node", "node/", "other/n1", "node/a/b"] {
            assert_eq!(Member::parse(bad), None, "{bad:?}");
        }
    }
}
