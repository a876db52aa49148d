//! Virtual addresses: for each service of the mesh one IPv4 and one IPv6 address that no machine has, at which its callers
//! reach it through a proxy that captures their connections.
//!
//! Owns which addresses a service may get, in which order. That it gets the first that is free, and keeps it, is the
//! catalog's part (`docs/adr/0012-virtual-addresses.md`).

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::name::{ServiceName, TrustDomain};

/// Addresses that a service is tried at. With as many services as there may be, one address in a thousand is taken, so
/// that even a few would do.
const CANDIDATES_MAX: u64 = 64;

/// The first address of the range: 240.0.0.0/4, Consul's, reserved by RFC 1112 and used by nobody.
const FIRST: u32 = 0xf000_0000;

/// Addresses in it, without 255.0.0.0/8: broadcasts are there.
const COUNT: u64 = 0x0f00_0000;

/// That a service has an IPv4 address. Never changed and never removed: whoever has the address in a cache, or in a
/// configuration, may go on using it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// Whose it is.
    pub service: ServiceName,
}

impl VirtualAddress {
    /// Where `service` may be, in the order in which it is to be tried.
    ///
    /// They follow from the name alone, so that services registered at one time on several servers do not all try the
    /// same address.
    pub fn candidates(service: &ServiceName) -> impl Iterator<Item = Self> {
        let seed = hash(service.as_str());
        (0..CANDIDATES_MAX).map(move |attempt| {
            // The first address is that of the network itself.
            let offset = 1 + mix(seed.wrapping_add(attempt)) % (COUNT - 1);
            let offset = u32::try_from(offset).expect("invariant: less than the count");
            Self { address: Ipv4Addr::from_bits(FIRST + offset), service: service.clone() }
        })
    }
}

/// The IPv6 address that goes with a virtual IPv4 address: in a network of the trust domain's own (RFC 4193), so that
/// meshes beside each other do not share addresses.
#[must_use]
pub fn virtual_v6(trust_domain: &TrustDomain, address: Ipv4Addr) -> Ipv6Addr {
    let network = mix(hash(trust_domain.as_str()));
    let prefix = 0xfd << 56 | network >> 8;
    Ipv6Addr::from_bits(u128::from(prefix) << 64 | u128::from(address.to_bits()))
}

/// FNV-1a of 64 bits. Addresses are for ever, so this may never change.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Spreads the bits of a number (the finaliser of splitmix64). As unchangeable as [`hash`].
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn first(name: &str) -> Ipv4Addr {
        VirtualAddress::candidates(&name.parse().expect(name)).next().expect("there are some").address
    }

    /// They are in caches and configurations: other values here are a fault, whatever the reason.
    #[test]
    fn addresses_stay_what_they_are() {
        assert_eq!(first("web").to_string(), "248.94.37.191");
        assert_eq!(first("payments-api").to_string(), "248.17.110.182");
        let domain = "mesh.test".parse().expect("a trust domain");
        assert_eq!(virtual_v6(&domain, first("web")).to_string(), "fd09:cbe0:84fa:3863::f85e:25bf");
    }

    #[test]
    fn every_candidate_is_an_address_of_the_range() {
        for number in 0..1_000 {
            let service: ServiceName = format!("service-{number}").parse().expect("a name");
            let candidates: BTreeSet<_> = VirtualAddress::candidates(&service).map(|it| it.address).collect();
            assert_eq!(candidates.len(), 64, "{service}");
            assert!(candidates.iter().all(|address| (240..255).contains(&address.octets()[0])), "{service}");
        }
    }

    #[test]
    fn meshes_have_networks_of_their_own() {
        let of = |domain: &str| virtual_v6(&domain.parse().expect(domain), Ipv4Addr::new(240, 0, 0, 1)).octets();
        let (one, other) = (of("one.test"), of("other.test"));
        assert_eq!((one[0], &one[8..]), (0xfd, &[0, 0, 0, 0, 240, 0, 0, 1][..]));
        assert_ne!(one[..8], other[..8]);
    }
}
