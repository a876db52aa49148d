//! What clients did and were answered, with times; all that is judged, and what is left of a run that failed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use serde::Serialize;

use crate::register::{Answer, Call};

/// Findings of one kind that are kept in full; one broken promise may show a thousand times.
const KEPT_OF_A_KIND_MAX: usize = 5;

/// What a key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The config entry of that kind; its value is in its metadata.
    ServiceDefaults,
    /// The same; in the store it excludes no other write.
    ServiceResolver,
    /// A node from outside with a service; its value is in the metadata of both.
    Node,
    /// An entry of the key-value store; its value is in its bytes and its flags.
    Kv,
}

/// One key of the catalog that is written and read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Key {
    /// What it names.
    pub kind: Kind,
    /// Its name.
    pub name: String,
}

/// How something was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A write.
    Write,
    /// A read with `?consistent`.
    Consistent,
    /// A read with nothing said.
    Default,
    /// A read with `?stale`.
    Stale,
    /// A read with `?index=` of a session that goes from server to server.
    Blocking,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// An answer, with `X-Consul-Index`.
    Answered {
        /// What it says.
        answer: Answer,
        /// The index.
        index: u64,
    },
    /// It may have been carried out or not.
    Unknown(String),
}

/// One operation.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Who asked.
    pub client: Arc<str>,
    /// Which server.
    pub server: usize,
    /// How.
    pub mode: Mode,
    /// Of what.
    pub key: Arc<Key>,
    /// What.
    pub call: Call,
    /// Microseconds since the run began.
    pub called: u64,
    /// When it was answered, or given up.
    pub returned: u64,
    /// What came back.
    pub outcome: Outcome,
}

/// A promise that was broken, in words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Which promise.
    pub promise: Promise,
    /// What was seen.
    pub text: String,
}

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// No acknowledged write is lost.
    NothingLost,
    /// Writes and consistent reads of a key are linearizable.
    Linearizable,
    /// No read on one session goes back.
    NoGoingBack,
    /// One index of a key means one content, and a registration is there as a whole.
    OneContent,
    /// All servers say the same in the end.
    Agreement,
    /// A server that runs answers reads, with or without etcd.
    ReadsGoOn,
    /// After the death of etcd's leader writes are back soon.
    WritesAreBack,
    /// Programs end only when they are ended.
    NoPanic,
}

/// The promises that were found broken.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    counts: BTreeMap<Promise, usize>,
    /// The first ones of each kind.
    pub first: Vec<Finding>,
}

impl Findings {
    /// Adds one.
    pub fn add(&mut self, promise: Promise, text: String) {
        let count = self.counts.entry(promise).or_default();
        *count += 1;
        if *count <= KEPT_OF_A_KIND_MAX {
            self.first.push(Finding { promise, text });
        }
    }

    /// How often a promise was broken.
    #[must_use]
    pub fn of(&self, promise: Promise) -> usize {
        self.counts.get(&promise).copied().unwrap_or_default()
    }
}

/// Collects what clients do. Shared by all of them.
#[derive(Debug)]
pub struct Recorder {
    begun: Instant,
    events: Mutex<Vec<Event>>,
    findings: Mutex<Findings>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { begun: Instant::now(), events: Mutex::default(), findings: Mutex::default() }
    }
}

impl Recorder {
    /// Microseconds since the run began.
    pub fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Notes an operation.
    pub fn note(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Notes a broken promise.
    pub fn find(&self, promise: Promise, text: String) {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).add(promise, text);
    }

    /// Every operation so far, in the order in which they ended.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The promises that were found broken so far.
    pub fn findings(&self) -> Findings {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Writes one JSON object for each line.
///
/// # Errors
/// If the file cannot be written.
pub fn write_lines<T: Serialize>(path: &Path, lines: impl IntoIterator<Item = T>) -> anyhow::Result<()> {
    let file = std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut file = std::io::BufWriter::new(file);
    for line in lines {
        serde_json::to_writer(&mut file, &line).context("a line of the history")?;
        file.write_all(b"\n").context("a line of the history")?;
    }
    file.flush().context("the history's end")
}
