//! What the heads of requests and responses have in common: fields, by name and as ranges of the bytes received.

use std::ops::Range;

use bytes::Bytes;

use crate::body::BodyLength;

/// Fields that httparse is given room for; [`Limits::fields`] is at most this.
pub(crate) const FIELDS_ROOM: usize = 128;

/// What a head may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the whole head.
    pub head_bytes: usize,
    /// Bytes of the request target.
    pub target_bytes: usize,
    /// Fields, 128 at most.
    pub fields: usize,
}

impl Default for Limits {
    /// Envoy's limits: 60 KiB and 100 fields; half of a head may be its target.
    fn default() -> Self {
        Self { head_bytes: 60 * 1024, target_bytes: 30 * 1024, fields: 100 }
    }
}

/// A field as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    name: Range<u32>,
    value: Range<u32>,
    /// Whether it is for this connection only, so not to be passed on (RFC 9110 section 7.6.1).
    pub(crate) hop_by_hop: bool,
    /// Whether nothing is decided by it: the next hop does not hear what it says.
    pub(crate) unheeded: bool,
}

/// The fields of a message and where its body ends.
#[derive(Debug, Clone)]
pub struct Head {
    pub(crate) bytes: Bytes,
    pub(crate) fields: Vec<Field>,
    /// How the end of the body is known.
    pub body: BodyLength,
    /// `Content-Length` as given; of a response without a body it says how long that would have been.
    pub content_length: Option<u64>,
    /// Whether the sender allows another message on the connection.
    pub keep_alive: bool,
    /// What the sender wants to speak instead, from `Upgrade`, where `Connection` names it.
    pub(crate) upgrade: Option<Range<u32>>,
}

impl Head {
    /// Every field in the order received, names as written.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|field| self.pair(field))
    }

    /// The fields that are for the recipient at the end: what stays on this connection is left out, framing included.
    pub fn end_to_end(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().filter(|field| !field.hop_by_hop).map(|field| self.pair(field))
    }

    /// The first value of a field; `name` in any case.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        self.fields().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Every value of a field by which something may be decided, one per line: what `Connection` names is not among them, as
    /// nobody behind this hop hears of it.
    pub fn heeded<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let heeded = self.fields.iter().filter(|field| !field.unheeded).map(|field| self.pair(field));
        heeded.filter(move |(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The protocol that the sender would change to.
    #[must_use]
    pub fn upgrade(&self) -> Option<&[u8]> {
        self.upgrade.as_ref().map(|range| self.slice(range))
    }

    pub(crate) fn slice(&self, range: &Range<u32>) -> &[u8] {
        &self.bytes[range.start as usize..range.end as usize]
    }

    fn pair(&self, field: &Field) -> (&str, &[u8]) {
        // A name is a token, which is ASCII.
        (std::str::from_utf8(self.slice(&field.name)).unwrap_or_default(), self.slice(&field.value))
    }
}

/// Ranges of parts of one buffer.
pub(crate) struct Ranges(usize);

impl Ranges {
    pub(crate) fn of(buffer: &[u8]) -> Self {
        Self(buffer.as_ptr() as usize)
    }

    /// `part` must lie in the buffer, as everything does that httparse answers with.
    pub(crate) fn range(&self, part: &[u8]) -> Range<u32> {
        if part.is_empty() {
            return 0..0;
        }
        let start = u32::try_from((part.as_ptr() as usize).saturating_sub(self.0)).unwrap_or(u32::MAX);
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
        start..start.saturating_add(length)
    }
}

/// Why the fields of a message cannot be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsound {
    /// The end of the body could be understood in two ways.
    Framing(&'static str),
    /// A transfer coding other than chunked.
    Coding,
    /// `Connection` names a field that says whom the message is for, or whom it comes from.
    Named,
}

/// What the fields say together.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) length: Option<u64>,
    pub(crate) chunked: bool,
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) upgrade: Option<Range<u32>>,
    pub(crate) fields: Vec<Field>,
}

/// Reads the fields that frame a message, and marks those that stay on this connection.
pub(crate) fn read_fields(buffer: &[u8], parsed: &[httparse::Header<'_>]) -> Result<Said, Unsound> {
    let ranges = Ranges::of(buffer);
    let mut said = Said { fields: Vec::with_capacity(parsed.len()), ..Said::default() };
    let mut named: Option<Vec<&[u8]>> = None;
    let unasked;
    for field in parsed {
        let (mut hop_by_hop, mut unheeded) = (true, false);
        // By length first: most fields are none of these.
        match field.name.len() {
            10 if field.name.eq_ignore_ascii_case("connection") => {
                said.connection(field.value, named.get_or_insert_default())?;
                unheeded = true;
            }
            14 if field.name.eq_ignore_ascii_case("content-length") => {
                if said.length.replace(content_length(field.value)?).is_some() {
                    return Err(Unsound::Framing("there are two content-length fields"));
                }
            }
            17 if field.name.eq_ignore_ascii_case("transfer-encoding") => {
                if said.chunked {
                    return Err(Unsound::Framing("there are two transfer-encoding fields"));
                }
                if !field.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Unsound::Coding);
                }
                said.chunked = true;
                unheeded = true;
            }
            7 if field.name.eq_ignore_ascii_case("upgrade") => said.upgrade = Some(ranges.range(field.value)),
            2 if field.name.eq_ignore_ascii_case("te") => {}
            7 if field.name.eq_ignore_ascii_case("trailer") => {}
            10 if field.name.eq_ignore_ascii_case("keep-alive") => unheeded = true,
            16 if field.name.eq_ignore_ascii_case("proxy-connection") => unheeded = true,
            _ => hop_by_hop = false,
        }
        let (name, value) = (ranges.range(field.name.as_bytes()), ranges.range(field.value));
        said.fields.push(Field { name, value, hop_by_hop, unheeded });
    }
    if said.chunked && said.length.is_some() {
        return Err(Unsound::Framing("there are both content-length and transfer-encoding"));
    }
    if let Some(named) = named {
        for (field, parsed) in said.fields.iter_mut().zip(parsed) {
            let is_named = named.iter().any(|name| name.eq_ignore_ascii_case(parsed.name.as_bytes()));
            field.hop_by_hop |= is_named;
            // An upgrade that is asked for is passed on.
            field.unheeded |= is_named && !parsed.name.eq_ignore_ascii_case("upgrade");
        }
        let asked = named.iter().any(|name| name.eq_ignore_ascii_case(b"upgrade"));
        unasked = said.upgrade.is_some() && !asked;
    } else {
        unasked = said.upgrade.is_some();
    }
    if unasked {
        said.upgrade = None;
        for (field, parsed) in said.fields.iter_mut().zip(parsed) {
            field.unheeded |= parsed.name.eq_ignore_ascii_case("upgrade");
        }
    }
    Ok(said)
}

impl Said {
    /// Notes what `Connection` says; the names that it gives to other fields go to `named`.
    fn connection<'a>(&mut self, value: &'a [u8], named: &mut Vec<&'a [u8]>) -> Result<(), Unsound> {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|option| !option.is_empty()) {
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if NEVER_NAMED.iter().any(|never| option.eq_ignore_ascii_case(never)) {
                return Err(Unsound::Named);
            } else if !KEPT.iter().any(|kept| option.eq_ignore_ascii_case(kept)) {
                named.push(option);
            }
        }
        Ok(())
    }

    /// Whether another message may follow.
    pub(crate) fn stays(&self, version: u8) -> bool {
        !self.close && (version == 1 || self.keep_alive)
    }
}

/// Fields that nobody can have taken off by naming them in `Connection`: the next hop decides by them.
const KEPT: [&[u8]; 3] = [b"authorization", b"cookie", b"x-forwarded-client-cert"];

/// Fields that nobody names in `Connection` who means well, as Envoy has it; some readers would take them off, some not.
const NEVER_NAMED: [&[u8]; 4] = [b"host", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"];

/// Digits and nothing else; a list of equal lengths is refused, too.
fn content_length(value: &[u8]) -> Result<u64, Unsound> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    number.ok_or(Unsound::Framing("content-length is no number"))
}
