//! A watch of everything after a revision, over as many connections as it takes.
//!
//! etcd sends the events of whole revisions, in order, and anew from any revision that is not compacted; so a watch that
//! breaks goes on where it was. What would be over the size of an answer comes in fragments, which are put together. When
//! others write into the same etcd its revision rises with nothing for us: etcd's progress notifications are passed on as
//! transactions without writes, so that whoever waits for a revision does not wait for ever.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tonic::{Status, Streaming};

use super::connection::Line;
use super::trouble::{EtcdTrouble, judge};
use super::wire::{Event, EventType, WatchAsk, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse};
use super::{Shared, door};
use crate::lease::LeaseId;
use crate::store::WatchError;
use crate::transaction::{Committed, Revision, Write};

/// Pause before a watch that broke is opened anew: the first one, and the longest.
const REOPEN_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Time between two questions for etcd's progress while somebody waits for a revision. A member that is behind answers with
/// less than what is waited for.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Questions that wait to be sent: one opens the watch, one more asks for progress.
const ASKS: usize = 2;

/// A watcher's place in etcd's history.
pub(super) struct Watcher {
    shared: Arc<Shared>,
    seen: Revision,
    /// Whole transactions that are yet to be handed out.
    ready: VecDeque<Committed>,
    /// Fragments whose end is yet to come.
    fragments: Vec<Event>,
    open: Option<Open>,
    /// The highest revision that somebody waits for.
    wanted: watch::Receiver<u64>,
    asked_at: Instant,
    pause: Duration,
    /// Whether its loss has been logged.
    is_lost: bool,
}

struct Open {
    line: Line,
    answers: Streaming<WatchResponse>,
    asks: mpsc::Sender<WatchRequest>,
    current: watch::Receiver<u64>,
}

/// What woke a watcher.
enum Woken {
    Answered(Result<Option<WatchResponse>, Status>),
    /// Another connection is to be used.
    Moved,
    /// It is time to ask for etcd's progress.
    Wanted,
    Closed,
}

/// One step of a watch; `None` in place of the watcher once it has ended.
pub(super) async fn advance(watcher: Option<Watcher>) -> Option<(Result<Committed, WatchError>, Option<Watcher>)> {
    let mut watcher = watcher?;
    let next = watcher.next().await;
    let goes_on = next.is_ok().then_some(watcher);
    Some((next, goes_on))
}

impl Watcher {
    pub(super) fn new(shared: Arc<Shared>, from: Revision) -> Self {
        let wanted = shared.wanted.subscribe();
        Self {
            shared,
            seen: from,
            ready: VecDeque::new(),
            fragments: Vec::new(),
            open: None,
            wanted,
            asked_at: Instant::now(),
            pause: REOPEN_PAUSE.0,
            is_lost: false,
        }
    }

    async fn next(&mut self) -> Result<Committed, WatchError> {
        loop {
            if let Some(committed) = self.ready.pop_front() {
                self.seen = committed.revision;
                return Ok(committed);
            }
            let Some(mut open) = self.open.take() else {
                self.reopen().await?;
                continue;
            };
            match self.woken(&mut open).await {
                Woken::Closed => return Err(WatchError::Closed),
                Woken::Moved => self.fragments.clear(),
                Woken::Wanted => {
                    let ask = WatchAsk::Progress(WatchProgressRequest {});
                    // One that is full has such a question in it.
                    let _ = open.asks.try_send(WatchRequest { ask: Some(ask) });
                    self.asked_at = Instant::now();
                    self.open = Some(open);
                }
                Woken::Answered(Ok(Some(answer))) if answer.canceled => self.canceled(&open.line, &answer).await?,
                Woken::Answered(Ok(Some(answer))) => {
                    self.take(answer)?;
                    self.open = Some(open);
                }
                Woken::Answered(Ok(None)) => self.lost(&open.line, "it ended").await,
                Woken::Answered(Err(status)) => {
                    let trouble = judge(&status, self.shared.connections.user()).trouble;
                    self.lost(&open.line, &trouble.to_string()).await;
                }
            }
        }
    }

    async fn woken(&mut self, open: &mut Open) -> Woken {
        let number = open.line.number;
        let ask_at = self.asked_at + PROGRESS_INTERVAL;
        let is_behind = *self.wanted.borrow_and_update() > self.seen.0;
        let mut closed = self.shared.closed.subscribe();
        tokio::select! {
            answered = open.answers.message() => Woken::Answered(answered),
            _ = open.current.wait_for(|current| *current != number) => Woken::Moved,
            () = tokio::time::sleep_until(ask_at), if is_behind => Woken::Wanted,
            _ = self.wanted.changed(), if !is_behind => Woken::Wanted,
            _ = closed.wait_for(|closed| *closed) => Woken::Closed,
        }
    }

    /// Opens the watch after what was seen, however long that takes.
    async fn reopen(&mut self) -> Result<(), WatchError> {
        let shared = Arc::clone(&self.shared);
        let mut closed = shared.closed.subscribe();
        loop {
            let opened = tokio::select! {
                opened = self.open() => opened,
                _ = closed.wait_for(|closed| *closed) => return Err(WatchError::Closed),
            };
            match opened {
                Ok(open) => {
                    self.open = Some(open);
                    return Ok(());
                }
                Err(trouble) => self.log_loss(&trouble.to_string()),
            }
            tokio::select! {
                () = sleep(self.pause) => {}
                _ = closed.wait_for(|closed| *closed) => return Err(WatchError::Closed),
            }
            self.pause = (self.pause * 2).min(REOPEN_PAUSE.1);
        }
    }

    async fn open(&mut self) -> Result<Open, EtcdTrouble> {
        let connections = &self.shared.connections;
        let line = connections.line().await?;
        let current = connections.current();
        let (asks, asked) = mpsc::channel(ASKS);
        let create = WatchCreateRequest {
            // What the store says about itself is before every entry: who replaces it writes there first.
            key: self.shared.space.meta.clone(),
            range_end: self.shared.space.records_end.clone(),
            start_revision: self.shared.numbering.after(self.seen),
            progress_notify: true,
            fragment: true,
        };
        // There is room: nothing was sent yet.
        let _ = asks.try_send(WatchRequest { ask: Some(WatchAsk::Create(create)) });
        match connections.watch(&line, asked).await {
            Ok(answers) => Ok(Open { line, answers, asks, current }),
            Err(trouble) => {
                connections.leave(&line).await;
                Err(trouble)
            }
        }
    }

    /// The stream is gone: goes on over another connection.
    async fn lost(&mut self, line: &Line, reason: &str) {
        self.fragments.clear();
        self.log_loss(reason);
        self.shared.connections.leave(line).await;
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(REOPEN_PAUSE.1);
    }

    fn log_loss(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.is_lost, true) {
            tracing::warn!(%reason, seen = %self.seen, "the watch of etcd is lost, and opened anew until it is back");
        }
    }

    /// etcd has ended the watch.
    async fn canceled(&mut self, line: &Line, answer: &WatchResponse) -> Result<(), WatchError> {
        if answer.compact_revision > 0 {
            return Err(WatchError::Compacted {
                from: self.seen,
                oldest: self.shared.numbering.ours(answer.compact_revision),
            });
        }
        let reason = if answer.cancel_reason.is_empty() { "etcd ended it" } else { &answer.cancel_reason };
        self.lost(line, reason).await;
        Ok(())
    }

    fn take(&mut self, answer: WatchResponse) -> Result<(), WatchError> {
        let failed = |trouble: EtcdTrouble| WatchError::Failed(Arc::new(trouble));
        let header = answer.header.unwrap_or_default();
        if let Some(trouble) = self.shared.connections.foreign(header.cluster_id) {
            return Err(failed(trouble));
        }
        if answer.created {
            if std::mem::take(&mut self.is_lost) {
                tracing::info!(seen = %self.seen, "the watch of etcd is back");
            }
            self.pause = REOPEN_PAUSE.0;
            return Ok(());
        }
        if answer.events.is_empty() {
            // All that came before has been sent, unless half of it is here and half is not.
            let revision = self.shared.numbering.ours(header.revision);
            if self.fragments.is_empty() && revision > self.seen && self.ready.is_empty() {
                self.ready.push_back(Committed { revision, writes: Arc::default() });
            }
            return Ok(());
        }
        self.fragments.extend(answer.events);
        if !answer.fragment {
            let events = std::mem::take(&mut self.fragments);
            self.group(events).map_err(failed)?;
        }
        Ok(())
    }

    /// Puts the events of each revision together.
    fn group(&mut self, events: Vec<Event>) -> Result<(), EtcdTrouble> {
        let mut writes = Vec::new();
        let mut of = self.seen;
        for event in events {
            if let Some(kv) = event.kv.as_ref().filter(|kv| kv.key == self.shared.space.meta) {
                door::is_of(self.shared.id, &kv.value)?;
                continue;
            }
            let Some((revision, write)) = self.write(event)? else { continue };
            if revision != of && !writes.is_empty() {
                self.ready.push_back(Committed { revision: of, writes: std::mem::take(&mut writes).into() });
            }
            of = revision;
            // What was seen before the watch broke is not seen again.
            if revision > self.seen {
                writes.push(write);
            }
        }
        if !writes.is_empty() {
            self.ready.push_back(Committed { revision: of, writes: writes.into() });
        }
        Ok(())
    }

    /// `None` for a key that no server has written.
    fn write(&self, event: Event) -> Result<Option<(Revision, Write)>, EtcdTrouble> {
        let is_delete = match event.r#type() {
            EventType::Put => false,
            EventType::Delete => true,
        };
        let kv = event.kv.ok_or_else(|| EtcdTrouble::Malformed("an event without a key".to_owned()))?;
        let entry = self.shared.space.entry(&kv.key).or_else(|| self.shared.space.warn_of_foreign(&kv.key));
        let Some(key) = entry else { return Ok(None) };
        let lease = (kv.lease != 0).then_some(LeaseId(kv.lease));
        let write = if is_delete { Write::Delete { key } } else { Write::Put { key, value: kv.value, lease } };
        Ok(Some((self.shared.numbering.ours(kv.mod_revision), write)))
    }
}
