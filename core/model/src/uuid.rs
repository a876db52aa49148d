//! Universally unique identifiers, for what is named once and for good.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes in a UUID's text form: 32 digits and 4 hyphens (RFC 9562, section 4).
const UUID_TEXT_BYTES: usize = 36;

/// Where the hyphens of a UUID's text form stand.
const UUID_HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// A universally unique identifier (RFC 9562).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Uuid(u128);

/// A text is not an identifier in its canonical form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a UUID in lower case with hyphens")]
pub struct UuidError {
    /// The text as given.
    pub text: String,
}

impl Uuid {
    /// The identifier of exactly these bits, for those that are fixed.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Makes an identifier of 128 random bits, 6 of which the UUID's version and variant take.
    ///
    /// Source: RFC 9562, section 5.4 (UUID version 4).
    #[must_use]
    pub const fn from_random(bits: u128) -> Self {
        const VERSION_MASK: u128 = 0xf << 76;
        const VERSION_4: u128 = 0x4 << 76;
        const VARIANT_MASK: u128 = 0b11 << 62;
        const VARIANT_RFC: u128 = 0b10 << 62;
        Self((bits & !VERSION_MASK & !VARIANT_MASK) | VERSION_4 | VARIANT_RFC)
    }
}

impl FromStr for Uuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Self, UuidError> {
        let refused = || UuidError { text: text.to_owned() };
        if text.len() != UUID_TEXT_BYTES {
            return Err(refused());
        }
        let mut bits = 0_u128;
        for (index, byte) in text.bytes().enumerate() {
            let digit = match byte {
                b'-' if UUID_HYPHENS.contains(&index) => continue,
                _ if UUID_HYPHENS.contains(&index) => return Err(refused()),
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                _ => return Err(refused()),
            };
            bits = (bits << 4) | u128::from(digit);
        }
        Ok(Self(bits))
    }
}

impl TryFrom<String> for Uuid {
    type Error = UuidError;

    fn try_from(text: String) -> Result<Self, UuidError> {
        text.parse()
    }
}

impl From<Uuid> for String {
    fn from(id: Uuid) -> Self {
        id.to_string()
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e] = [self.0 >> 96, self.0 >> 80, self.0 >> 64, self.0 >> 48, self.0];
        let (b, c, d, e) = (b & 0xffff, c & 0xffff, d & 0xffff, e & 0xffff_ffff_ffff);
        write!(f, "{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bits_become_a_version_4_uuid() {
        assert_eq!(Uuid::from_random(0).to_string(), "00000000-0000-4000-8000-000000000000");
        assert_eq!(Uuid::from_random(u128::MAX).to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }

    #[test]
    fn text_survives_the_round_trip() {
        let text = "11111111-2222-3333-4444-0123456789ab";
        let id: Uuid = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
    }

    #[test]
    fn anything_but_a_lower_case_uuid_is_refused() {
        for bad in [
            "",
            "11111111-2222-3333-4444-0123456789AB",
            "11111111222233334444-0123456789ab----",
            "1111111-12222-3333-4444-0123456789ab",
            "11111111-2222-3333-4444-0123456789a",
            "11111111-2222-3333-4444-0123456789ag",
            "11111111-2222-3333-4444-01234567-9ab",
        ] {
            assert!(bad.parse::<Uuid>().is_err(), "{bad:?}");
        }
    }
}
