//! The zone `consul.`: the answer to one question, from one view of the catalog.
//!
//! Owns no sockets and no sizes. Instances whose worst check is critical are never answered; a service of which none is
//! left does not exist (NXDOMAIN), as in Consul.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use starling_model::{CheckStatus, Datacenter, Node, NodeName, ServiceInstance, ServiceName, TrustDomain, virtual_v6};

use crate::asked::Asked;
use crate::records::{self, Host};
use crate::view::{Named, View};

/// The service under which control-plane servers are registered; they are the zone's name servers.
const SERVERS: &str = "consul";

/// The zone of one datacentre.
#[derive(Debug, Clone)]
pub struct Zone {
    datacenter: Datacenter,
    trust_domain: TrustDomain,
    servers: ServiceName,
}

/// How far an answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Where in the list of candidates the answer begins; whoever raises it by one each time spreads load evenly.
    pub rotation: u64,
    /// Records in the answer section, and again in the additional section.
    pub records_max: usize,
}

/// The records of a name that exists.
#[derive(Debug, Default)]
struct Found {
    answers: Vec<Record>,
    additionals: Vec<Record>,
}

impl Found {
    fn answers(answers: Vec<Record>) -> Self {
        Self { answers, additionals: Vec::new() }
    }
}

impl Zone {
    /// The zone of `datacenter`, in the mesh of `trust_domain`.
    #[must_use]
    pub fn new(datacenter: Datacenter, trust_domain: TrustDomain) -> Self {
        let servers = SERVERS.parse().expect("invariant: a valid service name");
        Self { datacenter, trust_domain, servers }
    }

    /// The answer to `query`, with identifier 0. The question is repeated as it was spelled.
    ///
    /// Outside `consul.`, for classes other than IN and for zone transfers it is REFUSED. A name that does not exist is
    /// NXDOMAIN, one without records of the type is empty, both with the SOA (RFC 2308).
    #[must_use]
    pub fn answer(&self, view: &View, query: &Query, draw: Draw) -> Message {
        let mut message = Message::response(0, OpCode::Query);
        message.add_query(query.clone());
        let asked = Asked::parse(query.name(), &self.datacenter);
        let transfer = [RecordType::AXFR, RecordType::IXFR].contains(&query.query_type());
        if asked == Asked::Outside || transfer || query.query_class() != DNSClass::IN {
            message.metadata.response_code = ResponseCode::Refused;
            return message;
        }
        message.metadata.authoritative = true;
        match self.find(view, &asked, query, draw) {
            Some(found) => {
                message.answers = found.answers;
                message.additionals = found.additionals;
            }
            None => message.metadata.response_code = ResponseCode::NXDomain,
        }
        // A reverse name is not of this zone, of which alone the SOA speaks.
        if message.answers.is_empty() && !matches!(asked, Asked::Reverse(_)) {
            message.add_authority(records::authority(view.revision()));
        }
        message
    }

    /// The records of a name; `None` if it does not exist.
    fn find(&self, view: &View, asked: &Asked, query: &Query, draw: Draw) -> Option<Found> {
        let (owner, wanted) = (query.name(), query.query_type());
        match asked {
            Asked::Outside | Asked::Unknown => None,
            Asked::Empty => Some(Found::default()),
            Asked::Apex => Some(self.apex(view, owner, wanted, draw)),
            Asked::NameServer => {
                let hosts = self.server_nodes(view, draw).into_iter().filter_map(|node| Host::parse(&node.address));
                Some(Found::answers(addresses(owner, wanted, hosts, draw)))
            }
            Asked::Service { service, tag } => {
                let mut instances = view.instances(service);
                if let Some(tag) = tag {
                    instances.retain(|instance| instance.tags.iter().any(|own| own.eq_ignore_ascii_case(tag)));
                }
                self.instances(view, instances, query, draw)
            }
            Asked::Connect(service) => self.instances(view, view.mesh_instances(service), query, draw),
            Asked::Ingress(service) => self.instances(view, view.ingress_instances(service), query, draw),
            Asked::Query(name) => {
                let (found, ttl_s) = view.query(name)?;
                let mut found = self.records(view, rotated(found, draw), query, draw)?;
                for record in found.answers.iter_mut().chain(&mut found.additionals) {
                    record.ttl = ttl_s;
                }
                Some(found)
            }
            Asked::Reverse(ip) => self.reverse(view, *ip, query, draw),
            // Whether an instance is there or not, as callers may keep the address.
            Asked::Virtual(service) => {
                let v4 = view.virtual_address(service)?;
                let both = [IpAddr::V4(v4), IpAddr::V6(virtual_v6(&self.trust_domain, v4))];
                Some(Found::answers(addresses(owner, wanted, both.into_iter().map(Host::Ip), draw)))
            }
            Asked::Node(name) => node(view, name, owner, wanted, draw),
            Asked::Address(ip) => Some(Found::answers(addresses(owner, wanted, std::iter::once(Host::Ip(*ip)), draw))),
        }
    }

    /// The names of an address; `None` if nobody has it.
    fn reverse(&self, view: &View, ip: IpAddr, query: &Query, draw: Draw) -> Option<Found> {
        let owners = view.named(ip);
        if owners.is_empty() {
            return None;
        }
        let wants = [RecordType::PTR, RecordType::ANY].contains(&query.query_type());
        let names = owners.iter().filter(|_| wants).filter_map(|owner| match owner {
            Named::Node(node) => records::node_name(node.as_str(), &self.datacenter),
            Named::Service(service) => records::service_name(service.as_str(), &self.datacenter),
        });
        let records = names.map(|name| records::pointer(query.name(), name)).take(draw.records_max);
        Some(Found::answers(records.collect()))
    }

    fn apex(&self, view: &View, owner: &Name, wanted: RecordType, draw: Draw) -> Found {
        let mut found = Found::default();
        let any = wanted == RecordType::ANY;
        if any || wanted == RecordType::SOA {
            found.answers.push(records::authority(view.revision()));
        }
        if any || wanted == RecordType::NS {
            for server in self.server_nodes(view, draw).into_iter().take(draw.records_max) {
                let Some(name) = records::node_name(server.name.as_str(), &self.datacenter) else { continue };
                if let Some(Host::Ip(ip)) = Host::parse(&server.address) {
                    found.additionals.push(records::address(&name, ip));
                }
                found.answers.push(records::name_server(owner, name));
            }
            if found.answers.iter().all(|record| record.record_type() != RecordType::NS) {
                found.answers.push(records::name_server(owner, records::name_server_name()));
            }
        }
        found
    }

    /// The nodes on which servers are registered and not critical, each once.
    fn server_nodes<'a>(&self, view: &'a View, draw: Draw) -> Vec<&'a Node> {
        let mut seen = BTreeSet::new();
        let instances = serving(view, view.instances(&self.servers), draw);
        let names = instances.map(|(instance, _)| &instance.key.node).filter(|name| seen.insert(*name));
        names.filter_map(|name| view.snapshot().node(name)).map(|node| &node.value).collect()
    }

    /// The records of those of `instances` that serve; `None` if none does.
    fn instances(&self, view: &View, instances: Vec<&ServiceInstance>, query: &Query, draw: Draw) -> Option<Found> {
        self.records(view, serving(view, instances, draw), query, draw)
    }

    /// The records of instances, with the health that counts; `None` if there are none.
    fn records<'a>(
        &self,
        view: &'a View,
        serving: impl Iterator<Item = (&'a ServiceInstance, CheckStatus)>,
        query: &Query,
        draw: Draw,
    ) -> Option<Found> {
        let (owner, wanted) = (query.name(), query.query_type());
        let mut serving = serving.peekable();
        serving.peek()?;
        if wanted == RecordType::SRV {
            return Some(self.servers(view, owner, serving, draw));
        }
        let hosts = serving.filter_map(|(instance, _)| {
            let node = view.snapshot().node(&instance.key.node).map_or("", |node| node.value.address.as_str());
            Host::parse(instance.reachable_address(node))
        });
        Some(Found::answers(addresses(owner, wanted, hosts, draw)))
    }

    /// SRV records, and the addresses of their targets.
    fn servers<'a>(
        &self,
        view: &View,
        owner: &Name,
        instances: impl Iterator<Item = (&'a ServiceInstance, CheckStatus)>,
        draw: Draw,
    ) -> Found {
        let mut found = Found::default();
        let (mut servers, mut targets) = (BTreeSet::new(), BTreeSet::new());
        for (instance, status) in instances {
            let Some((target, host)) = self.target(view, instance) else { continue };
            let port = instance.port.map_or(0, u16::from);
            if !servers.insert((target.clone(), port)) {
                continue;
            }
            let weight = match status {
                CheckStatus::Passing => instance.weights.passing,
                CheckStatus::Warning | CheckStatus::Critical => instance.weights.warning,
            };
            if let Host::Ip(ip) = host
                && targets.insert(target.clone())
            {
                found.additionals.push(records::address(&target, ip));
            }
            found.answers.push(records::server(owner, weight, port, target));
            if found.answers.len() >= draw.records_max {
                break;
            }
        }
        found
    }

    /// The name of the machine on which an instance is reached: its node's, unless it has an address of its own. A
    /// target must not be an alias (RFC 2782), so host names stand for themselves.
    fn target(&self, view: &View, instance: &ServiceInstance) -> Option<(Name, Host)> {
        let node = view.snapshot().node(&instance.key.node).map(|node| &node.value);
        let host = Host::parse(instance.reachable_address(node.map_or("", |node| node.address.as_str())))?;
        let name = match &host {
            Host::Named(name) => Some(name.clone()),
            Host::Ip(ip) => {
                let of_node = node.filter(|_| instance.address.is_none());
                let of_node = of_node.and_then(|node| records::node_name(node.name.as_str(), &self.datacenter));
                of_node.or_else(|| records::address_name(*ip, &self.datacenter))
            }
        };
        Some((name?, host))
    }
}

/// Those of `instances` that are not critical, beginning where the draw says. Health is looked up as they are taken.
fn serving<'a>(
    view: &'a View,
    mut instances: Vec<&'a ServiceInstance>,
    draw: Draw,
) -> impl Iterator<Item = (&'a ServiceInstance, CheckStatus)> {
    rotate(&mut instances, draw.rotation);
    let with_health = instances.into_iter().map(|instance| (instance, view.snapshot().health(&instance.key)));
    with_health.filter(|(_, health)| health.serves()).map(|(instance, health)| (instance, health.0))
}

/// The same list, beginning where the draw says.
fn rotated<T>(mut list: Vec<T>, draw: Draw) -> impl Iterator<Item = T> {
    rotate(&mut list, draw.rotation);
    list.into_iter()
}

fn rotate<T>(list: &mut [T], rotation: u64) {
    let len = u64::try_from(list.len()).unwrap_or(u64::MAX);
    let start = rotation.checked_rem(len).and_then(|start| usize::try_from(start).ok());
    list.rotate_left(start.unwrap_or(0));
}

fn node(view: &View, name: &NodeName, owner: &Name, wanted: RecordType, draw: Draw) -> Option<Found> {
    let nodes = view.nodes(name);
    if nodes.is_empty() {
        return None;
    }
    let hosts = nodes.iter().filter_map(|node| Host::parse(&node.address));
    let mut answers = addresses(owner, wanted, hosts, draw);
    // Nothing may stand beside an alias (RFC 1034 section 3.6.2).
    let alias = answers.iter().any(|record| record.record_type() == RecordType::CNAME);
    if wanted == RecordType::TXT || (wanted == RecordType::ANY && !alias) {
        answers.extend(nodes.iter().flat_map(|node| records::texts(owner, &node.meta)));
        answers.truncate(draw.records_max);
    }
    Some(Found::answers(answers))
}

/// The addresses of the wanted type, each once. Only if no host is an address, the first host name as an alias: a name
/// can have one alias or addresses, not both (RFC 1034 section 3.6.2).
fn addresses(owner: &Name, wanted: RecordType, hosts: impl Iterator<Item = Host>, draw: Draw) -> Vec<Record> {
    let mut answers = Vec::new();
    if !records::wants_addresses(wanted) {
        return answers;
    }
    let mut alias = None;
    let mut seen = BTreeSet::new();
    for host in hosts {
        match host {
            Host::Ip(ip) => {
                if seen.insert(ip) && records::wants_address(wanted, ip) {
                    answers.push(records::address(owner, ip));
                }
            }
            Host::Named(name) if alias.is_none() && name != *owner => alias = Some(name),
            Host::Named(_) => {}
        }
        if answers.len() >= draw.records_max {
            break;
        }
    }
    if let Some(host) = alias.filter(|_| seen.is_empty()) {
        answers.push(records::alias(owner, host));
    }
    answers
}
