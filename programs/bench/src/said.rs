//! What is said to people and programs on standard output and standard error. Whoever reads may be gone: that is no reason to panic, which
//! the macros that print do.

use std::io::Write;

/// Text as it is.
pub(crate) fn text(text: &str) {
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// A line.
pub(crate) fn line(line: &str) {
    text(&format!("{line}\n"));
}

/// A line beside the answer.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// In place of what was said last on the terminal's line, beside the answer.
pub(crate) fn over(text: &str) {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[K{text}");
}
