//! Access control: tokens, the policies and roles that they have, and what proves elsewhere who somebody is.
//!
//! Shapes as in Consul 1.22 (developer.hashicorp.com/consul/api-docs/acl). What a token may is in [`AclRights`].

mod builtin;
mod record;
mod rights;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use builtin::{BuiltinPolicy, TEMPLATES, Template};
pub use record::{AclKey, AclRecord};
pub use rights::{Access, AclRights, AclRule, Resource, RuleName};

use crate::join_token::SecretHash;
use crate::name::{NodeName, ServiceName};
use crate::time::UnixSeconds;
use crate::uuid::Uuid;

/// The token of those who show none.
pub const ANONYMOUS_TOKEN: Uuid = Uuid::from_bits(2);

/// What is written for the anonymous token where a secret stands.
pub const ANONYMOUS_SECRET: &str = "anonymous";

/// Bytes of a secret: Consul's are UUIDs, but one that the configuration gives may be any text.
pub const ACL_SECRET_BYTES_MAX: usize = 256;

/// Bytes in the name of a policy or an auth method; Consul's.
const NAME_BYTES_MAX: usize = 128;

/// Bytes in the name of a role; Consul's.
const ROLE_NAME_BYTES_MAX: usize = 256;

/// What proves that somebody holds a token. It is in no text but the one that is asked for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AclSecret(String);

impl AclSecret {
    /// Takes a text of 1 to [`ACL_SECRET_BYTES_MAX`] bytes that fits into a header; `None` if it is another.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let fits = (1..=ACL_SECRET_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(text.to_owned()))
    }

    /// The text, for who is to have it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AclSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AclSecret(hidden)")
    }
}

/// Settings of an auth method, in its own words; keys may be among them.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AuthMethodConfig(pub Map<String, Value>);

impl fmt::Debug for AuthMethodConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthMethodConfig({} fields)", self.0.len())
    }
}

/// A name of access control: letters, digits, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AclName(String);

/// A text is no such name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no name: it has to be 1 to {bytes_max} letters, digits, '-' and '_'")]
pub struct AclNameError {
    /// The text as given, or its beginning.
    pub text: String,
    /// Bytes at most.
    pub bytes_max: usize,
}

impl AclName {
    /// Parses the name of a policy, or of an auth method.
    ///
    /// # Errors
    /// [`AclNameError`] if it is none.
    pub fn new(text: &str) -> Result<Self, AclNameError> {
        Self::within(text, NAME_BYTES_MAX, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    }

    /// Parses that of a built-in thing, which has a slash as well.
    ///
    /// # Errors
    /// [`AclNameError`] if it is none.
    pub fn of_template(text: &str) -> Result<Self, AclNameError> {
        Self::within(text, NAME_BYTES_MAX, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'/'))
    }

    /// Parses that of a role, which may be longer.
    ///
    /// # Errors
    /// [`AclNameError`] if it is none.
    pub fn of_role(text: &str) -> Result<Self, AclNameError> {
        Self::within(text, ROLE_NAME_BYTES_MAX, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    }

    fn within(text: &str, bytes_max: usize, fits: fn(u8) -> bool) -> Result<Self, AclNameError> {
        if (1..=bytes_max).contains(&text.len()) && text.bytes().all(fits) {
            return Ok(Self(text.to_owned()));
        }
        Err(AclNameError { text: text.chars().take(NAME_BYTES_MAX).collect(), bytes_max })
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AclName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AclToken {
    /// By which it is spoken of.
    pub accessor: Uuid,
    /// What is shown.
    pub secret: AclSecret,
    /// By which it is found when it is shown.
    pub secret_hash: SecretHash,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// What it has.
    #[serde(flatten)]
    pub grants: AclGrants,
    /// Whether it is this datacentre's alone; there is no other.
    #[serde(default)]
    pub local: bool,
    /// When it was made.
    pub created_at: UnixSeconds,
    /// From when on it is good for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UnixSeconds>,
    /// How long it was to be good when it was made, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// By which auth method somebody has logged in for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_method: Option<AclName>,
}

impl AclToken {
    /// Whether it is good for nothing any more.
    #[must_use]
    pub fn has_expired(&self, now: UnixSeconds) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// What a token or a role has: by names, and through what is known to everybody.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct AclGrants {
    /// Policies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Uuid>,
    /// Roles; a role has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Uuid>,
    /// Services for which it stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceIdentity>,
    /// Nodes for which it stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeIdentity>,
    /// Templates, filled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub templated: Vec<TemplatedPolicy>,
}

/// That somebody stands for a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceIdentity {
    /// The service.
    pub service: ServiceName,
    /// Where it counts; everywhere if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
}

/// That somebody stands for a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// The node.
    pub node: NodeName,
    /// Where it counts.
    pub datacenter: String,
}

/// A template, filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplatedPolicy {
    /// Which template.
    pub template: AclName,
    /// What is filled in, where it takes something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it counts; everywhere if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
}

/// Rules under a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AclPolicy {
    /// Its identifier.
    pub id: Uuid,
    /// Its name; no other policy has it.
    pub name: AclName,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// Its rules as they were written.
    #[serde(default)]
    pub text: String,
    /// The same, read.
    #[serde(default)]
    pub rules: Vec<AclRule>,
    /// Where it counts; everywhere if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datacenters: Vec<String>,
}

/// Policies and identities under a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AclRole {
    /// Its identifier.
    pub id: Uuid,
    /// Its name; no other role has it.
    pub name: AclName,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// What it has.
    #[serde(flatten)]
    pub grants: AclGrants,
}

/// Somebody else who says who a caller is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AclAuthMethod {
    /// Its name; no other method has it.
    pub name: AclName,
    /// `kubernetes`, `jwt`, `oidc` or `aws-iam`.
    pub kind: String,
    /// Its name for people.
    #[serde(default)]
    pub display_name: String,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// Longest life of a token that comes of it, in nanoseconds; 0 for any.
    #[serde(default)]
    pub max_token_ttl_ns: u64,
    /// `local` or `global`.
    #[serde(default)]
    pub token_locality: String,
    /// How the names of such tokens look.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token_name_format: String,
    /// Its settings.
    #[serde(default)]
    pub config: AuthMethodConfig,
}

/// What those have who come by an auth method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclBindingRule {
    /// Its identifier.
    pub id: Uuid,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// By which method.
    pub method: AclName,
    /// Which of them; all if empty.
    #[serde(default)]
    pub selector: String,
    /// `service`, `node`, `role`, `policy` or `templated-policy`.
    pub bind_type: String,
    /// The name of what they have.
    pub bind_name: String,
    /// What is filled in, of a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind_vars: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_shown_to_nobody_who_does_not_ask_for_it() {
        let secret = AclSecret::new("root").expect("a secret");
        assert_eq!(format!("{secret:?}"), "AclSecret(hidden)");
        assert_eq!(secret.reveal(), "root");
        for bad in ["", "a b", "a\n", "é", &"s".repeat(257)] {
            assert_eq!(AclSecret::new(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn names_are_letters_digits_and_dashes() {
        assert!(AclName::new("read-only_1").is_ok() && AclName::of_template("builtin/service").is_ok());
        for bad in ["", "a b", "a/b", "é", &"n".repeat(129)] {
            assert!(AclName::new(bad).is_err(), "{bad:?}");
        }
        assert!(AclName::of_role(&"n".repeat(256)).is_ok());
    }
}
