//! Where lines go: one queue and one writing thread per target, for all workers.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use starling_model::LogTarget;

use crate::spans::Collectors;

/// Lines that wait to be written. Past this the target is slower than the traffic, and lines are lost.
const QUEUE_LINES: usize = 8 * 1024;

/// Bytes written at a time.
const WRITE_BYTES: usize = 64 * 1024;

/// How often a file is looked for that was moved away, so that another is begun under its name.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where an engine's lines and spans go.
#[derive(Debug, Default)]
pub struct Sinks {
    targets: Mutex<BTreeMap<LogTarget, Known>>,
    pub(crate) collectors: Collectors,
}

#[derive(Debug, Default)]
struct Known {
    sink: Weak<Sink>,
    writing: Option<JoinHandle<()>>,
    lost: Arc<AtomicU64>,
}

/// One target's queue. Its thread ends with it, when all that is queued is written.
#[derive(Debug)]
pub(super) struct Sink {
    queue: Option<SyncSender<Vec<u8>>>,
    lost: Arc<AtomicU64>,
}

impl Sinks {
    /// Lines lost so far, by target.
    #[must_use]
    pub fn lost(&self) -> Vec<(String, u64)> {
        let known = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(target, known)| (name(target), known.lost.load(Ordering::Relaxed))).collect()
    }

    pub(super) fn open(&self, target: &LogTarget) -> Arc<Sink> {
        let mut all = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(target.clone()).or_default();
        if let Some(sink) = known.sink.upgrade() {
            return sink;
        }
        let (sink, writing) = Sink::start(target, &known.lost);
        let sink = Arc::new(sink);
        (known.sink, known.writing) = (Arc::downgrade(&sink), writing);
        sink
    }

    /// Blocks until what is queued is written and sent. Nobody may log or trace any more.
    pub(crate) fn finish(&self) {
        let known = std::mem::take(&mut *self.targets.lock().unwrap_or_else(PoisonError::into_inner));
        for writing in known.into_values().filter_map(|known| known.writing) {
            // One that has panicked writes nothing more.
            let _ = writing.join();
        }
        self.collectors.finish();
    }
}

fn name(target: &LogTarget) -> String {
    match target {
        LogTarget::Stdout => "stdout".to_owned(),
        LogTarget::Stderr => "stderr".to_owned(),
        LogTarget::File(path) => path.to_string_lossy().into_owned(),
    }
}

impl Sink {
    fn start(target: &LogTarget, lost: &Arc<AtomicU64>) -> (Self, Option<JoinHandle<()>>) {
        let (queue, lines) = sync_channel(QUEUE_LINES);
        let mut writing = Writing { target: target.clone(), file: None, lost: Arc::clone(lost), told: false };
        let started = thread::Builder::new().name("access-log".to_owned()).spawn(move || writing.run(&lines));
        if let Err(error) = &started {
            tracing::error!(%error, target = name(target), "the access log cannot be written");
        }
        (Self { queue: started.is_ok().then_some(queue), lost: Arc::clone(lost) }, started.ok())
    }

    /// Takes a line, if there is room for it.
    pub(super) fn put(&self, line: Vec<u8>) {
        if self.queue.as_ref().is_none_or(|queue| queue.try_send(line).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread that writes.
struct Writing {
    target: LogTarget,
    /// The file that is written to, and when it was last looked for.
    file: Option<(File, Instant)>,
    lost: Arc<AtomicU64>,
    /// Somebody has been told that lines cannot be written.
    told: bool,
}

impl Writing {
    fn run(&mut self, lines: &Receiver<Vec<u8>>) {
        while let Ok(mut bytes) = lines.recv() {
            let mut count = 1;
            while bytes.len() < WRITE_BYTES
                && let Ok(line) = lines.try_recv()
            {
                bytes.extend_from_slice(&line);
                count += 1;
            }
            match self.write(&bytes) {
                Ok(()) => self.told = false,
                Err(error) => {
                    self.file = None;
                    self.lost.fetch_add(count, Ordering::Relaxed);
                    if !std::mem::replace(&mut self.told, true) {
                        tracing::warn!(%error, target = name(&self.target), "the access log cannot be written");
                    }
                }
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &self.target {
            LogTarget::Stdout => all_to(io::stdout().lock(), bytes),
            LogTarget::Stderr => all_to(io::stderr().lock(), bytes),
            LogTarget::File(path) => {
                let file = match self.file.take() {
                    Some((file, looked)) if looked.elapsed() < LOOK_EVERY => (file, looked),
                    Some((file, _)) if is_at(&file, path) => (file, Instant::now()),
                    Some(_) | None => (OpenOptions::new().create(true).append(true).open(path)?, Instant::now()),
                };
                self.file.insert(file).0.write_all(bytes)
            }
        }
    }
}

fn all_to(mut stream: impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)?;
    stream.flush()
}

/// Whether this file is still the one under that name.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), path.metadata()) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_queue_does_not_take_is_lost_and_counted() {
        let (queue, lines) = sync_channel(2);
        let sink = Sink { queue: Some(queue), lost: Arc::default() };
        for line in 0..5 {
            sink.put(vec![line]);
        }
        assert_eq!(sink.lost.load(Ordering::Relaxed), 3);
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), [[0], [1]]);
    }

    #[test]
    fn a_file_that_was_moved_away_is_begun_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, moved) = (folder.path().join("log"), folder.path().join("log.1"));
        let target = LogTarget::File(path.clone());
        let mut writing = Writing { target, file: None, lost: Arc::default(), told: false };
        writing.write(b"a\n").expect("written");
        std::fs::rename(&path, &moved).expect("moved");
        writing.file =
            writing.file.take().map(|(file, looked)| (file, looked.checked_sub(LOOK_EVERY).expect("earlier")));
        writing.write(b"b\n").expect("written");
        assert_eq!(std::fs::read_to_string(moved).expect("the old file"), "a\n");
        assert_eq!(std::fs::read_to_string(path).expect("the new file"), "b\n");
    }
}
