//! Moments as the log writes them, in UTC.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

const SECONDS_PER_DAY: u64 = 86_400;

/// Digits of a fraction of a second where none are asked for.
const FRACTION_DIGITS: usize = 9;

struct Moment {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
    since_epoch: Duration,
}

impl Moment {
    /// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
    fn of(time: SystemTime) -> Self {
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = since_epoch.as_secs();
        // Days since 0000-03-01, so that leap days come last in a year.
        let days = seconds / SECONDS_PER_DAY + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * of_year + 2) / 153;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        Self {
            year: year_of_era + era * 400 + u64::from(month <= 2),
            month,
            day: of_year - (153 * shifted + 2) / 5 + 1,
            hour: seconds / 3_600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            since_epoch,
        }
    }

    fn put(&self, out: &mut String, sign: char, digits: Option<usize>) {
        // Writing to a string cannot fail.
        let _ = match sign {
            'Y' => write!(out, "{:04}", self.year),
            'm' => write!(out, "{:02}", self.month),
            'd' => write!(out, "{:02}", self.day),
            'H' => write!(out, "{:02}", self.hour),
            'M' => write!(out, "{:02}", self.minute),
            'S' => write!(out, "{:02}", self.second),
            'F' => write!(out, "{:04}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => write!(out, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            's' => write!(out, "{}", self.since_epoch.as_secs()),
            'f' => {
                let nanos = format!("{:09}", self.since_epoch.subsec_nanos());
                out.write_str(&nanos[..digits.unwrap_or(FRACTION_DIGITS).min(FRACTION_DIGITS)])
            }
            'z' => out.write_str("+0000"),
            'Z' => out.write_str("UTC"),
            other => out.write_char(other),
        };
    }
}

/// The moment by a pattern of [`Operator::StartTime`](starling_model::access_log::Operator), or in ISO 8601 with milliseconds.
pub(super) fn written(time: SystemTime, pattern: Option<&str>) -> String {
    let (moment, mut out) = (Moment::of(time), String::with_capacity(32));
    let mut signs = pattern.unwrap_or("%Y-%m-%dT%H:%M:%S.%3fZ").chars();
    while let Some(sign) = signs.next() {
        if sign != '%' {
            out.push(sign);
            continue;
        }
        let mut digits = None;
        for sign in signs.by_ref() {
            match sign.to_digit(10) {
                Some(digit) => digits = Some(digit as usize),
                None => {
                    moment.put(&mut out, sign, digits);
                    break;
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.123Z"),
            (951_782_400, "2000-02-29T00:00:00.123Z"),
            (1_709_251_199, "2024-02-29T23:59:59.123Z"),
            (1_709_251_200, "2024-03-01T00:00:00.123Z"),
            (4_102_444_799, "2099-12-31T23:59:59.123Z"),
        ] {
            let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, 123_456_789);
            assert_eq!(written(time, None), expected);
        }
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_709_251_200, 123_456_789);
        assert_eq!(
            written(time, Some("%F %T %s.%6f %z %% %f")),
            "2024-03-01 00:00:00 1709251200.123456 +0000 % 123456789"
        );
    }
}
