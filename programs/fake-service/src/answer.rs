//! The JSON a service answers with: its own part, and the nested answers of its upstreams.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use http::HeaderMap;
use jiff::Timestamp;
use jiff::tz::Offset;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::go_duration::GoDuration;

/// Room for an answer without upstreams, so that writing one allocates once.
const ANSWER_BYTES_TYPICAL: usize = 768;

/// Protocol a request arrived by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Protocol {
    #[serde(rename = "HTTP")]
    Http,
    #[serde(rename = "gRPC")]
    Grpc,
}

/// What a service needs to know of a request, whichever protocol it came by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub(crate) protocol: Protocol,
    pub(crate) method: &'a str,
    /// Path and query.
    pub(crate) target: &'a str,
    pub(crate) headers: &'a HeaderMap,
}

/// One answer, in the order of its JSON fields.
#[derive(Serialize)]
pub(crate) struct Answer<'a> {
    pub(crate) name: &'a str,
    pub(crate) uri: &'a str,
    #[serde(rename = "type")]
    pub(crate) protocol: Protocol,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(crate) ip_addresses: &'a [String],
    pub(crate) request: SeenRequest<'a>,
    #[serde(flatten)]
    pub(crate) times: Times,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<&'a Value>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(crate) upstream_calls: &'a Map<String, Value>,
    /// HTTP status or gRPC code.
    pub(crate) code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<&'a str>,
}

impl Answer<'_> {
    /// Writes the answer as indented JSON with a final line feed, as the original does.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = Vec::with_capacity(ANSWER_BYTES_TYPICAL);
        serde_json::to_writer_pretty(&mut json, self).expect("invariant: an answer has only string keys");
        json.push(b'\n');
        json
    }
}

/// The request as the service saw it, after every proxy in between.
#[derive(Serialize)]
pub(crate) struct SeenRequest<'a> {
    method: &'a str,
    path: &'a str,
    headers: SeenHeaders<'a>,
}

/// The inbound headers that proxies add and that tests of a mesh look for.
#[derive(Serialize)]
struct SeenHeaders<'a> {
    #[serde(rename = "x-request-id", skip_serializing_if = "Option::is_none")]
    request_id: Option<Cow<'a, str>>,
    #[serde(rename = "x-forwarded-client-cert", skip_serializing_if = "Option::is_none")]
    client_cert: Option<Cow<'a, str>>,
}

impl<'a> SeenRequest<'a> {
    pub(crate) fn new(arrival: &Arrival<'a>) -> Self {
        let header = |name| arrival.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        Self {
            method: arrival.method,
            path: arrival.target.split_once('?').map_or(arrival.target, |(path, _)| path),
            headers: SeenHeaders { request_id: header("x-request-id"), client_cert: header("x-forwarded-client-cert") },
        }
    }
}

/// The moment a request arrived, on both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    wall: Timestamp,
    pub(crate) clock: Instant,
}

impl Start {
    pub(crate) fn now() -> Self {
        Self { wall: Timestamp::now(), clock: Instant::now() }
    }

    /// The times of an answer given now.
    pub(crate) fn elapsed(self) -> Times {
        let duration = self.clock.elapsed();
        Times {
            start_time: WallTime(self.wall),
            end_time: WallTime(self.wall.checked_add(duration).unwrap_or(self.wall)),
            duration: GoDuration(duration),
        }
    }
}

/// When an answer began and ended.
#[derive(Serialize)]
pub(crate) struct Times {
    start_time: WallTime,
    end_time: WallTime,
    duration: GoDuration,
}

impl Times {
    pub(crate) fn duration(&self) -> Duration {
        self.duration.0
    }
}

/// A moment as the original writes it: UTC without a zone, microseconds.
struct WallTime(Timestamp);

impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:.6}", Offset::UTC.to_datetime(self.0)))
    }
}
