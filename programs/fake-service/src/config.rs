//! The settings of one fake service, and how they are read from the usual environment variables.
//!
//! Owns no process state: the caller supplies the lookup.

use std::time::Duration;

use serde_json::Value;

use crate::fault::{Fault, FaultCode, FaultKind};
use crate::go_duration::GoDuration;
use crate::timing::Timing;
use crate::upstream::Upstream;

/// Upstreams of one service; a fan-out past this is a mistake in the list rather than a tier.
const UPSTREAMS_MAX: usize = 256;

/// Upstream calls of one request that may run at once; each holds a connection.
const UPSTREAM_WORKERS_MAX: usize = 256;

/// Longest delay a service may inject; a request held longer outlives every client that could see the answer.
const DELAY_MAX: Duration = Duration::from_secs(3600);

/// Variables of the original that change its traffic and that this implementation does not have.
const UNSUPPORTED_VARIABLES: [&str; 17] = [
    "EXTERNAL_SERVICE_URLS",
    "HTTP_SERVER_KEEP_ALIVES",
    "LOAD_CPU_ALLOCATED",
    "LOAD_CPU_CLOCK_SPEED",
    "LOAD_CPU_CORES",
    "LOAD_CPU_PERCENTAGE",
    "LOAD_MEMORY_PER_REQUEST",
    "METRICS_DATADOG_HOST",
    "RATE_LIMIT",
    "READY_CHECK_ROOT_PATH_WAIT_TILL_READY",
    "TLS_CERT_LOCATION",
    "TLS_KEY_LOCATION",
    "TRACING_DATADOG_HOST",
    "TRACING_ZIPKIN",
    "UPSTREAM_ALLOW_INSECURE",
    "UPSTREAM_REQUEST_SIZE",
    "UPSTREAM_REQUEST_VARIANCE",
];

/// An environment variable holds something else than it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {value:?} is not {expected}")]
pub struct ConfigError {
    /// Name of the variable.
    pub variable: &'static str,
    /// What it holds.
    pub value: String,
    /// What it should hold.
    pub expected: String,
}

/// What a service speaks on its port; the health endpoints of both kinds are answered in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerType {
    /// JSON over HTTP/1.1 and HTTP/2 without TLS; calls of `FakeService/Handle` are answered too.
    #[default]
    Http,
    /// gRPC only; other requests than health checks get status 415.
    Grpc,
}

/// The settings of one fake service.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `LISTEN_ADDR`: where [`run_from_env`](crate::run_from_env) listens; not read by [`serve`](crate::serve).
    pub listen_addr: String,
    /// `NAME`: the service's name in its answers.
    pub name: String,
    /// `MESSAGE`: the answer's body, a string or a JSON object.
    pub message: Value,
    /// `SERVER_TYPE`: what the port speaks.
    pub server_type: ServerType,
    /// `UPSTREAM_URIS`: services called for each request, in this order.
    pub upstreams: Vec<Upstream>,
    /// `UPSTREAM_WORKERS`: calls of one request that run at once.
    pub upstream_workers: usize,
    /// `UPSTREAM_REQUEST_BODY`: sent with each upstream call; empty for none.
    pub upstream_request_body: String,
    /// `HTTP_CLIENT_KEEP_ALIVES`: whether HTTP connections to upstreams are reused; gRPC connections always are.
    pub client_keep_alives: bool,
    /// `HTTP_CLIENT_APPEND_REQUEST`: whether path, query and headers of an HTTP request go on to HTTP upstreams.
    pub client_append_request: bool,
    /// `HTTP_CLIENT_REQUEST_TIMEOUT`: longest wait for one upstream call, connecting included.
    pub client_request_timeout: Duration,
    /// `ERROR_RATE`, `ERROR_TYPE`, `ERROR_CODE`, `ERROR_DELAY`: the failures to inject.
    pub fault: Fault,
    /// `TIMING_50_PERCENTILE`, `TIMING_90_PERCENTILE`, `TIMING_99_PERCENTILE`, `TIMING_VARIANCE`: how long requests take.
    pub timing: Timing,
    /// `HEALTH_CHECK_RESPONSE_CODE`: status of `/health`; gRPC health says SERVING while it is 2xx.
    pub health_code: http::StatusCode,
    /// `READY_CHECK_RESPONSE_SUCCESS_CODE` or `READY_CHECK_RESPONSE_CODE`: status of `/ready` once ready.
    pub ready_code: http::StatusCode,
    /// `READY_CHECK_RESPONSE_FAILURE_CODE`: status of `/ready` until then.
    pub unready_code: http::StatusCode,
    /// `READY_CHECK_RESPONSE_DELAY`: time from start to ready.
    pub ready_delay: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen_addr: "0.0.0.0:9090".to_owned(),
            name: "Service".to_owned(),
            message: Value::from("Hello World"),
            server_type: ServerType::Http,
            upstreams: Vec::new(),
            upstream_workers: 1,
            upstream_request_body: String::new(),
            client_keep_alives: false,
            client_append_request: true,
            client_request_timeout: Duration::from_secs(30),
            fault: Fault::default(),
            timing: Timing::default(),
            health_code: http::StatusCode::OK,
            ready_code: http::StatusCode::OK,
            unready_code: http::StatusCode::SERVICE_UNAVAILABLE,
            ready_delay: Duration::ZERO,
        }
    }
}

impl Config {
    /// Reads the settings through `lookup`, which returns a variable's value by its name.
    ///
    /// An unset or empty variable leaves the default.
    /// # Errors
    /// [`ConfigError`] for the first variable whose value is not understood.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let env = Env { lookup };
        let default = Self::default();
        let ready_code = env.parse("READY_CHECK_RESPONSE_CODE", STATUS_TEXT, status, default.ready_code)?;
        Ok(Self {
            listen_addr: env.parse(
                "LISTEN_ADDR",
                "host:port such as 0.0.0.0:9090",
                listen_addr,
                default.listen_addr,
            )?,
            name: env.get("NAME").unwrap_or(default.name),
            message: env.get("MESSAGE").map_or(default.message, message),
            server_type: env.parse("SERVER_TYPE", "http or grpc", server_type, default.server_type)?,
            upstreams: upstreams(&env)?,
            upstream_workers: env.parse(
                "UPSTREAM_WORKERS",
                &format!("a whole number from 1 to {UPSTREAM_WORKERS_MAX}"),
                |text| text.parse().ok().filter(|workers| (1..=UPSTREAM_WORKERS_MAX).contains(workers)),
                default.upstream_workers,
            )?,
            upstream_request_body: env.get("UPSTREAM_REQUEST_BODY").unwrap_or_default(),
            client_keep_alives: env.parse("HTTP_CLIENT_KEEP_ALIVES", FLAG_TEXT, flag, default.client_keep_alives)?,
            client_append_request: env.parse(
                "HTTP_CLIENT_APPEND_REQUEST",
                FLAG_TEXT,
                flag,
                default.client_append_request,
            )?,
            client_request_timeout: env.parse(
                "HTTP_CLIENT_REQUEST_TIMEOUT",
                "a duration above zero and up to 1h, such as 500ms or 30s",
                |text| delay(text).filter(|timeout| !timeout.is_zero()),
                default.client_request_timeout,
            )?,
            fault: fault(&env)?,
            timing: timing(&env)?,
            health_code: env.parse("HEALTH_CHECK_RESPONSE_CODE", STATUS_TEXT, status, default.health_code)?,
            ready_code: env.parse("READY_CHECK_RESPONSE_SUCCESS_CODE", STATUS_TEXT, status, ready_code)?,
            unready_code: env.parse("READY_CHECK_RESPONSE_FAILURE_CODE", STATUS_TEXT, status, default.unready_code)?,
            ready_delay: env.delay("READY_CHECK_RESPONSE_DELAY")?,
        })
    }
}

/// Returns the variables that are set, that the original would act on, and that [`Config`] has no place for.
pub(crate) fn unsupported(lookup: impl Fn(&str) -> Option<String>) -> Vec<&'static str> {
    UNSUPPORTED_VARIABLES.into_iter().filter(|name| lookup(name).is_some_and(|value| !value.is_empty())).collect()
}

const STATUS_TEXT: &str = "an HTTP status from 200 to 599";
const FLAG_TEXT: &str = "true or false";
const DELAY_TEXT: &str = "a duration up to 1h, such as 1ms or 1.5s";

struct Env<L> {
    lookup: L,
}

impl<L: Fn(&str) -> Option<String>> Env<L> {
    fn get(&self, variable: &str) -> Option<String> {
        (self.lookup)(variable).filter(|value| !value.is_empty())
    }

    fn parse<T>(
        &self,
        variable: &'static str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
        default: T,
    ) -> Result<T, ConfigError> {
        let Some(value) = self.get(variable) else {
            return Ok(default);
        };
        parse(value.trim()).ok_or_else(|| ConfigError { variable, value, expected: expected.to_owned() })
    }

    fn delay(&self, variable: &'static str) -> Result<Duration, ConfigError> {
        self.parse(variable, DELAY_TEXT, delay, Duration::ZERO)
    }
}

/// Accepts what Go's `net.Listen` does: a missing host means every address.
fn listen_addr(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if host.contains(':') && !bracketed {
        return None;
    }
    let host = if host.is_empty() { "0.0.0.0" } else { host };
    Some(format!("{host}:{port}"))
}

/// A message that is a JSON object is answered as one, anything else as a string.
fn message(text: String) -> Value {
    match serde_json::from_str(&text) {
        Ok(object @ Value::Object(_)) => object,
        Ok(_) | Err(_) => Value::from(text),
    }
}

fn server_type(text: &str) -> Option<ServerType> {
    match text {
        "http" => Some(ServerType::Http),
        "grpc" => Some(ServerType::Grpc),
        _ => None,
    }
}

fn upstreams(env: &Env<impl Fn(&str) -> Option<String>>) -> Result<Vec<Upstream>, ConfigError> {
    const VARIABLE: &str = "UPSTREAM_URIS";
    let list = env.get(VARIABLE).unwrap_or_default();
    let uris = list.split(',').map(str::trim).filter(|uri| !uri.is_empty());
    let upstreams: Vec<Upstream> = uris
        .map(|uri| {
            uri.parse().map_err(|error| ConfigError {
                variable: VARIABLE,
                value: uri.to_owned(),
                expected: format!("http://host[:port][/path] or grpc://host:port ({error})"),
            })
        })
        .collect::<Result<_, _>>()?;
    if upstreams.len() > UPSTREAMS_MAX {
        let expected = format!("a list of at most {UPSTREAMS_MAX} URIs");
        return Err(ConfigError { variable: VARIABLE, value: list, expected });
    }
    Ok(upstreams)
}

fn fault(env: &Env<impl Fn(&str) -> Option<String>>) -> Result<Fault, ConfigError> {
    let default = Fault::default();
    let delay = env.delay("ERROR_DELAY")?;
    Ok(Fault {
        rate: env.parse(
            "ERROR_RATE",
            "a number from 0 to 1",
            |text| text.parse().ok().filter(|rate| (0.0..=1.0).contains(rate)),
            default.rate,
        )?,
        kind: env.parse(
            "ERROR_TYPE",
            "http_error or delay",
            |text| match text {
                "http_error" => Some(FaultKind::Error),
                "delay" => Some(FaultKind::Delay(delay)),
                _ => None,
            },
            default.kind,
        )?,
        code: env.parse(
            "ERROR_CODE",
            "an HTTP status from 300 to 599 or a gRPC code from 1 to 16",
            |text| FaultCode::from_number(text.parse().ok()?),
            default.code,
        )?,
    })
}

fn timing(env: &Env<impl Fn(&str) -> Option<String>>) -> Result<Timing, ConfigError> {
    let median = env.delay("TIMING_50_PERCENTILE")?;
    let percentile_90 = env.parse("TIMING_90_PERCENTILE", DELAY_TEXT, delay, Duration::ZERO)?;
    let percentile_99 = env.parse("TIMING_99_PERCENTILE", DELAY_TEXT, delay, Duration::ZERO)?;
    let variance_percent = env.parse(
        "TIMING_VARIANCE",
        "a whole number of percent from 0 to 100",
        |text| text.parse().ok().filter(|percent| *percent <= 100),
        0,
    )?;
    Ok(Timing::new(median, percentile_90, percentile_99, variance_percent))
}

fn delay(text: &str) -> Option<Duration> {
    let GoDuration(delay) = text.parse().ok()?;
    Some(delay).filter(|delay| *delay <= DELAY_MAX)
}

fn status(text: &str) -> Option<http::StatusCode> {
    let code: u16 = text.parse().ok()?;
    http::StatusCode::from_u16(code).ok().filter(|_| (200..=599).contains(&code))
}

/// The spellings Go's `strconv.ParseBool` accepts.
fn flag(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
