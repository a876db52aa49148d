//! The application at the end, in either version of HTTP: it says who it is, and notes every request as it came.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::grammar::{ANSWER, CASE};
use super::wire::{Reader, fields_of};

/// A request as an application saw it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seen {
    /// Who saw it.
    pub(super) instance: String,
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    /// Names in lower case and values, in the order of names; several of one name in the order received.
    pub(super) fields: Vec<(String, String)>,
    pub(super) body: String,
}

impl Seen {
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The status that it asks for.
    fn answer(&self) -> u16 {
        self.value(ANSWER).and_then(|status| status.parse().ok()).unwrap_or(200)
    }
}

/// What the applications of one data plane saw, by the number of the case.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes(Arc<Mutex<BTreeMap<String, Vec<Seen>>>>);

impl Notes {
    /// Takes out what was seen of a case.
    pub(super) fn take(&self, case: &str) -> Vec<Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(case).unwrap_or_default()
    }

    fn note(&self, seen: Seen) {
        let case = seen.value(CASE).unwrap_or("none").to_owned();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(case).or_default().push(seen);
    }
}

/// What it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaks {
    Http1,
    Http2,
}

/// Starts an application under the name of its instance; its port.
pub(super) async fn start(instance: &str, speaks: Speaks, notes: &Notes) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (instance, notes) = (instance.to_owned(), notes.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (instance, notes) = (instance.clone(), notes.clone());
            tokio::spawn(async move {
                match speaks {
                    Speaks::Http1 => serve(stream, &instance, &notes).await,
                    Speaks::Http2 => serve2(stream, &instance, &notes).await,
                }
            });
        }
    });
    port
}

/// Serves a connection; what is no HTTP ends it.
async fn serve(stream: TcpStream, instance: &str, notes: &Notes) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = Reader::new(stream);
    loop {
        let head = reader.head().await?;
        let mut words = head.first.splitn(3, ' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let body = reader.body(head.framing(false)).await?;
        let body = String::from_utf8_lossy(&body).into_owned();
        let mut fields = head.fields;
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        let seen = Seen { instance: instance.to_owned(), method, target, fields, body };
        let (status, bodiless) = (seen.answer(), seen.method == "HEAD");
        notes.note(seen);
        reader.stream.write_all(&respond(status, instance, bodiless)).await.ok()?;
    }
}

/// Fields of a response, which routes edit.
const FIELDS: [(&str, &str); 5] =
    [("x-removed", "app"), ("x-set", "app"), ("x-added", "app"), ("set-cookie", "a=1"), ("set-cookie", "b=2")];

fn respond(status: u16, instance: &str, bodiless: bool) -> Vec<u8> {
    let fields: String = FIELDS.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut answer = format!("HTTP/1.1 {status} -\r\nx-app: {instance}\r\n{fields}");
    if !matches!(status, 204 | 304) {
        answer.push_str(&format!("content-length: {}\r\n", instance.len()));
    }
    answer.push_str("\r\n");
    if !bodiless && !matches!(status, 204 | 304) {
        answer.push_str(instance);
    }
    answer.into_bytes()
}

async fn serve2(stream: TcpStream, instance: &str, notes: &Notes) -> Option<()> {
    let shared = (instance.to_owned(), notes.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (instance, notes) = shared.clone();
        async move { answer2(request, &instance, &notes).await }
    });
    http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await.ok()
}

/// Answers a request; what does not come to its end is none, here as in HTTP/1.1.
async fn answer2(
    request: Request<Incoming>,
    instance: &str,
    notes: &Notes,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let mut fields = fields_of(&head.headers);
    fields.extend(head.uri.authority().map(|authority| ("host".to_owned(), authority.to_string())));
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    let target = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let (method, body) = (head.method.to_string(), String::from_utf8_lossy(&body).into_owned());
    let seen = Seen { instance: instance.to_owned(), method, target, fields, body };
    let status = seen.answer();
    let says = if seen.method == "HEAD" || matches!(status, 204 | 304) { "" } else { instance };
    notes.note(seen);
    let mut response = Response::builder().status(status).header("x-app", instance);
    for (name, value) in FIELDS {
        response = response.header(name, value);
    }
    Ok(response.body(Full::new(Bytes::copy_from_slice(says.as_bytes()))).expect("a response"))
}
