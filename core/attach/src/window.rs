//! The last frames of one subject: enough to bring a stream that was away for a while up to date exactly.

use std::collections::{BTreeSet, VecDeque};
use std::mem::size_of;

use bytes::Bytes;
use starling_model::Revision;

use crate::projection::Urgency;

/// Frames kept for one subject: a service of which 100 instances change a second is remembered for some 40 s.
const FRAMES_MAX: usize = 4096;

/// Bytes of frames kept for one subject.
const BYTES_MAX: usize = 1024 * 1024;

/// One change of one item, encoded once.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub revision: Revision,
    /// Names the item within its subject, as on the wire.
    pub key: String,
    pub urgency: Urgency,
    pub bytes: Bytes,
}

impl Frame {
    fn size(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.bytes.len()
    }
}

/// The frames of one subject since `floor`, none missing, by revision.
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

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a frame, and forgets those over the limits.
    pub(crate) fn push(&mut self, frame: Frame) {
        self.bytes += frame.size();
        self.frames.push_back(frame);
        while self.frames.len() > FRAMES_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.frames.front() else { return };
            self.forget_through(oldest.revision);
        }
    }

    /// Forgets the frames up to a revision. Those of one commit go together, or the rest would look complete.
    pub(crate) fn forget_through(&mut self, revision: Revision) {
        while let Some(oldest) = self.frames.front()
            && oldest.revision <= revision
        {
            self.floor = self.floor.max(oldest.revision);
            self.bytes -= oldest.size();
            self.frames.pop_front();
        }
        if self.frames.is_empty() {
            // What a burst has filled does not stay.
            self.frames = VecDeque::new();
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
