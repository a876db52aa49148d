//! What the agent keeps across a restart: registrations, and the last status of each check.
//!
//! One file of JSON lines. The first line says what the file is; every further line is one write, an array of entries, so
//! that a line that was cut short by a crash is a write that nobody was told of. At every start, and when it has grown
//! past twice its live size, the file is written anew beside the old one and renamed over it.
//!
//! Files are readable by their owner only: registrations may hold tokens in check headers.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use starling_model::{CheckId, CheckSpec, CheckStatus, InstanceId, ServiceRegistration, UnixSeconds};

/// The file's name in the agent's directory.
const FILE: &str = "journal.jsonl";

/// What the first line says.
const FORMAT: &str = "starling-agent-journal";

/// The only version there is.
const VERSION: u32 = 1;

/// Bytes below which the file is never written anew while running: rewriting is cheap, but not free.
const REWRITE_BYTES_MIN: u64 = 1 << 20;

/// One thing that became known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entry {
    /// A service is registered so.
    Service(Box<ServiceRegistration>),
    /// A service is no longer registered.
    ServiceGone(InstanceId),
    /// A check is registered apart from its service.
    Check {
        /// Its id.
        id: CheckId,
        /// The instance it speaks of; `None` is the node.
        service: Option<InstanceId>,
        /// The rest.
        spec: Box<CheckSpec>,
    },
    /// A check is no longer registered apart.
    CheckGone(CheckId),
    /// A check said this.
    Status {
        /// The check.
        id: CheckId,
        /// Its status.
        status: CheckStatus,
        /// Its output.
        output: String,
        /// When it was written down.
        at: UnixSeconds,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("{what} {path}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is not a journal, or is damaged.
    #[error(
        "{path} line {line} is damaged ({reason}); it has been left as it is: restore it, or move it away to begin with no registrations"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

/// What a journal holds, the newest entry of each thing.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) services: BTreeMap<InstanceId, Box<ServiceRegistration>>,
    pub(crate) checks: BTreeMap<CheckId, (Option<InstanceId>, Box<CheckSpec>)>,
    pub(crate) statuses: BTreeMap<CheckId, (CheckStatus, String, UnixSeconds)>,
}

impl Contents {
    /// Reads the journal of `directory`; empty if there is none.
    pub(crate) fn load(directory: &Path) -> Result<Self, JournalError> {
        let path = directory.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => read(&path, &bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(JournalError::Io { what: "cannot read", path, source }),
        }
    }

    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Service(given) => {
                self.services.insert(given.instance.key.id.clone(), given);
            }
            Entry::ServiceGone(id) => {
                self.services.remove(&id);
            }
            Entry::Check { id, service, spec } => {
                self.checks.insert(id, (service, spec));
            }
            Entry::CheckGone(id) => {
                self.checks.remove(&id);
            }
            Entry::Status { id, status, output, at } => {
                self.statuses.insert(id, (status, output, at));
            }
        }
    }
}

/// The open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes that are whole lines; anything after them is a write that failed halfway.
    len: u64,
    torn: bool,
    rewrite_at: u64,
}

impl Journal {
    /// Begins the journal of `directory` anew with these entries, in place of what was there.
    pub(crate) fn begin(directory: &Path, entries: &[Entry]) -> Result<Self, JournalError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|source| JournalError::Io { what: "cannot make", path: directory.to_owned(), source })?;
        let path = directory.join(FILE);
        let (file, len) = write_anew(&path, entries)?;
        Ok(Self { path, file, len, torn: false, rewrite_at: rewrite_at(len) })
    }

    /// Writes entries in one line; with `durable`, returns when they are on disk.
    pub(crate) fn append(&mut self, entries: &[Entry], durable: bool) -> Result<(), JournalError> {
        if entries.is_empty() {
            return Ok(());
        }
        let io = |what, source, path: &Path| JournalError::Io { what, path: path.to_owned(), source };
        if self.torn {
            self.file.set_len(self.len).map_err(|source| io("cannot cut", source, &self.path))?;
            self.torn = false;
        }
        let line = encode(entries);
        let written = self.file.write_all(&line);
        let synced = written.and_then(|()| if durable { self.file.sync_data() } else { Ok(()) });
        if let Err(source) = synced {
            self.torn = true;
            return Err(io("cannot write", source, &self.path));
        }
        self.len += line.len() as u64;
        Ok(())
    }

    /// Whether it has grown enough to be written anew.
    pub(crate) fn wants_rewrite(&self) -> bool {
        self.len > self.rewrite_at
    }

    /// Writes the file anew with these entries only.
    pub(crate) fn rewrite(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        let (file, len) = write_anew(&self.path, entries)?;
        *self = Self { path: std::mem::take(&mut self.path), file, len, torn: false, rewrite_at: rewrite_at(len) };
        Ok(())
    }
}

fn rewrite_at(len: u64) -> u64 {
    len.saturating_mul(2).max(REWRITE_BYTES_MIN)
}

fn encode<T: Serialize>(value: &[T]) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("invariant: entries have string keys only and always serialise");
    line.push(b'\n');
    line
}

fn read(path: &Path, bytes: &[u8]) -> Result<Contents, JournalError> {
    let damaged = |line: usize, reason: String| JournalError::Damaged { path: path.to_owned(), line, reason };
    let mut contents = Contents::default();
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate();
    let first = lines.next().map(|(_, line)| line).unwrap_or_default();
    let header: Header = serde_json::from_slice(first).map_err(|error| damaged(1, error.to_string()))?;
    if header.format != FORMAT || header.version != VERSION {
        return Err(damaged(
            1,
            format!("it is {} version {}, not {FORMAT} version {VERSION}", header.format, header.version),
        ));
    }
    for (index, line) in lines {
        if !line.ends_with(b"\n") {
            tracing::warn!(path = %path.display(), line = index + 1, "dropped a write that a crash cut short");
            break;
        }
        let entries: Vec<Entry> =
            serde_json::from_slice(line).map_err(|error| damaged(index + 1, error.to_string()))?;
        entries.into_iter().for_each(|entry| contents.apply(entry));
    }
    Ok(contents)
}

fn write_anew(path: &Path, entries: &[Entry]) -> Result<(File, u64), JournalError> {
    let beside = path.with_extension("tmp");
    let io = |what, path: &Path| {
        let path = path.to_owned();
        move |source| JournalError::Io { what, path, source }
    };
    let header = Header { format: FORMAT.to_owned(), version: VERSION };
    let mut bytes = serde_json::to_vec(&header).expect("invariant: the header always serialises");
    bytes.push(b'\n');
    for entry in entries {
        bytes.extend(encode(std::slice::from_ref(entry)));
    }
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(0o600);
    let mut file = options.open(&beside).map_err(io("cannot make", &beside))?;
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(io("cannot write", &beside))?;
    fs::rename(&beside, path).map_err(io("cannot replace", path))?;
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory).and_then(|dir| dir.sync_all()).map_err(io("cannot sync", directory))?;
    drop(file);
    let file = OpenOptions::new().append(true).open(path).map_err(io("cannot open", path))?;
    Ok((file, bytes.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(id: &str, output: &str) -> Entry {
        let id = CheckId::new(id).unwrap();
        Entry::Status { id, status: CheckStatus::Passing, output: output.to_owned(), at: UnixSeconds(7) }
    }

    #[test]
    fn the_newest_entry_is_read_back_and_the_file_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        assert!(Contents::load(directory.path()).unwrap().statuses.is_empty());
        let mut journal = Journal::begin(directory.path(), &[]).unwrap();
        journal.append(&[status("a", "one"), status("b", "two")], true).unwrap();
        journal.append(&[status("a", "three")], false).unwrap();
        let contents = Contents::load(directory.path()).unwrap();
        assert_eq!(contents.statuses.len(), 2);
        assert_eq!(contents.statuses[&CheckId::new("a").unwrap()].1, "three");
        let mode = fs::metadata(directory.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_line_cut_short_is_dropped_but_damage_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let mut journal = Journal::begin(directory.path(), &[]).unwrap();
        journal.append(&[status("a", "one")], true).unwrap();
        let good = fs::read(&path).unwrap();
        fs::write(&path, [good.as_slice(), b"[{\"status\":{\"id\":\"b\""].concat()).unwrap();
        assert_eq!(Contents::load(directory.path()).unwrap().statuses.len(), 1);

        for damage in [b"garbage\n".as_slice(), b"", b"{\"format\":\"other\",\"version\":1}\n"] {
            fs::write(&path, damage).unwrap();
            let refused = Contents::load(directory.path()).unwrap_err();
            assert!(matches!(refused, JournalError::Damaged { line: 1, .. }), "{refused}");
            assert_eq!(fs::read(&path).unwrap(), damage);
        }
        let spoiled = String::from_utf8(good).unwrap().replace("\"one\"", "one");
        fs::write(&path, &spoiled).unwrap();
        assert!(matches!(Contents::load(directory.path()), Err(JournalError::Damaged { line: 2, .. })));
    }

    #[test]
    fn a_rewrite_keeps_only_what_lives() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(directory.path(), &[]).unwrap();
        let long = "x".repeat(4096);
        while !journal.wants_rewrite() {
            journal.append(&[status("a", &long)], false).unwrap();
        }
        journal.rewrite(&[status("b", "left")]).unwrap();
        assert!(!journal.wants_rewrite());
        journal.append(&[status("c", "after")], true).unwrap();
        let contents = Contents::load(directory.path()).unwrap();
        assert_eq!(contents.statuses.keys().map(CheckId::as_str).collect::<Vec<_>>(), ["b", "c"]);
    }
}
