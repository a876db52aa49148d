//! What a name asks for: the grammar of names under `consul.`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::Name;
use starling_model::{Datacenter, NodeName, ServiceName};

/// The zone's only label.
pub(crate) const DOMAIN: &str = "consul";

/// The label of the name server in SOA and, where no server is registered, in NS.
pub(crate) const NAME_SERVER: &str = "ns";

/// Hexadecimal digits of an IPv4 address under `addr`.
const IPV4_DIGITS: usize = 8;

/// Hexadecimal digits of an IPv6 address under `addr`.
const IPV6_DIGITS: usize = 32;

/// The RFC 2782 protocol label that asks for no tag.
const ANY_TAG: &str = "tcp";

/// The meaning of a name; texts are in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Not under `consul.`.
    Outside,
    /// `consul.` itself.
    Apex,
    /// `ns.consul.`.
    NameServer,
    /// A name with names below it, but without records (RFC 8020: it exists).
    Empty,
    /// No name of this zone.
    Unknown,
    /// Instances that bear a name.
    Service {
        /// The name.
        service: ServiceName,
        /// Only those with this tag.
        tag: Option<String>,
    },
    /// What accepts mesh connections for a service.
    Connect(ServiceName),
    /// The gateways that let callers from outside in to a service.
    Ingress(ServiceName),
    /// What a prepared query finds, by its name.
    Query(String),
    /// The names of an address.
    Reverse(IpAddr),
    /// A service, at the address that is its own.
    Virtual(ServiceName),
    /// A node.
    Node(NodeName),
    /// An address spelled in its name.
    Address(IpAddr),
}

impl Asked {
    /// Reads `name`.
    pub(crate) fn parse(name: &Name, datacenter: &Datacenter) -> Self {
        let mut raw: Vec<&[u8]> = name.iter().collect();
        match raw.pop() {
            Some(domain) if domain.eq_ignore_ascii_case(DOMAIN.as_bytes()) => {}
            Some(_) | None => return reverse(name).map_or(Self::Outside, Self::Reverse),
        }
        let Some(labels) = raw.into_iter().map(lower).collect::<Option<Vec<_>>>() else { return Self::Unknown };
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let datacenter = datacenter.as_str().to_ascii_lowercase();
        let datacenter: Vec<&str> = datacenter.split('.').collect();
        match labels.as_slice() {
            [] => return Self::Apex,
            [only] if *only == NAME_SERVER => return Self::NameServer,
            several if datacenter.ends_with(several) => return Self::Empty,
            _ => {}
        }
        // A datacentre may be called like a kind, so both readings are tried.
        let within = labels.strip_suffix(datacenter.as_slice()).map(Self::within);
        within.filter(|asked| *asked != Self::Unknown).unwrap_or_else(|| Self::within(&labels))
    }

    /// Reads what stands before the datacentre.
    fn within(labels: &[&str]) -> Self {
        match labels {
            [rest @ .., "service"] => Self::service(rest),
            [rest @ .., "query"] => Self::query(rest),
            ["connect" | "ingress" | "virtual" | "node" | "addr"] => Self::Empty,
            [service, "connect"] => service.parse().map_or(Self::Unknown, Self::Connect),
            [service, "ingress"] => service.parse().map_or(Self::Unknown, Self::Ingress),
            [service, "virtual"] => service.parse().map_or(Self::Unknown, Self::Virtual),
            [rest @ .., "node"] => rest.join(".").parse().map_or(Self::Unknown, Self::Node),
            [digits, "addr"] => address(digits).map_or(Self::Unknown, Self::Address),
            // RFC 2782 names work without `service`, too.
            [.., last] if last.starts_with('_') => Self::service(labels),
            _ => Self::Unknown,
        }
    }

    /// Reads what stands before `query`: a name, which may have dots, or one in the form of RFC 2782.
    fn query(labels: &[&str]) -> Self {
        match labels {
            [] => Self::Empty,
            [protocol] if protocol.starts_with('_') => Self::Empty,
            [name, protocol] if name.starts_with('_') && protocol.starts_with('_') => Self::Query(name[1..].to_owned()),
            name => Self::Query(name.join(".")),
        }
    }

    /// Reads what stands before `service`.
    fn service(labels: &[&str]) -> Self {
        let (service, tag) = match labels {
            [] => return Self::Empty,
            [protocol] if protocol.starts_with('_') => return Self::Empty,
            [service, tag] if service.starts_with('_') && tag.starts_with('_') => {
                let tag = &tag[1..];
                (&service[1..], (tag != ANY_TAG).then(|| tag.to_owned()))
            }
            [tag @ .., service] => (*service, (!tag.is_empty()).then(|| tag.join("."))),
        };
        service.parse().map_or(Self::Unknown, |service| Self::Service { service, tag })
    }
}

/// A label in lower case; `None` for one that no name in the catalog can spell. A dot inside a label would make
/// `a.b` of one label and of two the same name.
fn lower(label: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(label).ok()?;
    (!text.contains('.')).then(|| text.to_ascii_lowercase())
}

/// The address that a name under `in-addr.arpa` or `ip6.arpa` spells; `None` for one of a network, or any other name.
fn reverse(name: &Name) -> Option<IpAddr> {
    let network = name.parse_arpa_name().ok()?;
    (network.prefix_len() == network.max_prefix_len()).then(|| network.addr())
}

fn address(digits: &str) -> Option<IpAddr> {
    // The parsers of numbers would take a sign.
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    match digits.len() {
        IPV4_DIGITS => u32::from_str_radix(digits, 16).ok().map(|bits| Ipv4Addr::from(bits).into()),
        IPV6_DIGITS => u128::from_str_radix(digits, 16).ok().map(|bits| Ipv6Addr::from(bits).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, datacenter: &str) -> Asked {
        let labels = name.split_terminator('.').map(str::as_bytes);
        Asked::parse(&Name::from_labels(labels).expect(name), &datacenter.parse().expect("a datacentre"))
    }

    fn service(name: &str, tag: Option<&str>) -> Asked {
        Asked::Service { service: name.parse().expect("a name"), tag: tag.map(str::to_owned) }
    }

    #[test]
    fn services_are_found_with_and_without_tag_and_datacentre() {
        assert_eq!(parse("web.service.consul.", "dc1"), service("web", None));
        assert_eq!(parse("WEB.Service.DC1.Consul.", "dc1"), service("web", None));
        assert_eq!(parse("v1.web.service.consul.", "dc1"), service("web", Some("v1")));
        assert_eq!(parse("v1.2.web.service.dc1.consul.", "dc1"), service("web", Some("v1.2")));
        assert_eq!(parse("_web._v1.service.consul.", "dc1"), service("web", Some("v1")));
        assert_eq!(parse("_web._tcp.service.dc1.consul.", "dc1"), service("web", None));
        assert_eq!(parse("_web._tcp.consul.", "dc1"), service("web", None));
        assert_eq!(parse("web.service.dc2.consul.", "dc1"), Asked::Unknown);
    }

    #[test]
    fn virtual_names_have_no_tags() {
        let web = || Asked::Virtual("web".parse().expect("a name"));
        assert_eq!(parse("web.virtual.consul.", "dc1"), web());
        assert_eq!(parse("WEB.virtual.dc1.consul.", "dc1"), web());
        assert_eq!(parse("v1.web.virtual.consul.", "dc1"), Asked::Unknown);
        assert_eq!(parse("virtual.consul.", "dc1"), Asked::Empty);
    }

    #[test]
    fn queries_are_found_by_names_that_may_have_dots() {
        let query = |name: &str| Asked::Query(name.to_owned());
        assert_eq!(parse("WEB.query.consul.", "dc1"), query("web"));
        assert_eq!(parse("geo.db.query.dc1.consul.", "dc1"), query("geo.db"));
        assert_eq!(parse("_web._tcp.query.consul.", "dc1"), query("web"));
        for empty in ["query.consul.", "_tcp.query.consul."] {
            assert_eq!(parse(empty, "dc1"), Asked::Empty, "{empty}");
        }
    }

    #[test]
    fn a_datacentre_called_like_a_kind_hides_nothing() {
        assert_eq!(parse("web.service.consul.", "service"), service("web", None));
        assert_eq!(parse("web.service.service.consul.", "service"), service("web", None));
        assert_eq!(parse("web.service.a.b.consul.", "A.b"), service("web", None));
        assert_eq!(parse("b.consul.", "a.b"), Asked::Empty);
    }

    #[test]
    fn names_above_others_are_empty_not_unknown() {
        for name in ["service.consul.", "node.dc1.consul.", "dc1.consul.", "_tcp.service.consul.", "_tcp.consul."] {
            assert_eq!(parse(name, "dc1"), Asked::Empty, "{name}");
        }
    }

    #[test]
    fn addresses_are_hexadecimal_digits_only() {
        assert_eq!(parse("0A000001.addr.consul.", "dc1"), Asked::Address("10.0.0.1".parse().expect("an address")));
        let v6 = "20010db8000000000000000000000001.addr.dc1.consul.";
        assert_eq!(parse(v6, "dc1"), Asked::Address("2001:db8::1".parse().expect("an address")));
        for name in ["a.addr.consul.", "+a000001.addr.consul.", "0a00000g.addr.consul.", "x.0a000001.addr.consul."] {
            assert_eq!(parse(name, "dc1"), Asked::Unknown, "{name}");
        }
    }

    #[test]
    fn node_names_may_have_dots_and_service_names_may_not() {
        assert_eq!(parse("n1.rack2.node.consul.", "dc1"), Asked::Node("n1.rack2".parse().expect("a name")));
        let one_label = Name::from_labels([&b"a.b"[..], b"service", b"consul"]).expect("a name");
        assert_eq!(Asked::parse(&one_label, &"dc1".parse().expect("a datacentre")), Asked::Unknown);
    }

    #[test]
    fn reverse_names_are_whole_addresses() {
        assert_eq!(parse("4.3.2.10.in-addr.arpa.", "dc1"), Asked::Reverse("10.2.3.4".parse().expect("an address")));
        let v6 = format!("1.{}8.b.d.0.1.0.0.2.ip6.arpa.", "0.".repeat(23));
        assert_eq!(parse(&v6, "dc1"), Asked::Reverse("2001:db8::1".parse().expect("an address")));
        for name in ["3.2.10.in-addr.arpa.", "in-addr.arpa.", "x.3.2.10.in-addr.arpa.", "256.3.2.10.in-addr.arpa."] {
            assert_eq!(parse(name, "dc1"), Asked::Outside, "{name}");
        }
    }

    #[test]
    fn what_is_not_under_the_domain_is_outside() {
        for name in ["", "com.", "consul.com.", "notconsul."] {
            assert_eq!(parse(name, "dc1"), Asked::Outside, "{name}");
        }
        assert_eq!(parse("ns.consul.", "dc1"), Asked::NameServer);
        assert_eq!(parse("CONSUL.", "dc1"), Asked::Apex);
    }
}
