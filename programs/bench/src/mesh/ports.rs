//! Free ports of this machine.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;

use anyhow::bail;

use super::LOOPBACK;

/// Where ports are looked for: below the range from which Linux takes ports of outgoing connections (32768 and up), so
/// that none of those can take one between the look and its use.
const RANGE: Range<u16> = 10_000..30_000;

/// Hands out ports that are free now, each once.
pub(crate) struct Ports {
    given: BTreeSet<u16>,
    next: u16,
}

impl Ports {
    /// Begins at a random place, so that two runs side by side do not meet.
    pub(crate) fn new() -> Self {
        Self { given: BTreeSet::new(), next: fastrand::u16(RANGE) }
    }

    /// A port free for TCP and UDP, with the loopback address.
    ///
    /// # Errors
    /// When there is none in the range.
    pub(crate) fn loopback(&mut self) -> anyhow::Result<SocketAddr> {
        for _ in RANGE {
            let address = SocketAddr::from((LOOPBACK, self.next));
            self.next = if self.next + 1 < RANGE.end { self.next + 1 } else { RANGE.start };
            if !self.given.contains(&address.port()) && is_free(address) {
                self.given.insert(address.port());
                return Ok(address);
            }
        }
        bail!("no port from {} to {} is free on {LOOPBACK}", RANGE.start, RANGE.end - 1)
    }
}

fn is_free(address: SocketAddr) -> bool {
    TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_not_given_and_none_is_given_twice() {
        let mut ports = Ports::new();
        let taken = ports.loopback().unwrap();
        let _held = TcpListener::bind(taken).unwrap();
        let mut again = Ports { given: BTreeSet::new(), next: taken.port() };
        let given: BTreeSet<_> = (0..50).map(|_| again.loopback().unwrap().port()).collect();
        assert_eq!(given.len(), 50);
        assert!(!given.contains(&taken.port()));
    }

    #[test]
    fn the_search_goes_round_at_the_end_of_the_range() {
        let mut ports = Ports { given: BTreeSet::new(), next: RANGE.end - 1 };
        ports.loopback().unwrap();
        assert!(RANGE.contains(&ports.loopback().unwrap().port()));
    }
}
