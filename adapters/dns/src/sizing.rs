//! Fitting a message into the bytes that its transport allows.

use hickory_proto::op::Message;

/// The bytes of `message`, shortened to `bytes_max`; `None` if not even the question fits or a name cannot be written.
///
/// Records are dropped from the end. TC is set only if answers or authorities are lost: what is additional may be missing
/// from a complete answer (RFC 2181 section 9).
pub(crate) fn encode(message: &Message, bytes_max: usize) -> Option<Vec<u8>> {
    let fits = |records: usize| beginning(message, records).to_vec().ok().filter(|bytes| bytes.len() <= bytes_max);
    let whole = message.answers.len() + message.authorities.len() + message.additionals.len();
    if let Some(bytes) = fits(whole) {
        return Some(bytes);
    }
    let mut best = fits(0)?;
    // Invariant: `low` records fit, `high` do not.
    let (mut low, mut high) = (0, whole);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match fits(middle) {
            Some(bytes) => (best, low) = (bytes, middle),
            None => high = middle,
        }
    }
    Some(best)
}

/// The message with its first `records` records.
fn beginning(message: &Message, records: usize) -> Message {
    let answers = records.min(message.answers.len());
    let authorities = (records - answers).min(message.authorities.len());
    let additionals = (records - answers - authorities).min(message.additionals.len());
    let mut shorter = Message::new(message.metadata.id, message.metadata.message_type, message.metadata.op_code);
    shorter.metadata = message.metadata;
    shorter.metadata.truncation |= answers < message.answers.len() || authorities < message.authorities.len();
    shorter.queries.clone_from(&message.queries);
    shorter.answers = message.answers[..answers].to_vec();
    shorter.authorities = message.authorities[..authorities].to_vec();
    shorter.additionals = message.additionals[..additionals].to_vec();
    shorter.edns.clone_from(&message.edns);
    shorter
}
