//! Where lines end: CR LF, and nothing else.

use memchr::{memchr, memchr_iter};

/// Whether every LF follows a CR and every CR is followed by an LF. A lone one is a line end to some readers and none to
/// others. `text` must end where a line does.
pub(crate) fn ends_are_whole(text: &[u8]) -> bool {
    let feeds_follow = memchr_iter(b'\n', text).all(|at| at > 0 && text[at - 1] == b'\r');
    feeds_follow && memchr_iter(b'\r', text).all(|at| text.get(at + 1) == Some(&b'\n'))
}

/// The first line of `text` without its end, and its length with it; `None` if there is no end yet.
pub(crate) fn first(text: &[u8]) -> Option<Result<(&[u8], usize), ()>> {
    let end = memchr(b'\n', text)?;
    let line = match end.checked_sub(1).map(|last| (&text[..last], text[last])) {
        Some((line, b'\r')) if memchr(b'\r', line).is_none() => line,
        _ => return Some(Err(())),
    };
    Some(Ok((line, end + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_characters_are_found() {
        for (text, whole) in [("a\r\nb\r\n", true), ("a\nb\r\n", false), ("a\rb\r\n", false), ("\n", false), ("", true)]
        {
            assert_eq!(ends_are_whole(text.as_bytes()), whole, "{text:?}");
        }
        assert_eq!(first(b"5\r\nhello"), Some(Ok((&b"5"[..], 3))));
        assert_eq!(first(b"5\r"), None);
        assert_eq!(first(b"5\n"), Some(Err(())));
        assert_eq!(first(b"\n"), Some(Err(())));
    }
}
