//! What holds of the normal form of every request target. Included by the fuzz target and by the test that replays what it
//! has found.

use starling_traffic::normalise;

/// A normal form is its own, hides no segment, and leaves the query alone.
pub fn path(data: &[u8]) {
    let Ok(target) = std::str::from_utf8(data) else { return };
    let Ok(normal) = normalise(target) else { return };
    let segments = || normal.split('?').next().unwrap_or_default().split('/');
    // Parameters behind dots that were escaped, or behind a backslash, are left by the one pass that there is.
    if !segments().any(|segment| segment.starts_with(".;") || segment.starts_with("..;")) {
        assert_eq!(normalise(&normal).as_deref(), Ok(&*normal), "of {target}");
    }
    assert!(normal.bytes().all(|byte| byte.is_ascii_graphic()), "{normal}");
    let split = |text: &str| text.split_once('?').map(|(path, query)| (path.to_owned(), query.to_owned()));
    let query = |text: &str| split(text).map(|(_, query)| query);
    assert_eq!(query(&normal), query(target));
    let path = split(&normal).map_or(normal.to_string(), |(path, _)| path);
    assert!(path.starts_with('/'));
    assert!(path == "//" || !path.contains("//"), "{path}");
    assert!(!path.contains('\\'), "{path}");
    assert!(!path.split('/').any(|segment| matches!(segment, "." | "..")), "{path}");
    let lower = path.to_ascii_lowercase();
    assert!(!["%2f", "%5c", "%2e", "%00"].iter().any(|escape| lower.contains(escape)), "{path}");
}
