//! One packet in, at most one packet out: the rules that hold before and after the zone is asked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hickory_proto::op::{Edns, Header, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use starling_telemetry::Registry;

use crate::CatalogReader;
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::sizing::{self, Fit};
use crate::view::View;
use crate::zone::{Draw, Zone};

/// Bytes of a query; a name has at most 255, and EDNS options of real clients a few dozen.
pub const QUERY_BYTES_MAX: usize = 4096;

/// Bytes of an answer over UDP to a client without EDNS (RFC 1035 section 4.2.1).
pub const PLAIN_UDP_BYTES: usize = 512;

/// Bytes of an answer over UDP, whatever the client offers: past this, packets are fragmented on some paths, and
/// fragments are lost or forged (the figure of DNS flag day 2020).
pub const UDP_BYTES_MAX: u16 = 1232;

/// Bytes of an answer over TCP, whose length field has 16 bits (RFC 1035 section 4.2.2).
pub const TCP_BYTES_MAX: usize = u16::MAX as usize;

/// How many times longer than its question an answer over UDP may be. A source address can be forged, and a server that
/// multiplies is a weapon; a client that needs more asks again over TCP, where the source is proved.
pub const AMPLIFICATION_MAX: usize = 10;

/// Bytes of the shortest record that is answered: a pointer to the name, the fixed fields, an IPv4 address. An answer
/// of so many bytes cannot hold more records than its size divided by this.
const RECORD_BYTES_MIN: usize = 16;

/// The EDNS version spoken (RFC 6891).
const EDNS_VERSION: u8 = 0;

/// How a query came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// In a datagram, from whoever it says.
    Udp,
    /// Over a connection.
    Tcp,
}

/// Answers packets from a catalog.
#[derive(Debug)]
pub struct Responder<R> {
    reader: R,
    zone: Zone,
    /// The view of the newest revision asked about, and the version of what is seen.
    view: Mutex<Option<(u64, Arc<View>)>>,
    rotation: AtomicU64,
    metrics: Option<Metrics>,
}

impl<R: CatalogReader> Responder<R> {
    /// Answers from `reader`. The order of records begins anywhere, so that servers that start together do not all
    /// name the same instance first.
    #[must_use]
    pub fn new(reader: R) -> Self {
        let zone = Zone::new(reader.datacenter().clone(), reader.trust_domain().clone()).at(reader.node().cloned());
        Self { reader, zone, view: Mutex::new(None), rotation: AtomicU64::new(fastrand::u64(..)), metrics: None }
    }

    /// The same with other settings.
    #[must_use]
    pub fn configured(self, settings: Settings) -> Self {
        Self { zone: self.zone.with(settings), ..self }
    }

    /// The same, counted in `registry` as `starling_dns_queries_total{rcode}` and `starling_dns_packets_dropped_total`.
    #[must_use]
    pub fn counted(self, registry: &Registry) -> Self {
        Self { metrics: Some(Metrics::new(registry)), ..self }
    }

    /// The answer to `packet`; `None` if it is to be dropped: it is a response (two servers must not talk for ever) or
    /// too short to have a header.
    #[must_use]
    pub fn respond(&self, packet: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let answer = self.answer(packet, transport);
        if let Some(metrics) = &self.metrics {
            match &answer {
                Some((code, _)) => metrics.answered(*code),
                None => metrics.dropped(),
            }
        }
        answer.map(|(_, bytes)| bytes)
    }

    fn answer(&self, packet: &[u8], transport: Transport) -> Option<(ResponseCode, Vec<u8>)> {
        let header = Header::read(&mut BinDecoder::new(packet)).ok()?;
        if header.metadata.message_type == MessageType::Response {
            return None;
        }
        let bytes_max = match transport {
            Transport::Udp => packet.len().saturating_mul(AMPLIFICATION_MAX),
            Transport::Tcp => TCP_BYTES_MAX,
        };
        match read(packet, &header) {
            Err(code) => {
                let message = refusal(&header.metadata, code);
                sizing::encode(&message, Fit::plain(bytes_max)).map(|bytes| (code, bytes))
            }
            Ok(request) => {
                let offered = offered(&request, transport);
                let fit = self.fit(transport, bytes_max.min(offered));
                let mut message = self.reply(&request, fit.bytes_max);
                if offered == PLAIN_UDP_BYTES {
                    self.cut(&mut message);
                }
                let code = message.metadata.response_code;
                let encoded = sizing::encode(&message, fit).map(|bytes| (code, bytes));
                encoded.or_else(|| {
                    let code = ResponseCode::ServFail;
                    sizing::encode(&refusal(&header.metadata, code), fit).map(|bytes| (code, bytes))
                })
            }
        }
    }

    fn fit(&self, transport: Transport, bytes_max: usize) -> Fit {
        let settings = self.zone.settings();
        let says_truncated = transport == Transport::Tcp || settings.says_truncated.unwrap_or(true);
        Fit { bytes_max, says_truncated, compressed: settings.compressed }
    }

    /// Leaves as many answers as clients of 512 bytes are to have.
    fn cut(&self, message: &mut Message) {
        let settings = self.zone.settings();
        if let Some(most) = settings.udp_answers_max
            && sizing::cut(message, most)
        {
            message.metadata.truncation |= settings.says_truncated.unwrap_or(false);
        }
    }

    fn reply(&self, request: &Request, bytes_max: usize) -> Message {
        let unknown_version = request.edns.as_ref().is_some_and(|edns| edns.version() > EDNS_VERSION);
        let mut message = if unknown_version {
            let mut message = refusal(&request.metadata, ResponseCode::BADVERS);
            message.add_query(request.query.clone());
            message
        } else {
            let rotation = self.rotation.fetch_add(1, Ordering::Relaxed);
            // One more than can fit, so that a cut is seen as one.
            let draw = Draw { rotation, records_max: bytes_max / RECORD_BYTES_MIN + 1 };
            self.zone.answer(&self.view(), &request.query, draw)
        };
        message.metadata.id = request.metadata.id;
        message.metadata.recursion_desired = request.metadata.recursion_desired;
        if let Some(asked) = &request.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_BYTES_MAX).set_version(EDNS_VERSION).set_dnssec_ok(asked.flags().dnssec_ok);
            message.set_edns(edns);
        }
        message
    }

    /// The view of the newest catalog, made anew only when the revision, or what is seen, has changed.
    fn view(&self) -> Arc<View> {
        let (version, snapshot) = (self.reader.sight_version(), self.reader.snapshot());
        let mut kept = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.as_ref() {
            Some((seen, view)) if *seen == version && view.revision() == snapshot.revision() => Arc::clone(view),
            Some(_) | None => {
                let sight = self.reader.sight(&snapshot);
                let view = Arc::new(View::of(snapshot).seen_by(sight));
                *kept = Some((version, Arc::clone(&view)));
                view
            }
        }
    }
}

/// A query with exactly one question.
struct Request {
    metadata: Metadata,
    query: Query,
    edns: Option<Edns>,
}

/// Reads the rest of a query. Counts are judged first: the decoder sets memory aside for as many questions as a header
/// claims.
fn read(packet: &[u8], header: &Header) -> Result<Request, ResponseCode> {
    if header.metadata.op_code != OpCode::Query {
        return Err(ResponseCode::NotImp);
    }
    if header.counts.queries != 1 || packet.len() > QUERY_BYTES_MAX {
        return Err(ResponseCode::FormErr);
    }
    let message = Message::from_vec(packet).map_err(|_| ResponseCode::FormErr)?;
    let query = message.queries.into_iter().next().ok_or(ResponseCode::FormErr)?;
    Ok(Request { metadata: header.metadata, query, edns: message.edns })
}

/// The bytes that the client takes, within our own limit.
fn offered(request: &Request, transport: Transport) -> usize {
    match (transport, &request.edns) {
        (Transport::Tcp, _) => TCP_BYTES_MAX,
        (Transport::Udp, None) => PLAIN_UDP_BYTES,
        (Transport::Udp, Some(edns)) => usize::from(edns.max_payload().min(UDP_BYTES_MAX)).max(PLAIN_UDP_BYTES),
    }
}

/// An answer without a question or records.
pub(crate) fn refusal(request: &Metadata, code: ResponseCode) -> Message {
    let mut message = Message::error_msg(request.id, request.op_code, code);
    message.metadata.recursion_desired = request.recursion_desired;
    message
}
