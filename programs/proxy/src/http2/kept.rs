//! What was passed on of a request's body, kept up to a limit, to be sent again.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;

/// Bytes of a body that are kept until it is answered, as with HTTP/1.1.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// Chunks of a body that are kept: small ones cost more than their bytes.
const KEPT_CHUNKS_MAX: usize = 1_024;

/// Up to so many bytes of a chunk are copied: it would keep all in memory that was read from the client together with it.
const COPIED_BYTES_MAX: usize = 4 * 1024;

/// The chunks of a body that have come so far, in order, as long as they are all of it.
pub(super) struct Kept {
    chunks: Vec<Bytes>,
    bytes: usize,
    /// Whether all that has come is kept, or nothing has come.
    whole: Rc<Cell<bool>>,
    /// Whether what comes is to be kept.
    wanted: bool,
}

impl Kept {
    /// Of a body of which nothing has come; `wanted` if it may have to be sent again.
    pub(super) fn new(wanted: bool) -> Self {
        Self { chunks: Vec::new(), bytes: 0, whole: Rc::new(Cell::new(true)), wanted }
    }

    /// Keeps what comes next.
    pub(super) fn keep(&mut self, chunk: &Bytes) {
        self.bytes += chunk.len();
        let fits = self.bytes <= KEPT_BYTES_MAX && self.chunks.len() < KEPT_CHUNKS_MAX;
        if self.wanted && fits && self.whole.get() {
            let is_small = chunk.len() <= COPIED_BYTES_MAX;
            self.chunks.push(if is_small { Bytes::copy_from_slice(chunk) } else { chunk.clone() });
        } else if self.bytes > 0 {
            self.whole.set(false);
            self.chunks = Vec::new();
        }
    }

    /// Whether all that was passed on can be passed on again.
    pub(super) fn is_whole(&self) -> bool {
        self.whole.get()
    }

    /// The same, for whoever asks while the body is passed on.
    pub(super) fn whole(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.whole)
    }

    pub(super) fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    pub(super) fn into_chunks(self) -> Vec<Bytes> {
        self.chunks
    }
}
