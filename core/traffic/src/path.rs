//! The one form of a request path: what the policy judges, the route matches and the application receives.
//!
//! It is the form that Envoy 1.40 gives with `normalize_path`, `merge_slashes` and `UNESCAPE_AND_FORWARD`, in that filter's
//! order: escaped slashes are unescaped, dot segments lose their parameters (`..;x` is `..`), dot segments are resolved and
//! unreserved characters unescaped, slashes merged. Malformed percent signs pass, as they do there, but never become well
//! formed by unescaping what follows. A path of several slashes and nothing else is `//`, not `/`. One difference is
//! deliberate: bytes outside printable ASCII are an error here whatever the protocol, where Envoy leaves some of them to
//! its codec.

use std::borrow::Cow;

use starling_model::PathMatch;

/// What merging leaves of a path of several slashes and nothing else.
const ONLY_SLASHES: &str = "//";

/// Why a request target has no normal form; the answer to such a request is 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It does not begin with a slash.
    #[error("path does not begin with a slash")]
    NotAbsolute,
    /// It has a fragment, which no client may send (RFC 9112 section 3.2).
    #[error("path has a fragment")]
    Fragment,
    /// It holds a byte that a request target may not hold.
    #[error("path holds the byte {0:#04x}")]
    Byte(u8),
    /// It holds an escaped NUL.
    #[error("path holds an escaped NUL")]
    Nul,
}

/// Gives the normal form of a request target; the query, from the first `?`, is left as it is.
///
/// # Errors
/// [`PathError`] if the target is no absolute path in printable ASCII, or holds a fragment or an escaped NUL.
/// Source: RFC 3986 section 6.2.2; Envoy `HttpConnectionManager` fields `normalize_path`, `merge_slashes` and
/// `path_with_escaped_slashes_action`.
pub fn normalise(target: &str) -> Result<Cow<'_, str>, PathError> {
    if !target.starts_with('/') {
        return Err(PathError::NotAbsolute);
    }
    for byte in target.bytes() {
        match byte {
            b'#' => return Err(PathError::Fragment),
            0x21..=0x7e => {}
            _ => return Err(PathError::Byte(byte)),
        }
    }
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    if is_plainly_normal(path.as_bytes()) {
        return Ok(Cow::Borrowed(target));
    }
    let bare = strip_dot_parameters(&unescape_slashes(path.as_bytes()));
    let normal = merge_slashes(resolve(&bare)?);
    let mut normal = String::from_utf8(normal).expect("invariant: every byte was checked to be ASCII");
    if normal == path {
        return Ok(Cow::Borrowed(target));
    }
    normal.push_str(query);
    Ok(Cow::Owned(normal))
}

/// A target in normal form as it goes over HTTP/2: characters outside the grammar, which the query may have in HTTP/1.1 and
/// which readers of HTTP/2 do not take, are escaped.
#[must_use]
pub fn http2_form(target: &str) -> Cow<'_, str> {
    let foreign = |character: char| matches!(character, '"' | '<' | '>');
    if !target.contains(foreign) {
        return Cow::Borrowed(target);
    }
    let mut form = String::with_capacity(target.len() + 16);
    for character in target.chars() {
        match character {
            '"' => form.push_str("%22"),
            '<' => form.push_str("%3C"),
            '>' => form.push_str("%3E"),
            other => form.push(other),
        }
    }
    Cow::Owned(form)
}

/// Whether a rule's path can match any request at all: rules are compared with normal forms only.
///
/// Says nothing of expressions, which are taken to match.
#[must_use]
pub fn can_match(rule: &PathMatch) -> bool {
    let stays = |path: &str| !path.contains('?') && normalise(path).as_deref() == Ok(path);
    match rule {
        PathMatch::Exact(path) => stays(path),
        // A prefix may end inside a segment or an escape; one more letter shows what its whole parts become.
        PathMatch::Prefix(path) => path.is_empty() || path == ONLY_SLASHES || stays(&format!("{path}x")),
        PathMatch::Regex(_) => true,
    }
}

/// A quick look that is never wrong when it says yes.
fn is_plainly_normal(path: &[u8]) -> bool {
    let plain = |byte: u8| !matches!(byte, b'%' | b'\\') && !is_escaped_always(byte);
    path.iter().all(|byte| plain(*byte)) && !path.windows(2).any(|pair| pair == b"//" || pair == b"/.")
}

/// Printable characters outside the path grammar, which are sent escaped.
fn is_escaped_always(byte: u8) -> bool {
    matches!(byte, b'"' | b'<' | b'>' | b'^' | b'`' | b'{' | b'|' | b'}')
}

/// Escaped backslashes become plain ones, which count as slashes only once parameters are gone.
fn unescape_slashes(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, tail @ ..] = rest {
        let (byte, after) = match rest {
            [b'%', b'2', b'f' | b'F', tail @ ..] => (b'/', tail),
            [b'%', b'5', b'c' | b'C', tail @ ..] => (b'\\', tail),
            _ => (*first, tail),
        };
        out.push(byte);
        rest = after;
    }
    out
}

/// Takes what follows a `;` off segments that are dots in front of it, and makes backslashes slashes. Escaped dots do not
/// count here.
fn strip_dot_parameters(path: &[u8]) -> Vec<u8> {
    let segments = path.split(|byte| *byte == b'/').map(|segment| match segment {
        [b'.', b';', ..] => &segment[..1],
        [b'.', b'.', b';', ..] => &segment[..2],
        _ => segment,
    });
    let mut out = segments.collect::<Vec<_>>().join(&b'/');
    out.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
    out
}

fn merge_slashes(mut path: Vec<u8>) -> Vec<u8> {
    if path.len() > 1 && path.iter().all(|byte| *byte == b'/') {
        return ONLY_SLASHES.into();
    }
    path.dedup_by(|b, a| *a == b'/' && *b == b'/');
    path
}

/// Resolves dot segments and settles every percent sign.
fn resolve(path: &[u8]) -> Result<Vec<u8>, PathError> {
    let mut out = Output::default();
    let mut rest = path;
    while let [first, tail @ ..] = rest {
        if let Some(after) = strip_dot(rest) {
            rest = out.dot(after);
            continue;
        }
        rest = tail;
        match (*first, decode(rest)) {
            (b'%', Some(0)) => return Err(PathError::Nul),
            (b'%', Some(byte)) => {
                if is_unreserved(byte) {
                    out.push(byte);
                } else {
                    out.bytes.extend([b'%', rest[0], rest[1]]);
                }
                rest = &rest[2..];
            }
            (b'%', None) => out.push_lone_percent(),
            (byte, _) if is_escaped_always(byte) => out.bytes.extend(format!("%{byte:02X}").bytes()),
            (byte, _) => out.push(byte),
        }
    }
    Ok(out.bytes)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// What follows a dot, plain or escaped.
fn strip_dot(path: &[u8]) -> Option<&[u8]> {
    match path {
        [b'.', after @ ..] | [b'%', b'2', b'e' | b'E', after @ ..] => Some(after),
        _ => None,
    }
}

/// The byte that two hexadecimal digits stand for.
fn decode(digits: &[u8]) -> Option<u8> {
    let [high, low, ..] = digits else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(*high)? << 4 | digit(*low)?)
}

#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    /// Where the last percent sign stands that began no escape.
    lone_percent: Option<usize>,
}

impl Output {
    fn push(&mut self, byte: u8) {
        self.bytes.push(byte);
        // What was unescaped must not complete an escape that was not there before.
        if let Some(at) = self.lone_percent
            && self.bytes.len() == at + 3
            && decode(&self.bytes[at + 1..]).is_some()
        {
            self.bytes.splice(at..=at, *b"%25");
            self.lone_percent = None;
        }
    }

    fn push_lone_percent(&mut self) {
        self.lone_percent = Some(self.bytes.len());
        self.bytes.push(b'%');
    }

    /// Takes a dot, and what belongs to its segment if that is `.` or `..`; answers what is left after it.
    fn dot<'a>(&mut self, after: &'a [u8]) -> &'a [u8] {
        if self.bytes.last() == Some(&b'/') {
            if let Some(rest) = segment_end(after) {
                return rest;
            }
            if let Some(rest) = strip_dot(after).and_then(segment_end) {
                self.leave_segment();
                return rest;
            }
        }
        self.push(b'.');
        after
    }

    /// Goes back to the slash before the last one, or stays at the root.
    fn leave_segment(&mut self) {
        let parent = self.bytes.len().saturating_sub(1);
        if let Some(slash) = self.bytes[..parent].iter().rposition(|byte| *byte == b'/') {
            self.bytes.truncate(slash + 1);
        }
        self.lone_percent = self.lone_percent.filter(|at| *at < self.bytes.len());
    }
}

/// What follows the end of a segment, its slash taken; `None` inside a segment.
fn segment_end(path: &[u8]) -> Option<&[u8]> {
    match path {
        [] => Some(path),
        [b'/', rest @ ..] => Some(rest),
        _ => None,
    }
}
