//! What the agent keeps across a restart: registrations, and the last status of each check.
//!
//! One file of JSON lines. The first line says what the file is; every further line is one write, an array of entries, so
//! that a line that was cut short by a crash is a write that nobody was told of; a mark beside it tells that from the loss
//! of what somebody was told of (see `acknowledged.rs`). At every start, and when it has grown past twice its live size,
//! the file is written anew beside the old one and renamed over it.
//!
//! Files are readable by their owner only: registrations may hold tokens in check headers.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use starling_model::{CheckId, CheckSpec, CheckStatus, InstanceId, ServiceRegistration, UnixSeconds};

use self::acknowledged::{Acknowledged, Mark};
use crate::registrations::Source;

mod acknowledged;

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
    /// A service is registered so by a definition file.
    ServiceOfFile(Box<ServiceRegistration>),
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
    /// A check is registered so by a definition file, apart from its service.
    CheckOfFile {
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
    /// How often the journal was written anew; see [`Mark`].
    #[serde(default)]
    generation: u64,
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
    /// The file is gone, or ends before what was acknowledged.
    #[error(
        "{path} {state}, but what was acknowledged reaches further; nothing was changed: restore it, or, to go on without what is missing, remove {} beside it",
        acknowledged::FILE
    )]
    Lost {
        /// The file.
        path: PathBuf,
        /// How it falls short.
        state: LostState,
    },
    /// The mark beside the journal cannot be read.
    #[error("{path} is damaged; it guards against the loss of what was acknowledged: to go on without it, remove it")]
    Mark {
        /// The mark's file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
}

/// How a journal falls short of what was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LostState {
    /// There is no file.
    #[error("does not exist")]
    Missing,
    /// Its last whole line ends there, in bytes from the beginning.
    #[error("ends at byte {0}")]
    Cut(u64),
    /// It is one of earlier.
    #[error("is older than it was")]
    Older,
}

/// What a journal holds, the newest entry of each thing.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) services: BTreeMap<InstanceId, (Source, Box<ServiceRegistration>)>,
    pub(crate) checks: BTreeMap<CheckId, (Source, Option<InstanceId>, Box<CheckSpec>)>,
    pub(crate) statuses: BTreeMap<CheckId, (CheckStatus, String, UnixSeconds)>,
    generation: u64,
}

impl Contents {
    /// Reads the journal of `directory`, without changing anything; `None` if there is none.
    pub(crate) fn load(directory: &Path) -> Result<Option<Self>, JournalError> {
        let acknowledged = Mark::read(directory)
            .map_err(|source| JournalError::Mark { path: directory.join(acknowledged::FILE), source })?;
        let path = directory.join(FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => match acknowledged {
                Some(_) => return Err(JournalError::Lost { path, state: LostState::Missing }),
                None => return Ok(None),
            },
            Err(source) => return Err(JournalError::Io { what: "cannot read", path, source }),
        };
        let (contents, end) = read(&path, &bytes)?;
        let acknowledged = acknowledged.unwrap_or_default();
        if end < acknowledged {
            let older = end.generation < acknowledged.generation;
            let state = if older { LostState::Older } else { LostState::Cut(end.bytes) };
            return Err(JournalError::Lost { path, state });
        }
        Ok(Some(contents))
    }

    /// How often the journal was written anew.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Service(given) => {
                self.services.insert(given.instance.key.id.clone(), (Source::Caller, given));
            }
            Entry::ServiceOfFile(given) => {
                self.services.insert(given.instance.key.id.clone(), (Source::File, given));
            }
            Entry::ServiceGone(id) => {
                self.services.remove(&id);
            }
            Entry::Check { id, service, spec } => {
                self.checks.insert(id, (Source::Caller, service, spec));
            }
            Entry::CheckOfFile { id, service, spec } => {
                self.checks.insert(id, (Source::File, service, spec));
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
    acknowledged: Acknowledged,
    /// Where the whole lines end; anything after that is a write that failed halfway.
    end: Mark,
    torn: bool,
    rewrite_at: u64,
}

impl Journal {
    /// Begins the journal of `directory` anew with these entries, in place of one of generation `former`, if there was.
    pub(crate) fn begin(directory: &Path, former: Option<u64>, entries: &[Entry]) -> Result<Self, JournalError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|source| JournalError::Io { what: "cannot make", path: directory.to_owned(), source })?;
        Self::write_anew(directory.join(FILE), former.map_or(0, |generation| generation + 1), entries)
    }

    /// Writes entries in one line; with `durable`, returns when they are on disk.
    pub(crate) fn append(&mut self, entries: &[Entry], durable: bool) -> Result<(), JournalError> {
        if entries.is_empty() {
            return Ok(());
        }
        let io = |what, source, path: &Path| JournalError::Io { what, path: path.to_owned(), source };
        if self.torn {
            self.file.set_len(self.end.bytes).map_err(|source| io("cannot cut", source, &self.path))?;
            self.torn = false;
        }
        let line = encode(entries);
        let written = self.file.write_all(&line);
        let synced = written.and_then(|()| if durable { self.file.sync_data() } else { Ok(()) });
        if let Err(source) = synced {
            self.torn = true;
            return Err(io("cannot write", source, &self.path));
        }
        self.end.bytes += line.len() as u64;
        if durable {
            self.acknowledged.raise(self.end).map_err(|source| io("cannot mark", source, &self.path))?;
        }
        Ok(())
    }

    /// Whether it has grown enough to be written anew.
    pub(crate) fn wants_rewrite(&self) -> bool {
        self.end.bytes > self.rewrite_at
    }

    /// Writes the file anew with these entries only.
    pub(crate) fn rewrite(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        *self = Self::write_anew(self.path.clone(), self.end.generation + 1, entries)?;
        Ok(())
    }

    fn write_anew(path: PathBuf, generation: u64, entries: &[Entry]) -> Result<Self, JournalError> {
        let (file, bytes) = write_anew(&path, generation, entries)?;
        let end = Mark { generation, bytes };
        let directory = path.parent().unwrap_or(Path::new("."));
        let acknowledged = Acknowledged::begin(directory, end);
        let acknowledged =
            acknowledged.map_err(|source| JournalError::Io { what: "cannot mark", path: path.clone(), source })?;
        Ok(Self { path, file, acknowledged, end, torn: false, rewrite_at: rewrite_at(bytes) })
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

/// What a journal holds, and where its whole lines end.
fn read(path: &Path, bytes: &[u8]) -> Result<(Contents, Mark), JournalError> {
    let damaged = |line: usize, reason: String| JournalError::Damaged { path: path.to_owned(), line, reason };
    let mut contents = Contents::default();
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate();
    let first = lines.next().map(|(_, line)| line).unwrap_or_default();
    let mut end = first.len();
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
        end += line.len();
    }
    contents.generation = header.generation;
    Ok((contents, Mark { generation: header.generation, bytes: end as u64 }))
}

fn write_anew(path: &Path, generation: u64, entries: &[Entry]) -> Result<(File, u64), JournalError> {
    let beside = path.with_extension("tmp");
    let io = |what, path: &Path| {
        let path = path.to_owned();
        move |source| JournalError::Io { what, path, source }
    };
    let header = Header { format: FORMAT.to_owned(), version: VERSION, generation };
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

    fn load(directory: &Path) -> Contents {
        Contents::load(directory).unwrap().expect("a journal")
    }

    /// Why the journal is not read; nothing is changed by trying.
    fn refused(directory: &Path) -> JournalError {
        let files = || [FILE, acknowledged::FILE].map(|name| fs::read(directory.join(name)).ok());
        let before = files();
        let refused = Contents::load(directory).unwrap_err();
        assert_eq!(files(), before, "{refused}");
        refused
    }

    #[test]
    fn what_was_acknowledged_and_is_gone_is_refused_and_what_was_not_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let (path, mark) = (directory.path().join(FILE), directory.path().join(acknowledged::FILE));
        let mut journal = Journal::begin(directory.path(), None, &[]).unwrap();
        let empty = fs::read(&path).unwrap();
        journal.append(&[status("a", "one")], true).unwrap();
        let acknowledged = fs::read(&path).unwrap();
        journal.append(&[status("b", "two")], false).unwrap();
        let whole = fs::read(&path).unwrap();
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            if end >= acknowledged.len() {
                assert_eq!(load(directory.path()).statuses.len(), 1, "cut at {end}");
            } else if end >= empty.len() {
                let expected = JournalError::Lost { path: path.clone(), state: LostState::Cut(empty.len() as u64) };
                assert_eq!(refused(directory.path()).to_string(), expected.to_string(), "cut at {end}");
            } else {
                refused(directory.path());
            }
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(refused(directory.path()), JournalError::Lost { state: LostState::Missing, .. }));

        // Of a journal that was written anew, an older one is no substitute, however long it is.
        fs::write(&path, &whole).unwrap();
        let generation = load(directory.path()).generation();
        drop(Journal::begin(directory.path(), Some(generation), &[]).unwrap());
        load(directory.path());
        fs::write(&path, &whole).unwrap();
        assert!(matches!(refused(directory.path()), JournalError::Lost { state: LostState::Older, .. }));

        for damage in ["", "starling-journal-acknowledged 1 1 1 1\n"] {
            fs::write(&mark, damage).unwrap();
            assert!(matches!(refused(directory.path()), JournalError::Mark { .. }), "{damage:?}");
        }
        fs::remove_file(&mark).unwrap();
        assert_eq!(load(directory.path()).statuses.len(), 2, "without the mark it is taken as it is");
    }

    #[test]
    fn the_newest_entry_is_read_back_and_the_file_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        assert!(Contents::load(directory.path()).unwrap().is_none());
        let mut journal = Journal::begin(directory.path(), None, &[]).unwrap();
        journal.append(&[status("a", "one"), status("b", "two")], true).unwrap();
        journal.append(&[status("a", "three")], false).unwrap();
        let contents = load(directory.path());
        assert_eq!(contents.statuses.len(), 2);
        assert_eq!(contents.statuses[&CheckId::new("a").unwrap()].1, "three");
        let mode = fs::metadata(directory.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_line_cut_short_is_dropped_but_damage_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let mut journal = Journal::begin(directory.path(), None, &[]).unwrap();
        journal.append(&[status("a", "one")], true).unwrap();
        let good = fs::read(&path).unwrap();
        fs::write(&path, [good.as_slice(), b"[{\"status\":{\"id\":\"b\""].concat()).unwrap();
        assert_eq!(load(directory.path()).statuses.len(), 1);

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
        let mut journal = Journal::begin(directory.path(), None, &[]).unwrap();
        let long = "x".repeat(4096);
        while !journal.wants_rewrite() {
            journal.append(&[status("a", &long)], false).unwrap();
        }
        journal.rewrite(&[status("b", "left")]).unwrap();
        assert!(!journal.wants_rewrite());
        journal.append(&[status("c", "after")], true).unwrap();
        let contents = load(directory.path());
        assert_eq!(contents.statuses.keys().map(CheckId::as_str).collect::<Vec<_>>(), ["b", "c"]);
    }
}
