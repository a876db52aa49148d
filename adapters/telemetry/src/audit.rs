//! The audit log: one JSON object a line, each with the SHA-256 of the line before it.
//!
//! A line that is changed, removed or put in between breaks the chain from there on. Lines cut off at the end are found by comparing
//! the last hash with one that was kept elsewhere. Cost: one write of some 300 bytes a request that changes something.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The hash that the first line names.
const FIRST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Others than the owner learn nothing of who did what.
const MODE: u32 = 0o600;

/// A request that was judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// When, in milliseconds since 1970 (UTC).
    pub time_ms: u64,
    /// Where it came from: an IP address, that of this machine for a Unix socket; `local` for what an agent passes on.
    pub from: String,
    /// Accessor ID of the token; `None` without access control, and for a token that is not known.
    pub accessor: Option<String>,
    /// The method.
    pub method: String,
    /// The path, without its query, which may hold a token.
    pub path: String,
    /// The HTTP status.
    pub status: u16,
    /// The revision that a write made.
    pub revision: Option<u64>,
}

/// Why an audit log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file cannot be opened, read or written.
    #[error("cannot use audit log {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line does not follow from the one before it.
    #[error("audit log {} is broken at line {line}: {reason}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// How far an audit log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEnd {
    /// Lines.
    pub lines: u64,
    /// The hash of the last one. Kept elsewhere, it shows later that nothing before it was changed.
    pub hash: String,
}

/// A file to which entries are appended.
pub struct AuditLog {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    file: File,
    last: String,
}

impl AuditLog {
    /// Opens a log, and checks it from its first line; makes it if there is none.
    ///
    /// # Errors
    /// [`AuditError`]. A broken log is not continued: move it away, and keep it.
    pub fn open(path: &Path) -> Result<Self, AuditError> {
        let at = |source| AuditError::File { path: path.to_owned(), source };
        let file = OpenOptions::new().append(true).create(true).mode(MODE).open(path).map_err(at)?;
        let last = verify_audit(path)?.hash;
        Ok(Self { path: path.to_owned(), state: Mutex::new(State { file, last }) })
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// [`AuditError::File`] if it cannot be written.
    pub fn append(&self, entry: &AuditEntry) -> Result<(), AuditError> {
        // A panic while holding the lock leaves a whole line, or none.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let line = line(entry, &state.last);
        let at = |source| AuditError::File { path: self.path.clone(), source };
        let whole = state.file.metadata().map_err(at)?.len();
        if let Err(source) = state.file.write_all(format!("{line}\n").as_bytes()) {
            // Half a line would break the chain. What cannot be cut off either is found by the next start.
            let _ = state.file.set_len(whole);
            return Err(at(source));
        }
        state.last = hash(&line);
        Ok(())
    }
}

fn line(entry: &AuditEntry, previous: &str) -> String {
    let AuditEntry { time_ms, from, accessor, method, path, status, revision } = entry;
    let decision = if matches!(status, 401 | 403) { "deny" } else { "allow" };
    json!({
        "time_ms": time_ms,
        "from": from,
        "accessor": accessor,
        "method": method,
        "path": path,
        "decision": decision,
        "status": status,
        "revision": revision,
        "previous": previous,
    })
    .to_string()
}

fn hash(line: &str) -> String {
    Sha256::digest(line.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks a log from its first line to its last.
///
/// # Errors
/// [`AuditError::Broken`] with the first line that does not follow from the one before it.
pub fn verify_audit(path: &Path) -> Result<AuditEnd, AuditError> {
    let at = |source| AuditError::File { path: path.to_owned(), source };
    let mut reader = BufReader::new(File::open(path).map_err(at)?);
    let mut end = AuditEnd { lines: 0, hash: FIRST.to_owned() };
    let mut text = String::new();
    while reader.read_line(&mut text).map_err(at)? > 0 {
        let broken = |reason| AuditError::Broken { path: path.to_owned(), line: end.lines + 1, reason };
        let line = text.strip_suffix('\n').ok_or_else(|| broken("it is cut off"))?;
        let value: Value = serde_json::from_str(line).map_err(|_| broken("it is not JSON"))?;
        if value["previous"] != end.hash.as_str() {
            return Err(broken("it does not name the hash of the line before it"));
        }
        end = AuditEnd { lines: end.lines + 1, hash: hash(line) };
        text.clear();
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, status: u16) -> AuditEntry {
        AuditEntry {
            time_ms: 1,
            from: "127.0.0.1".to_owned(),
            accessor: Some("6f1c1b7e-6f2c-4cbb-9d5f-0f6f7f6a8a11".to_owned()),
            method: "PUT".to_owned(),
            path: path.to_owned(),
            status,
            revision: (status == 200).then_some(7),
        }
    }

    fn written() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        let log = AuditLog::open(&path).expect("a log");
        log.append(&entry("/v1/kv/a", 200)).expect("written");
        log.append(&entry("/v1/kv/b", 403)).expect("written");
        drop(log);
        // Another process goes on where the first one stopped.
        AuditLog::open(&path).expect("a log").append(&entry("/v1/kv/c", 200)).expect("written");
        (folder, path)
    }

    #[test]
    fn a_log_is_continued_and_verified() {
        let (_folder, path) = written();
        let end = verify_audit(&path).expect("whole");
        assert_eq!(end.lines, 3);
        let text = std::fs::read_to_string(&path).expect("readable");
        let decisions: Vec<_> = text.lines().map(|line| line.contains("\"decision\":\"deny\"")).collect();
        assert_eq!(decisions, [false, true, false]);
    }

    #[test]
    fn any_change_breaks_the_chain_at_the_next_line() {
        for (from, to, broken_at) in [("/v1/kv/a", "/v1/kv/x", 2), ("\"deny\"", "\"allow\"", 3)] {
            let (_folder, path) = written();
            let text = std::fs::read_to_string(&path).expect("readable").replace(from, to);
            std::fs::write(&path, text).expect("written");
            let error = verify_audit(&path).expect_err("changed");
            assert!(matches!(error, AuditError::Broken { line, .. } if line == broken_at), "{error}");
            assert!(AuditLog::open(&path).is_err(), "a broken log is not continued");
        }
    }

    #[test]
    fn a_removed_line_and_a_line_that_is_cut_off_are_found() {
        let (_folder, path) = written();
        let text = std::fs::read_to_string(&path).expect("readable");
        let without_second: Vec<_> =
            text.lines().enumerate().filter(|(at, _)| *at != 1).map(|(_, line)| line).collect();
        std::fs::write(&path, without_second.join("\n") + "\n").expect("written");
        assert!(matches!(verify_audit(&path), Err(AuditError::Broken { line: 2, .. })));
        std::fs::write(&path, &text[..text.len() - 5]).expect("written");
        assert!(matches!(verify_audit(&path), Err(AuditError::Broken { line: 3, .. })));
    }
}
