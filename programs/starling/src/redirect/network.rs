//! A network as it is written: `10.0.0.0/8`, `fd00::/8`, or one address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Addresses that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) address: IpAddr,
    /// Bits that are the same.
    pub(crate) bits: u8,
}

/// Why a text is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a network is an address and a number of bits, such as 10.0.0.0/8 or fd00::/8")]
pub(crate) struct NoNetwork;

impl FromStr for Network {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Self, NoNetwork> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NoNetwork)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        // `+8` is a number to Rust.
        let digits = bits.filter(|bits| bits.bytes().all(|byte| byte.is_ascii_digit()));
        let bits = match (bits, digits) {
            (None, _) => most,
            (Some(_), digits) => digits.and_then(|digits| digits.parse().ok()).ok_or(NoNetwork)?,
        };
        if bits > most { Err(NoNetwork) } else { Ok(Self { address, bits }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_single_addresses_are_read() {
        for (text, read) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("fd00::/8", "fd00::/8"),
            ("::1", "::1/128"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(text.parse::<Network>().expect(text).to_string(), read);
        }
        for text in
            ["", "/8", "10.0.0.0/", "10.0.0.0/33", "fd00::/129", "10.0.0.0/+8", "10.0.0.0/8; flush ruleset", "lan"]
        {
            assert_eq!(text.parse::<Network>(), Err(NoNetwork), "{text:?}");
        }
    }
}
