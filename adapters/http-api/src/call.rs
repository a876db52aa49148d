//! A request as handlers see it: authorised, its body read, its query taken apart.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use percent_encoding::percent_decode_str;
use starling_model::{CheckId, Datacenter, InstanceId, NodeName, Revision, ServiceName};

use crate::acl::Bearer;
use crate::blocking::Stopping;
use crate::error::ApiError;
use crate::filter::ListFilter;
use crate::limits::{WAIT_DEFAULT, WAIT_MAX};
use crate::parse::{Context, Dialect, Fields, parse_duration, parse_json};
use crate::ports::MeshFacts;
use crate::router::{Api, Route, authorised};

/// The parameters behind the question mark.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let decode = |part: &str| percent_decode_str(&part.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (decode(k), decode(v))).collect(),
        )
    }

    /// The first value, empty or not.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first value, if it says something.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|text| !text.is_empty())
    }

    pub(crate) fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Whether a switch such as `?passing` is on: there, and not said to be off.
    pub(crate) fn switch(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None => Ok(false),
            Some("" | "1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(true),
            Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(false),
            Some(_) => Err(ApiError::bad_request(format!("Invalid value for ?{name}"))),
        }
    }

    /// What a read waits for: the index that the client has, if it waits at all.
    pub(crate) fn index(&self) -> Result<Option<Revision>, ApiError> {
        match self.text("index").map(str::parse) {
            None | Some(Ok(0)) => Ok(None),
            Some(Ok(index)) => Ok(Some(Revision(index))),
            Some(Err(_)) => Err(ApiError::bad_request("Invalid index")),
        }
    }

    /// How long a read waits.
    pub(crate) fn wait(&self) -> Result<Duration, ApiError> {
        let wait = self.duration("wait")?.filter(|wait| !wait.is_zero());
        Ok(wait.unwrap_or(WAIT_DEFAULT).min(WAIT_MAX))
    }

    /// A duration, not longer than a read may wait.
    pub(crate) fn duration(&self, name: &str) -> Result<Option<Duration>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let duration = parse_duration(text).ok_or_else(|| ApiError::bad_request(format!("Invalid {name} time")))?;
        Ok(Some(duration.min(WAIT_MAX)))
    }

    /// How many of something, at most `max`.
    pub(crate) fn count(&self, name: &str, max: usize) -> Result<Option<usize>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse() {
            Ok(count) if count <= max => Ok(Some(count)),
            Ok(_) | Err(_) => Err(ApiError::bad_request(format!("{name}: {text:?} is no number from 0 to {max}"))),
        }
    }

    /// The revision that a config entry must have for a write to be done.
    pub(crate) fn cas(&self) -> Result<Option<Revision>, ApiError> {
        match self.get("cas").map(str::parse) {
            None => Ok(None),
            Some(Ok(index)) => Ok(Some(Revision(index))),
            Some(Err(_)) => Err(ApiError::bad_request("cas: is no index")),
        }
    }
}

/// A request.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) params: Vec<(String, String)>,
    pub(crate) query: Query,
    route: Route,
    asker: Asker,
    pub(crate) headers: Arc<HeaderMap>,
    pub(crate) body: Bytes,
    /// The body of a route that reads it piece by piece.
    pub(crate) stream: Mutex<axum::body::Body>,
    /// Which elements are wanted; the router applies it unless the route does.
    pub(crate) filter: Option<Arc<ListFilter>>,
    stopping: Stopping,
}

/// Who asks, as judged last. A wait takes [`Call`] by `&mut`, so no handler keeps a bearer of before it.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    bearer: Bearer,
    /// Shared with the router, which narrows the answer after the handler.
    latest: Arc<Mutex<Bearer>>,
}

impl Asker {
    pub(crate) fn new(bearer: Bearer) -> Self {
        Self { latest: Arc::new(Mutex::new(bearer.clone())), bearer }
    }

    /// Who asks, by the last judgement of the call.
    pub(crate) fn latest(&self) -> Bearer {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn renew(&mut self, bearer: Bearer) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = bearer.clone();
        self.bearer = bearer;
    }
}

/// The parts of a request that is admitted.
pub(crate) struct Parts {
    pub(crate) params: Vec<(String, String)>,
    pub(crate) query: Query,
    pub(crate) route: Route,
    pub(crate) asker: Asker,
    pub(crate) headers: Arc<HeaderMap>,
    pub(crate) body: Bytes,
    pub(crate) stream: axum::body::Body,
    pub(crate) filter: Option<Arc<ListFilter>>,
    pub(crate) stopping: Stopping,
}

impl Call {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { params, query, route, asker, headers, body, stream, filter, stopping } = parts;
        Self { params, query, route, asker, headers, body, stream: Mutex::new(stream), filter, stopping }
    }

    /// Who asks, as judged after the last wait.
    pub(crate) fn bearer(&self) -> &Bearer {
        &self.asker.bearer
    }

    /// The handle by which the router learns who asks once the handler has answered.
    pub(crate) fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// The end of serving, for an answer that goes on. A handler that waits for one thing uses [`Call::wait_for`].
    pub(crate) fn stopping(&self) -> &Stopping {
        &self.stopping
    }

    /// Judges the call again: its caller may have lost the right since.
    ///
    /// # Errors
    /// [`ApiError`] if the caller may no longer ask this.
    pub(crate) async fn judge_again(&mut self, api: &Api) -> Result<(), ApiError> {
        let bearer = authorised(api, &self.route, &self.headers, &self.params, &self.query).await?;
        self.asker.renew(bearer);
        Ok(())
    }

    /// Waits for `what`, and judges the call again. Gives `None` if serving ends first.
    ///
    /// # Errors
    /// [`ApiError`] if the caller lost the right meanwhile.
    pub(crate) async fn wait_for<T>(
        &mut self,
        api: &Api,
        what: impl Future<Output = T>,
    ) -> Result<Option<T>, ApiError> {
        let waited = self.stopping.cuts_short(what).await;
        Box::pin(self.judge_again(api)).await?;
        Ok(waited)
    }

    /// A part of the path; the route's pattern promises that it is there.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str())
    }

    pub(crate) fn service_name(&self) -> Result<ServiceName, ApiError> {
        self.param_name("service")
    }

    /// A part of the path that names a service.
    pub(crate) fn param_name(&self, name: &str) -> Result<ServiceName, ApiError> {
        ServiceName::new(self.param(name)).map_err(|error| ApiError::bad_request(error.to_string()))
    }

    pub(crate) fn instance_id(&self) -> Result<InstanceId, ApiError> {
        InstanceId::new(self.param("id")).map_err(|error| ApiError::bad_request(error.to_string()))
    }

    pub(crate) fn check_id(&self) -> Result<CheckId, ApiError> {
        CheckId::new(self.param("id")).map_err(|error| ApiError::bad_request(error.to_string()))
    }

    pub(crate) fn node_name(&self) -> Result<NodeName, ApiError> {
        NodeName::new(self.param("node")).map_err(|error| ApiError::bad_request(error.to_string()))
    }

    /// A context for parsing the body.
    pub(crate) fn context(facts: &MeshFacts) -> Context {
        context_of(facts.node_name.clone(), facts.datacenter.clone())
    }

    /// The body as an object's fields.
    pub(crate) fn fields<'c>(&self, context: &'c Context) -> Result<Fields<'c>, ApiError> {
        let value = parse_json(&self.body)?;
        if value.is_null() {
            return Err(ApiError::bad_request("body: must be an object, not null"));
        }
        Ok(Fields::of(context, "", value)?)
    }
}

fn context_of(node: NodeName, datacenter: Datacenter) -> Context {
    Context::new(Dialect::Api, node, datacenter)
}

/// Writes what was read and has no effect to the log.
pub(crate) fn log_notices(context: &Context) {
    for notice in context.take_notices() {
        tracing::warn!(field = notice.path, reason = notice.reason, "a field of a request has no effect");
    }
}
