//! The last frames of one subject: enough to bring a stream that was away for a while up to date exactly.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use starling_model::Revision;

use crate::projection::{ItemKey, Urgency};

/// Frames kept for one subject: a service of which 100 instances change a second is remembered for some 40 s.
pub(crate) const FRAMES_MAX: usize = 4096;

/// Bytes of frames kept for one subject.
pub(crate) const BYTES_MAX: usize = 1024 * 1024;

/// Milliseconds after which a frame is forgotten: whoever was away longer is sent the whole.
pub(crate) const AGE_MS_MAX: u64 = 5 * 60 * 1000;

/// One change of one item, encoded once.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub revision: Revision,
    pub key: ItemKey,
    pub urgency: Urgency,
    pub bytes: Bytes,
    pub at_ms: u64,
}

/// The frames of one subject since `floor`, none missing.
#[derive(Debug)]
pub(crate) struct Window {
    frames: VecDeque<Frame>,
    bytes: usize,
    floor: Revision,
}

impl Window {
    /// A window that knows of nothing up to `floor`.
    pub(crate) fn new(floor: Revision) -> Self {
        Self { frames: VecDeque::new(), bytes: 0, floor }
    }

    /// Adds a frame, and forgets those over the limits.
    pub(crate) fn push(&mut self, frame: Frame) {
        let now_ms = frame.at_ms;
        self.bytes += frame.bytes.len();
        self.frames.push_back(frame);
        self.forget(now_ms);
    }

    /// Forgets what is over the limits at `now_ms`.
    pub(crate) fn forget(&mut self, now_ms: u64) {
        let over = |window: &Self| {
            let oldest = window.frames.front()?;
            let over = window.frames.len() > FRAMES_MAX
                || window.bytes > BYTES_MAX
                || now_ms.saturating_sub(oldest.at_ms) > AGE_MS_MAX;
            over.then_some(oldest.revision)
        };
        while let Some(revision) = over(self) {
            // A commit's frames go together, or the rest would look complete.
            while self.frames.front().is_some_and(|frame| frame.revision == revision) {
                self.bytes -= self.frames.pop_front().map_or(0, |frame| frame.bytes.len());
            }
            self.floor = self.floor.max(revision);
        }
    }

    /// The newest frame of each item after `have`, in no particular order; `None` if frames after `have` are forgotten.
    pub(crate) fn since(&self, have: Revision) -> Option<Vec<&Frame>> {
        if have < self.floor {
            return None;
        }
        let mut newer: Vec<_> = self.frames.iter().rev().take_while(|frame| frame.revision > have).collect();
        if newer.len() > 1 {
            let mut seen = BTreeSet::new();
            newer.retain(|frame| seen.insert(&frame.key));
        }
        Some(newer)
    }
}
