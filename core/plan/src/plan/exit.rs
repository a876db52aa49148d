//! The parts of a plan by which a gateway stands for services outside the mesh.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use starling_model::{OriginTls, Protocol, RateLimit, ServiceName, SubsetName};
use starling_traffic::Policy;

use super::{Inbound, LocalApp, Target};

/// A service outside the mesh, or a subset of one, as its callers in the mesh find it at a gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// The service; the gateway bears its identity there.
    pub service: ServiceName,
    /// Its subset.
    pub subset: Option<SubsetName>,
    /// Where the gateway listens, for all that it stands for.
    pub bind: SocketAddr,
    /// By what callers ask for it in their handshake.
    pub sni: String,
    /// What is spoken on both sides.
    pub protocol: Protocol,
    /// How it is called where it wants TLS; `None` for in plaintext.
    pub tls: Option<OriginTls>,
    /// Time to connect.
    pub connect_timeout: Duration,
    /// Time for a whole request; `None` for no limit.
    pub request_timeout: Option<Duration>,
    /// Connections of callers at most; `None` for no limit.
    pub max_connections: Option<u32>,
    /// Requests that it takes; `None` for no limit.
    pub rate_limit: Option<RateLimit>,
    /// Who may call.
    pub policy: Arc<Policy>,
}

/// Where a service, or a subset of one, is outside the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origins {
    /// The service.
    pub service: ServiceName,
    /// Its subset.
    pub subset: Option<SubsetName>,
    /// Whether requests keep the host that the caller has asked for, wherever they go.
    pub keeps_host: bool,
    /// The host that requests are told to be for, in place of the one that the caller has asked for.
    pub host: Option<String>,
    /// Whether addresses of the gateway's own machine and link are not called, whatever a name turns out to be ([`is_local`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shuns_local: bool,
    /// Those in order to be called, ordered by address and port, each once.
    pub origins: Vec<OutsideEndpoint>,
}

/// Where clouds serve a machine its credentials and settings besides link-local addresses: Alibaba Cloud, Azure, Oracle Cloud; AWS and
/// Google Cloud over IPv6.
const METADATA: [IpAddr; 6] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Whether an address is of whichever machine uses it, or of the link that it is on: loopback, unspecified and "this network" (RFC 6890),
/// link-local, and where clouds serve credentials. IPv4 in IPv6 counts as IPv4, also as NAT64 carries it (RFC 6052).
#[must_use]
pub fn is_local(ip: IpAddr) -> bool {
    let ip = match ip.to_canonical() {
        IpAddr::V6(long) => match long.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).into(),
            _ => IpAddr::V6(long),
        },
        short @ IpAddr::V4(_) => short,
    };
    let is_own = match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local() || ip.octets()[0] == 0,
        // The first 96 bits are 0 in the addresses that once carried IPv4, among them `::` and `::1`.
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.segments()[..6] == [0; 6],
    };
    is_own || METADATA.contains(&ip)
}

/// Whether a host name stands for the machine itself (RFC 6761 section 6.3).
#[must_use]
pub fn is_local_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// One address of a service outside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OutsideEndpoint {
    /// An IP, or a host name.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// Share of load, at least 1.
    pub weight: u32,
}

impl Exit {
    /// Who is called.
    #[must_use]
    pub fn target(&self) -> Target {
        Target { service: self.service.clone(), subset: self.subset.clone() }
    }

    /// The same as the listener of a sidecar: callers must not see a difference. Behind it is no application.
    #[must_use]
    pub fn as_inbound(&self) -> Inbound {
        Inbound {
            service: self.service.clone(),
            bind: self.bind,
            protocol: self.protocol,
            local_app: LocalApp {
                address: String::new(),
                port: 0,
                connect_timeout: self.connect_timeout,
                request_timeout: self.request_timeout,
            },
            max_connections: self.max_connections,
            rate_limit: self.rate_limit,
            policy: Arc::clone(&self.policy),
        }
    }
}

impl Origins {
    /// Who is called.
    #[must_use]
    pub fn target(&self) -> Target {
        Target { service: self.service.clone(), subset: self.subset.clone() }
    }

    /// Whether any of them is known by name.
    #[must_use]
    pub fn has_names(&self) -> bool {
        self.origins.iter().any(|origin| origin.ip().is_none())
    }
}

impl OutsideEndpoint {
    /// Its address, if it is not known by name.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.address.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_ones_own_machine_and_link_are_told_from_others() {
        let local = [
            "127.0.0.1",
            "127.255.0.9",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "::1",
            "::",
            "fe80::1",
            "febf::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.0.1",
            "::ffff:0.0.0.0",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::169.254.169.254",
            "fd00:ec2::254",
            "fd20:ce::254",
            "100.100.100.200",
            "::ffff:168.63.129.16",
        ];
        for text in local {
            assert!(is_local(text.parse().expect(text)), "{text}");
        }
        for text in [
            "10.0.0.1",
            "192.168.0.1",
            "128.0.0.1",
            "169.253.0.1",
            "2001:db8::1",
            "fec0::1",
            "fd00::1",
            "fd00:ec2::1",
            "100.100.100.201",
            "64:ff9b::10.0.0.1",
            "::ffff:10.0.0.1",
        ] {
            assert!(!is_local(text.parse().expect(text)), "{text}");
        }
        for name in ["localhost", "LOCALHOST.", "a.localhost"] {
            assert!(is_local_name(name), "{name}");
        }
        for name in ["localhost.example.com", "notlocalhost", ""] {
            assert!(!is_local_name(name), "{name}");
        }
    }
}
