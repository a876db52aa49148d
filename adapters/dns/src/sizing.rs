//! Fitting a message into the bytes that its transport allows.

use std::collections::BTreeSet;

use hickory_proto::op::Message;
use hickory_proto::rr::RData;
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder, NameEncoding};

/// Bytes for which memory is set aside at first: most answers have fewer.
const USUAL_BYTES: usize = 512;

/// What an answer is fitted to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fit {
    /// Bytes that it may have.
    pub(crate) bytes_max: usize,
    /// Whether one that loses answers says so.
    pub(crate) says_truncated: bool,
    /// Whether names are written as pointers where they can be.
    pub(crate) compressed: bool,
}

impl Fit {
    /// For what is not subject to any settings.
    pub(crate) fn plain(bytes_max: usize) -> Self {
        Self { bytes_max, says_truncated: true, compressed: true }
    }
}

/// The bytes of `message`, shortened to what fits; `None` if not even the question fits or a name cannot be written.
///
/// Records are dropped from the end. TC is set only if answers or authorities are lost: what is additional may be missing
/// from a complete answer (RFC 2181 section 9).
pub(crate) fn encode(message: &Message, fit: Fit) -> Option<Vec<u8>> {
    let within = |message: &Message| bytes(message, fit).filter(|bytes| bytes.len() <= fit.bytes_max);
    if let Some(bytes) = within(message) {
        return Some(bytes);
    }
    let fits = |records: usize| within(&beginning(message, records, fit));
    let mut best = fits(0)?;
    // Invariant: `low` records fit, `high` do not.
    let (mut low, mut high) = (0, message.answers.len() + message.authorities.len() + message.additionals.len());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match fits(middle) {
            Some(bytes) => (best, low) = (bytes, middle),
            None => high = middle,
        }
    }
    Some(best)
}

/// Leaves `most` answers, and of what is additional what they need; whether any are lost.
pub(crate) fn cut(message: &mut Message, most: usize) -> bool {
    if message.answers.len() <= most {
        return false;
    }
    message.answers.truncate(most);
    let Message { answers, additionals, .. } = message;
    let targets = answers.iter().filter_map(|record| {
        if let RData::SRV(server) = &record.data {
            Some(&server.target)
        } else if let RData::NS(server) = &record.data {
            Some(&server.0)
        } else {
            None
        }
    });
    let targets: BTreeSet<_> = targets.collect();
    additionals.retain(|record| targets.contains(&record.name));
    true
}

fn bytes(message: &Message, fit: Fit) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    let mut encoder = BinEncoder::new(&mut bytes);
    if !fit.compressed {
        encoder.set_name_encoding(NameEncoding::Uncompressed);
    }
    message.emit(&mut encoder).ok()?;
    Some(bytes)
}

/// The message with its first `records` records.
fn beginning(message: &Message, records: usize, fit: Fit) -> Message {
    let answers = records.min(message.answers.len());
    let authorities = (records - answers).min(message.authorities.len());
    let additionals = (records - answers - authorities).min(message.additionals.len());
    let mut shorter = Message::new(message.metadata.id, message.metadata.message_type, message.metadata.op_code);
    shorter.metadata = message.metadata;
    let loses = answers < message.answers.len() || authorities < message.authorities.len();
    shorter.metadata.truncation |= loses && fit.says_truncated;
    shorter.queries.clone_from(&message.queries);
    shorter.answers = message.answers[..answers].to_vec();
    shorter.authorities = message.authorities[..authorities].to_vec();
    shorter.additionals = message.additionals[..additionals].to_vec();
    shorter.edns.clone_from(&message.edns);
    shorter
}
