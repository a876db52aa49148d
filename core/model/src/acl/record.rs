//! The stored form of access control.

use super::{AclAuthMethod, AclBindingRule, AclName, AclPolicy, AclRole, AclToken};
use crate::uuid::Uuid;

/// All of these.
#[derive(Debug, Clone, PartialEq)]
pub enum AclRecord {
    /// A token.
    Token(Box<AclToken>),
    /// A policy.
    Policy(Box<AclPolicy>),
    /// A role.
    Role(Box<AclRole>),
    /// An auth method.
    AuthMethod(Box<AclAuthMethod>),
    /// A binding rule.
    BindingRule(Box<AclBindingRule>),
}

/// The key of an [`AclRecord`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AclKey {
    /// A token, by its accessor.
    Token(Uuid),
    /// A policy.
    Policy(Uuid),
    /// A role.
    Role(Uuid),
    /// An auth method.
    AuthMethod(AclName),
    /// A binding rule.
    BindingRule(Uuid),
}

impl AclKey {
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Token(id) => format!("acl-token/{id}"),
            Self::Policy(id) => format!("acl-policy/{id}"),
            Self::Role(id) => format!("acl-role/{id}"),
            Self::AuthMethod(name) => format!("acl-auth-method/{name}"),
            Self::BindingRule(id) => format!("acl-binding-rule/{id}"),
        }
    }

    pub(crate) fn parse(kind: &str, rest: &str) -> Option<Self> {
        match kind {
            "acl-token" => Some(Self::Token(rest.parse().ok()?)),
            "acl-policy" => Some(Self::Policy(rest.parse().ok()?)),
            "acl-role" => Some(Self::Role(rest.parse().ok()?)),
            "acl-auth-method" => Some(Self::AuthMethod(AclName::new(rest).ok()?)),
            "acl-binding-rule" => Some(Self::BindingRule(rest.parse().ok()?)),
            _ => None,
        }
    }
}

impl AclRecord {
    /// The key under which it is stored.
    #[must_use]
    pub fn key(&self) -> AclKey {
        match self {
            Self::Token(token) => AclKey::Token(token.accessor),
            Self::Policy(policy) => AclKey::Policy(policy.id),
            Self::Role(role) => AclKey::Role(role.id),
            Self::AuthMethod(method) => AclKey::AuthMethod(method.name.clone()),
            Self::BindingRule(rule) => AclKey::BindingRule(rule.id),
        }
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        match self {
            Self::Token(value) => serde_json::to_vec(value),
            Self::Policy(value) => serde_json::to_vec(value),
            Self::Role(value) => serde_json::to_vec(value),
            Self::AuthMethod(value) => serde_json::to_vec(value),
            Self::BindingRule(value) => serde_json::to_vec(value),
        }
    }

    pub(crate) fn from_json(key: &AclKey, bytes: &[u8]) -> Result<Self, serde_json::Error> {
        match key {
            AclKey::Token(_) => serde_json::from_slice(bytes).map(Self::Token),
            AclKey::Policy(_) => serde_json::from_slice(bytes).map(Self::Policy),
            AclKey::Role(_) => serde_json::from_slice(bytes).map(Self::Role),
            AclKey::AuthMethod(_) => serde_json::from_slice(bytes).map(Self::AuthMethod),
            AclKey::BindingRule(_) => serde_json::from_slice(bytes).map(Self::BindingRule),
        }
    }
}
