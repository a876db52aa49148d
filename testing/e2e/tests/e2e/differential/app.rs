//! The application at the end, in either version of HTTP: it says who it is, and notes every request as it came.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use std::convert::Infallible;

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::grammar::{ANSWER, CASE, FAILURES, RPC_ANSWER};
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

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.value(name).and_then(|value| value.parse().ok())
    }

    /// The status that it asks for, if this is the try of that number.
    fn answer(&self, tries: usize) -> u16 {
        if tries <= self.number(FAILURES).unwrap_or(0) { 503 } else { self.number(ANSWER).unwrap_or(200) }
    }

    /// The status of gRPC that it asks for, and whether it comes after a body.
    fn rpc_answer(&self, tries: usize) -> (u16, bool) {
        if tries <= self.number(FAILURES).unwrap_or(0) {
            return (UNAVAILABLE, false);
        }
        let asked = self.value(RPC_ANSWER).unwrap_or("0");
        let late = asked.strip_prefix("late-");
        let status = late.unwrap_or(asked).parse().unwrap_or(0);
        (status, status == 0 || late.is_some())
    }
}

/// The status of gRPC of whoever cannot serve at the moment.
const UNAVAILABLE: u16 = 14;

/// What the applications of one data plane saw, by the number of the case.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes(Arc<Mutex<BTreeMap<String, Vec<Seen>>>>);

impl Notes {
    /// Takes out what was seen of a case.
    pub(super) fn take(&self, case: &str) -> Vec<Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(case).unwrap_or_default()
    }

    /// How many were seen of its case, this one included.
    fn note(&self, seen: Seen) -> usize {
        let case = seen.value(CASE).unwrap_or("none").to_owned();
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_case = notes.entry(case).or_default();
        of_case.push(seen);
        of_case.len()
    }
}

/// What it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaks {
    Http1,
    Http2,
    /// HTTP/2, with a status in the trailers.
    Grpc,
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
                    Speaks::Http2 => serve2(stream, &instance, &notes, answer2).await,
                    Speaks::Grpc => serve2(stream, &instance, &notes, answer_rpc).await,
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
        let bodiless = seen.method == "HEAD";
        let tries = notes.note(seen.clone());
        let status = seen.answer(tries);
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

/// What an application of HTTP/2 answers.
type Answered = Response<BoxBody<Bytes, Infallible>>;

async fn serve2(
    stream: TcpStream,
    instance: &str,
    notes: &Notes,
    answer: fn(&Seen, usize, &str) -> Answered,
) -> Option<()> {
    let shared = (instance.to_owned(), notes.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (instance, notes) = shared.clone();
        async move {
            let seen = see(request, &instance).await?;
            let tries = notes.note(seen.clone());
            Ok::<_, hyper::Error>(answer(&seen, tries, &instance))
        }
    });
    http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await.ok()
}

/// A request; what does not come to its end is none, here as in HTTP/1.1.
async fn see(request: Request<Incoming>, instance: &str) -> Result<Seen, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let mut fields = fields_of(&head.headers);
    fields.extend(head.uri.authority().map(|authority| ("host".to_owned(), authority.to_string())));
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    let target = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let (method, body) = (head.method.to_string(), String::from_utf8_lossy(&body).into_owned());
    Ok(Seen { instance: instance.to_owned(), method, target, fields, body })
}

fn answer2(seen: &Seen, tries: usize, instance: &str) -> Answered {
    let status = seen.answer(tries);
    let says = if seen.method == "HEAD" || matches!(status, 204 | 304) { "" } else { instance };
    let mut response = Response::builder().status(status).header("x-app", instance);
    for (name, value) in FIELDS {
        response = response.header(name, value);
    }
    response.body(Full::new(Bytes::copy_from_slice(says.as_bytes())).boxed()).expect("a response")
}

/// Answers a call: with a message and the status after it, or with the status alone, as servers do that have nothing to say.
fn answer_rpc(seen: &Seen, tries: usize, instance: &str) -> Answered {
    let (status, has_message) = seen.rpc_answer(tries);
    let response = Response::builder().header("content-type", "application/grpc").header("x-app", instance);
    if !has_message {
        let alone = response.header("grpc-status", status).header("grpc-message", "as asked");
        return alone.body(Empty::new().boxed()).expect("a response");
    }
    let mut message = vec![0, 0, 0, 0, u8::try_from(instance.len()).expect("a short name")];
    message.extend(instance.as_bytes());
    let trailers = HeaderMap::from_iter([
        (http::HeaderName::from_static("grpc-status"), HeaderValue::from(status)),
        (http::HeaderName::from_static("grpc-message"), HeaderValue::from_static("as asked")),
    ]);
    let body = Full::new(Bytes::from(message)).with_trailers(std::future::ready(Some(Ok(trailers))));
    response.body(body.boxed()).expect("a response")
}
