//! Fetching a set of keys: from its own address, or from where an issuer says that it is.
//!
//! Source of the second: OpenID Connect Discovery 1.0, sections 4.1 to 4.3.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jsonwebtoken::jwk::JwkSet;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;

/// Bytes of a set of keys; those of the large clouds have some ten thousand.
const SET_BYTES_MAX: usize = 256 * 1024;

/// Bytes of what an issuer says of itself; those of the large ones say some five thousand.
const CONFIGURATION_BYTES_MAX: usize = 64 * 1024;

/// Where an issuer says what it is.
const CONFIGURATION: &str = "/.well-known/openid-configuration";

/// Where a set is, and how whoever serves it is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Of the set, or the issuer.
    pub(super) url: String,
    /// The CA of whoever serves it, in PEM; without one, those that this machine trusts.
    pub(super) ca: Option<String>,
    /// Whether it is an issuer, which says where the set is.
    pub(super) is_issuer: bool,
}

/// What an issuer says of itself.
#[derive(Deserialize)]
struct Configuration {
    issuer: String,
    jwks_uri: String,
}

type HttpClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// Why a URL is none that keys are fetched from; `None` for one that is.
pub(super) fn unfit(url: &str) -> Option<&'static str> {
    let parsed: Option<http::Uri> = url.parse().ok();
    let host = parsed.as_ref().and_then(http::Uri::host).unwrap_or_default();
    match parsed.as_ref().and_then(http::Uri::scheme_str) {
        Some("https") if !host.is_empty() => None,
        Some("http") if is_here(host) => None,
        _ => Some("must be an https URL; http is for an address of this machine alone"),
    }
}

fn is_here(host: &str) -> bool {
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host == "localhost" || literal.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// The set of keys there.
pub(super) async fn fetch(place: &Place) -> Result<JwkSet, String> {
    let client = client(place).await?;
    if !place.is_issuer {
        return read(&client, &place.url, SET_BYTES_MAX, "no set of keys").await;
    }
    let at = format!("{}{CONFIGURATION}", place.url.trim_end_matches('/'));
    let said: Configuration = read(&client, &at, CONFIGURATION_BYTES_MAX, "no configuration of an issuer").await?;
    if said.issuer != place.url {
        return Err(format!("who answers there is the issuer {:?}, and not {:?}", said.issuer, place.url));
    }
    // Over plain HTTP nobody is known: where the issuer is reached over TLS, so are its keys.
    let as_safe = place.url.starts_with("http://") || said.jwks_uri.starts_with("https://");
    if unfit(&said.jwks_uri).is_some() || !as_safe {
        return Err(format!("the issuer names keys at {:?}, which is no https URL", said.jwks_uri));
    }
    read(&client, &said.jwks_uri, SET_BYTES_MAX, "no set of keys").await
}

async fn client(place: &Place) -> Result<HttpClient, String> {
    let roots = match &place.ca {
        Some(ca) => given(ca)?,
        None if place.url.starts_with("https://") => {
            let here = tokio::task::spawn_blocking(of_this_machine).await;
            here.map_err(|error| error.to_string())??
        }
        None => RootCertStore::empty(),
    };
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().build();
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

fn given(ca: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        let certificate = certificate.map_err(|_| "the CA is no PEM")?;
        roots.add(certificate).map_err(|_| "the CA is none that can be used")?;
    }
    Ok(roots)
}

/// What the machine trusts, by `SSL_CERT_FILE` and `SSL_CERT_DIR` or where its system keeps it.
fn of_this_machine() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some systems keep certificates there that nothing can be verified by.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(format!(
            "this machine trusts no CA (install ca-certificates, or name the CA in the auth method){why}"
        ));
    }
    Ok(roots)
}

async fn read<T: for<'a> Deserialize<'a>>(
    client: &HttpClient,
    url: &str,
    bytes_max: usize,
    otherwise: &str,
) -> Result<T, String> {
    let url: http::Uri = url.parse().map_err(|_| format!("{url:?} is no URL"))?;
    let answer = client.get(url.clone()).await.map_err(|error| format!("{url}: {}", chain(&error)))?;
    if answer.status() != http::StatusCode::OK {
        return Err(format!("{url} answers {}", answer.status()));
    }
    let body = Limited::new(answer.into_body(), bytes_max).collect().await;
    let body = body.map_err(|error| format!("the answer of {url} cannot be read: {error}"))?.to_bytes();
    serde_json::from_slice(&body).map_err(|_| format!("the answer of {url} is {otherwise}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_over_tls_or_from_this_machine() {
        for url in ["https://a", "https://a:1/keys", "http://127.0.0.1:1/keys", "http://localhost/", "http://[::1]:1/"]
        {
            assert_eq!(unfit(url), None, "{url}");
        }
        for url in
            ["", "a", "http://a/", "http://127.0.0.1.evil/", "ftp://127.0.0.1/", "file:///etc/passwd", "https:///x"]
        {
            assert!(unfit(url).is_some(), "{url}");
        }
    }
}
