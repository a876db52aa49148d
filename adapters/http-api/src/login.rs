//! Logging in: somebody else has signed who a caller is, and binding rules say what such callers have
//! (<https://developer.hashicorp.com/consul/docs/secure/acl/auth-method/jwt>).
//!
//! Nothing of a token is believed before its signature is: the header names one of the algorithms that the method allows, all of which have a
//! public key, and the key is of that family. Of what is signed, times, issuer and audience are judged next, and what is left is text.

mod binding;
mod claims;
mod fetch;
mod keys;
mod settings;

use serde_json::Value;
use starling_catalog::Snapshot;
use starling_model::{AclAuthMethod, AclGrants, Datacenter, UnixSeconds};

pub(crate) use binding::check_rule;
pub(crate) use keys::KeyCache;
pub(crate) use settings::JwtSettings;

use crate::parse::Context;

/// The kind of method by which somebody logs in here.
pub(crate) const JWT: &str = "jwt";

/// Bytes of a bearer token; those of clusters and clouds have a few thousand.
const BEARER_BYTES_MAX: usize = 16 * 1024;

/// Why nobody logs in. What is said goes to whoever tried.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoginRefusal {
    /// The method is of another kind.
    #[error("nobody logs in by auth methods of type {0:?} in this release, but by those of type jwt")]
    Kind(String),
    /// The method's settings cannot be used.
    #[error("the auth method cannot be used: {0}")]
    Settings(String),
    /// The keys cannot be had.
    #[error("the keys of the auth method cannot be had now: {0}")]
    Keys(String),
    /// The token is no token, or is signed by nobody known.
    #[error("the bearer token is not accepted: {0}")]
    Token(&'static str),
    /// What is signed does not hold here.
    #[error("the bearer token is not accepted: {0}")]
    Claims(String),
    /// No binding rule says that such callers have anything.
    #[error("no binding rule is for this caller")]
    Unbound,
    /// A binding rule makes no name.
    #[error("binding rule {rule}: {reason}")]
    Rule {
        /// Its identifier.
        rule: String,
        /// Why.
        reason: String,
    },
}

/// The settings of a method by which somebody can log in here.
pub(crate) fn settings_of(method: &AclAuthMethod, context: &Context) -> Result<JwtSettings, LoginRefusal> {
    if method.kind != JWT {
        return Err(LoginRefusal::Kind(method.kind.clone()));
    }
    JwtSettings::parse(&method.config, context).map_err(|error| LoginRefusal::Settings(error.to_string()))
}

/// What the bearer of a token has by an auth method.
pub(crate) async fn login(
    method: &AclAuthMethod,
    settings: &JwtSettings,
    bearer: &str,
    (snapshot, datacenter): (&Snapshot, &Datacenter),
    (cache, now): (&KeyCache, UnixSeconds),
) -> Result<AclGrants, LoginRefusal> {
    if bearer.len() > BEARER_BYTES_MAX {
        return Err(LoginRefusal::Token("it is too long"));
    }
    let header = claims::header(bearer, settings)?;
    let keys = cache.keys(&settings.keys, header.kid.as_deref()).await?;
    let claims = claims::verified(bearer, &header, &keys, settings, now)?;
    let variables = settings.variables(&claims);
    binding::grants(method, &variables, snapshot, datacenter)
}

/// A claim by its name, or by a JSON pointer.
fn claim<'c>(claims: &'c Value, name: &str) -> Option<&'c Value> {
    if name.starts_with('/') { claims.pointer(name) } else { claims.get(name) }
}
