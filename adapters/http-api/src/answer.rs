//! Answers: status, headers and body as Consul gives them.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use serde_json::Value;
use starling_model::{Action, Revision};

use crate::acl::{Bearer, Visible};
use crate::barrier::Standing;
use crate::call::Query;
use crate::error::ApiError;
use crate::filter::ListFilter;
use crate::ports::{CatalogPort, Currency};

pub(crate) mod forms;

const JSON: &str = "application/json";
const PLAIN: &str = "text/plain; charset=utf-8";
/// OpenMetrics 1.0, what `prometheus-client` writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const OCTETS: &str = "application/octet-stream";
const PEM_CHAIN: &str = "application/pem-certificate-chain";

/// What a body is.
#[derive(Debug)]
enum Body {
    Empty,
    Json(Value),
    Text { content_type: &'static str, text: String },
    Octets(Vec<u8>),
    Stream(axum::body::Body),
}

/// Which headers speak of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Index {
    None,
    /// Of a read that can be waited for, with everything that Consul says about its consistency.
    Read(Revision),
    /// Of a write: the revision it made.
    Written(Revision),
}

/// An answer that is a success, or that carries JSON beside another status.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    body: Body,
    index: Index,
    content_hash: Option<String>,
    until: Option<Standing>,
    /// Whether something was left out that the caller may not see.
    narrowed: bool,
}

impl Answer {
    fn new(body: Body) -> Self {
        Self { status: StatusCode::OK, body, index: Index::None, content_hash: None, until: None, narrowed: false }
    }

    /// Nothing, with status 200.
    pub(crate) fn empty() -> Self {
        Self::new(Body::Empty)
    }

    /// A JSON value.
    pub(crate) fn json(value: Value) -> Self {
        Self::new(Body::Json(value))
    }

    /// Plain text.
    pub(crate) fn text(text: String) -> Self {
        Self::new(Body::Text { content_type: PLAIN, text })
    }

    /// Metrics.
    pub(crate) fn metrics(text: String) -> Self {
        Self::new(Body::Text { content_type: OPEN_METRICS, text })
    }

    /// Bytes of somebody's own.
    pub(crate) fn octets(bytes: Vec<u8>) -> Self {
        Self::new(Body::Octets(bytes))
    }

    /// Bytes of a form of their own, as they come.
    pub(crate) fn stream(body: axum::body::Body) -> Self {
        Self::new(Body::Stream(body))
    }

    /// Certificates in PEM.
    pub(crate) fn pem(text: String) -> Self {
        Self::new(Body::Text { content_type: PEM_CHAIN, text })
    }

    /// With the headers of a read at `index`.
    pub(crate) fn read_at(mut self, index: Revision) -> Self {
        self.index = Index::Read(index.max(Revision(1)));
        self
    }

    /// With the revision that a write made.
    pub(crate) fn written_at(mut self, revision: Revision) -> Self {
        self.index = Index::Written(revision.max(Revision(1)));
        self
    }

    /// The revision that a write made.
    pub(crate) fn written(&self) -> Option<Revision> {
        match self.index {
            Index::Written(revision) => Some(revision),
            Index::None | Index::Read(_) => None,
        }
    }

    /// With those elements of its list alone that a filter admits; of the list in a field, if one is named.
    pub(crate) fn filtered(mut self, filter: &ListFilter, field: Option<&str>) -> Self {
        if let Body::Json(value) = &mut self.body {
            match field {
                None => filter.keep(value),
                Some(field) => value.get_mut(field).into_iter().for_each(|list| filter.keep(list)),
            }
        }
        self
    }

    /// The rows of its list, if it is one.
    pub(crate) fn rows(&mut self) -> Option<&mut Vec<Value>> {
        if let Body::Json(Value::Array(rows)) = &mut self.body { Some(rows) } else { None }
    }

    /// Without what its caller may not see; `service` is the one that was asked for, if one was.
    pub(crate) fn seen_by(mut self, bearer: &Bearer, visible: Visible, service: &str) -> Self {
        if let Body::Json(value) = &mut self.body {
            self.narrowed |= visible.narrow(value, bearer, service);
        }
        self
    }

    /// Told to be without something, if it is.
    pub(crate) fn narrowed_if(mut self, narrowed: bool) -> Self {
        self.narrowed |= narrowed;
        self
    }

    /// With how it stands with what was waited for.
    pub(crate) fn until(mut self, standing: Standing) -> Self {
        self.until = Some(standing);
        self
    }

    /// With another status.
    pub(crate) fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// With the hash by which a reader waits for the next content.
    pub(crate) fn content_hash(mut self, hash: String) -> Self {
        self.content_hash = Some(hash);
        self
    }
}

/// How answers to one request are written.
pub(crate) struct Rendering {
    pretty: bool,
    cached: bool,
    consistency: &'static str,
    default_policy: Action,
    catalog: Arc<dyn CatalogPort>,
}

impl Rendering {
    pub(crate) fn of(query: &Query, default_policy: Action, catalog: Arc<dyn CatalogPort>) -> Self {
        let consistency = match (query.has("stale"), query.has("consistent")) {
            (true, false) => "stale",
            (false, true) => "consistent",
            _ => "leader",
        };
        Self { pretty: query.has("pretty"), cached: query.has("cached"), consistency, default_policy, catalog }
    }

    pub(crate) fn answer(&self, answer: Answer) -> Response<axum::body::Body> {
        let is_foreign = matches!(answer.body, Body::Octets(_));
        let (content_type, text) = match answer.body {
            Body::Empty => (None, axum::body::Body::empty()),
            Body::Json(value) => (Some(JSON), self.json_text(&value).into()),
            Body::Text { content_type, text } => (Some(content_type), text.into()),
            Body::Octets(bytes) => (Some(OCTETS), bytes.into()),
            Body::Stream(body) => (Some(OCTETS), body),
        };
        let mut response = self.response(answer.status, content_type, text);
        if is_foreign {
            // Whoever wrote it may have written a page, which a browser is not to take for one of ours.
            set(&mut response, "x-content-type-options", "nosniff");
            set(&mut response, "content-security-policy", "sandbox");
        }
        match answer.index {
            Index::None => {}
            Index::Read(index) => {
                self.read_headers(&mut response, index);
                if self.cached {
                    // Every read is answered from memory, which is kept current.
                    set(&mut response, "x-cache", "HIT");
                    set(&mut response, "age", "0");
                }
            }
            Index::Written(revision) => set(&mut response, "x-consul-index", &revision.to_string()),
        }
        if answer.narrowed {
            set(&mut response, "x-consul-results-filtered-by-acls", "true");
        }
        if let Some(hash) = answer.content_hash {
            set(&mut response, "x-consul-contenthash", &hash);
        }
        if let Some(standing) = answer.until {
            set(&mut response, "x-starling-until", &standing.to_string());
        }
        response
    }

    pub(crate) fn error(&self, error: &ApiError) -> Response<axum::body::Body> {
        let mut response = self.response(error.status, Some(PLAIN), error.text.clone().into());
        // The text repeats what the request said, which a browser is not to take for a page.
        set(&mut response, "x-content-type-options", "nosniff");
        set(&mut response, "content-security-policy", "sandbox");
        if let Some(index) = error.index {
            self.read_headers(&mut response, index);
        }
        if let Some(seconds) = error.retry_after {
            set(&mut response, "retry-after", &seconds.to_string());
        }
        response
    }

    /// 405 with what is allowed; to OPTIONS the same is the answer.
    pub(crate) fn wrong_method(&self, method: &Method, allow: &str) -> Response<axum::body::Body> {
        let mut response = if *method == Method::OPTIONS {
            self.response(StatusCode::OK, None, axum::body::Body::empty())
        } else {
            let text = format!("method {method} not allowed");
            self.response(StatusCode::METHOD_NOT_ALLOWED, Some(PLAIN), text.into())
        };
        set(&mut response, "allow", allow);
        response
    }

    fn response(
        &self,
        status: StatusCode,
        content_type: Option<&'static str>,
        body: axum::body::Body,
    ) -> Response<axum::body::Body> {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        if let Some(content_type) = content_type {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        set(&mut response, "x-consul-default-acl-policy", self.default_policy.as_str());
        response
    }

    fn read_headers(&self, response: &mut Response<axum::body::Body>, index: Revision) {
        set(response, "x-consul-index", &index.to_string());
        let Currency { last_contact, knows_leader, .. } = self.catalog.currency();
        set(response, "x-consul-knownleader", if knows_leader { "true" } else { "false" });
        set(response, "x-consul-lastcontact", &last_contact.as_millis().to_string());
        let consistency = if knows_leader || self.consistency == "consistent" { self.consistency } else { "stale" };
        set(response, "x-consul-effective-consistency", consistency);
        set(response, "x-consul-query-backend", "blocking-query");
    }

    fn json_text(&self, value: &Value) -> String {
        let mut text = Vec::new();
        let written = if self.pretty {
            let four = serde_json::ser::PrettyFormatter::with_indent(b"    ");
            serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut text, four))
        } else {
            serde_json::to_writer(&mut text, value)
        };
        written.expect("invariant: a JSON value always serialises");
        let mut text = String::from_utf8(text).expect("invariant: JSON is UTF-8");
        // Go writes these escaped; they occur inside strings only.
        for (plain, escaped) in
            [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")]
        {
            if text.contains(plain) {
                text = text.replace(plain, escaped);
            }
        }
        if self.pretty {
            text.push('\n');
        }
        text
    }
}

fn set(response: &mut Response<axum::body::Body>, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}
