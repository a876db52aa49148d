//! DNS questions that agents pass on: packets in the bodies of requests, in the way of RFC 8484. Each is answered with the rights of the
//! token that its agent has for those who ask it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use starling_dns::responder::QUERY_BYTES_MAX;
use starling_dns::{Responder, Settings, Transport};
use starling_http_api::Body;
use starling_http_api::acl::secret_hash;
use starling_model::AclSecret;

use super::catalog::Catalog;
use super::dns_reader::{Asker, DnsReader};

/// Where agents ask, beside the API.
pub(crate) const PATH: &str = "/starling/v1/dns";

/// The query of [`PATH`] for a question that came in a datagram: its answer has to fit into one.
pub(crate) const BY_DATAGRAM: &str = "udp";

/// The header in which an agent shows its token.
pub(crate) const TOKEN: &str = "x-consul-token";

/// Tokens whose view of the catalog is kept; of more, a question of the one that was asked by longest ago costs a pass over the names.
const VIEWS_MAX: usize = 256;

/// For how long such a view is kept that nobody asks.
const VIEW_KEPT: Duration = Duration::from_secs(300);

/// Answers what agents pass on.
pub(super) struct ForAgents {
    catalog: Arc<Catalog>,
    settings: Settings,
    /// For agents without a token.
    anonymous: Arc<Responder<DnsReader>>,
    /// For those whose token is nobody's.
    nobody: Arc<Responder<DnsReader>>,
    /// By the hashes of tokens that there are, or were when they were first shown.
    by_token: Mutex<BTreeMap<[u8; 32], Kept>>,
}

struct Kept {
    responder: Arc<Responder<DnsReader>>,
    asked_at: Instant,
}

impl ForAgents {
    pub(super) fn new(catalog: Arc<Catalog>, settings: Settings) -> Self {
        let by = |asker| responder(&catalog, &settings, asker);
        let (anonymous, nobody) = (by(Asker::Anybody), by(Asker::Nobody));
        Self { catalog, settings, anonymous, nobody, by_token: Mutex::default() }
    }

    /// Answers one packet; with no content if it gets none.
    pub(super) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let transport = if request.uri().query() == Some(BY_DATAGRAM) { Transport::Udp } else { Transport::Tcp };
        let responder = self.responder(request.headers());
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

    /// What answers whoever shows this token, or none.
    fn responder(&self, headers: &HeaderMap) -> Arc<Responder<DnsReader>> {
        let Some(shown) = headers.get(TOKEN).filter(|_| self.catalog.facts.acl_default.is_some()) else {
            return Arc::clone(&self.anonymous);
        };
        let Some(secret) = shown.to_str().ok().and_then(AclSecret::new) else { return Arc::clone(&self.nobody) };
        let hash = secret_hash(secret.reveal());
        let mut by_token = self.by_token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = by_token.get_mut(&hash.0) {
            kept.asked_at = Instant::now();
            return Arc::clone(&kept.responder);
        }
        if self.catalog.server.snapshot().acl_token_by_secret(&hash).is_none() {
            return Arc::clone(&self.nobody);
        }
        // Each holds the catalog as it was when it was last asked.
        by_token.retain(|_, kept| kept.asked_at.elapsed() < VIEW_KEPT);
        if by_token.len() >= VIEWS_MAX {
            let oldest = by_token.iter().min_by_key(|(_, kept)| kept.asked_at).map(|(hash, _)| *hash);
            oldest.and_then(|oldest| by_token.remove(&oldest));
        }
        let responder = responder(&self.catalog, &self.settings, Asker::Token(secret));
        by_token.insert(hash.0, Kept { responder: Arc::clone(&responder), asked_at: Instant::now() });
        responder
    }
}

fn responder(catalog: &Arc<Catalog>, settings: &Settings, asker: Asker) -> Arc<Responder<DnsReader>> {
    Arc::new(Responder::new(DnsReader::new(Arc::clone(catalog), asker)).configured(settings.clone()))
}
