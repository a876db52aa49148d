//! One request to a Vault over one connection, within a time.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

/// Bytes of an answer; a certificate with its chain has some thousand.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// Bytes of a token's file.
const TOKEN_BYTES_MAX: usize = 4 * 1024;

/// Where a Vault is: `http://HOST:PORT` or `https://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    tls: bool,
    host: String,
    port: u16,
}

/// A text is not the address of a Vault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not of the form https://HOST:PORT or http://HOST:PORT, without a path")]
pub struct AddressError {
    text: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError { text: text.to_owned() };
        let uri: http::Uri = text.parse().map_err(|_| error())?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(error()),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(error)?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(error());
        }
        let port = authority.port_u16().ok_or_else(error)?;
        Ok(Self { tls, host: authority.host().to_owned(), port })
    }
}

impl Address {
    /// Whether it is spoken to over TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Its host, without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&self.host)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", if self.tls { "https" } else { "http" }, self.host, self.port)
    }
}

/// Why a Vault did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// It is not reached.
    #[error("the Vault at {address} is not reached: {reason}")]
    Unreached {
        /// Where.
        address: Address,
        /// Why not.
        reason: String,
    },
    /// It takes too long.
    #[error("the Vault at {address} did not answer within {} s", within.as_secs_f64())]
    Slow {
        /// Where.
        address: Address,
        /// The time it had.
        within: Duration,
    },
    /// It cannot work now, as one that is sealed.
    #[error("the Vault at {address} cannot work now ({status}): {said}; if it is sealed, unseal it")]
    Unavailable {
        /// Where.
        address: Address,
        /// The status.
        status: StatusCode,
        /// Its words.
        said: String,
    },
    /// It does not let this server do it.
    #[error(
        "the Vault at {address} refuses the token in {}: {said}; the token's policy is to have update on {path}, and the \
         token to be renewed before it ends",
        token.display()
    )]
    Forbidden {
        /// Where.
        address: Address,
        /// What was asked for.
        path: String,
        /// The token's file.
        token: PathBuf,
        /// Its words.
        said: String,
    },
    /// It refuses what is asked, as a role does that does not allow the names.
    #[error("the Vault at {address} refuses {path} ({status}): {said}")]
    Refused {
        /// Where.
        address: Address,
        /// What was asked for.
        path: String,
        /// The status.
        status: StatusCode,
        /// Its words.
        said: String,
    },
    /// It answers with something else.
    #[error("the answer of the Vault to {path} cannot be used: {reason}")]
    Answer {
        /// What was asked for.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A file beside it is of no use.
    #[error("cannot use {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The request for a certificate is of no use, whoever signs.
    #[error(transparent)]
    Issue(#[from] starling_tls::IssueError),
}

impl VaultError {
    /// Whether it helps to ask again, without anybody doing anything here.
    #[must_use]
    pub fn passes(&self) -> bool {
        match self {
            // A token is renewed, and a policy mended, without a word to this server.
            Self::Unreached { .. } | Self::Slow { .. } | Self::Unavailable { .. } | Self::Forbidden { .. } => true,
            Self::File { .. } | Self::Answer { .. } => true,
            Self::Refused { .. } | Self::Issue(_) => false,
        }
    }
}

/// A way to a Vault.
pub(crate) struct Wire {
    pub(crate) address: Address,
    token_file: PathBuf,
    namespace: Option<String>,
    within: Duration,
    tls: Option<Arc<ClientConfig>>,
}

/// The answer of a Vault that is in its usual form.
#[derive(Debug, Deserialize)]
struct Errors {
    #[serde(default)]
    errors: Vec<String>,
}

impl Wire {
    pub(crate) fn new(
        address: Address,
        token_file: PathBuf,
        ca_file: Option<&Path>,
        namespace: Option<String>,
        within: Duration,
    ) -> Result<Self, VaultError> {
        let tls = if address.tls { Some(Arc::new(tls(ca_file)?)) } else { None };
        Ok(Self { address, token_file, namespace, within, tls })
    }

    /// Asks, and gives back the body of an answer that is no error.
    pub(crate) async fn ask(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, VaultError> {
        match tokio::time::timeout(self.within, self.exchange(method, path, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(VaultError::Slow { address: self.address.clone(), within: self.within }),
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, VaultError> {
        let request = self.request(method, path, body)?;
        let unreached = |reason: &dyn fmt::Display| VaultError::Unreached {
            address: self.address.clone(),
            reason: reason.to_string(),
        };
        let host = self.address.host.trim_matches(['[', ']']);
        let stream = TcpStream::connect((host, self.address.port)).await.map_err(|error| unreached(&error))?;
        let mut sender = match &self.tls {
            None => handshake(TokioIo::new(stream)).await,
            Some(config) => {
                let name =
                    ServerName::try_from(host.to_owned()).map_err(|error: InvalidDnsNameError| unreached(&error))?;
                let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
                handshake(TokioIo::new(stream.map_err(|error| unreached(&error))?)).await
            }
        }
        .map_err(|error| unreached(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| unreached(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                VaultError::Answer {
                    path: path.to_owned(),
                    reason: format!("it has more than {ANSWER_BYTES_MAX} bytes"),
                }
            } else {
                unreached(&error)
            }
        })?;
        self.judge(status, path, body.to_bytes())
    }

    fn judge(&self, status: StatusCode, path: &str, body: Bytes) -> Result<Bytes, VaultError> {
        if status.is_success() {
            return Ok(body);
        }
        let said = match serde_json::from_slice::<Errors>(&body) {
            Ok(answer) if !answer.errors.is_empty() => answer.errors.join("; "),
            Ok(_) | Err(_) => "no reason given".to_owned(),
        };
        let (address, path) = (self.address.clone(), path.to_owned());
        Err(match status {
            StatusCode::FORBIDDEN => VaultError::Forbidden { address, path, token: self.token_file.clone(), said },
            // 473 and 472 are standbys', 429 is a quota's (Vault's page on status codes).
            StatusCode::TOO_MANY_REQUESTS => VaultError::Unavailable { address, status, said },
            status if status.is_server_error() || matches!(status.as_u16(), 412 | 472 | 473) => {
                VaultError::Unavailable { address, status, said }
            }
            status => VaultError::Refused { address, path, status, said },
        })
    }

    fn request(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Request<Full<Bytes>>, VaultError> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, format!("{}:{}", self.address.host, self.address.port))
            .header(http::header::CONTENT_TYPE, "application/json")
            .header("X-Vault-Request", "true");
        if let Some(namespace) = &self.namespace {
            request = request.header("X-Vault-Namespace", namespace);
        }
        // Read each time: whoever renews tokens, as Vault's agent does, writes another file.
        let mut token = http::HeaderValue::from_str(&self.token()?)
            .map_err(|_| VaultError::File { path: self.token_file.clone(), reason: "it holds no token".to_owned() })?;
        token.set_sensitive(true);
        request = request.header("X-Vault-Token", token);
        request
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| VaultError::Answer { path: path.to_owned(), reason: error.to_string() })
    }

    fn token(&self) -> Result<Zeroizing<String>, VaultError> {
        let file = |reason: String| VaultError::File { path: self.token_file.clone(), reason };
        let text = Zeroizing::new(std::fs::read_to_string(&self.token_file).map_err(|error| file(error.to_string()))?);
        if text.len() > TOKEN_BYTES_MAX {
            return Err(file(format!("it has more than {TOKEN_BYTES_MAX} bytes")));
        }
        match text.lines().next().map(str::trim) {
            Some(token) if !token.is_empty() => Ok(Zeroizing::new(token.to_owned())),
            _ => Err(file("it holds no token".to_owned())),
        }
    }
}

async fn handshake<T>(io: T) -> hyper::Result<hyper::client::conn::http1::SendRequest<Full<Bytes>>>
where
    T: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    // It ends with the sender.
    tokio::spawn(connection);
    Ok(sender)
}

fn tls(ca_file: Option<&Path>) -> Result<ClientConfig, VaultError> {
    let path = ca_file.ok_or_else(|| VaultError::File {
        path: PathBuf::from("ca_file"),
        reason: "an https address needs it: the CAs whose certificates are believed, in PEM".to_owned(),
    })?;
    let file = |reason: String| VaultError::File { path: path.to_owned(), reason };
    let text = std::fs::read(path).map_err(|error: io::Error| file(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(&text) {
        let der = der.map_err(|error| file(error.to_string()))?;
        roots.add(der).map_err(|error| file(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(file("it holds no certificate in PEM".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| file(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
