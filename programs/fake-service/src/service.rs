//! What one request leads to: an injected failure, upstream calls, a delay, an answer.
//!
//! Knows nothing of the protocol the request came by, beyond its name in the answer. A request touches no lock here:
//! settings are read-only and chance is drawn per thread.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::answer::{Answer, Arrival, Protocol, SeenRequest, Start};
use crate::config::Config;
use crate::fault::{FaultCode, FaultKind};
use crate::upstream::{Calls, HOPS_HEADER, Upstreams};

/// Fake services one request may pass in a row; a chain longer than this is a loop in somebody's `UPSTREAM_URIS`.
///
/// Each nests two levels of JSON, and parsers commonly stop at 128.
const HOPS_MAX: u32 = 16;

/// One running service.
pub(crate) struct FakeService {
    pub(crate) config: Config,
    upstreams: Upstreams,
    ip_addresses: Vec<String>,
    ready_at: Instant,
    /// Turns true when the server begins to stop.
    pub(crate) stopping: watch::Receiver<bool>,
}

/// What chance decided for one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Script {
    fails: bool,
    hold: Duration,
}

/// The answer to one request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) json: Vec<u8>,
    pub(crate) failure: Option<Failure>,
}

/// Why a request was not answered with success.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: FaultCode,
    pub(crate) error: String,
}

impl FakeService {
    /// Makes the service and its upstream clients; must be called inside a tokio runtime.
    pub(crate) fn new(config: Config, local: SocketAddr, stopping: watch::Receiver<bool>) -> anyhow::Result<Self> {
        Ok(Self {
            upstreams: Upstreams::new(&config)?,
            ip_addresses: own_address(local).into_iter().map(|address| address.to_string()).collect(),
            ready_at: Instant::now() + config.ready_delay,
            config,
            stopping,
        })
    }

    /// Draws what happens to the next request.
    pub(crate) fn script(&self) -> Script {
        if self.config.fault.strikes() {
            let hold = match self.config.fault.kind {
                FaultKind::Error => Duration::ZERO,
                FaultKind::Delay(delay) => delay,
            };
            return Script { fails: true, hold };
        }
        Script { fails: false, hold: self.config.timing.sample() }
    }

    /// Whether [`answer_at_once`](Self::answer_at_once) is enough: there is nothing to call and nothing to wait for.
    pub(crate) fn is_immediate(&self, script: Script) -> bool {
        script.hold.is_zero() && (script.fails || self.upstreams.is_empty())
    }

    /// Answers without calling upstreams and without waiting.
    pub(crate) fn answer_at_once(&self, arrival: Arrival<'_>, start: Start, script: Script) -> Reply {
        self.reply(arrival, start, script.fails.then(|| self.injected()), &Calls::default())
    }

    /// Calls the upstreams, lets the drawn time pass, and answers.
    pub(crate) async fn answer(&self, arrival: Arrival<'_>, start: Start, script: Script) -> Reply {
        if self.is_immediate(script) {
            return self.answer_at_once(arrival, start, script);
        }
        let until = tokio::time::Instant::from_std(start.clock + script.hold);
        if script.fails {
            tokio::time::sleep_until(until).await;
            return self.reply(arrival, start, Some(self.injected()), &Calls::default());
        }
        let mut calls = Calls::default();
        if !self.upstreams.is_empty() {
            let hops = hops(&arrival);
            if hops >= HOPS_MAX {
                let error = format!("request passed {hops} fake services: the upstream URIs form a loop");
                return self.reply(arrival, start, Some(Failure { code: FaultCode::LOOP, error }), &calls);
            }
            calls = self.upstreams.call_all(&arrival, hops + 1).await;
        }
        let failure = calls.failure.take().map(|error| Failure { code: FaultCode::INTERNAL, error });
        if failure.is_none() {
            tokio::time::sleep_until(until).await;
        }
        self.reply(arrival, start, failure, &calls)
    }

    /// Whether the time to get ready has passed.
    pub(crate) fn is_ready(&self) -> bool {
        Instant::now() >= self.ready_at
    }

    /// Whether health checks are told that all is well.
    pub(crate) fn is_healthy(&self) -> bool {
        self.config.health_code.is_success()
    }

    fn injected(&self) -> Failure {
        let error = match self.config.fault.kind {
            FaultKind::Error => "Service error automatically injected",
            FaultKind::Delay(_) => "Service delay automatically injected",
        };
        Failure { code: self.config.fault.code, error: error.to_owned() }
    }

    fn reply(&self, arrival: Arrival<'_>, start: Start, failure: Option<Failure>, calls: &Calls) -> Reply {
        let code = match (arrival.protocol, &failure) {
            (Protocol::Http, None) => i32::from(http::StatusCode::OK.as_u16()),
            (Protocol::Http, Some(failure)) => i32::from(failure.code.http.as_u16()),
            (Protocol::Grpc, None) => tonic::Code::Ok.into(),
            (Protocol::Grpc, Some(failure)) => failure.code.grpc.into(),
        };
        let times = start.elapsed();
        tracing::debug!(service = self.config.name, target = arrival.target, code, took = ?times.duration(), "answered");
        let answer = Answer {
            name: &self.config.name,
            uri: arrival.target,
            protocol: arrival.protocol,
            ip_addresses: &self.ip_addresses,
            request: SeenRequest::new(&arrival),
            times,
            body: failure.is_none().then_some(&self.config.message),
            upstream_calls: &calls.answers,
            code,
            error: failure.as_ref().map(|failure| failure.error.as_str()),
        };
        Reply { json: answer.to_json(), failure }
    }
}

/// How many fake services the request has passed; a header that is not a number counts as none.
fn hops(arrival: &Arrival<'_>) -> u32 {
    let header = arrival.headers.get(HOPS_HEADER).and_then(|value| value.to_str().ok());
    header.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The address other machines would see: the one listened on, else the one the default route leaves by.
fn own_address(local: SocketAddr) -> Option<IpAddr> {
    /// Documentation address (RFC 5737); choosing a route to it sends nothing.
    const ELSEWHERE: (&str, u16) = ("192.0.2.1", 9);
    if !local.ip().is_unspecified() {
        return Some(local.ip()).filter(|address| !address.is_loopback());
    }
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(ELSEWHERE).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}
