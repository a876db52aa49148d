//! Somebody who signs tokens, and a mesh that one logs in to by them.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PublicKeyData};
use serde_json::{Value, json};
use starling_model::Action;

use crate::world::controlled;

pub fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// Somebody who signs.
pub struct Issuer {
    key: KeyPair,
}

impl Issuer {
    pub fn new() -> Self {
        Self { key: KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap() }
    }

    pub fn public_pem(&self) -> String {
        self.key.public_key_pem()
    }

    pub fn sign_as(&self, header: &Header, claims: &Value) -> String {
        encode(header, claims, &EncodingKey::from_ec_pem(self.key.serialize_pem().as_bytes()).unwrap()).unwrap()
    }

    pub fn sign(&self, claims: &Value) -> String {
        self.sign_as(&Header::new(Algorithm::ES256), claims)
    }

    /// The public key as a member of a set.
    pub fn jwk(&self, kid: &str) -> Value {
        // An uncompressed point: 4, x, y.
        let raw = self.key.der_bytes();
        let point = &raw[raw.len() - 64..];
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": kid, "x": text(&point[..32]), "y": text(&point[32..])})
    }
}

/// Claims that hold, with others over them.
pub fn claims(over: Value) -> Value {
    let mut claims = json!({
        "iss": "https://issuer.test", "aud": ["other", "mesh"], "sub": "web-1", "iat": now(), "exp": now() + 600,
        "kubernetes": {"namespace": "shop"}, "roles": ["dev", "ops"], "admin": true,
    });
    claims.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    claims
}

pub fn config(keys: Value) -> Value {
    let mut config = json!({
        "JWTSupportedAlgs": ["ES256"], "BoundIssuer": "https://issuer.test", "BoundAudiences": ["mesh"],
        "ClaimMappings": {"sub": "service", "/kubernetes/namespace": "namespace", "admin": "admin"},
        "ListClaimMappings": {"roles": "roles"},
    });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    config
}

/// A mesh with access control.
pub struct Mesh {
    controlled: controlled::Mesh,
    pub root: String,
}

impl Mesh {
    pub async fn new() -> Self {
        let controlled = controlled::Mesh::new(Action::Deny).await;
        Self { root: controlled.root.clone(), controlled }
    }

    pub async fn send(&self, method: &str, target: &str, body: &str) -> (u16, Value) {
        let (status, text) = self.controlled.ask(None, method, target, body).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub async fn ask(&self, token: &str, method: &str, target: &str, body: &Value) -> (u16, Value) {
        let mark = if target.contains('?') { '&' } else { '?' };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, &format!("{target}{mark}token={token}"), &body).await
    }

    pub async fn put(&self, target: &str, body: Value) -> Value {
        let (status, answer) = self.ask(&self.root, "PUT", target, &body).await;
        assert_eq!(status, 200, "{target}: {answer}");
        answer
    }

    pub async fn method(&self, config: Value) {
        let method = json!({"Name": "jwt", "Type": "jwt", "MaxTokenTTL": "10m", "Config": config});
        self.put("/v1/acl/auth-method", method).await;
    }

    pub async fn rule(&self, kind: &str, name: &str, selector: &str) -> Value {
        let rule = json!({"AuthMethod": "jwt", "BindType": kind, "BindName": name, "Selector": selector});
        self.put("/v1/acl/binding-rule", rule).await
    }

    pub async fn login(&self, bearer: &str) -> (u16, Value) {
        let body = json!({"AuthMethod": "jwt", "BearerToken": bearer, "Meta": {"pod": "p1"}}).to_string();
        self.send("POST", "/v1/acl/login", &body).await
    }
}
