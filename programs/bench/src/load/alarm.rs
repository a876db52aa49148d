//! Sleeping until a moment, to within the scheduler's microseconds: the runtime's own timers move in milliseconds, which
//! would be the larger part of what an open loop measures.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use anyhow::Context;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::net::unix::pipe::Receiver;

/// A timer of the kernel.
pub(super) struct Alarm {
    timer: TimerFd,
    /// The same timer as the runtime waits for it: it is read like a pipe, eight bytes each time it rings.
    rings: Receiver,
}

impl Alarm {
    /// One that is not set; within a runtime.
    ///
    /// # Errors
    /// When the kernel has none left for this process.
    pub(super) fn new() -> anyhow::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).context("cannot make a timer")?;
        let same: OwnedFd = timer.as_fd().try_clone_to_owned().context("cannot share a timer")?;
        Ok(Self { timer, rings: Receiver::from_owned_fd_unchecked(same).context("cannot wait for a timer")? })
    }

    /// Returns at `due`, or at once if that has passed.
    ///
    /// # Errors
    /// When the kernel refuses, which it does not.
    pub(super) async fn until(&self, due: Instant) -> anyhow::Result<()> {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let ring = Expiration::OneShot(TimeSpec::from_duration(left));
            self.timer.set(ring, TimerSetTimeFlags::empty()).context("cannot set a timer")?;
            self.rings.readable().await.context("cannot wait for a timer")?;
            // Until there is nothing to read: only then the runtime waits again.
            while self.rings.try_read(&mut [0; 8]).is_ok() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_never_rings_early_and_seldom_late() {
        let alarm = Alarm::new().unwrap();
        let begun = Instant::now();
        let mut late = Vec::new();
        for step in 1..=200_u32 {
            let due = begun + Duration::from_micros(300) * step;
            alarm.until(due).await.unwrap();
            late.push(Instant::now().checked_duration_since(due).expect("not early"));
        }
        late.sort_unstable();
        // The runtime's own timers would be late by half a millisecond, most of the time.
        assert!(late[late.len() / 10] < Duration::from_micros(300), "{late:?}");
    }
}
