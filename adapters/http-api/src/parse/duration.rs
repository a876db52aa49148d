//! Durations in Go's text form, which Consul's clients write and read.

use std::time::Duration;

use serde_json::Value;

const NANOS_PER_SECOND: f64 = 1e9;

/// The longest duration that is taken: Go's own, 2^63 - 1 nanoseconds (some 292 years).
pub const DURATION_NANOS_MAX: f64 = i64::MAX as f64;

/// Reads Go's form: a sequence of decimal numbers with units (`300ms`, `1.5h`, `1m30s`), or `0`.
///
/// `None` if the text is in another form, negative, or longer than [`DURATION_NANOS_MAX`].
/// Source: Go documentation, `time.ParseDuration`.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos = 0.0_f64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let number_len = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let (number, after) = rest.split_at(number_len);
        let unit_len = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        nanos += number.parse::<f64>().ok()? * unit_nanos(unit)?;
        rest = after;
    }
    from_nanos(nanos)
}

/// Reads a JSON duration: Go's text form, or a number of nanoseconds.
#[must_use]
pub fn parse_duration_value(value: &Value) -> Option<Duration> {
    match value {
        Value::String(text) => parse_duration(text),
        Value::Number(number) => from_nanos(number.as_f64()?),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn unit_nanos(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1.0),
        "us" | "\u{b5}s" | "\u{3bc}s" => Some(1e3),
        "ms" => Some(1e6),
        "s" => Some(NANOS_PER_SECOND),
        "m" => Some(60.0 * NANOS_PER_SECOND),
        "h" => Some(3600.0 * NANOS_PER_SECOND),
        _ => None,
    }
}

fn from_nanos(nanos: f64) -> Option<Duration> {
    if !(0.0..=DURATION_NANOS_MAX).contains(&nanos) {
        return None;
    }
    let rounded = nanos.round();
    let seconds = (rounded / NANOS_PER_SECOND).floor();
    let rest = rounded - seconds * NANOS_PER_SECOND;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "both are within the checked range")]
    Some(Duration::new(seconds as u64, rest as u32))
}

/// Writes Go's form as `time.Duration.String` does: `0s`, `150ms`, `1.5s`, `1m0s`, `2h30m0s`.
#[must_use]
pub fn duration_text(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < 1_000_000_000 {
        let (unit, per_unit) = match nanos {
            0..1_000 => ("ns", 1),
            1_000..1_000_000 => ("\u{b5}s", 1_000),
            _ => ("ms", 1_000_000),
        };
        return format!("{}{unit}", decimal(nanos, per_unit));
    }
    let minutes = duration.as_secs() / 60;
    let seconds = decimal(nanos - u128::from(minutes) * 60_000_000_000, 1_000_000_000);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

fn decimal(value: u128, per_unit: u128) -> String {
    let (whole, rest) = (value / per_unit, value % per_unit);
    if rest == 0 {
        return whole.to_string();
    }
    let width = per_unit.ilog10() as usize;
    format!("{whole}.{}", format!("{rest:0width$}").trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_go_reads_them() {
        for (text, millis) in
            [("0", 0), ("10s", 10_000), ("1m30s", 90_000), ("1.5h", 5_400_000), ("300ms", 300), ("+2s", 2_000)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse_duration("1us500ns"), Some(Duration::from_nanos(1_500)));
        for text in ["", "10", "s", "1x", "-1s", "1 s", ".s", "1..2s", "9999999h", "NaNs"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_are_nanoseconds() {
        assert_eq!(parse_duration_value(&serde_json::json!(10_000_000_000_u64)), Some(Duration::from_secs(10)));
        assert_eq!(parse_duration_value(&serde_json::json!(-1)), None);
        assert_eq!(parse_duration_value(&serde_json::json!(true)), None);
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (nanos, text) in [
            (0, "0s"),
            (999, "999ns"),
            (1_500, "1.5\u{b5}s"),
            (150_000_000, "150ms"),
            (10_000_000_000, "10s"),
            (1_500_000_000, "1.5s"),
            (60_000_000_000, "1m0s"),
            (5_400_000_000_000, "1h30m0s"),
        ] {
            assert_eq!(duration_text(Duration::from_nanos(nanos)), text);
        }
    }
}
