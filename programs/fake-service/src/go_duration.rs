//! Durations in Go's notation, the one every `fake-service` variable and answer uses: `1ms`, `1.5s`, `2m30s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// Units by suffix, longest first where one suffix begins another; both signs for micro are accepted, as Go does.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", MICROSECOND),
    ("\u{b5}s", MICROSECOND),
    ("\u{3bc}s", MICROSECOND),
    ("ms", MILLISECOND),
    ("s", SECOND),
    ("m", MINUTE),
    ("h", HOUR),
];

/// Fraction digits read after the point; a nanosecond of an hour needs no more than 13, further digits change nothing.
const FRACTION_DIGITS_MAX: usize = 15;

/// A span of time that reads and prints like Go's `time.Duration`.
///
/// Units: nanoseconds inside, any of ns, us, ms, s, m, h in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GoDuration(pub(crate) Duration);

/// The text is not a non-negative duration in Go's notation, or does not fit in 64 bits of nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a duration")]
pub(crate) struct NotADuration;

impl FromStr for GoDuration {
    type Err = NotADuration;

    fn from_str(text: &str) -> Result<Self, NotADuration> {
        if text == "0" {
            return Ok(Self(Duration::ZERO));
        }
        let mut rest = text;
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (part, after) = parse_part(rest).ok_or(NotADuration)?;
            total = total.checked_add(part).ok_or(NotADuration)?;
            rest = after;
        }
        if text.is_empty() { Err(NotADuration) } else { Ok(Self(Duration::from_nanos(total))) }
    }
}

/// Reads one number with its unit, and returns its nanoseconds and what follows.
fn parse_part(text: &str) -> Option<(u64, &str)> {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => split_digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (suffix, unit) = UNITS.iter().find(|(suffix, _)| rest.starts_with(suffix))?;
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS_MAX)];
    let mut nanos = u128::from(whole) * u128::from(*unit);
    if !fraction.is_empty() {
        let scale = fraction.bytes().fold(1_u128, |scale, _| scale * 10);
        nanos += fraction.parse::<u128>().ok()? * u128::from(*unit) / scale;
    }
    Some((u64::try_from(nanos).ok()?, &rest[suffix.len()..]))
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        match nanos {
            0 => out.write_str("0s"),
            1..MICROSECOND => write!(out, "{nanos}ns"),
            MICROSECOND..MILLISECOND => write_decimal(out, nanos, MICROSECOND, "\u{b5}s"),
            MILLISECOND..SECOND => write_decimal(out, nanos, MILLISECOND, "ms"),
            SECOND.. => {
                if nanos >= HOUR {
                    write!(out, "{}h", nanos / HOUR)?;
                }
                if nanos >= MINUTE {
                    write!(out, "{}m", nanos % HOUR / MINUTE)?;
                }
                write_decimal(out, nanos % MINUTE, SECOND, "s")
            }
        }
    }
}

/// Writes `nanos` in `unit` with as many decimals as it needs and no trailing zero.
fn write_decimal(out: &mut fmt::Formatter<'_>, nanos: u64, unit: u64, suffix: &str) -> fmt::Result {
    write!(out, "{}", nanos / unit)?;
    let mut fraction = nanos % unit;
    if fraction > 0 {
        let mut width = unit.ilog10() as usize;
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            width -= 1;
        }
        write!(out, ".{fraction:0width$}")?;
    }
    out.write_str(suffix)
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("1ms", MILLISECOND),
            ("1.5s", 1_500 * MILLISECOND),
            (".5s", 500 * MILLISECOND),
            ("2m30s", 150 * SECOND),
            ("1h0m0.000000001s", HOUR + 1),
            ("7\u{b5}s", 7 * MICROSECOND),
            ("7\u{3bc}s", 7 * MICROSECOND),
            ("7us", 7 * MICROSECOND),
            ("9ns", 9),
        ] {
            assert_eq!(text.parse(), Ok(GoDuration(Duration::from_nanos(nanos))), "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in ["", "5", "ms", ".s", "-1s", "1 s", "1x", "1s5", "1e3s", "9999999999999999999h", "99999999h"] {
            assert_eq!(text.parse::<GoDuration>(), Err(NotADuration), "{text}");
        }
    }

    #[test]
    fn prints_as_go_prints_and_reads_its_own_print() {
        for (nanos, text) in [
            (0, "0s"),
            (999, "999ns"),
            (202_008, "202.008\u{b5}s"),
            (25_497_500, "25.4975ms"),
            (1_500 * MILLISECOND, "1.5s"),
            (60 * SECOND, "1m0s"),
            (HOUR + 2 * MINUTE + 3 * SECOND + 40 * MILLISECOND, "1h2m3.04s"),
        ] {
            let duration = GoDuration(Duration::from_nanos(nanos));
            assert_eq!(duration.to_string(), text);
            assert_eq!(text.parse(), Ok(duration));
        }
    }
}
