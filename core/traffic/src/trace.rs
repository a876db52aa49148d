//! Trace context: what a request says of the trace that it is part of, and what the next hop is told.
//!
//! Owns reading and writing of the W3C's form and of both of B3's, and the decision whether a span is recorded; no clock, no
//! randomness (whoever asks passes numbers in), and nothing of how spans are sent. Reading is strict: what is not exactly of a
//! form is taken for absent, so that no two hops understand it differently.
//!
//! Source: W3C Trace Context (Recommendation, level 1); OpenZipkin, "B3 propagation".

use std::fmt;

use starling_model::{HeaderEdits, Percent};

use crate::authorise::HeaderFields;
use crate::route::hits;

/// Bytes of a value that is looked at: a `b3` with everything has 70, a `traceparent` 55 in the version that there is.
const VALUE_BYTES_MAX: usize = 256;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
const B3: &str = "b3";
const B3_TRACE: &str = "x-b3-traceid";
const B3_SPAN: &str = "x-b3-spanid";
const B3_PARENT: &str = "x-b3-parentspanid";
const B3_SAMPLED: &str = "x-b3-sampled";
const B3_FLAGS: &str = "x-b3-flags";

/// A trace; never zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceId(pub u128);

/// A span; never zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanId(pub u64);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a request says of its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// The trace and the span that the request comes from.
    pub context: Option<(TraceId, SpanId)>,
    /// Whether the caller records it; `None` if it leaves that to others.
    pub sampled: Option<bool>,
    /// Whether the context is of the W3C's form.
    w3c: bool,
    /// Whether it has B3's single field, or its several.
    b3: (bool, bool),
}

/// A hop's part in a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Begun {
    /// The trace.
    pub trace: TraceId,
    /// The span of this hop.
    pub span: SpanId,
    /// The span that it is part of; `None` for the first of a trace.
    pub parent: Option<SpanId>,
    /// Whether it is recorded.
    pub sampled: bool,
    /// What is done to the request's head, so that the next hop's span is part of this one.
    pub edits: HeaderEdits,
}

impl Received {
    /// Reads what a request says. The W3C's form comes before B3's single field, that before B3's several.
    #[must_use]
    pub fn read(headers: &dyn HeaderFields) -> Self {
        let said = |name: &str| headers.any(name, &mut |_| true);
        let b3 = (said(B3), [B3_TRACE, B3_SPAN, B3_PARENT, B3_SAMPLED, B3_FLAGS].into_iter().any(said));
        if let Some((trace, span, sampled)) = only(headers, TRACEPARENT).as_deref().and_then(traceparent) {
            return Self { context: Some((trace, span)), sampled: Some(sampled), w3c: true, b3 };
        }
        let (context, sampled) = match only(headers, B3).as_deref().and_then(b3_single) {
            Some(single) => single,
            None if b3.1 => b3_several(headers),
            None => (None, None),
        };
        Self { context, sampled, w3c: false, b3 }
    }

    /// Takes part in the trace, or begins one; where the caller leaves it open, `share` of all are recorded.
    pub fn begin(&self, share: Percent, mut random: impl FnMut() -> u64) -> Begun {
        let trace = self
            .context
            .map_or_else(|| TraceId((u128::from(random()) << 64 | u128::from(random())).max(1)), |(trace, _)| trace);
        let (parent, span) = (self.context.map(|(_, span)| span), SpanId(random().max(1)));
        let sampled = self.sampled.unwrap_or_else(|| hits(share, random()));
        let mut begun = Begun { trace, span, parent, sampled, edits: HeaderEdits::default() };
        // Whoever decided against it is not told anew.
        if sampled || self.sampled.is_none() {
            self.write(&mut begun);
        }
        begun
    }

    /// Writes the W3C's form, and those of B3's that the request came with.
    fn write(&self, begun: &mut Begun) {
        let Begun { trace, span, parent, sampled, edits } = begun;
        let flag = u8::from(*sampled);
        let mut set = |name: &str, value: String| edits.set.insert(name.to_owned(), value);
        set(TRACEPARENT, format!("00-{trace}-{span}-0{flag}"));
        if self.b3.0 {
            let of = parent.map(|parent| format!("-{parent}")).unwrap_or_default();
            set(B3, format!("{trace}-{span}-{flag}{of}"));
        }
        if self.b3.1 {
            set(B3_TRACE, trace.to_string());
            set(B3_SPAN, span.to_string());
            set(B3_SAMPLED, flag.to_string());
            match parent {
                Some(parent) => drop(set(B3_PARENT, parent.to_string())),
                None => drop(edits.remove.insert(B3_PARENT.to_owned())),
            }
        }
        if !self.w3c {
            // It is part of a `traceparent` that is not there, or is none.
            edits.remove.insert(TRACESTATE.to_owned());
        }
    }
}

/// The value of a field that is there once, and is no longer than any that means something.
fn only(headers: &dyn HeaderFields, name: &str) -> Option<String> {
    let (mut count, mut found) = (0, None);
    headers.any(name, &mut |value| {
        count += 1;
        found = std::str::from_utf8(value).ok().filter(|value| value.len() <= VALUE_BYTES_MAX).map(str::to_owned);
        false
    });
    found.filter(|_| count == 1)
}

/// `VERSION-TRACE-SPAN-FLAGS`; later versions may have more after it.
fn traceparent(value: &str) -> Option<(TraceId, SpanId, bool)> {
    let mut parts = value.splitn(5, '-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let more = parts.next().is_some();
    if version.len() != 2 || version == "ff" || (version == "00" && more) || trace.len() != 32 {
        return None;
    }
    digits(version)?;
    let flags = digits(flags).filter(|_| flags.len() == 2)?;
    Some((trace_id(trace)?, span_id(span)?, flags & 1 == 1))
}

/// What a request of B3 says: of its trace, and whether it is recorded.
type B3Said = (Option<(TraceId, SpanId)>, Option<bool>);

/// `TRACE-SPAN[-SAMPLED[-PARENT]]`, or `SAMPLED` alone.
fn b3_single(value: &str) -> Option<B3Said> {
    if let Some(sampled) = b3_sampled(value) {
        return Some((None, Some(sampled)));
    }
    let mut parts = value.split('-');
    let context = (trace_id(parts.next()?)?, span_id(parts.next()?)?);
    let sampled = match parts.next() {
        None => None,
        Some(part) => Some(b3_sampled(part)?),
    };
    match parts.next() {
        None => {}
        Some(parent) => drop(span_id(parent)?),
    }
    parts.next().is_none().then_some((Some(context), sampled))
}

fn b3_sampled(part: &str) -> Option<bool> {
    match part {
        "1" | "d" => Some(true),
        "0" => Some(false),
        _ => None,
    }
}

fn b3_several(headers: &dyn HeaderFields) -> B3Said {
    let value = |name: &str| only(headers, name);
    let context = || Some((trace_id(&value(B3_TRACE)?)?, span_id(&value(B3_SPAN)?)?));
    let sampled = match value(B3_SAMPLED).as_deref() {
        _ if value(B3_FLAGS).as_deref() == Some("1") => Some(true),
        // `true` and `false` are of B3's first days.
        Some("1" | "true") => Some(true),
        Some("0" | "false") => Some(false),
        Some(_) | None => None,
    };
    (context(), sampled)
}

/// 32 digits, or 16 of the days when traces had 64 bits.
fn trace_id(text: &str) -> Option<TraceId> {
    let number = digits(text).filter(|_| matches!(text.len(), 16 | 32));
    number.filter(|number| *number != 0).map(TraceId)
}

fn span_id(text: &str) -> Option<SpanId> {
    let number = digits(text).filter(|_| text.len() == 16)?;
    u64::try_from(number).ok().filter(|number| *number != 0).map(SpanId)
}

/// Hexadecimal digits, small ones only.
fn digits(text: &str) -> Option<u128> {
    let small = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if small { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn read(fields: &[(&str, &str)]) -> Received {
        Received::read(&fields.to_vec())
    }

    fn none() -> Percent {
        Percent::NONE
    }

    #[test]
    fn each_form_is_read_and_nothing_that_is_nearly_one() {
        let context = Some((TraceId(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c), SpanId(0xb7ad_6b71_6920_3331)));
        for (value, sampled) in [
            (format!("00-{TRACE}-{SPAN}-01"), true),
            (format!("00-{TRACE}-{SPAN}-02"), false),
            (format!("cc-{TRACE}-{SPAN}-01-more"), true),
            (format!("cc-{TRACE}-{SPAN}-ff"), true),
        ] {
            let received = read(&[("traceparent", &value)]);
            assert_eq!((received.context, received.sampled), (context, Some(sampled)), "{value}");
        }
        let single = |value: String| read(&[("b3", &value)]);
        for (value, sampled) in [
            (format!("{TRACE}-{SPAN}"), None),
            (format!("{TRACE}-{SPAN}-d"), Some(true)),
            (format!("{TRACE}-{SPAN}-0-{SPAN}"), Some(false)),
        ] {
            let received = single(value.clone());
            assert_eq!((received.context, received.sampled), (context, sampled), "{value}");
        }
        assert_eq!(single("0".to_owned()).sampled, Some(false));
        assert_eq!(single(format!("{SPAN}-{SPAN}-1")).context.map(|(trace, _)| trace.0), Some(0xb7ad_6b71_6920_3331));
        for (flags, sampled, expected) in [("", "1", true), ("1", "0", true), ("", "false", false)] {
            let fields =
                [("X-B3-TraceId", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", sampled), ("x-b3-flags", flags)];
            assert_eq!((read(&fields).context, read(&fields).sampled), (context, Some(expected)));
        }
        let zero = "0".repeat(32);
        for bad in [
            String::new(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{zero}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zero[..16]),
            format!("00-{TRACE}0-{SPAN}-01"),
            format!("00-{SPAN}-{SPAN}-01"),
            format!("cc-{TRACE}-{SPAN}-01-{}", "x".repeat(300)),
        ] {
            assert_eq!(read(&[("traceparent", &bad), ("b3", &bad)]).context, None, "{bad}");
        }
        let good = format!("00-{TRACE}-{SPAN}-01");
        assert_eq!(read(&[("traceparent", &good), ("traceparent", &good)]).context, None, "one of two is none");
        assert_eq!(read(&[("x-b3-traceid", TRACE), ("x-b3-sampled", "1")]).context, None);
    }

    #[test]
    fn the_next_hop_is_told_in_every_form_that_the_last_one_used() {
        let received = read(&[
            ("traceparent", &format!("00-{TRACE}-{SPAN}-01")),
            ("b3", "0"),
            ("x-b3-traceid", SPAN),
            ("tracestate", "a=b"),
        ]);
        let begun = received.begin(none(), || 0x1234);
        assert_eq!((begun.parent, begun.sampled), (Some(SpanId(0xb7ad_6b71_6920_3331)), true), "it was decided before");
        let set: Vec<_> = begun.edits.set.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let expected = [
            format!("b3: {TRACE}-0000000000001234-1-{SPAN}"),
            format!("traceparent: 00-{TRACE}-0000000000001234-01"),
            format!("x-b3-parentspanid: {SPAN}"),
            "x-b3-sampled: 1".to_owned(),
            "x-b3-spanid: 0000000000001234".to_owned(),
            format!("x-b3-traceid: {TRACE}"),
        ];
        assert_eq!(set, expected);
        assert!(begun.edits.remove.is_empty(), "tracestate passes");
    }

    #[test]
    fn whoever_has_decided_is_heeded_and_nobody_decides_twice() {
        let unsampled = format!("00-{TRACE}-{SPAN}-00");
        for fields in [("traceparent", &*unsampled), ("b3", "0"), ("x-b3-sampled", "0")] {
            let begun = read(&[fields]).begin(Percent::ALL, || 7);
            assert!(!begun.sampled && begun.edits.is_empty(), "{fields:?} passes as it is");
        }
        let open = read(&[("tracestate", "a=b")]);
        let (all, none) = (open.begin(Percent::ALL, || 7), open.begin(none(), || 7));
        assert!(all.sampled && !none.sampled && all.parent.is_none());
        assert!(none.edits.set["traceparent"].ends_with("-0000000000000007-00"), "the next hop is told of that, too");
        assert!(all.edits.remove.contains("tracestate"), "of no traceparent");
        assert_eq!(open.begin(Percent::ALL, || 0).span, SpanId(1), "zero is none");
    }
}
