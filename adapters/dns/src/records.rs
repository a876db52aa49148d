//! Resource records: how the catalog's values are written in DNS.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use starling_model::{Datacenter, Revision};

use crate::asked::{DOMAIN, NAME_SERVER};
use crate::settings::Soa;

/// Seconds that a record may be cached of which nothing else is said: not at all, so that a change is seen at once.
const TTL_S: u32 = 0;

/// RFC 2782 priority of every instance, as in Consul: weights alone decide.
const PRIORITY: u16 = 1;

/// Bytes in one character string of a TXT record (RFC 1035 section 3.3).
const TEXT_BYTES_MAX: usize = 255;

/// Metadata keys with this prefix are answered as the bare value, as in Consul.
const BARE_PREFIX: &str = "rfc1035-";

/// An address or a name that leads to one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Host {
    /// An IP address.
    Ip(IpAddr),
    /// A host name.
    Named(Name),
}

impl Host {
    /// Reads an address of the catalog; `None` where it is neither an IP address nor a host name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Ok(ip) = text.parse() {
            return Some(Self::Ip(ip));
        }
        let mut name = Name::from_ascii(text).ok().filter(|name| name.num_labels() > 0)?;
        name.set_fqdn(true);
        Some(Self::Named(name))
    }
}

/// A record that is not cached.
pub(crate) fn record(owner: &Name, data: RData) -> Record {
    Record::from_rdata(owner.clone(), TTL_S, data)
}

/// An A or AAAA record.
pub(crate) fn address(owner: &Name, ip: IpAddr) -> Record {
    let data = match ip {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    };
    record(owner, data)
}

/// Whether a question of this type wants that address.
pub(crate) fn wants_address(wanted: RecordType, ip: IpAddr) -> bool {
    let own = if ip.is_ipv4() { RecordType::A } else { RecordType::AAAA };
    wanted == own || wanted == RecordType::ANY
}

/// Whether a question of this type wants addresses at all.
pub(crate) fn wants_addresses(wanted: RecordType) -> bool {
    [RecordType::A, RecordType::AAAA, RecordType::CNAME, RecordType::ANY].contains(&wanted)
}

/// A CNAME record.
pub(crate) fn alias(owner: &Name, host: Name) -> Record {
    record(owner, RData::CNAME(CNAME(host)))
}

/// A SRV record; weights past the field's end are cut to it.
pub(crate) fn server(owner: &Name, weight: u32, port: u16, target: Name) -> Record {
    let weight = u16::try_from(weight).unwrap_or(u16::MAX);
    record(owner, RData::SRV(SRV::new(PRIORITY, weight, port, target)))
}

/// A PTR record.
pub(crate) fn pointer(owner: &Name, name: Name) -> Record {
    record(owner, RData::PTR(PTR(name)))
}

/// A NS record.
pub(crate) fn name_server(owner: &Name, host: Name) -> Record {
    record(owner, RData::NS(NS(host)))
}

/// The SOA record; the serial is the revision, which rises with every change. It may be cached as long as what it says of
/// the absence of names, which is the lesser of the two (RFC 2308 section 5).
pub(crate) fn authority(revision: Revision, numbers: Soa) -> Record {
    #[expect(clippy::cast_possible_truncation, reason = "serials wrap (RFC 1982)")]
    let serial = revision.0 as u32;
    let soa = SOA::new(
        name_server_name(),
        fixed(&["hostmaster", DOMAIN]),
        serial,
        numbers.refresh_s,
        numbers.retry_s,
        numbers.expire_s,
        numbers.negative_ttl_s,
    );
    Record::from_rdata(apex(), numbers.negative_ttl_s, RData::SOA(soa))
}

/// A TXT record for one piece of metadata, `key=value` with the key quoted as in RFC 1464.
pub(crate) fn text(owner: &Name, key: &str, value: &str) -> Record {
    let text = match key.starts_with(BARE_PREFIX) {
        true => value.to_owned(),
        false => format!("{}={value}", quoted(key)),
    };
    let strings = match text.is_empty() {
        true => vec![&[][..]],
        false => text.as_bytes().chunks(TEXT_BYTES_MAX).collect(),
    };
    record(owner, RData::TXT(TXT::from_bytes(strings)))
}

/// Every piece of `meta` as TXT records.
pub(crate) fn texts<'a>(owner: &'a Name, meta: &'a BTreeMap<String, String>) -> impl Iterator<Item = Record> + 'a {
    meta.iter().map(|(key, value)| text(owner, key, value))
}

fn quoted(key: &str) -> String {
    let mut quoted = String::with_capacity(key.len());
    for character in key.chars() {
        if matches!(character, '`' | '=') || character.is_ascii_whitespace() {
            quoted.push('`');
        }
        quoted.push(character);
    }
    quoted
}

/// `consul.`.
pub(crate) fn apex() -> Name {
    fixed(&[DOMAIN])
}

/// `ns.consul.`.
pub(crate) fn name_server_name() -> Name {
    fixed(&[NAME_SERVER, DOMAIN])
}

fn fixed(labels: &[&str]) -> Name {
    let labels = labels.iter().map(|label| label.as_bytes());
    Name::from_labels(labels).expect("invariant: these few labels are short")
}

/// `SERVICE.service.DC.consul.`; `None` where the names are too long for DNS.
pub(crate) fn service_name(service: &str, datacenter: &Datacenter) -> Option<Name> {
    join(service, "service", datacenter)
}

/// `NODE.node.DC.consul.`; `None` where the names are too long for DNS.
pub(crate) fn node_name(node: &str, datacenter: &Datacenter) -> Option<Name> {
    join(node, "node", datacenter)
}

/// `HEX.addr.DC.consul.`; `None` where the datacentre's name is too long for DNS.
pub(crate) fn address_name(ip: IpAddr, datacenter: &Datacenter) -> Option<Name> {
    let digits = match ip {
        IpAddr::V4(ip) => format!("{:08x}", u32::from(ip)),
        IpAddr::V6(ip) => format!("{:032x}", u128::from(ip)),
    };
    join(&digits, "addr", datacenter)
}

fn join(name: &str, kind: &str, datacenter: &Datacenter) -> Option<Name> {
    let labels = name.split('.').chain([kind]).chain(datacenter.as_str().split('.')).chain([DOMAIN]);
    Name::from_labels(labels.map(str::as_bytes)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(record: &Record) -> Vec<String> {
        let RData::TXT(text) = &record.data else { panic!("not TXT: {record}") };
        text.txt_data.iter().map(|string| String::from_utf8_lossy(string).into_owned()).collect()
    }

    #[test]
    fn metadata_is_quoted_and_cut_into_strings() {
        assert_eq!(strings(&text(&apex(), "rack", "r2")), ["rack=r2"]);
        assert_eq!(strings(&text(&apex(), "a=b c`", "d=e")), ["a`=b` c``=d=e"]);
        assert_eq!(strings(&text(&apex(), "rfc1035-note", "v=spf1")), ["v=spf1"]);
        assert_eq!(strings(&text(&apex(), "rfc1035-", "")), [""]);
        let lengths: Vec<_> = strings(&text(&apex(), "k", &"x".repeat(300))).iter().map(String::len).collect();
        assert_eq!(lengths, [255, 47]);
    }

    #[test]
    fn hosts_are_addresses_or_names() {
        assert_eq!(Host::parse("10.0.0.1"), Some(Host::Ip("10.0.0.1".parse().expect("an address"))));
        assert!(matches!(Host::parse("db.example.com"), Some(Host::Named(name)) if name.is_fqdn()));
        for text in ["", ".", "a b", "a..b"] {
            assert_eq!(Host::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn names_too_long_for_dns_are_none() {
        let datacenter: Datacenter = "dc1".parse().expect("a datacentre");
        assert!(node_name("n1.rack2", &datacenter).is_some());
        assert!(node_name(&"n".repeat(64), &datacenter).is_none());
        assert!(node_name("a..b", &datacenter).is_none());
    }
}
