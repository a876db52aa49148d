//! HTTP checks: 2xx passes, 429 warns, everything else is critical.
//!
//! Every run makes its own connection: a check that reuses one says nothing of whether new clients get in.

use bytes::Bytes;
use http::header::{ACCEPT, HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use starling_model::check::OUTPUT_BYTES_MAX;
use starling_model::{CheckKind, CheckStatus};
use tokio::task::JoinSet;

use super::dial;
use super::failure::Failure;
use super::tls::Trust;
use super::{chain, critical};
use crate::registrations::Health;

/// Redirects followed in one run; the figure of Go's client, and so of Consul. They stay at the scheme, host and port of the
/// check, so that nobody who answers a check chooses what this node asks next.
const REDIRECTS_MAX: usize = 10;

/// Bytes of response header that are buffered; hyper's smallest permitted figure is 8 KiB.
const HEADER_BYTES_MAX: usize = 64 * 1024;

struct Ask {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

/// A response, and the connection over which its body comes; that ends when this is dropped.
struct Exchange {
    response: Response<Incoming>,
    _connection: JoinSet<()>,
}

pub(super) async fn run(kind: &CheckKind, trust: &Trust) -> Result<Health, Failure> {
    let CheckKind::Http { url, method, headers, body, tls_skip_verify, tls_server_name, disable_redirects } = kind
    else {
        return Ok(critical("not an HTTP check".to_owned()));
    };
    let mut ask = first_ask(url, method, headers, body)?;
    for _ in 0..=REDIRECTS_MAX {
        let named = |failure: Failure| failure.of(&format!("HTTP {} {}", ask.method, ask.uri));
        let exchange = send(&ask, *tls_skip_verify, tls_server_name, trust).await.map_err(named)?;
        let onward = if *disable_redirects { None } else { redirect(&ask, &exchange.response) };
        match onward {
            None => return Ok(judge(&ask, exchange).await),
            Some(next) => ask = next.map_err(|reason| named(reason.into()))?,
        }
    }
    Ok(critical(format!("HTTP {method} {url}: more than {REDIRECTS_MAX} redirects")))
}

fn first_ask(
    url: &str,
    method: &str,
    given: &std::collections::BTreeMap<String, Vec<String>>,
    body: &str,
) -> Result<Ask, String> {
    let uri = url.parse().map_err(|error| format!("{url:?} is no URL: {error}"))?;
    let method = if method.is_empty() { "GET" } else { method };
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| format!("{method:?} is no HTTP method"))?;
    let mut headers = HeaderMap::new();
    for (name, values) in given {
        let name: HeaderName = name.parse().map_err(|_| format!("{name:?} is no header name"))?;
        for value in values {
            let value = HeaderValue::from_str(value).map_err(|_| format!("a value of header {name} is not allowed"))?;
            headers.append(name.clone(), value);
        }
    }
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static("Starling Health Check"));
    headers.entry(ACCEPT).or_insert(HeaderValue::from_static("text/plain, text/*, */*"));
    Ok(Ask { method, uri, headers, body: Bytes::copy_from_slice(body.as_bytes()) })
}

async fn send(ask: &Ask, skip_verify: bool, server_name: &str, trust: &Trust) -> Result<Exchange, Failure> {
    let secure = ask.uri.scheme_str() == Some("https");
    let authority = ask.uri.authority().ok_or_else(|| "the URL has no host".to_owned())?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let stream = dial::tcp((host, port)).await?;
    let name = if server_name.is_empty() { host } else { server_name };
    let mut request = Request::builder().method(ask.method.clone());
    request = request.uri(ask.uri.path_and_query().map_or("/", |path| path.as_str()));
    let mut request = request.body(Full::new(ask.body.clone())).map_err(|error| error.to_string())?;
    *request.headers_mut() = ask.headers.clone();
    if !request.headers().contains_key(HOST) {
        let value = HeaderValue::from_str(&host_header(authority)).map_err(|error| error.to_string())?;
        request.headers_mut().insert(HOST, value);
    }
    if secure {
        let stream = trust.connect(stream, name, skip_verify, Some(b"http/1.1")).await?;
        Ok(exchange(TokioIo::new(stream), request).await?)
    } else {
        Ok(exchange(TokioIo::new(stream), request).await?)
    }
}

/// Host and port, without the user and password that a URL may carry.
fn host_header(authority: &http::uri::Authority) -> String {
    match authority.port_u16() {
        Some(port) => format!("{}:{port}", authority.host()),
        None => authority.host().to_owned(),
    }
}

async fn exchange<I>(io: I, request: Request<Full<Bytes>>) -> Result<Exchange, String>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let built = http1::Builder::new().max_buf_size(HEADER_BYTES_MAX).handshake(io).await;
    let (mut sender, connection) = built.map_err(|error| chain(&error))?;
    let mut task = JoinSet::new();
    task.spawn(async move {
        // What breaks the connection is seen by whoever waits for the response.
        let _ = connection.await;
    });
    let response = sender.send_request(request).await.map_err(|error| chain(&error))?;
    Ok(Exchange { response, _connection: task })
}

fn redirect(ask: &Ask, response: &Response<Incoming>) -> Option<Result<Ask, String>> {
    let keeps_method = matches!(response.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    let changes_method =
        matches!(response.status(), StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER);
    if !(keeps_method || changes_method) {
        return None;
    }
    let location = response.headers().get(LOCATION)?;
    let uri = match location.to_str().ok().and_then(|location| resolve(&ask.uri, location)) {
        Some(uri) => uri,
        None => return Some(Err(format!("redirected to {location:?}, which is no URL"))),
    };
    if (uri.scheme(), uri.authority()) != (ask.uri.scheme(), ask.uri.authority()) {
        return Some(Err(format!(
            "redirected to {uri}, which is elsewhere: a check follows redirects at its own host and port"
        )));
    }
    let headers = ask.headers.clone();
    let plain = changes_method && ask.method != Method::HEAD;
    let method = if plain { Method::GET } else { ask.method.clone() };
    let body = if plain { Bytes::new() } else { ask.body.clone() };
    Some(Ok(Ask { method, uri, headers, body }))
}

/// The URL that `location` means as seen from `base` (RFC 3986 section 5, without dot segments).
fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    let scheme = base.scheme_str()?;
    let authority = base.authority()?;
    let absolute = if location.starts_with("http://") || location.starts_with("https://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{}{location}", base.path())
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    absolute.parse().ok().filter(|uri: &Uri| uri.authority().is_some())
}

async fn judge(ask: &Ask, mut exchange: Exchange) -> Health {
    let code = exchange.response.status();
    let status = match code {
        _ if code.is_success() => CheckStatus::Passing,
        StatusCode::TOO_MANY_REQUESTS => CheckStatus::Warning,
        _ => CheckStatus::Critical,
    };
    let body = exchange.response.body_mut();
    let mut text = Vec::new();
    while text.len() < OUTPUT_BYTES_MAX {
        match body.frame().await {
            Some(Ok(frame)) => text.extend(frame.into_data().unwrap_or_default()),
            Some(Err(_)) | None => break,
        }
    }
    text.truncate(OUTPUT_BYTES_MAX);
    let text = String::from_utf8_lossy(&text);
    Health { status, output: format!("HTTP {} {}: {code} Output: {text}", ask.method, ask.uri) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_resolved_against_the_page_they_came_from() {
        let base: Uri = "http://h:81/a/b?q=1".parse().unwrap();
        for (location, resolved) in [
            ("/c", "http://h:81/c"),
            ("c", "http://h:81/a/c"),
            ("?x=2", "http://h:81/a/b?x=2"),
            ("//other/c", "http://other/c"),
            ("https://other/", "https://other/"),
        ] {
            assert_eq!(resolve(&base, location), Some(resolved.parse().unwrap()), "{location}");
        }
        assert_eq!(resolve(&base, "http://"), None);
    }
}
