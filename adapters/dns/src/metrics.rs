//! What is counted: answers by response code, and packets that got none.

use hickory_proto::op::ResponseCode;
use prometheus_client::metrics::family::Family;
use starling_telemetry::{Counter, Registry};

/// The response codes that are sent, as `rcode` spells them (IANA's DNS parameters).
const CODES: [(ResponseCode, &str); 7] = [
    (ResponseCode::NoError, "NOERROR"),
    (ResponseCode::FormErr, "FORMERR"),
    (ResponseCode::ServFail, "SERVFAIL"),
    (ResponseCode::NXDomain, "NXDOMAIN"),
    (ResponseCode::NotImp, "NOTIMP"),
    (ResponseCode::Refused, "REFUSED"),
    (ResponseCode::BADVERS, "BADVERS"),
];

type Labels = [(&'static str, &'static str); 1];

/// Handles to the counters.
#[derive(Debug)]
pub(crate) struct Metrics {
    queries: Vec<(ResponseCode, Counter)>,
    dropped: Counter,
}

impl Metrics {
    /// Registers the counters.
    pub(crate) fn new(registry: &Registry) -> Self {
        let family = Family::<Labels, Counter>::default();
        let family = registry.register("dns_queries", "DNS queries by response code", family);
        let counter = |rcode| family.get_or_create(&[("rcode", rcode)]).clone();
        let queries = CODES.iter().map(|(code, rcode)| (*code, counter(rcode))).collect();
        let help = "DNS packets without an answer: responses, and what is too short to have a header";
        Self { queries, dropped: registry.register("dns_packets_dropped", help, Counter::default()) }
    }

    pub(crate) fn answered(&self, code: ResponseCode) {
        if let Some((_, counter)) = self.queries.iter().find(|(known, _)| *known == code) {
            counter.inc();
        }
    }

    pub(crate) fn dropped(&self) {
        self.dropped.inc();
    }
}
