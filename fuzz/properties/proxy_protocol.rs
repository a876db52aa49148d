//! What holds of every PROXY header. Included by the fuzz target and by the test that replays what it has found.

use starling_traffic::proxy_protocol::{Header, parse};

/// A header ends where it ends, whatever comes after, and nothing is decided about a beginning that could still be one.
pub fn proxy_protocol(data: &[u8]) {
    /// Sixteen bytes and the most that may follow them.
    const HEADER_BYTES_MAX: usize = 16 + 4 * 1024;
    match parse(data) {
        Ok(Some((header, length))) => {
            assert!(length <= data.len() && length <= HEADER_BYTES_MAX, "{length} of {}", data.len());
            assert_eq!(parse(&data[..length]), Ok(Some((header, length))), "without what follows");
            for end in 0..length {
                assert_eq!(parse(&data[..end]), Ok(None), "decided after {end} of {length} bytes");
            }
            if let Header::Of { source, destination } = header {
                assert_eq!(source.is_ipv4(), destination.is_ipv4());
                let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
                let (from, to) = (source.port(), destination.port());
                let line = format!("PROXY {family} {} {} {from} {to}\r\n", source.ip(), destination.ip());
                assert_eq!(parse(line.as_bytes()), Ok(Some((header, line.len()))), "the same in version 1");
            }
        }
        Ok(None) => assert!(data.len() < HEADER_BYTES_MAX),
        // What is wrong stays wrong.
        Err(error) => assert_eq!(parse(&[data, b"\r\n"].concat()), Err(error)),
    }
}
