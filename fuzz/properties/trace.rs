//! What holds of trace context, whatever a request says. Included by the fuzz target and by the test that replays what it
//! has found.

use starling_model::Percent;
use starling_traffic::trace::{Received, SpanId};

/// The next hop reads what it was told: the same trace, this hop's span, the same decision.
pub fn trace(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let (name, value) = line.split_once(':').unwrap_or(("traceparent", line));
        fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    let received = Received::read(&fields);
    for share in [Percent::ALL, Percent::NONE] {
        let begun = received.begin(share, || 0x0123_4567_89ab_cdef);
        assert_eq!((begun.span, begun.parent), (SpanId(0x0123_4567_89ab_cdef), received.context.map(|(_, span)| span)));
        assert_eq!(begun.sampled, received.sampled.unwrap_or(share == Percent::ALL));
        if begun.edits.is_empty() {
            assert_eq!(received.sampled, Some(false), "who has decided against it is not told anew");
            continue;
        }
        let edits = &begun.edits;
        let mut told: Vec<_> = fields.clone();
        told.retain(|(name, _)| !edits.remove.contains(name) && !edits.set.contains_key(name));
        told.extend(edits.set.clone());
        let next = Received::read(&told);
        assert_eq!((next.context, next.sampled), (Some((begun.trace, begun.span)), Some(begun.sampled)));
        // Whoever reads only one of the forms reads the same.
        for only in [&["b3"][..], &["x-b3-traceid", "x-b3-spanid", "x-b3-sampled", "x-b3-flags"]] {
            let alone: Vec<_> = told.iter().filter(|(name, _)| only.contains(&name.as_str())).cloned().collect();
            let read = Received::read(&alone).context;
            assert!(alone.is_empty() || read == Some((begun.trace, begun.span)), "{alone:?}");
        }
    }
}
