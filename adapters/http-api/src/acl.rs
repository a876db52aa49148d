//! Who asks, and what they may: the bearer of a token, made once for each request.
//!
//! What a route is about is judged before anything of a body is read (`Scope`); what a body turns out to change, before it is committed
//! ([`Bearer::may`]); and what is answered loses what the bearer may not see (`Visible`). A route of which nothing is said needs the right
//! to everything.

mod command;
mod scope;
mod visible;

use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use http::StatusCode;
use sha2::{Digest, Sha256};
use starling_catalog::Snapshot;
use starling_model::{
    ANONYMOUS_SECRET, ANONYMOUS_TOKEN, Access, AclGrants, AclRights, AclSecret, AclToken, BuiltinPolicy, Resource,
    SecretHash, UnixSeconds, Uuid,
};

pub(crate) use scope::{Asked, Scope, scope_of};
pub(crate) use visible::{Visible, resource_of_kind};

use crate::error::ApiError;
use crate::ports::MeshFacts;

/// Who asks.
#[derive(Debug, Clone)]
pub struct Bearer {
    /// The token; `None` where access is not controlled.
    accessor: Option<Uuid>,
    rights: Arc<AclRights>,
}

/// Why it is not known who asks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BearerFailure {
    /// No token has this secret, or it has expired.
    #[error("ACL not found")]
    Unknown,
    /// The same, and no token was made yet.
    #[error("ACL system must be bootstrapped before making any requests that require authorization: ACL not found")]
    NotBootstrapped,
    /// It cannot be found out now.
    #[error("{0}")]
    Unavailable(String),
}

/// Something is not allowed, in the words in which that is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Permission denied: {0}")]
pub struct Denied(String);

impl From<BearerFailure> for ApiError {
    fn from(failure: BearerFailure) -> Self {
        let status = match failure {
            BearerFailure::Unknown | BearerFailure::NotBootstrapped => StatusCode::FORBIDDEN,
            BearerFailure::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, failure.to_string())
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        Self::new(StatusCode::FORBIDDEN, denied.to_string())
    }
}

impl Bearer {
    /// Who has a token with these rights.
    #[must_use]
    pub fn new(accessor: Uuid, rights: AclRights) -> Self {
        Self { accessor: Some(accessor), rights: Arc::new(rights) }
    }

    /// Anybody, where access is not controlled; and what the programs of the mesh ask for themselves.
    #[must_use]
    pub fn unrestricted() -> Self {
        // One for all: whoever waits for a change holds on to it.
        static EVERYTHING: LazyLock<Arc<AclRights>> = LazyLock::new(|| Arc::new(AclRights::everything()));
        Self { accessor: None, rights: Arc::clone(&EVERYTHING) }
    }

    /// The token that was shown, or that of those who show none; `None` where access is not controlled.
    #[must_use]
    pub fn accessor(&self) -> Option<Uuid> {
        self.accessor
    }

    /// What may be done.
    #[must_use]
    pub fn rights(&self) -> &AclRights {
        &self.rights
    }

    pub(crate) fn reads(&self, resource: Resource, name: &str) -> bool {
        self.rights.allows(resource, name, Access::Read)
    }

    /// Refuses what may not be done with `name`.
    ///
    /// # Errors
    /// [`Denied`], in the words in which the bearer is told.
    pub fn require(&self, resource: Resource, name: &str, access: Access) -> Result<(), Denied> {
        if self.rights.allows(resource, name, access) { Ok(()) } else { Err(self.lacks(resource, Some(name), access)) }
    }

    /// Refuses what may not be done with everything that begins with `prefix`.
    pub(crate) fn require_under(&self, resource: Resource, prefix: &str, access: Access) -> Result<(), Denied> {
        let allowed = self.rights.allows_under(resource, prefix, access);
        if allowed { Ok(()) } else { Err(self.lacks(resource, Some(prefix), access)) }
    }

    /// Refuses who may do none of these with anything.
    pub(crate) fn require_some(&self, wanted: &[(Resource, Access)]) -> Result<(), Denied> {
        let allowed = wanted.iter().any(|(resource, access)| self.rights.allows_something(*resource, *access));
        match wanted.first() {
            Some((resource, access)) if !allowed => Err(self.lacks(*resource, None, *access)),
            Some(_) | None => Ok(()),
        }
    }

    /// Refuses who may not do everything.
    pub(crate) fn require_everything(&self) -> Result<(), Denied> {
        if self.rights.is_management() { Ok(()) } else { Err(self.lacks(Resource::Acl, None, Access::Write)) }
    }

    fn lacks(&self, resource: Resource, name: Option<&str>, access: Access) -> Denied {
        let on = name.filter(|_| resource.has_names()).map(|name| format!(" on {name:?}")).unwrap_or_default();
        Denied(match self.accessor {
            Some(accessor) if accessor != ANONYMOUS_TOKEN => {
                format!("token with AccessorID '{accessor}' lacks permission '{resource}:{access}'{on}")
            }
            Some(_) | None => format!(
                "anonymous token lacks permission '{resource}:{access}'{on}. The anonymous token is used implicitly when a \
                 request does not specify a token."
            ),
        })
    }
}

/// By what a token is found whose secret is this.
#[must_use]
pub fn secret_hash(secret: &str) -> SecretHash {
    SecretHash(Sha256::digest(secret).into())
}

/// A token with the right to everything, made at `now`.
#[must_use]
pub fn management_token(accessor: Uuid, secret: AclSecret, description: &str, now: UnixSeconds) -> AclToken {
    let grants = AclGrants { policies: vec![BuiltinPolicy::GlobalManagement.id()], ..AclGrants::default() };
    AclToken {
        accessor,
        secret_hash: secret_hash(secret.reveal()),
        secret,
        description: description.to_owned(),
        grants,
        local: false,
        created_at: now,
        expires_at: None,
        ttl_s: None,
        auth_method: None,
    }
}

/// Who shows `secret`, by the catalog.
///
/// # Errors
/// [`BearerFailure`] if nobody has it, or it has expired.
pub fn bearer_in(snapshot: &Snapshot, facts: &MeshFacts, secret: Option<&str>) -> Result<Bearer, BearerFailure> {
    let Some(default) = facts.acl_default else { return Ok(Bearer::unrestricted()) };
    let token = match secret.filter(|secret| !secret.is_empty() && *secret != ANONYMOUS_SECRET) {
        None => snapshot.acl_token(ANONYMOUS_TOKEN),
        Some(secret) => snapshot.acl_token_by_secret(&secret_hash(secret)),
    };
    // One that somebody has logged in for goes with what it was logged in by.
    let stands =
        |token: &AclToken| token.auth_method.as_ref().is_none_or(|method| snapshot.acl_auth_method(method).is_some());
    match token.filter(|token| !token.value.has_expired(now()) && stands(&token.value)) {
        Some(token) => {
            let rights = snapshot.acl_rights(&token.value.grants, &facts.datacenter, default);
            Ok(Bearer::new(token.value.accessor, rights))
        }
        None if snapshot.acl_bootstrapped().is_none() => Err(BearerFailure::NotBootstrapped),
        None => Err(BearerFailure::Unknown),
    }
}

/// The time by the clock of this machine.
pub(crate) fn now() -> UnixSeconds {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixSeconds(since.as_secs())
}
