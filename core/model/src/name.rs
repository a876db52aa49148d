//! Names, identifiers and ports: each a newtype that holds only what its grammar allows.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes in a service, node or namespace name; a DNS label has 63, Consul accepts longer service names, and a
/// SPIFFE path stays far below its 2,048-byte limit with four of these.
pub const NAME_BYTES_MAX: usize = 128;

/// Bytes in an instance or check identifier; these are chosen by programs and are longer than names.
pub const ID_BYTES_MAX: usize = 255;

/// Bytes in the name of a subset: it is a label of the names in TLS, which have 63 bytes at most.
pub const SUBSET_BYTES_MAX: usize = 63;

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing was given.
    #[error("{what} must not be empty")]
    Empty {
        /// Which kind of name.
        what: &'static str,
    },
    /// Longer than the limit.
    #[error("{what} is {len} bytes long; at most {max} are allowed")]
    TooLong {
        /// Which kind of name.
        what: &'static str,
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A character outside the grammar.
    #[error("{what} {text:?} has the character {character:?}; allowed are {allowed}")]
    Character {
        /// Which kind of name.
        what: &'static str,
        /// The text as given.
        text: String,
        /// The first character that is refused.
        character: char,
        /// The grammar in words.
        allowed: &'static str,
    },
    /// A port outside 1 to 65535.
    #[error("port {0} is outside 1 to 65535")]
    Port(i64),
}

const NAME_CHARACTERS: &str = "letters, digits, '-', '_' and '.', beginning and ending with a letter or digit";
const ID_CHARACTERS: &str = "printable ASCII without spaces, '/', '\\', quotes and '*'";
const SUBSET_CHARACTERS: &str = "lower-case letters, digits and '-', beginning and ending with a letter or digit";
const TRUST_DOMAIN_CHARACTERS: &str = "lower-case letters, digits, '-', '_' and '.'";

fn check_name(what: &'static str, text: &str) -> Result<(), NameError> {
    check_length(what, text, NAME_BYTES_MAX)?;
    let last = text.len() - 1;
    for (index, character) in text.char_indices() {
        let inner = matches!(character, '-' | '_' | '.') && index != 0 && index != last;
        if !(character.is_ascii_alphanumeric() || inner) {
            return Err(NameError::Character { what, text: text.to_owned(), character, allowed: NAME_CHARACTERS });
        }
    }
    Ok(())
}

fn check_id(what: &'static str, text: &str) -> Result<(), NameError> {
    check_length(what, text, ID_BYTES_MAX)?;
    let refused = |c: &char| !c.is_ascii_graphic() || matches!(c, '/' | '\\' | '"' | '\'' | '*');
    match text.chars().find(refused) {
        Some(character) => Err(NameError::Character { what, text: text.to_owned(), character, allowed: ID_CHARACTERS }),
        None => Ok(()),
    }
}

fn check_subset(what: &'static str, text: &str) -> Result<(), NameError> {
    check_length(what, text, SUBSET_BYTES_MAX)?;
    let last = text.len() - 1;
    for (index, character) in text.char_indices() {
        let inner = character == '-' && index != 0 && index != last;
        if !(character.is_ascii_lowercase() || character.is_ascii_digit() || inner) {
            return Err(NameError::Character { what, text: text.to_owned(), character, allowed: SUBSET_CHARACTERS });
        }
    }
    Ok(())
}

fn check_trust_domain(what: &'static str, text: &str) -> Result<(), NameError> {
    check_length(what, text, ID_BYTES_MAX)?;
    let refused = |c: &char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.'));
    match text.chars().find(refused) {
        Some(character) => {
            Err(NameError::Character { what, text: text.to_owned(), character, allowed: TRUST_DOMAIN_CHARACTERS })
        }
        None => Ok(()),
    }
}

fn check_description(what: &'static str, text: &str) -> Result<(), NameError> {
    check_length(what, text, ID_BYTES_MAX)?;
    match text.chars().find(|character| character.is_control()) {
        Some(character) => {
            Err(NameError::Character { what, text: text.to_owned(), character, allowed: "all but control characters" })
        }
        None => Ok(()),
    }
}

fn check_length(what: &'static str, text: &str, max: usize) -> Result<(), NameError> {
    match text.len() {
        0 => Err(NameError::Empty { what }),
        len if len > max => Err(NameError::TooLong { what, len, max }),
        _ => Ok(()),
    }
}

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Parses `text`.
            ///
            /// # Errors
            /// [`NameError`] if the text is outside the grammar.
            pub fn new(text: &str) -> Result<Self, NameError> {
                $check($what, text)?;
                Ok(Self(text.into()))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

text_newtype!(
    /// The name that instances of one service share; intentions, routes and identities speak of it.
    ServiceName, "service name", check_name
);
text_newtype!(
    /// The name of a machine on which an agent runs.
    NodeName, "node name", check_name
);
text_newtype!(
    /// A namespace; this release knows `default` only.
    Namespace, "namespace", check_name
);
text_newtype!(
    /// A datacentre; one mesh has one.
    Datacenter, "datacenter", check_name
);
text_newtype!(
    /// Part of the world in which things run, as its operator names it.
    Region, "region", check_name
);
text_newtype!(
    /// Part of a region whose machines are near one another and fail together.
    Zone, "zone", check_name
);
text_newtype!(
    /// Identifies one service instance on its node.
    InstanceId, "service id", check_id
);
text_newtype!(
    /// Identifies one check on its node.
    CheckId, "check id", check_id
);
text_newtype!(
    /// Some of the instances of a service, as its resolver tells them apart.
    SubsetName, "subset", check_subset
);
text_newtype!(
    /// The authority part of every SPIFFE ID of the mesh (SPIFFE ID specification, section 2.1).
    TrustDomain, "trust domain", check_trust_domain
);
text_newtype!(
    /// What a join token is for, in one line.
    JoinTokenDescription, "description", check_description
);

/// A TCP port, 1 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "u16")]
pub struct Port(std::num::NonZeroU16);

impl Port {
    /// The port as a number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl TryFrom<i64> for Port {
    type Error = NameError;
    fn try_from(number: i64) -> Result<Self, NameError> {
        u16::try_from(number).ok().and_then(std::num::NonZeroU16::new).map(Self).ok_or(NameError::Port(number))
    }
}

impl From<Port> for u16 {
    fn from(port: Port) -> u16 {
        port.get()
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_names_keep_to_the_grammar() {
        for good in ["web", "web-1", "Web.v2", "a_b", "0"] {
            assert!(ServiceName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-web", "web-", "we b", "web/1", "*", "wéb", "a\n"] {
            assert!(ServiceName::new(bad).is_err(), "{bad:?}");
        }
        assert!(ServiceName::new(&"a".repeat(NAME_BYTES_MAX)).is_ok());
        assert!(ServiceName::new(&"a".repeat(NAME_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn subsets_are_labels() {
        for good in ["v1", "canary", "a-b", "1", &"a".repeat(SUBSET_BYTES_MAX)] {
            assert!(SubsetName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "V1", "-v", "v-", "v.1", "v_1", "*", &"a".repeat(SUBSET_BYTES_MAX + 1)] {
            assert!(SubsetName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ids_take_colons_but_no_slashes() {
        assert!(CheckId::new("service:web-1:2").is_ok());
        assert!(CheckId::new("service/web").is_err());
    }

    #[test]
    fn ports_are_never_zero_nor_past_the_end() {
        assert_eq!(Port::try_from(0), Err(NameError::Port(0)));
        assert_eq!(Port::try_from(70_000), Err(NameError::Port(70_000)));
        assert_eq!(Port::try_from(443).map(Port::get), Ok(443));
        assert!(serde_json::from_str::<Port>("0").is_err());
    }
}
