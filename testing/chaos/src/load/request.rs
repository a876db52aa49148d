//! One operation over the real HTTP API, and what its answer says.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use starling_e2e::http::{Answer as Response, Connection, Method};

use crate::history::{Key, Kind, Mode};
use crate::register::{Answer, Call};

/// The name of the value in metadata.
const VALUE: &str = "v";

/// The service on each node.
const SERVICE: &str = "chaos";

/// Longest wait for a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);

/// What came of a request.
#[derive(Debug)]
pub(crate) enum Reply {
    Answered {
        answer: Answer,
        index: u64,
    },
    /// It may have been carried out.
    Unknown(String),
    /// Nobody took the connection: it was surely not carried out.
    NotSent(String),
    /// It broke what is promised of one answer alone.
    Broken(String),
}

/// A client of one server: one connection, made anew after every failure, and once the server has fallen.
pub(crate) struct Client {
    address: String,
    /// With the number of the server's falls before it was made.
    connection: Option<(Connection, u32)>,
}

impl Client {
    pub(crate) fn new(address: &str) -> Self {
        Self { address: address.to_owned(), connection: None }
    }

    /// Sends a request and reads the answer; the outer error says why it was not even sent.
    async fn send(
        &mut self,
        falls: u32,
        (method, target, body): (Method, String, String),
        limit: Duration,
    ) -> Result<Result<Response, String>, String> {
        let mut connection = match self.connection.take() {
            Some((connection, of)) if of == falls => connection,
            Some(_) | None => match tokio::time::timeout(CONNECT_TIME_MAX, Connection::open(&self.address)).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(error)) => return Err(format!("{error:#}")),
                Err(elapsed) => return Err(format!("connecting: {elapsed}")),
            },
        };
        match tokio::time::timeout(limit, connection.send(method, &target, &[], body)).await {
            Ok(Ok(answer)) => {
                self.connection = Some((connection, falls));
                Ok(Ok(answer))
            }
            Ok(Err(error)) => Ok(Err(format!("{error:#}"))),
            Err(_elapsed) => Ok(Err(format!("no answer within {limit:?}"))),
        }
    }

    /// Carries out a call, at a server that has fallen so many times. `query` is what a read says beside its key, such as
    /// `stale`.
    pub(crate) async fn call(&mut self, falls: u32, key: &Key, call: Call, query: &str, limit: Duration) -> Reply {
        match self.send(falls, request(key, call, query), limit).await {
            Err(reason) => Reply::NotSent(reason),
            Ok(Err(reason)) => Reply::Unknown(reason),
            Ok(Ok(response)) => reply(key, call, &response),
        }
    }
}

/// What a read of that mode says in its query.
pub(crate) fn query_of(mode: Mode) -> &'static str {
    match mode {
        Mode::Consistent => "consistent",
        Mode::Stale => "stale",
        Mode::Write | Mode::Default | Mode::Blocking => "",
    }
}

fn request(key: &Key, call: Call, query: &str) -> (Method, String, String) {
    let name = &key.name;
    let query = if query.is_empty() { String::new() } else { format!("?{query}") };
    let kind = match key.kind {
        Kind::ServiceDefaults => "service-defaults",
        Kind::ServiceResolver => "service-resolver",
        Kind::Node => return node_request(name, call, &query),
        Kind::Kv => return kv_request(name, call, &query),
    };
    let entry = |value: u64| json!({"Kind": kind, "Name": name, "Meta": {VALUE: value.to_string()}}).to_string();
    match call {
        Call::Read => (Method::GET, format!("/v1/config/{kind}/{name}{query}"), String::new()),
        Call::Write(value) => (Method::PUT, "/v1/config".to_owned(), entry(value)),
        Call::CompareAndSet { expected, value } => (Method::PUT, format!("/v1/config?cas={expected}"), entry(value)),
        Call::Delete => (Method::DELETE, format!("/v1/config/{kind}/{name}"), String::new()),
    }
}

fn node_request(name: &str, call: Call, query: &str) -> (Method, String, String) {
    match call {
        Call::Read => (Method::GET, format!("/v1/catalog/node/{name}{query}"), String::new()),
        Call::Write(value) | Call::CompareAndSet { value, .. } => {
            let meta = json!({VALUE: value.to_string()});
            let service = json!({"Service": SERVICE, "Port": 80, "Meta": meta});
            let body = json!({"Node": name, "Address": "192.0.2.7", "NodeMeta": meta, "Service": service});
            (Method::PUT, "/v1/catalog/register".to_owned(), body.to_string())
        }
        Call::Delete => (Method::PUT, "/v1/catalog/deregister".to_owned(), json!({"Node": name}).to_string()),
    }
}

fn kv_request(name: &str, call: Call, query: &str) -> (Method, String, String) {
    match call {
        Call::Read => (Method::GET, format!("/v1/kv/{name}{query}"), String::new()),
        Call::Write(value) => (Method::PUT, format!("/v1/kv/{name}?flags={value}"), value.to_string()),
        Call::CompareAndSet { expected, value } => {
            (Method::PUT, format!("/v1/kv/{name}?flags={value}&cas={expected}"), value.to_string())
        }
        Call::Delete => (Method::DELETE, format!("/v1/kv/{name}"), String::new()),
    }
}

fn reply(key: &Key, call: Call, response: &Response) -> Reply {
    let index = response.header("x-consul-index").and_then(|text| text.parse().ok());
    let text = response.text();
    match (response.status, call, index) {
        (200, Call::CompareAndSet { .. }, _) if text.trim() == "false" => {
            // A refusal tells no index.
            Reply::Answered { answer: Answer::Mismatch, index: 0 }
        }
        (200, Call::Read, Some(index)) => match found(key, &text) {
            Ok(answer) => Reply::Answered { answer, index },
            Err(reason) => Reply::Broken(format!("{reason}: {text}")),
        },
        (404, Call::Read, Some(index)) => Reply::Answered { answer: Answer::Absent, index },
        (200, _, Some(index)) => Reply::Answered { answer: Answer::Written(index), index },
        (status @ 500.., _, _) => Reply::Unknown(format!("{status} {}", text.trim())),
        (status, _, _) => Reply::Broken(format!("{status} {text} (index {index:?}) in answer to {call:?}")),
    }
}

fn found(key: &Key, text: &str) -> Result<Answer, String> {
    let body: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let value_of = |meta: &Value| meta[VALUE].as_str().and_then(|text| text.parse().ok());
    let (value, modified) = match key.kind {
        Kind::ServiceDefaults | Kind::ServiceResolver => (value_of(&body["Meta"]), &body["ModifyIndex"]),
        Kind::Kv => {
            let (bytes, flags) = (&body[0]["Value"], body[0]["Flags"].as_u64());
            let bytes = bytes.as_str().and_then(|text| BASE64.decode(text).ok());
            if bytes != flags.map(|flags| flags.to_string().into_bytes()) {
                return Err("bytes and flags are of different writes".to_owned());
            }
            (flags, &body[0]["ModifyIndex"])
        }
        Kind::Node if body.is_null() => return Ok(Answer::Absent),
        Kind::Node => {
            let service = &body["Services"][SERVICE]["Meta"];
            let node = &body["Node"];
            // They are written by one transaction.
            if value_of(&node["Meta"]) != value_of(service) {
                return Err("node and service are of different registrations".to_owned());
            }
            (value_of(&node["Meta"]), &node["ModifyIndex"])
        }
    };
    match (value, modified.as_u64()) {
        (Some(value), Some(modified)) => Ok(Answer::Found { value, modified }),
        _ => Err("no value".to_owned()),
    }
}
