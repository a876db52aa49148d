//! The network interfaces of this machine, an address at a time, as templates in settings speak of them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// Where the kernel says by which interfaces what is elsewhere is reached.
const ROUTES: &str = "/proc/net/route";

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) address: IpAddr,
    /// Whether the default route goes by the interface.
    pub(super) is_default: bool,
    pub(super) is_up: bool,
}

impl Interface {
    /// Flags that are known.
    pub(super) const FLAGS: [&'static str; 6] =
        ["up", "loopback", "forwardable", "multicast", "global unicast", "link-local unicast"];

    /// Those of this machine; none where the system does not tell.
    pub(super) fn here() -> Vec<Self> {
        let routes = default_routes(&std::fs::read_to_string(ROUTES).unwrap_or_default());
        let mut all = Vec::new();
        for found in getifaddrs().into_iter().flatten() {
            let address = found.address.and_then(|address| {
                let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
            });
            let Some(address) = address else { continue };
            let (is_default, name) = (routes.contains(&found.interface_name), found.interface_name);
            all.push(Self { name, address, is_default, is_up: found.flags.contains(InterfaceFlags::IFF_UP) });
        }
        all
    }

    pub(super) fn has(&self, flag: &str) -> bool {
        match flag {
            "up" => self.is_up,
            "loopback" => self.address.is_loopback(),
            "multicast" => self.address.is_multicast(),
            "forwardable" | "global unicast" => self.is_forwardable(),
            "link-local unicast" => self.is_link_local(),
            _ => false,
        }
    }

    pub(super) fn attribute(&self, name: &str) -> Result<String, String> {
        match name {
            "address" => Ok(self.address.to_string()),
            "name" => Ok(self.name.clone()),
            "type" => Ok(if self.address.is_ipv4() { "IPv4" } else { "IPv6" }.to_owned()),
            other => Err(format!("the attribute {other:?} is not understood: address, name and type are")),
        }
    }

    pub(super) fn is_link_local(&self) -> bool {
        match self.address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
    }

    /// Whether what is sent there may leave the link.
    pub(super) fn is_forwardable(&self) -> bool {
        let address = self.address;
        !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || self.is_link_local())
    }

    /// Source: the private, shared and benchmarking networks of RFC 6890, and its unique local addresses.
    pub(super) fn is_private(&self) -> bool {
        match self.address {
            IpAddr::V4(_) => {
                let further = [([100, 64, 0, 0], 10), ([198, 18, 0, 0], 15)];
                let further = further.map(|(octets, bits)| Network { address: octets.into(), bits });
                Network::of_rfc_1918().iter().chain(&further).any(|network| network.has(self.address))
            }
            IpAddr::V6(address) => address.is_unique_local(),
        }
    }

    pub(super) fn is_public(&self) -> bool {
        self.is_forwardable() && !self.is_private()
    }
}

/// The interfaces of routes to everywhere, of the kernel's table.
fn default_routes(table: &str) -> BTreeSet<String> {
    let routes = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let to_everywhere = routes.filter(|route| route.get(1) == Some(&"00000000") && route.get(7) == Some(&"00000000"));
    to_everywhere.filter_map(|route| route.first().map(|name| (*name).to_owned())).collect()
}

/// Addresses that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    pub(super) fn of_rfc_1918() -> [Self; 3] {
        [([10, 0, 0, 0], 8), ([172, 16, 0, 0], 12), ([192, 168, 0, 0], 16)]
            .map(|(octets, bits)| Self { address: Ipv4Addr::from(octets).into(), bits })
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(32 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(128 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("{text:?} is no network such as 10.0.0.0/8");
        let (address, bits) = text.split_once('/').ok_or_else(refused)?;
        let address: IpAddr = address.parse().map_err(|_| refused())?;
        let bits: u32 = bits.parse().map_err(|_| refused())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        if bits <= bits_max { Ok(Self { address, bits }) } else { Err(refused()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_loopback_interface() {
        let here = Interface::here();
        assert!(here.iter().any(|it| it.address.is_loopback() && it.is_up && !it.is_default), "{here:?}");
    }

    #[test]
    fn the_default_route_is_the_one_to_everywhere() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                     eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\n\
                     eth1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\n";
        assert_eq!(default_routes(table), BTreeSet::from(["eth0".to_owned()]));
        assert!(default_routes("").is_empty());
    }

    #[test]
    fn networks_have_what_begins_as_they_do() {
        let has = |network: &str, address: &str| {
            network.parse::<Network>().expect(network).has(address.parse().expect(address))
        };
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("0.0.0.0/0", "8.8.8.8") && has("1.2.3.4/32", "1.2.3.4") && !has("1.2.3.4/32", "1.2.3.5"));
        assert!(has("2001:db8::/32", "2001:db8::1") && !has("2001:db8::/32", "10.0.0.1"));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/-1"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
