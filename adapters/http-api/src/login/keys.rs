//! Keys by which tokens are verified: of the method's own settings, or fetched, and kept for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::JwkSet;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use tokio::time::Instant;

use super::LoginRefusal;
use super::settings::{KeySource, keys_of};

/// Bytes of a set of keys; those of the large clouds have some ten thousand.
const SET_BYTES_MAX: usize = 256 * 1024;

/// Time for a set to come.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// For how long a set is believed to be what it was.
const KEPT: Duration = Duration::from_secs(5 * 60);

/// Least time between two looks at a set for a key that was not in it: strangers name keys that there are not.
const LOOKED_AGAIN: Duration = Duration::from_secs(10);

/// Sets that are kept.
const SETS_MAX: usize = 64;

/// Where a set is, and the CA of whoever serves it.
type Place = (String, Option<String>);

/// Sets of keys that were fetched, and when.
#[derive(Default)]
pub(crate) struct KeyCache {
    sets: Mutex<BTreeMap<Place, (Instant, Arc<JwkSet>)>>,
}

impl KeyCache {
    /// The keys that a token with this key identifier may be signed by.
    pub(super) async fn keys(&self, source: &KeySource, kid: Option<&str>) -> Result<Vec<DecodingKey>, LoginRefusal> {
        let (url, ca) = match source {
            KeySource::Pem(pems) => return Ok(pems.iter().flat_map(|pem| keys_of(pem)).collect()),
            KeySource::Url { url, ca } => (url, ca),
        };
        let place = (url.clone(), ca.clone());
        let kept = self.sets.lock().unwrap_or_else(PoisonError::into_inner).get(&place).cloned();
        if let Some((since, set)) = kept
            && since.elapsed() < KEPT
        {
            let keys = of_set(&set, kid);
            if !keys.is_empty() || since.elapsed() < LOOKED_AGAIN {
                return Ok(keys);
            }
        }
        let fetched = tokio::time::timeout(FETCH_TIMEOUT, fetch(url, ca.as_deref())).await;
        let fetched = fetched.unwrap_or_else(|_| Err("they took too long".to_owned()));
        let set = Arc::new(fetched.map_err(|reason| {
            tracing::warn!(url, reason, "the keys of an auth method cannot be fetched");
            LoginRefusal::Keys(reason)
        })?);
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        if sets.len() >= SETS_MAX {
            sets.clear();
        }
        sets.insert(place, (Instant::now(), Arc::clone(&set)));
        Ok(of_set(&set, kid))
    }
}

/// A token that names a key is signed by that one; one that names none by any.
fn of_set(set: &JwkSet, kid: Option<&str>) -> Vec<DecodingKey> {
    let named = set.keys.iter().filter(|key| kid.is_none() || key.common.key_id.as_deref() == kid);
    named.filter_map(|key| DecodingKey::from_jwk(key).ok()).collect()
}

async fn fetch(url: &str, ca: Option<&str>) -> Result<JwkSet, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.unwrap_or_default().as_bytes()) {
        let certificate = certificate.map_err(|_| "JWKSCACert is no PEM")?;
        roots.add(certificate).map_err(|_| "JWKSCACert holds no CA that can be used")?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().build();
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let url: http::Uri = url.parse().map_err(|_| "JWKSURL is no URL")?;
    let answer = client.get(url).await.map_err(|error| chain(&error))?;
    if answer.status() != http::StatusCode::OK {
        return Err(format!("the answer is {}", answer.status()));
    }
    let body = Limited::new(answer.into_body(), SET_BYTES_MAX).collect().await;
    let body = body.map_err(|error| format!("the answer cannot be read: {error}"))?.to_bytes();
    serde_json::from_slice(&body).map_err(|_| "the answer is no set of keys".to_owned())
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
