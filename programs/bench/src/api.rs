//! Calls of the mesh's HTTP API, with the times at which they were made and answered.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{HeaderMap, Method};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::connection::{Answer, Connection};

/// Longest wait for an answer that is due at once; past this the server hangs.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Header in which a write answers with its revision.
const REVISION_HEADER: &str = "x-consul-index";

/// A client of the API with one connection, which is opened when needed.
pub(crate) struct Api {
    address: SocketAddr,
    connection: Option<Connection>,
}

/// A call that asks for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    /// JSON; null for none.
    pub(crate) body: Value,
}

/// A write that was answered with success.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    /// Just before the request was written.
    pub(crate) called: Instant,
    /// When the answer arrived.
    pub(crate) answered: Instant,
    /// The revision the answer named.
    pub(crate) revision: Option<u64>,
}

impl Api {
    /// A client that has not connected yet.
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, connection: None }
    }

    /// Asks for a change.
    ///
    /// # Errors
    /// When the server cannot be reached, or answers with another status than 200; the text names the call and the
    /// server's words.
    pub(crate) async fn write(&mut self, method: Method, target: &str, body: &Value) -> anyhow::Result<Written> {
        let answer = self.call(method, target, body, ANSWER_DEADLINE).await?;
        Ok(Written { called: answer.sent, answered: answer.arrived, revision: revision(&answer.headers) })
    }

    /// Reads JSON; `wait` is how long the server may hold the answer back.
    ///
    /// # Errors
    /// As for [`Api::write`], and when the answer is not of this shape.
    pub(crate) async fn read<T: DeserializeOwned>(&mut self, target: &str, wait: Duration) -> anyhow::Result<T> {
        let answer = self.call(Method::GET, target, &Value::Null, wait + ANSWER_DEADLINE).await?;
        serde_json::from_slice(&answer.body)
            .with_context(|| format!("GET {target} answered {}", String::from_utf8_lossy(&answer.body)))
    }

    /// Reads text.
    ///
    /// # Errors
    /// As for [`Api::write`].
    pub(crate) async fn read_text(&mut self, target: &str) -> anyhow::Result<String> {
        let answer = self.call(Method::GET, target, &Value::Null, ANSWER_DEADLINE).await?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// Asks for something to be made, and reads what is answered.
    ///
    /// # Errors
    /// As for [`Api::read`].
    pub(crate) async fn make<T: DeserializeOwned>(&mut self, target: &str, body: &Value) -> anyhow::Result<T> {
        let answer = self.call(Method::PUT, target, body, ANSWER_DEADLINE).await?;
        serde_json::from_slice(&answer.body)
            .with_context(|| format!("PUT {target} answered {}", String::from_utf8_lossy(&answer.body)))
    }

    /// Asks by POST, and reads what is answered.
    ///
    /// # Errors
    /// As for [`Api::read`].
    pub(crate) async fn ask<T: DeserializeOwned>(&mut self, target: &str, body: &Value) -> anyhow::Result<T> {
        let answer = self.call(Method::POST, target, body, ANSWER_DEADLINE).await?;
        serde_json::from_slice(&answer.body)
            .with_context(|| format!("POST {target} answered {}", String::from_utf8_lossy(&answer.body)))
    }

    async fn call(&mut self, method: Method, target: &str, body: &Value, limit: Duration) -> anyhow::Result<Answer> {
        let named = format!("{method} {target}");
        // Taken, so that a call that fails or is given up halfway leaves no connection behind.
        let kept = self.connection.take();
        let mut connection = Connection::reuse_or_open(kept, self.address).await.with_context(|| named.clone())?;
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let answer = tokio::time::timeout(limit, connection.call(method, target, bytes))
            .await
            .with_context(|| format!("{named} was not answered within {limit:?}"))?
            .with_context(|| format!("{named} failed"))?;
        self.connection = Some(connection);
        if answer.status != http::StatusCode::OK {
            bail!("{named} answered {}: {}", answer.status, String::from_utf8_lossy(&answer.body).trim());
        }
        Ok(answer)
    }
}

fn revision(headers: &HeaderMap) -> Option<u64> {
    headers.get(REVISION_HEADER)?.to_str().ok()?.parse().ok()
}
