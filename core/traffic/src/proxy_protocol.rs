//! The PROXY protocol, versions 1 and 2: who is at the far end of a connection that a load balancer passes on.
//!
//! Read strictly and without I/O: a header is whole, wrong, or more of it is needed. Nobody guesses: where a listener wants
//! one, a connection that begins otherwise is refused.
//!
//! Source: "The PROXY protocol, versions 1 & 2", HAProxy, sections 2.1 and 2.2.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of a header of version 1 at most, its line end included (section 2.1).
const V1_BYTES_MAX: usize = 107;

/// What a header of version 1 begins with.
const V1_BEGIN: &[u8] = b"PROXY ";

/// What a header of version 2 begins with.
const V2_BEGIN: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes of version 2 before its addresses.
const V2_FIXED_BYTES: usize = 16;

/// Bytes of addresses and of what else a sender attaches: far more than any of them does, far less than the 64 KiB that fit.
const V2_REST_BYTES_MAX: usize = 4 * 1024;

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// Nothing: the connection is the sender's own, such as a check of health, or it does not know.
    Own,
    /// Where the connection that is passed on comes from and was made to.
    Of {
        /// The caller.
        source: SocketAddr,
        /// Whom it has connected to.
        destination: SocketAddr,
    },
}

/// What is wrong with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProxyProtocolError {
    /// The connection does not begin with one.
    #[error("the connection does not begin with a PROXY header")]
    Absent,
    /// It does not obey the protocol.
    #[error("the PROXY header is malformed: {0}")]
    Malformed(&'static str),
    /// It is longer than any has reason to be.
    #[error("the PROXY header is too long")]
    TooLong,
}

/// Reads the header that `bytes` begin with, and how many bytes it has; `None` if more are needed to tell.
///
/// # Errors
/// [`ProxyProtocolError`] if there is none, or none that can be understood.
pub fn parse(bytes: &[u8]) -> Result<Option<(Header, usize)>, ProxyProtocolError> {
    let begins = |begin: &[u8]| begin.iter().zip(bytes).all(|(wanted, found)| wanted == found);
    if bytes.is_empty() {
        return Ok(None);
    }
    if begins(V1_BEGIN) {
        return parse_line(bytes);
    }
    if begins(V2_BEGIN) {
        return parse_binary(bytes);
    }
    Err(ProxyProtocolError::Absent)
}

/// Version 1: `PROXY TCP4 SOURCE DESTINATION PORT PORT` on a line of its own.
fn parse_line(bytes: &[u8]) -> Result<Option<(Header, usize)>, ProxyProtocolError> {
    let wrong = ProxyProtocolError::Malformed;
    let Some(end) = bytes.iter().take(V1_BYTES_MAX).position(|byte| *byte == b'\n') else {
        return if bytes.len() < V1_BYTES_MAX { Ok(None) } else { Err(ProxyProtocolError::TooLong) };
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or(wrong("its line does not end with CR LF"))?;
    let line = std::str::from_utf8(line).ok().filter(|line| line.is_ascii() && !line.contains('\r'));
    let line = line.ok_or(wrong("it is no text"))?;
    let header = match line.split(' ').collect::<Vec<_>>().as_slice() {
        // What follows is not to be looked at.
        ["PROXY", "UNKNOWN", ..] => Header::Own,
        ["PROXY", family @ ("TCP4" | "TCP6"), source, destination, from, to] => {
            let ip = |text: &str| match *family {
                "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
                _ => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            };
            let end = |address: &str, port: &str| {
                let address = ip(address).ok_or(wrong("an address is none of its family"))?;
                let port = port_of(port).ok_or(wrong("a port is none"))?;
                Ok(SocketAddr::new(address, port))
            };
            Header::Of { source: end(source, from)?, destination: end(destination, to)? }
        }
        _ => return Err(wrong("it does not name TCP4, TCP6 or UNKNOWN with two addresses and two ports")),
    };
    Ok(Some((header, end + 1)))
}

/// A port in decimal digits, without leading zeros.
fn port_of(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

/// Version 2.
fn parse_binary(bytes: &[u8]) -> Result<Option<(Header, usize)>, ProxyProtocolError> {
    let wrong = ProxyProtocolError::Malformed;
    let Some(&[command, family, high, low]) = bytes.get(V2_BEGIN.len()..V2_FIXED_BYTES) else { return Ok(None) };
    let rest = usize::from(u16::from_be_bytes([high, low]));
    if rest > V2_REST_BYTES_MAX {
        return Err(ProxyProtocolError::TooLong);
    }
    if command >> 4 != 2 {
        return Err(wrong("its version is not 2"));
    }
    let own = match command & 0xf {
        0 => true,
        1 => false,
        _ => return Err(wrong("its command is neither LOCAL nor PROXY")),
    };
    let Some(addresses) = bytes.get(V2_FIXED_BYTES..V2_FIXED_BYTES + rest) else { return Ok(None) };
    let header = match family {
        _ if own => Header::Own,
        // Not known, or between two processes of one machine.
        0x00 | 0x31 => Header::Own,
        0x11 => of_addresses::<4>(addresses).ok_or(wrong("it is too short for two IPv4 addresses"))?,
        0x21 => of_addresses::<16>(addresses).ok_or(wrong("it is too short for two IPv6 addresses"))?,
        _ => return Err(wrong("it speaks of no connection")),
    };
    Ok(Some((header, V2_FIXED_BYTES + rest)))
}

/// Two addresses of `N` bytes, then two ports.
fn of_addresses<const N: usize>(bytes: &[u8]) -> Option<Header>
where
    IpAddr: From<[u8; N]>,
{
    let address = |at: usize| <[u8; N]>::try_from(bytes.get(at..at + N)?).ok().map(IpAddr::from);
    let port = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    Some(Header::Of {
        source: SocketAddr::new(address(0)?, port(2 * N)?),
        destination: SocketAddr::new(address(N)?, port(2 * N + 2)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(source: &str, destination: &str) -> Header {
        Header::Of {
            source: source.parse().expect("an address"),
            destination: destination.parse().expect("an address"),
        }
    }

    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).expect("a short header").to_be_bytes();
        [V2_BEGIN, &[command, family], &length, rest].concat()
    }

    #[test]
    fn lines_are_read_to_their_end_and_no_further() {
        let line = b"PROXY TCP4 192.0.2.7 198.51.100.1 51234 443\r\n";
        let with_more = [&line[..], b"GET / HTTP/1.1\r\n"].concat();
        let expected = (of("192.0.2.7:51234", "198.51.100.1:443"), line.len());
        assert_eq!(parse(&with_more), Ok(Some(expected)));
        for end in 0..line.len() {
            assert_eq!(parse(&line[..end]), Ok(None), "{end}");
        }
        assert_eq!(
            parse(b"PROXY TCP6 2001:db8::1 ::1 1 65535\r\n").map(|it| it.map(|it| it.0)),
            Ok(Some(of("[2001:db8::1]:1", "[::1]:65535")))
        );
        assert_eq!(parse(b"PROXY UNKNOWN\r\n"), Ok(Some((Header::Own, 15))));
        assert_eq!(parse(b"PROXY UNKNOWN any thing 1 2\r\n").map(|it| it.map(|it| it.0)), Ok(Some(Header::Own)));
    }

    #[test]
    fn lines_that_others_could_read_otherwise_are_refused() {
        for bad in [
            "PROXY TCP4 192.0.2.7 198.51.100.1 51234 443\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 51234\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 51234 443 x\r\n",
            "PROXY  TCP4 192.0.2.7 198.51.100.1 51234 443\r\n",
            "PROXY TCP4 192.0.2.07 198.51.100.1 51234 443\r\n",
            "PROXY TCP4 ::1 ::1 51234 443\r\n",
            "PROXY TCP6 192.0.2.7 198.51.100.1 51234 443\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 051234 443\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 70000 443\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 +1 443\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 1\r443\r\n",
            "PROXY UDP4 192.0.2.7 198.51.100.1 1 443\r\n",
            "PROXY \r\n",
        ] {
            assert!(matches!(parse(bad.as_bytes()), Err(ProxyProtocolError::Malformed(_))), "{bad:?}");
        }
        for absent in ["GET / HTTP/1.1\r\n", "proxy TCP4 ", "PROXYTCP4", "\r\n\r\nGET"] {
            assert_eq!(parse(absent.as_bytes()), Err(ProxyProtocolError::Absent), "{absent:?}");
        }
        let long = format!("PROXY UNKNOWN {}", "x".repeat(V1_BYTES_MAX));
        assert_eq!(parse(long.as_bytes()), Err(ProxyProtocolError::TooLong));
    }

    #[test]
    fn binary_headers_name_both_ends() {
        let four = [&[192, 0, 2, 7, 198, 51, 100, 1][..], &[0xc8, 0x22, 0x01, 0xbb]].concat();
        let header = binary(0x21, 0x11, &[&four[..], b"\x04\0\x01x"].concat());
        assert_eq!(parse(&header), Ok(Some((of("192.0.2.7:51234", "198.51.100.1:443"), header.len()))));
        for end in 0..header.len() {
            assert_eq!(parse(&header[..end]), Ok(None), "{end}");
        }
        let six = [[0; 15].as_slice(), &[1], &[0; 15], &[2], &[0, 80, 1, 187]].concat();
        assert_eq!(parse(&binary(0x21, 0x21, &six)).map(|it| it.map(|it| it.0)), Ok(Some(of("[::1]:80", "[::2]:443"))));
        for own in [
            binary(0x20, 0x00, b""),
            binary(0x20, 0x11, &four),
            binary(0x21, 0x00, b"xyz"),
            binary(0x21, 0x31, &[0; 216]),
        ] {
            assert_eq!(parse(&own), Ok(Some((Header::Own, own.len()))));
        }
    }

    #[test]
    fn binary_headers_that_say_nothing_sensible_are_refused() {
        for bad in [
            binary(0x11, 0x11, &[0; 12]),
            binary(0x22, 0x11, &[0; 12]),
            binary(0x21, 0x12, &[0; 12]),
            binary(0x21, 0x11, &[0; 11]),
            binary(0x21, 0x21, &[0; 35]),
            binary(0x21, 0x41, &[0; 12]),
        ] {
            assert!(matches!(parse(&bad), Err(ProxyProtocolError::Malformed(_))), "{bad:?}");
        }
        assert_eq!(parse(&binary(0x21, 0x11, &vec![0; V2_REST_BYTES_MAX + 1])), Err(ProxyProtocolError::TooLong));
    }
}
