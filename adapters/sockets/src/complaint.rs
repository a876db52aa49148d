//! Log lines about events that an attacker can repeat at will.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use starling_admission::Tally;

/// One kind of event. The first is logged at once, later ones once a minute with their number.
#[derive(Debug)]
pub struct Complaint {
    began: Instant,
    tally: Mutex<Tally>,
}

impl Default for Complaint {
    fn default() -> Self {
        Self { began: Instant::now(), tally: Mutex::default() }
    }
}

impl Complaint {
    /// Notes an event; the number of events since the last line, if a line is due.
    pub fn due(&self) -> Option<u64> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).note(self.began.elapsed())
    }
}
