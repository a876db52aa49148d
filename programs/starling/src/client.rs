//! The client of the HTTP API: one connection per request, everything bounded.

pub(crate) mod address;
mod args;
mod authorities;
pub(crate) mod tls;
mod transfer;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

pub(crate) use address::Address;
pub(crate) use args::ApiArgs;
pub(crate) use authorities::Authorities;
pub(crate) use tls::TlsSettings;

use crate::environment::Environment;
use crate::outcome::usage;

/// Time for a connection to come about, TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Time for an answer, beyond what the request itself asks the server to wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Bytes of an answer: a catalog of a hundred thousand instances fits, an endless answer does not.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Characters of an error text that are passed on; beyond, it is somebody's HTML page.
const ERROR_TEXT_MAX: usize = 2_000;

/// What may stand as it is in a segment of a path and in a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Why a request has no good answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// No connection came about.
    #[error(
        "cannot reach the Starling API at {address}: {reason}; does an agent or a server run there? --http-addr and \
         STARLING_HTTP_ADDR name another address"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// What the operating system or TLS says.
        reason: String,
    },
    /// It took too long.
    #[error("the Starling API at {address} does not answer within {seconds} s")]
    Silent {
        /// The address.
        address: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The connection ended early, or does not speak HTTP.
    #[error("the connection to {address} broke before the answer was there: {reason}; is it a Starling API?")]
    Broken {
        /// The address.
        address: String,
        /// What hyper says.
        reason: String,
    },
    /// The answer is larger than one can be.
    #[error("the answer from {address} is larger than {ANSWER_BYTES_MAX} bytes")]
    TooLarge {
        /// The address.
        address: String,
    },
    /// The answer is not of the expected form.
    #[error("the answer to {target} is not what a Starling API gives: {reason}")]
    Garbled {
        /// Path and query.
        target: String,
        /// What the parser says.
        reason: String,
    },
    /// The server said no, and why.
    #[error("{text} (HTTP {})", status.as_u16())]
    Refused {
        /// The status code.
        status: StatusCode,
        /// The server's words.
        text: String,
    },
}

/// A request on its way to be made: a path, a query and a body.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: Method,
    target: String,
    body: Bytes,
    wait: Duration,
}

impl Call {
    /// A GET of a fixed path.
    pub(crate) fn get(path: &str) -> Self {
        Self::new(Method::GET, path)
    }

    /// A PUT to a fixed path.
    pub(crate) fn put(path: &str) -> Self {
        Self::new(Method::PUT, path)
    }

    /// A POST to a fixed path.
    pub(crate) fn post(path: &str) -> Self {
        Self::new(Method::POST, path)
    }

    /// A DELETE of a fixed path.
    pub(crate) fn delete(path: &str) -> Self {
        Self::new(Method::DELETE, path)
    }

    fn new(method: Method, path: &str) -> Self {
        Self { method, target: path.to_owned(), body: Bytes::new(), wait: Duration::ZERO }
    }

    /// With a further segment of the path, escaped. Before any [`Call::query`].
    #[must_use]
    pub(crate) fn segment(mut self, text: &str) -> Self {
        self.target.push('/');
        self.target.extend(utf8_percent_encode(text, PLAIN));
        self
    }

    /// With a parameter, escaped.
    #[must_use]
    pub(crate) fn query(self, name: &str, value: &str) -> Self {
        let mut call = self.switch(name);
        call.target.push('=');
        call.target.extend(utf8_percent_encode(value, PLAIN));
        call
    }

    /// With a parameter that has no value.
    #[must_use]
    pub(crate) fn switch(mut self, name: &str) -> Self {
        self.target.push(if self.target.contains('?') { '&' } else { '?' });
        self.target.push_str(name);
        self
    }

    /// With `wait`, and as much more patience.
    #[must_use]
    pub(crate) fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self.query("wait", &format!("{}ms", wait.as_millis()))
    }

    /// With further segments of the path, whose slashes stay as they are. Before any [`Call::query`].
    #[must_use]
    pub(crate) fn path(self, text: &str) -> Self {
        text.split('/').fold(self, |call, segment| call.segment(segment))
    }

    /// With a body of whatever form.
    #[must_use]
    pub(crate) fn body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }

    /// With a body.
    #[must_use]
    pub(crate) fn json(mut self, body: &serde_json::Value) -> Self {
        self.body = Bytes::from(body.to_string());
        self
    }
}

/// Speaks to one API.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    address: Address,
    token: Option<HeaderValue>,
    /// For a proxy in front of the API that asks for a name and a password.
    basic: Option<HeaderValue>,
    /// Parameters of every request: the datacentre and what it is divided into.
    scope: Vec<(&'static str, String)>,
    /// Whether reads may be answered by any server.
    stale: bool,
    settings: TlsSettings,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Client {
    /// The client that flags and environment ask for. A flag wins over a variable.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] if the address, the token or a TLS setting is not valid.
    pub(crate) fn new(args: &ApiArgs, environment: &Environment) -> anyhow::Result<Self> {
        let given = args.http_addr.as_ref().or(environment.http_addr.as_ref());
        let text = given.map_or(address::DEFAULT, String::as_str);
        let address = Address::parse(text, switch("CONSUL_HTTP_SSL", environment.ssl.as_deref(), false)?)?;
        let token = token(args, environment)?;
        let token =
            token.map(|text| secret(&text).ok_or_else(|| usage("the token has characters that no header can carry")));
        let basic =
            environment.http_auth.as_ref().and_then(|pair| secret(&format!("Basic {}", BASE64_STANDARD.encode(pair))));
        let settings = TlsSettings::given(args, environment);
        let tls = match &address {
            Address::Tcp { host, tls: true, .. } => Some(tls_to(host, &settings, environment)?),
            Address::Tcp { .. } | Address::Unix(_) => None,
        };
        let (token, scope) = (token.transpose()?, scope(args, environment));
        Ok(Self { address, token, basic, scope, stale: args.stale, settings, tls })
    }

    /// Where it connects to.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The token that it sends.
    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_ref().and_then(|token| token.to_str().ok())
    }

    /// What it speaks TLS with, where TLS is spoken.
    pub(crate) fn tls_settings(&self) -> &TlsSettings {
        &self.settings
    }

    /// The answer to a call, read as JSON.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(crate) async fn read<T: DeserializeOwned>(&self, call: Call) -> Result<T, ApiError> {
        let target = call.target.clone();
        let body = self.send(call).await?;
        serde_json::from_slice(&body).map_err(|error| ApiError::Garbled { target, reason: error.to_string() })
    }

    /// The answer to a call, read as JSON, or JSON's `null` if there is no such thing; and the index that it is of, 0 without one.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(crate) async fn read_at(&self, call: Call) -> Result<(Value, u64), ApiError> {
        let (value, index) = self.find_at(call).await?;
        Ok((value.unwrap_or_default(), index))
    }

    /// The answer to a call, read as JSON, `None` if there is no such thing; and the index that it is of, 0 without one.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(crate) async fn find_at<T: DeserializeOwned>(&self, call: Call) -> Result<(Option<T>, u64), ApiError> {
        let target = call.target.clone();
        let call = self.scoped(call);
        // An answer may come a sixteenth of the wait later, so that those who wait do not ask as one.
        let patience = ANSWER_WITHIN + call.wait + call.wait / 16;
        let exchange = async {
            let response = self.respond(self.request(call)).await?;
            let index = response.headers().get("x-consul-index").and_then(|index| index.to_str().ok()?.parse().ok());
            let found = response.status() != StatusCode::NOT_FOUND;
            let body = if found { Some(self.outcome(response).await?) } else { None };
            Ok((body, index.unwrap_or_default()))
        };
        let silent = || ApiError::Silent { address: self.address.to_string(), seconds: patience.as_secs() };
        let (body, index) = timeout(patience, exchange).await.map_err(|_| silent())??;
        let read = |body: Bytes| serde_json::from_slice(&body);
        let value = body.map(read).transpose();
        Ok((value.map_err(|error| ApiError::Garbled { target, reason: error.to_string() })?, index))
    }

    /// The answer to a call, read as JSON; `None` if there is no such thing.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(crate) async fn find<T: DeserializeOwned>(&self, call: Call) -> Result<Option<T>, ApiError> {
        match self.read(call).await {
            Ok(value) => Ok(Some(value)),
            Err(ApiError::Refused { status: StatusCode::NOT_FOUND, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The body of the answer to a call; an answer without success is an error.
    ///
    /// # Errors
    /// [`ApiError`].
    pub(crate) async fn send(&self, call: Call) -> Result<Bytes, ApiError> {
        let call = self.scoped(call);
        let patience = ANSWER_WITHIN + call.wait;
        let exchange = async { self.outcome(self.respond(self.request(call)).await?).await };
        match timeout(patience, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ApiError::Silent { address: self.address.to_string(), seconds: patience.as_secs() }),
        }
    }

    fn scoped(&self, call: Call) -> Call {
        let call = self.scope.iter().fold(call, |call, (name, value)| call.query(name, value));
        if self.stale && call.method == Method::GET { call.switch("stale") } else { call }
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, ApiError> {
        let unreachable = |reason: String| ApiError::Unreachable { address: self.address.to_string(), reason };
        match timeout(CONNECT_WITHIN, self.dial()).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(unreachable(match tls::missing(&error, &self.settings) {
                Some(missing) => format!("{error}: {missing}"),
                None => said(&error),
            })),
            Err(_) => Err(unreachable(format!("no connection within {} s", CONNECT_WITHIN.as_secs()))),
        }
    }

    async fn dial(&self) -> io::Result<Box<dyn Stream>> {
        match (&self.address, &self.tls) {
            (Address::Unix(path), _) => Ok(Box::new(UnixStream::connect(path).await?)),
            (Address::Tcp { host, port, .. }, None) => Ok(Box::new(TcpStream::connect((host.as_str(), *port)).await?)),
            (Address::Tcp { host, port, .. }, Some((config, name))) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                Ok(Box::new(TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream).await?))
            }
        }
    }

    fn broken(&self, error: &hyper::Error) -> ApiError {
        // What lies beneath says more than that something does.
        let beneath = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
        // Whoever is sent away for want of a certificate may be gone before it hears why.
        let unshown =
            || self.tls.as_ref().filter(|_| self.settings.shows_nothing()).map(|_| tls::NO_CERTIFICATE.to_owned());
        let missing = tls::missing(error, &self.settings).or_else(unshown);
        let missing = missing.map(|missing| format!(": {missing}")).unwrap_or_default();
        ApiError::Broken { address: self.address.to_string(), reason: format!("{error}{beneath}{missing}") }
    }

    /// The body of a response; one without success is an error.
    async fn outcome(&self, response: Response<Incoming>) -> Result<Bytes, ApiError> {
        let status = response.status();
        let body = self.body(response).await?;
        if status.is_success() {
            return Ok(body);
        }
        let text = String::from_utf8_lossy(&body);
        let text: String = text.trim().chars().take(ERROR_TEXT_MAX).collect();
        let text = if text.is_empty() { "the API refused".to_owned() } else { text };
        Err(ApiError::Refused { status, text })
    }

    fn request(&self, call: Call) -> Request<Full<Bytes>> {
        let mut builder = Request::builder()
            .method(call.method)
            .uri(call.target)
            .header(http::header::HOST, self.address.authority())
            .header(http::header::USER_AGENT, concat!("starling/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.token {
            builder = builder.header("x-consul-token", token);
        }
        if let Some(basic) = &self.basic {
            builder = builder.header(http::header::AUTHORIZATION, basic);
        }
        if !call.body.is_empty() {
            builder = builder.header(http::header::CONTENT_TYPE, "application/json");
        }
        builder.body(Full::new(call.body)).expect("invariant: the target is escaped and the authority was parsed")
    }

    async fn body(&self, response: Response<Incoming>) -> Result<Bytes, ApiError> {
        let address = || self.address.to_string();
        match Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(ApiError::TooLarge { address: address() }),
            Err(error) => Err(ApiError::Broken { address: address(), reason: error.to_string() }),
        }
    }
}

/// What carries HTTP: TCP, TLS or a Unix socket.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The usual failures in words of one's own, without the operating system's number.
fn said(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::ConnectionRefused {
        "connection refused".to_owned()
    } else if error.kind() == io::ErrorKind::NotFound {
        "there is no such socket".to_owned()
    } else {
        error.to_string()
    }
}

/// A header that is not shown.
fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn token(args: &ApiArgs, environment: &Environment) -> anyhow::Result<Option<String>> {
    if let Some(token) = &args.token {
        return Ok(Some(token.clone()));
    }
    let file = match (&args.token_file, &environment.token) {
        (Some(file), _) => file,
        (None, Some(token)) => return Ok(Some(token.clone())),
        (None, None) => match &environment.token_file {
            Some(file) => file,
            None => return Ok(None),
        },
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| usage(format!("cannot read the token file {}: {error}", file.display())))?;
    Ok(Some(text.trim().to_owned()))
}

/// A truth value as Go's `strconv.ParseBool` reads it, which is what Consul's clients do.
fn switch(name: &str, text: Option<&str>, default: bool) -> anyhow::Result<bool> {
    match text {
        None => Ok(default),
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        Some(other) => Err(usage(format!("{name} is {other:?}, which is neither true nor false"))),
    }
}

fn scope(args: &ApiArgs, environment: &Environment) -> Vec<(&'static str, String)> {
    let given = [
        ("dc", args.datacenter.as_ref()),
        ("ns", args.namespace.as_ref().or(environment.namespace.as_ref())),
        ("partition", args.partition.as_ref().or(environment.partition.as_ref())),
    ];
    given.into_iter().filter_map(|(name, value)| Some((name, value?.clone()))).collect()
}

fn tls_to(
    host: &str,
    settings: &TlsSettings,
    environment: &Environment,
) -> anyhow::Result<(Arc<ClientConfig>, ServerName<'static>)> {
    let verified = switch("CONSUL_HTTP_SSL_VERIFY", environment.ssl_verify.as_deref(), true)?;
    if !verified {
        tracing::warn!("CONSUL_HTTP_SSL_VERIFY=false: whoever answers is believed, and is given the token");
    }
    let name = settings.server_name.as_deref().unwrap_or(host).to_owned();
    let name = ServerName::try_from(name.clone()).map_err(|_| usage(format!("{name:?} is no name for TLS")))?;
    Ok((tls::client_config(settings, verified)?, name))
}
