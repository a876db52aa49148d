//! A Vault for tests: it speaks the API of the PKI secrets engine over a real socket and signs truly, as far as it is asked.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};
use starling_model::UnixSeconds;
use tokio::net::TcpListener;

/// What it takes from callers.
pub const TOKEN: &str = "hvs.of-the-test";

/// How the double behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// As it should.
    Signs,
    /// As one that is sealed: 503.
    Sealed,
    /// Takes far longer than anybody waits.
    Slow,
    /// Its role has names of its own.
    AddsNames,
    /// Its role knows no end.
    LastsLong,
    /// Answers with something else.
    Garbled,
}

/// A Vault with a root and an intermediate that signs.
pub struct Double {
    root: rcgen::Certificate,
    intermediate: rcgen::Certificate,
    key: KeyPair,
    mood: Mutex<Mood>,
    pub asked: Mutex<Vec<Value>>,
}

fn ca(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Double {
    /// One that listens, and where.
    pub async fn listen() -> (Arc<Self>, String) {
        let double = Arc::new(Self::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let served = Arc::clone(&double);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let double = Arc::clone(&served);
                let service = service_fn(move |request| {
                    let double = Arc::clone(&double);
                    async move {
                        let (status, body) = double.answer(request).await;
                        let mut response = Response::new(Full::new(Bytes::from(body)));
                        *response.status_mut() = status;
                        Ok::<_, std::convert::Infallible>(response)
                    }
                });
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        (double, address)
    }

    /// Has it behave otherwise from now on.
    pub fn behave(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn new() -> Self {
        let root_key = KeyPair::generate().unwrap();
        let root = ca("Vault Root").self_signed(&root_key).unwrap();
        let issuer = Issuer::from_ca_cert_der(root.der(), root_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let intermediate = ca("Vault Intermediate").signed_by(&key, &issuer).unwrap();
        Self { root, intermediate, key, mood: Mutex::new(Mood::Signs), asked: Mutex::default() }
    }

    async fn answer(&self, request: Request<Incoming>) -> (StatusCode, String) {
        let mood = *self.mood.lock().unwrap();
        let errors = |status, text: &str| (status, json!({"errors": [text]}).to_string());
        match mood {
            Mood::Sealed => return errors(StatusCode::SERVICE_UNAVAILABLE, "Vault is sealed"),
            Mood::Slow => tokio::time::sleep(Duration::from_secs(600)).await,
            Mood::Garbled => return (StatusCode::OK, "<html>".to_owned()),
            Mood::Signs | Mood::AddsNames | Mood::LastsLong => {}
        }
        let path = request.uri().path().to_owned();
        if (request.method(), path.as_str()) == (&Method::GET, "/v1/pki_mesh/ca_chain") {
            return (StatusCode::OK, self.intermediate.pem() + &self.root.pem());
        }
        if request.headers().get("x-vault-token").is_none_or(|token| token != TOKEN) {
            return errors(StatusCode::FORBIDDEN, "permission denied");
        }
        if (request.method(), path.as_str()) != (&Method::POST, "/v1/pki_mesh/sign/mesh") {
            return errors(StatusCode::NOT_FOUND, "no handler for route");
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let asked: Value = serde_json::from_slice(&body).unwrap();
        self.asked.lock().unwrap().push(asked.clone());
        self.sign(&asked, mood)
    }

    fn sign(&self, asked: &Value, mood: Mood) -> (StatusCode, String) {
        let list = |field: &str| -> Vec<String> {
            let text = asked[field].as_str().unwrap_or_default();
            text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        let mut csr = CertificateSigningRequestParams::from_pem(asked["csr"].as_str().unwrap()).unwrap();
        assert!(csr.params.subject_alt_names.is_empty(), "no name travels in the request");
        let mut names: Vec<SanType> =
            list("uri_sans").into_iter().map(|uri| SanType::URI(uri.try_into().unwrap())).collect();
        if !list("uri_sans").iter().all(|uri| uri.starts_with("spiffe://") && !uri.contains("elsewhere")) {
            let text =
                "1 error occurred: * URI Subject Alternative Names were provided via the API which are not valid";
            return (StatusCode::BAD_REQUEST, json!({"errors": [text]}).to_string());
        }
        names.extend(list("alt_names").into_iter().map(|name| SanType::DnsName(name.try_into().unwrap())));
        names.extend(list("ip_sans").into_iter().map(|address| SanType::IpAddress(address.parse().unwrap())));
        if mood == Mood::AddsNames {
            names.push(SanType::DnsName("everybody.example".try_into().unwrap()));
        }
        csr.params.subject_alt_names = names;
        let ttl: u64 = asked["ttl"].as_str().and_then(|ttl| ttl.strip_suffix('s')).unwrap().parse().unwrap();
        let ttl = if mood == Mood::LastsLong { 10 * ttl } else { ttl };
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        csr.params.not_before = epoch + Duration::from_secs(now().0 - 30);
        csr.params.not_after = epoch + Duration::from_secs(now().0 + ttl);
        csr.params.is_ca = IsCa::ExplicitNoCa;
        csr.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let issuer = Issuer::from_ca_cert_der(self.intermediate.der(), &self.key).unwrap();
        let certificate = csr.signed_by(&issuer).unwrap();
        let data = json!({
            "certificate": certificate.pem().trim_end(),
            "issuing_ca": self.intermediate.pem().trim_end(),
            "ca_chain": [self.intermediate.pem().trim_end(), self.root.pem().trim_end()],
            "serial_number": "01",
            "expiration": 0,
        });
        (StatusCode::OK, json!({"request_id": "r", "data": data}).to_string())
    }
}

/// The time.
pub fn now() -> UnixSeconds {
    UnixSeconds(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs())
}
