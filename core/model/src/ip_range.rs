//! Ranges of addresses, in CIDR notation.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Addresses that share their first bits (RFC 4632 section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IpRange {
    /// Its first address: no bit behind the first `bits` is set.
    first: IpAddr,
    bits: u8,
}

/// Why a text is no range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IpRangeError {
    /// It is not of the form.
    #[error("{0:?} is neither an IP address nor a range such as 10.0.0.0/8")]
    Form(String),
    /// Bits are set that the range leaves open: whoever wrote it meant another.
    #[error("{0:?} has bits set behind its prefix; the range is written {1}")]
    HostBits(String, IpRange),
}

impl IpRange {
    /// Whether `address` is in it. An IPv4 address in IPv6 clothing (`::ffff:a.b.c.d`) counts as what it is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let open = 32 - u32::from(self.bits);
                u32::from(first).checked_shr(open) == u32::from(address).checked_shr(open)
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let open = 128 - u32::from(self.bits);
                u128::from(first).checked_shr(open) == u128::from(address).checked_shr(open)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// Its first address.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// How many bits its addresses share.
    #[must_use]
    pub fn bits(&self) -> u8 {
        self.bits
    }

    fn of(address: IpAddr, bits: u8) -> Self {
        let first = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                IpAddr::V4((u32::from(address) & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                IpAddr::V6((u128::from(address) & mask).into())
            }
        };
        Self { first, bits }
    }
}

impl FromStr for IpRange {
    type Err = IpRangeError;
    fn from_str(text: &str) -> Result<Self, IpRangeError> {
        let wrong = || IpRangeError::Form(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => bits.parse::<u8>().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?,
        };
        let range = Self::of(address, bits);
        if range.first == address { Ok(range) } else { Err(IpRangeError::HostBits(text.to_owned(), range)) }
    }
}

impl fmt::Display for IpRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

impl TryFrom<String> for IpRange {
    type Error = IpRangeError;
    fn try_from(text: String) -> Result<Self, IpRangeError> {
        text.parse()
    }
}

impl From<IpRange> for String {
    fn from(range: IpRange) -> Self {
        range.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(range: &str, address: &str) -> bool {
        range.parse::<IpRange>().expect(range).contains(address.parse().expect(address))
    }

    #[test]
    fn a_range_holds_what_shares_its_first_bits() {
        assert!(holds("10.0.0.0/8", "10.255.1.2") && !holds("10.0.0.0/8", "11.0.0.0"));
        assert!(holds("0.0.0.0/0", "255.255.255.255") && !holds("0.0.0.0/0", "::1"));
        assert!(holds("127.0.0.1", "127.0.0.1") && !holds("127.0.0.1", "127.0.0.2"));
        assert!(holds("fd00::/8", "fdff::1") && !holds("fd00::/8", "fe00::1") && holds("::/0", "::1"));
        assert!(holds("10.0.0.0/8", "::ffff:10.1.2.3"), "the same address in another form");
        assert!(holds("192.0.2.128/25", "192.0.2.200") && !holds("192.0.2.128/25", "192.0.2.127"));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for bad in ["", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "10.0.0.0/-1", "::/129", "example.com", "10.0.0.0/8/8"]
        {
            assert!(matches!(bad.parse::<IpRange>(), Err(IpRangeError::Form(_))), "{bad:?}");
        }
        let error = "10.1.0.0/8".parse::<IpRange>().expect_err("bits behind the prefix");
        assert_eq!(error.to_string(), "\"10.1.0.0/8\" has bits set behind its prefix; the range is written 10.0.0.0/8");
        assert_eq!("10.0.0.0/8".parse::<IpRange>().map(String::from), Ok("10.0.0.0/8".to_owned()));
    }
}
