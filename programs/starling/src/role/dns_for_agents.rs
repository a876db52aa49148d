//! DNS questions that agents pass on: packets in the bodies of requests, in the way of RFC 8484.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use starling_dns::responder::QUERY_BYTES_MAX;
use starling_dns::{Responder, Transport};
use starling_http_api::Body;

use super::dns_reader::DnsReader;

/// Where agents ask, beside the API.
pub(crate) const PATH: &str = "/starling/v1/dns";

/// The query of [`PATH`] for a question that came in a datagram: its answer has to fit into one.
pub(crate) const BY_DATAGRAM: &str = "udp";

/// Answers one packet; with no content if it gets none.
pub(super) async fn answer(responder: Arc<Responder<DnsReader>>, request: Request<Incoming>) -> Response<Body> {
    let transport = if request.uri().query() == Some(BY_DATAGRAM) { Transport::Udp } else { Transport::Tcp };
    let mut response = Response::new(Body::empty());
    match Limited::new(request.into_body(), QUERY_BYTES_MAX).collect().await {
        Err(_) => *response.status_mut() = StatusCode::BAD_REQUEST,
        Ok(packet) => match responder.respond(&packet.to_bytes(), transport) {
            None => *response.status_mut() = StatusCode::NO_CONTENT,
            Some(answer) => *response.body_mut() = Body::from(Bytes::from(answer)),
        },
    }
    response
}
