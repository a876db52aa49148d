//! Frames that cost work and bring nothing, counted as they come in.
//!
//! PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA and unknown frames are free now and then. A client that sends them
//! and little else is after the time of this proxy (CVE-2019-9512, -9515, -9517, -9518); memory it cannot take that way.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::stream::Conn;

/// Idle frames that a client may send at once.
const IDLE_FRAMES_MAX: u32 = 1_000;

/// After so long it may again. Keep-alive pings come once in seconds, and flow control is paid for by data.
const RENEWED_AFTER: Duration = Duration::from_secs(10);

/// What a frame that carries something pays for: pings that measure, priorities, the window of what it brings.
const PAID_BY_FRAME: u32 = 10;

/// A window update is paid for by so many bytes sent to the client.
const BYTES_PER_UPDATE: usize = 1_024;

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Counts the frames of one client.
#[derive(Debug)]
pub(crate) struct Meter {
    credit: u32,
    renewed: Instant,
    /// Bytes until the next head.
    skip: usize,
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that are there.
    have: usize,
    /// Bytes sent that have paid for nothing yet.
    sent: usize,
    exceeded: bool,
    /// Heads of frames that have come.
    frames: u64,
    /// The header list that has begun and has not come to its end.
    block: Option<u64>,
    /// The frame under way is its last.
    ends_block: bool,
}

impl Meter {
    fn new(now: Instant) -> Self {
        Self {
            credit: IDLE_FRAMES_MAX,
            renewed: now,
            skip: PREFACE_BYTES,
            head: [0; HEAD_BYTES],
            have: 0,
            sent: 0,
            exceeded: false,
            frames: 0,
            block: None,
            ends_block: false,
        }
    }

    fn read(&mut self, mut bytes: &[u8], now: impl Fn() -> Instant) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            self.end_block();
            let taken = (HEAD_BYTES - self.have).min(bytes.len());
            self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == HEAD_BYTES {
                self.have = 0;
                self.frame(&now);
            }
        }
    }

    fn frame(&mut self, now: &impl Fn() -> Instant) {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.frames += 1;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.block = self.block.or(Some(self.frames));
            self.ends_block = flags & END_HEADERS != 0;
            self.end_block();
        }
        let pays = match kind {
            DATA => self.skip > 0 || flags & END_STREAM != 0,
            HEADERS => true,
            _ => false,
        };
        if pays {
            self.credit = self.credit.saturating_add(PAID_BY_FRAME).min(IDLE_FRAMES_MAX);
        } else if !matches!(kind, RST_STREAM | CONTINUATION) {
            // Those two have limits of their own.
            self.spend(now);
        }
    }

    /// Notes that a header list is whole once its last frame is.
    fn end_block(&mut self) {
        if self.ends_block && self.skip == 0 {
            (self.block, self.ends_block) = (None, false);
        }
    }

    /// The number of the header list, or of the frame, that has begun and has not come to its end.
    fn unfinished(&self) -> Option<u64> {
        self.block.or_else(|| (self.have > 0).then_some(self.frames))
    }

    fn spend(&mut self, now: &impl Fn() -> Instant) {
        if self.credit == 0 {
            let now = now();
            self.exceeded |= now.duration_since(self.renewed) < RENEWED_AFTER;
            self.renewed = now;
            self.credit = IDLE_FRAMES_MAX;
        }
        self.credit -= 1;
    }

    fn wrote(&mut self, bytes: usize) {
        self.sent += bytes;
        let paid = u32::try_from(self.sent / BYTES_PER_UPDATE).unwrap_or(u32::MAX);
        self.sent %= BYTES_PER_UPDATE;
        self.credit = self.credit.saturating_add(paid).min(IDLE_FRAMES_MAX);
    }
}

/// A connection whose frames are counted.
pub(crate) struct Metered {
    conn: Conn,
    meter: Meter,
    told: Rc<Told>,
}

/// What a meter has found.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The client sends too many frames that carry nothing.
    pub(crate) exceeds: Cell<bool>,
    /// The number of what the client has begun to send and not finished.
    pub(crate) unfinished: Cell<Option<u64>>,
}

impl Metered {
    /// With what it finds.
    pub(crate) fn new(conn: Conn) -> (Self, Rc<Told>) {
        let told = Rc::<Told>::default();
        (Self { conn, meter: Meter::new(Instant::now()), told: Rc::clone(&told) }, told)
    }
}

impl AsyncRead for Metered {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.conn).poll_read(cx, buf);
        this.meter.read(&buf.filled()[before..], Instant::now);
        this.told.exceeds.set(this.meter.exceeded);
        this.told.unfinished.set(this.meter.unfinished());
        read
    }
}

impl AsyncWrite for Metered {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = std::task::ready!(Pin::new(&mut this.conn).poll_write(cx, buf))?;
        this.meter.wrote(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().conn).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().conn).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.resize(HEAD_BYTES + usize::from(length), 0xff);
        frame
    }

    #[test]
    fn idle_frames_are_counted_however_they_are_cut() {
        let now = Instant::now();
        for cut in [1, 7, 1_000] {
            let mut meter = Meter::new(now);
            meter.read(&[b'x'; PREFACE_BYTES], || now);
            let pings = frame(6, 0, 8).repeat(1_000);
            pings.chunks(cut).for_each(|part| meter.read(part, || now));
            assert!(!meter.exceeded);
            meter.read(&frame(6, 0, 8), || now);
            assert!(meter.exceeded, "one too many, in parts of {cut}");
        }
    }

    #[test]
    fn a_header_list_is_unfinished_until_its_last_byte_however_it_is_cut() {
        let now = Instant::now();
        let mut meter = Meter::new(now);
        meter.read(&[b'x'; PREFACE_BYTES], || now);
        let list = [frame(HEADERS, END_STREAM, 3), frame(CONTINUATION, 0, 2), frame(CONTINUATION, END_HEADERS, 2)];
        let list = list.concat();
        for byte in &list[..list.len() - 1] {
            meter.read(&[*byte], || now);
            assert!(meter.unfinished().is_some());
        }
        meter.read(&list[list.len() - 1..], || now);
        assert_eq!(meter.unfinished(), None);
        let first = meter.frames;
        meter.read(&frame(HEADERS, END_STREAM, 0), || now);
        assert_eq!(meter.unfinished(), Some(first + 1));
        meter.read(&frame(CONTINUATION, 0, 1), || now);
        assert_eq!(meter.unfinished(), Some(first + 1), "it is still the same list");
        meter.read(&frame(CONTINUATION, END_HEADERS, 0), || now);
        assert_eq!(meter.unfinished(), None);
    }

    #[test]
    fn frames_that_carry_something_and_time_pay_for_others() {
        let now = Instant::now();
        let mut meter = Meter::new(now);
        meter.read(&[b'x'; PREFACE_BYTES], || now);
        for _ in 0..1_000 {
            meter.read(&frame(DATA, 0, 3), || now);
            meter.read(&frame(8, 0, 4).repeat(10), || now);
        }
        assert!(!meter.exceeded);
        meter.read(&frame(8, 0, 4).repeat(980), || now);
        meter.wrote(100 * BYTES_PER_UPDATE);
        meter.read(&frame(8, 0, 4).repeat(90), || now);
        assert!(!meter.exceeded, "what is sent pays for its window");
        let later = now + RENEWED_AFTER;
        meter.read(&frame(6, 0, 8).repeat(900), || later);
        assert!(!meter.exceeded);
        meter.read(&frame(DATA, 0, 0).repeat(200), || later);
        assert!(meter.exceeded, "empty data carries nothing");
    }
}
