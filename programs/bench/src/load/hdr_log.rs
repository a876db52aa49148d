//! Runs as HdrHistogram logs: the format that its tools read, in microseconds.
//!
//! Latencies are the interval without a tag, the same counted from when requests
//! were sent the one tagged `from-send`, the generator's own lateness the one tagged `slip`. What a log has no place
//! for (errors, statuses) is in a comment, so that runs can be merged without losing it.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{
    IntervalLogIterator, IntervalLogWriterBuilder, LogEntry, LogIteratorError, Tag,
};
use hdrhistogram::serialization::{Deserializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::{Outcome, Summary, Tally};
use crate::histogram::Distribution;

/// Tag of the lateness.
const SLIP: &str = "slip";

/// Tag of the latencies from when requests were sent.
const FROM_SEND: &str = "from-send";

/// Begins the comment with what else is known.
const COUNTS: &str = "Starling: ";

/// Begins the line with which other writers name the columns.
const LEGEND: &str = "\"StartTimestamp\"";

/// Longest log that is read: a day of one-second intervals of other writers is a tenth of it.
const LOG_BYTES_MAX: u64 = 1 << 30;

/// A year: an interval that begins so much before the log's start is counted from there, as HdrHistogram's reader has it.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a log does not hold of itself.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Counts {
    errors: u64,
    status: BTreeMap<u16, u64>,
    failures: BTreeMap<String, u64>,
    void: Option<String>,
}

/// Some runs as one.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) outcome: Outcome,
    /// Why one of them says nothing.
    pub(super) void: Option<String>,
    /// When the first of them began.
    pub(super) began: SystemTime,
    /// Logs of other programs, whose errors nobody knows.
    pub(super) foreign: usize,
}

/// A run as a log.
pub(super) fn render(outcome: &Outcome, void: Option<&str>, began: SystemTime) -> anyhow::Result<Vec<u8>> {
    let Tally { errors, status, failures, latency, from_send, slip, .. } = &outcome.tally;
    let void = void.map(str::to_owned);
    let counts = Counts { errors: *errors, status: status.clone(), failures: failures.clone(), void };
    let since_epoch = began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (mut log, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
    let mut writer = IntervalLogWriterBuilder::new()
        .add_comment("[starling load: latencies in microseconds, counted from when each request was due]")
        .add_comment(&format!("{COUNTS}{}", serde_json::to_string(&counts)?))
        .with_start_time(began)
        .begin_log_with(&mut log, &mut serializer)?;
    for (distribution, tag) in [(latency, None), (from_send, Tag::new(FROM_SEND)), (slip, Tag::new(SLIP))] {
        if tag.is_none() || distribution.count() > 0 {
            let written = writer.write_histogram(distribution.histogram(), since_epoch, outcome.elapsed, tag);
            written.map_err(|error| anyhow::anyhow!("cannot write a histogram: {error}"))?;
        }
    }
    Ok(log)
}

/// Reads logs and merges them: every request of all of them counts once.
///
/// # Errors
/// When one cannot be read, or is none.
pub(super) fn merge(paths: &[impl AsRef<Path>]) -> anyhow::Result<Merged> {
    let mut merged = Merger::default();
    for path in paths {
        let path = path.as_ref();
        let length = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
        if length > LOG_BYTES_MAX {
            bail!("{} has {length} bytes; the longest log that is read has {LOG_BYTES_MAX}", path.display());
        }
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        merged.add(&text).with_context(|| format!("{} is no HdrHistogram log", path.display()))?;
    }
    Ok(merged.finish())
}

#[derive(Default)]
struct Merger {
    tally: Tally,
    void: Option<String>,
    foreign: usize,
    /// From when to when something was measured, since the epoch.
    spans: Vec<(Duration, Duration)>,
}

impl Merger {
    fn add(&mut self, text: &str) -> anyhow::Result<()> {
        let own = text.lines().find_map(|line| line.strip_prefix('#')?.strip_prefix(COUNTS));
        match own {
            Some(counts) => {
                let counts: Counts = serde_json::from_str(counts).context("its counts cannot be read")?;
                let Counts { errors, status, failures, void } = counts;
                let answered = status.values().sum();
                self.tally.merge(Tally { answered, errors, status, failures, ..Tally::default() });
                self.void = self.void.take().or(void);
            }
            None => self.foreign += 1,
        }
        let lines: String =
            text.lines().filter(|line| !line.starts_with(LEGEND)).flat_map(|line| [line, "\n"]).collect();
        let (mut from, mut base, mut intervals) = (Duration::ZERO, Duration::ZERO, 0);
        let mut deserializer = Deserializer::new();
        for entry in IntervalLogIterator::new(lines.as_bytes()) {
            match entry.map_err(|LogIteratorError::ParseError { offset }| anyhow::anyhow!("at byte {offset}"))? {
                LogEntry::StartTime(start) => from = start,
                LogEntry::BaseTime(start) => base = start,
                LogEntry::Interval(interval) => {
                    let bytes = STANDARD.decode(interval.encoded_histogram()).context("an interval is no base64")?;
                    let histogram: Histogram<u64> = deserializer
                        .deserialize(&mut bytes.as_slice())
                        .map_err(|error| anyhow::anyhow!("an interval is no histogram: {error}"))?;
                    let distribution = Distribution::from(&histogram);
                    intervals += 1;
                    match interval.tag().map(|tag| tag.as_str()) {
                        Some(FROM_SEND) => self.tally.from_send.merge(&distribution),
                        Some(SLIP) => self.tally.slip.merge(&distribution),
                        _ => {
                            self.tally.latency.merge(&distribution);
                            let at = interval.start_timestamp();
                            let relative = base.is_zero() && at.saturating_add(YEAR) < from;
                            let begin = at.saturating_add(if relative { from } else { base });
                            self.spans.push((begin, begin.saturating_add(interval.duration())));
                        }
                    }
                }
            }
        }
        if intervals == 0 {
            bail!("it has no interval");
        }
        Ok(())
    }

    fn finish(mut self) -> Merged {
        if self.foreign > 0 {
            // Of those nothing but the successes is known.
            let known: u64 = self.tally.status.values().sum();
            self.tally.answered = self.tally.answered.max(known);
        }
        let began = self.spans.iter().map(|(begin, _)| *begin).min().unwrap_or_default();
        let elapsed = covered(self.spans);
        let began = SystemTime::UNIX_EPOCH.checked_add(began).unwrap_or(SystemTime::UNIX_EPOCH);
        Merged { outcome: Outcome { tally: self.tally, elapsed }, void: self.void, began, foreign: self.foreign }
    }
}

/// For how long at least one was measuring: runs beside each other count once, runs after each other add up.
fn covered(mut spans: Vec<(Duration, Duration)>) -> Duration {
    spans.sort_unstable();
    let (mut total, mut until) = (Duration::ZERO, Duration::ZERO);
    for (begin, end) in spans {
        total += end.saturating_sub(begin.max(until));
        until = until.max(end);
    }
    total
}

impl Merged {
    /// The figures.
    pub(super) fn summary(&self) -> Summary {
        let mut summary = Summary::of(&self.outcome);
        summary.void = self.void.clone().map(|void| format!("of one of the runs: {void}")).or(summary.void);
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(milliseconds: impl Iterator<Item = u64>, errors: u64) -> Outcome {
        let latency: Distribution = milliseconds.map(Duration::from_millis).collect();
        let slip = [Duration::from_micros(50)].into_iter().collect();
        let status = BTreeMap::from([(200, latency.count()), (503, errors)]);
        let failures = BTreeMap::from([("status 503".to_owned(), errors)]);
        let answered = latency.count() + errors;
        let from_send = latency.clone();
        let tally = Tally { answered, errors, status, failures, latency, from_send, slip, late: 0, each: None };
        Outcome { tally, elapsed: Duration::from_secs(10) }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
    }

    fn merged(logs: &[Vec<u8>]) -> Merged {
        let folder = tempfile::tempdir().unwrap();
        let written = logs.iter().enumerate().map(|(number, log)| {
            let path = folder.path().join(format!("{number}.hdr"));
            std::fs::write(&path, log).unwrap();
            path
        });
        merge(&written.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn two_runs_beside_each_other_are_one_of_both() {
        let even = render(&outcome((1..=500).map(|it| it * 2), 3), None, at(0)).unwrap();
        let odd = render(&outcome((0..500).map(|it| it * 2 + 1), 4), None, at(5)).unwrap();
        let merged = merged(&[even, odd]);
        let together = outcome(1..=1000, 7);
        assert_eq!(merged.outcome.tally.latency.recorded(), together.tally.latency.recorded());
        let (found, expected) = (merged.summary(), Summary::of(&together));
        assert_eq!((found.requests, found.errors, &found.status), (1007, 7, &expected.status));
        assert_eq!(found.failures["status 503"], 7);
        // Percentiles of all, and not the mean of two percentiles; the second began when the first was half over.
        assert_eq!(found.latency_ms.unwrap().p99, expected.latency_ms.unwrap().p99);
        assert!((found.seconds - 15.0).abs() < 0.01, "{}", found.seconds);
        assert_eq!((merged.foreign, merged.outcome.tally.slip.count(), merged.began), (0, 2, at(0)));
    }

    #[test]
    fn runs_after_each_other_add_up_their_time() {
        let seconds = |from, to| (Duration::from_secs(from), Duration::from_secs(to));
        assert_eq!(covered(vec![seconds(100, 110), seconds(0, 10)]), Duration::from_secs(20));
        assert_eq!(covered(vec![seconds(0, 10), seconds(2, 5), seconds(9, 12)]), Duration::from_secs(12));
        assert_eq!(covered(Vec::new()), Duration::ZERO);
    }

    #[test]
    fn one_void_run_voids_what_it_is_merged_into() {
        let good = render(&outcome(1..=1000, 0), None, at(0)).unwrap();
        let bad = render(&outcome(1..=10, 0), Some("too late"), at(0)).unwrap();
        assert!(merged(&[good, bad]).summary().void.unwrap().contains("too late"));
    }

    #[test]
    fn a_log_of_another_program_is_read_and_anything_else_refused() {
        let log = String::from_utf8(render(&outcome(1..=100, 0), None, at(0)).unwrap()).unwrap();
        let bare: String = log.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        let legend = "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"";
        let foreign = merged(&[format!("#[Logged with other]\n{legend}\n{bare}").into_bytes()]);
        assert_eq!((foreign.foreign, foreign.outcome.tally.latency.count()), (1, 100));
        for wrong in ["", "hello\n", "#only a comment\n", "0.1,1.0,2.0,notbase64!\n", "0.1,1.0,2.0,AAAA\n"] {
            assert!(Merger::default().add(wrong).is_err(), "{wrong:?}");
        }
    }
}
