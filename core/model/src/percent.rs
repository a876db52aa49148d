//! Shares of traffic, in hundredths of a percent.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A share of traffic from 0 to 100 %, in steps of 0.01 %, as Consul's splits have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Percent(u16);

impl Percent {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// Everything.
    pub const ALL: Self = Self(10_000);

    /// So many hundredths of a percent; `None` past 10,000.
    #[must_use]
    pub fn of_hundredths(hundredths: u16) -> Option<Self> {
        (hundredths <= Self::ALL.0).then_some(Self(hundredths))
    }

    /// A percentage as users write it; `None` outside 0 to 100, or finer than 0.01.
    #[must_use]
    pub fn parse(percent: f64) -> Option<Self> {
        /// Decimal fractions are no exact floats; this is far below a step and far above their error.
        const NOISE: f64 = 1e-6;
        if !(0.0..=100.0).contains(&percent) {
            return None;
        }
        let hundredths = (percent * 100.0).round();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, and from 0 to 10,000")]
        let whole = hundredths as u16;
        (hundredths - percent * 100.0).abs().le(&NOISE).then_some(Self(whole))
    }

    /// Hundredths of a percent, 0 to 10,000.
    #[must_use]
    pub fn hundredths(self) -> u16 {
        self.0
    }

    /// The same as a wide number, to reckon with.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0 as u64
    }

    /// The percentage as users write it.
    #[must_use]
    pub fn as_number(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl TryFrom<u16> for Percent {
    type Error = String;
    fn try_from(hundredths: u16) -> Result<Self, String> {
        Self::of_hundredths(hundredths).ok_or_else(|| format!("{hundredths} hundredths are more than 100 percent"))
    }
}

impl From<Percent> for u16 {
    fn from(percent: Percent) -> u16 {
        percent.0
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.as_number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_two_decimals_at_most() {
        for (written, hundredths) in [(0.0, 0), (0.01, 1), (33.33, 3_333), (99.99, 9_999), (100.0, 10_000), (7.07, 707)]
        {
            assert_eq!(Percent::parse(written).map(Percent::hundredths), Some(hundredths), "{written}");
        }
        for wrong in [-0.01, 100.01, 0.001, 33.333, f64::NAN, f64::INFINITY] {
            assert_eq!(Percent::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Percent::parse(12.5).expect("fine").to_string(), "12.5%");
        assert!(serde_json::from_str::<Percent>("10001").is_err());
    }
}
