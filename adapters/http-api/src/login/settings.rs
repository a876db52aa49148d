//! Settings of an auth method of type `jwt`.

use std::collections::BTreeMap;
use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::{Map, Value, json};
use starling_model::AuthMethodConfig;

use super::claim;
use super::fetch::{Place, unfit};
use crate::parse::{Context, FieldError, Fields, parse_duration};

/// Time for which a token without an end is good, or before which one without a beginning is; Consul's.
const LEEWAY: Duration = Duration::from_secs(150);

/// How far clocks may differ; Consul's.
const SKEW: Duration = Duration::from_secs(60);

/// Algorithms by which a token may be signed: all have a public key, so that who can verify cannot sign.
const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("EdDSA", Algorithm::EdDSA),
];

/// Keys of one method.
const KEYS_MAX: usize = 64;

/// Where the keys are by which tokens are verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeySource {
    /// Here, in PEM.
    Pem(Vec<String>),
    /// In a set elsewhere.
    At(Place),
}

/// What an auth method asks of a token, and what it takes from it.
#[derive(Debug)]
pub(crate) struct JwtSettings {
    pub(super) keys: KeySource,
    pub(super) issuer: Option<String>,
    pub(super) audiences: Vec<String>,
    pub(super) algorithms: Vec<Algorithm>,
    claims: BTreeMap<String, String>,
    lists: BTreeMap<String, String>,
    pub(super) expiration_leeway: Duration,
    pub(super) not_before_leeway: Duration,
    pub(super) skew: Duration,
}

impl JwtSettings {
    /// Reads them.
    pub(crate) fn parse(config: &AuthMethodConfig, context: &Context) -> Result<Self, FieldError> {
        let mut fields = Fields::of(context, "Config", Value::Object(config.0.clone()))?;
        for name in ["OIDCClientID", "OIDCClientSecret", "OIDCScopes", "OIDCACRValues"] {
            fields.unsupported(name)?;
        }
        fields.ignored(&["VerboseOIDCLogging", "AllowedRedirectURIs", "OIDCClientUsePKCE", "OIDCClientAssertion"]);
        let keys = key_source(&mut fields)?;
        let algorithms = fields.texts("JWTSupportedAlgs")?;
        let known = |name: &String| {
            let found = ALGORITHMS.iter().find(|(known, _)| known == name).map(|(_, algorithm)| *algorithm);
            let known: Vec<_> = ALGORITHMS.iter().map(|(name, _)| *name).collect();
            found.ok_or_else(|| fields.error("JWTSupportedAlgs", format!("{name:?} is none of {}", known.join(", "))))
        };
        let algorithms = match algorithms.iter().map(known).collect::<Result<Vec<_>, _>>()? {
            none if none.is_empty() => vec![Algorithm::RS256],
            named => named,
        };
        // Who is asked for keys signs its own tokens (OpenID Connect Discovery 1.0, section 4.3).
        let discovered =
            if let KeySource::At(Place { url, is_issuer: true, .. }) = &keys { Some(url.clone()) } else { None };
        let settings = Self {
            issuer: fields.text("BoundIssuer")?.or(discovered),
            keys,
            algorithms,
            audiences: fields.texts("BoundAudiences")?,
            claims: fields.text_map("ClaimMappings")?,
            lists: fields.text_map("ListClaimMappings")?,
            expiration_leeway: leeway(&mut fields, "ExpirationLeeway", LEEWAY)?,
            not_before_leeway: leeway(&mut fields, "NotBeforeLeeway", LEEWAY)?,
            skew: leeway(&mut fields, "ClockSkewLeeway", SKEW)?,
        };
        fields.finish()?;
        Ok(settings)
    }

    /// Whether callers can have what a binding rule names so.
    pub(super) fn has_variable(&self, kind: &str, name: &str) -> bool {
        let names = match kind {
            "value" => &self.claims,
            "list" => &self.lists,
            _ => return false,
        };
        names.values().any(|own| own == name)
    }

    /// What binding rules speak of: `value.NAME` and `list.NAME`, by the names that the method gives to claims.
    pub(super) fn variables(&self, claims: &Value) -> Value {
        let values = self.claims.iter().filter_map(|(of, name)| Some((name.clone(), text(claim(claims, of)?)?.into())));
        let lists = self.lists.iter().filter_map(|(of, name)| {
            let list = match claim(claims, of)? {
                Value::Array(items) => items.iter().filter_map(text).collect(),
                one @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
                    vec![text(one)?]
                }
            };
            Some((name.clone(), list.into()))
        });
        json!({"value": values.collect::<Map<_, _>>(), "list": lists.collect::<Map<_, _>>()})
    }
}

/// A claim as text; `None` for one that is none.
fn text(claim: &Value) -> Option<String> {
    match claim {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn key_source(fields: &mut Fields<'_>) -> Result<KeySource, FieldError> {
    const AT: [(&str, &str, bool); 2] =
        [("JWKSURL", "JWKSCACert", false), ("OIDCDiscoveryURL", "OIDCDiscoveryCACert", true)];
    let pems = fields.texts("JWTValidationPubKeys")?;
    let mut place = None;
    for (name, of_ca, is_issuer) in AT {
        let ca = fields.text(of_ca)?;
        let Some(url) = fields.text(name)? else { continue };
        if !pems.is_empty() {
            return Err(fields.error(name, "contradicts JWTValidationPubKeys; give one of them"));
        }
        if place.is_some() {
            return Err(fields.error(name, "contradicts JWKSURL; give one of them"));
        }
        if let Some(reason) = unfit(&url) {
            return Err(fields.error(name, reason));
        }
        place = Some(Place { url, ca, is_issuer });
    }
    match place {
        Some(place) => Ok(KeySource::At(place)),
        None if pems.is_empty() => {
            Err(fields.missing("JWTValidationPubKeys", "must be given, or JWKSURL, or OIDCDiscoveryURL"))
        }
        None if pems.len() > KEYS_MAX => Err(fields.error("JWTValidationPubKeys", format!("are more than {KEYS_MAX}"))),
        None => match pems.iter().position(|pem| keys_of(pem).is_empty()) {
            Some(place) => Err(fields.error("JWTValidationPubKeys", format!("[{place}] is no public key in PEM"))),
            None => Ok(KeySource::Pem(pems)),
        },
    }
}

/// What a PEM may be a key for.
pub(super) fn keys_of(pem: &str) -> Vec<DecodingKey> {
    let read = [DecodingKey::from_rsa_pem, DecodingKey::from_ec_pem, DecodingKey::from_ed_pem];
    read.iter().filter_map(|read| read(pem.as_bytes()).ok()).collect()
}

/// A duration, of which 0 stands for the usual one, and one below 0 for none.
fn leeway(fields: &mut Fields<'_>, name: &str, usual: Duration) -> Result<Duration, FieldError> {
    let Some(field) = fields.take(name) else { return Ok(usual) };
    let given = match &field.value {
        Value::String(text) if text.starts_with('-') => return Ok(Duration::ZERO),
        Value::String(text) if text.is_empty() => Some(Duration::ZERO),
        Value::String(text) => parse_duration(text),
        Value::Number(number) if number.as_i64().is_some_and(|number| number < 0) => return Ok(Duration::ZERO),
        Value::Number(number) => number.as_u64().map(Duration::from_nanos),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let given = given.ok_or_else(|| FieldError::new(&field.path, "must be a duration such as \"30s\""))?;
    Ok(if given.is_zero() { usual } else { given })
}
