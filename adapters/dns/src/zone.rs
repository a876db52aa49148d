//! The zone `consul.`: the answer to one question, from one view of the catalog.
//!
//! Owns no sockets and no sizes. Instances whose worst check is critical are never answered, nor, if the settings say so,
//! those that warn; a service of which none is left does not exist (NXDOMAIN), as in Consul.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use starling_model::{CheckStatus, Datacenter, Node, NodeName, ServiceInstance, ServiceName, TrustDomain, virtual_v6};

use crate::asked::Asked;
use crate::records::{self, Host};
use crate::settings::Settings;
use crate::view::{Meant, Named, View};

/// The service under which control-plane servers are registered; they are the zone's name servers.
const SERVERS: &str = "consul";

/// How a query names the node of the agent that is asked.
const ASKED_AGENT: &str = "_agent";

/// The zone of one datacentre.
#[derive(Debug, Clone)]
pub struct Zone {
    datacenter: Datacenter,
    trust_domain: TrustDomain,
    servers: ServiceName,
    settings: Settings,
    /// The node of the agent that is asked, if there is one.
    own_node: Option<NodeName>,
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
    /// Seconds that they may be cached; `None` where each says so itself.
    ttl_s: Option<u32>,
}

impl Found {
    fn answers(answers: Vec<Record>) -> Self {
        Self { answers, ..Self::default() }
    }

    /// The same, to be cached so many seconds.
    fn cached(self, ttl_s: u32) -> Self {
        Self { ttl_s: Some(ttl_s), ..self }
    }
}

impl Zone {
    /// The zone of `datacenter`, in the mesh of `trust_domain`.
    #[must_use]
    pub fn new(datacenter: Datacenter, trust_domain: TrustDomain) -> Self {
        let servers = SERVERS.parse().expect("invariant: a valid service name");
        Self { datacenter, trust_domain, servers, settings: Settings::default(), own_node: None }
    }

    /// The same with other settings.
    #[must_use]
    pub fn with(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// The same, asked at this node.
    #[must_use]
    pub fn at(self, own_node: Option<NodeName>) -> Self {
        Self { own_node, ..self }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The answer to `query`, with identifier 0. The question is repeated as it was spelled.
    ///
    /// Outside `consul.`, for classes other than IN, for zone transfers and where nobody may see anything it is REFUSED. A name that does not exist is
    /// NXDOMAIN, one without records of the type is empty, both with the SOA (RFC 2308).
    #[must_use]
    pub fn answer(&self, view: &View, query: &Query, draw: Draw) -> Message {
        let mut message = Message::response(0, OpCode::Query);
        message.add_query(query.clone());
        let asked = Asked::parse(query.name(), &self.datacenter);
        let transfer = [RecordType::AXFR, RecordType::IXFR].contains(&query.query_type());
        if asked == Asked::Outside || transfer || query.query_class() != DNSClass::IN || view.is_closed() {
            message.metadata.response_code = ResponseCode::Refused;
            return message;
        }
        message.metadata.authoritative = true;
        match self.find(view, &asked, query, self.drawn(query, draw)) {
            Some(mut found) => {
                if let Some(ttl_s) = found.ttl_s.filter(|ttl_s| *ttl_s > 0) {
                    found.answers.iter_mut().chain(&mut found.additionals).for_each(|record| record.ttl = ttl_s);
                }
                message.answers = found.answers;
                message.additionals = found.additionals;
            }
            None => message.metadata.response_code = ResponseCode::NXDomain,
        }
        // A reverse name is not of this zone, of which alone the SOA speaks.
        if message.answers.is_empty() && !matches!(asked, Asked::Reverse(_)) {
            message.add_authority(records::authority(view.revision(), self.settings.soa));
        }
        message
    }

    /// The same draw, with no more addresses than the settings let an answer have.
    fn drawn(&self, query: &Query, draw: Draw) -> Draw {
        let counts = [RecordType::A, RecordType::AAAA, RecordType::ANY].contains(&query.query_type());
        let most = self.settings.addresses_max.filter(|_| counts).unwrap_or(usize::MAX);
        Draw { records_max: draw.records_max.min(most), ..draw }
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
                self.instances(view, (service, instances), query, draw)
            }
            Asked::Connect(service) => self.instances(view, (service, view.mesh_instances(service)), query, draw),
            Asked::Ingress(service) => self.instances(view, (service, view.ingress_instances(service)), query, draw),
            Asked::Query(name) => {
                let meant = view.query(name)?;
                let ttl_s = meant.ttl_s.unwrap_or_else(|| self.settings.service_ttl.of(meant.service.as_str()));
                let found = self.records(view, self.nearest(meant, draw), query, draw)?;
                Some(found.cached(ttl_s))
            }
            Asked::Reverse(ip) => self.reverse(view, *ip, query, draw),
            // Whether an instance is there or not, as callers may keep the address.
            Asked::Virtual(service) => {
                let v4 = view.virtual_address(service)?;
                let both = [IpAddr::V4(v4), IpAddr::V6(virtual_v6(&self.trust_domain, v4))];
                let found = Found::answers(addresses(owner, wanted, both.into_iter().map(Host::Ip), draw));
                Some(found.cached(self.settings.service_ttl.of(service.as_str())))
            }
            Asked::Node(name) => Some(node(view, name, owner, wanted, draw)?.cached(self.settings.node_ttl_s)),
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
            found.answers.push(records::authority(view.revision(), self.settings.soa));
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
        let instances = serving(view, view.instances(&self.servers), CheckStatus::Warning, draw);
        let names = instances.map(|(instance, _)| &instance.key.node).filter(|name| seen.insert(*name));
        names.filter_map(|name| view.snapshot().node(name)).map(|node| &node.value).collect()
    }

    /// The records of those instances of a service that serve; `None` if none does.
    fn instances(
        &self,
        view: &View,
        (service, instances): (&ServiceName, Vec<&ServiceInstance>),
        query: &Query,
        draw: Draw,
    ) -> Option<Found> {
        let worst = if self.settings.only_passing { CheckStatus::Passing } else { CheckStatus::Warning };
        let found = self.records(view, serving(view, instances, worst, draw), query, draw)?;
        Some(found.cached(self.settings.service_ttl.of(service.as_str())))
    }

    /// What a query finds, beginning where the draw says; those of the node next to which they are to be come first. How far others are is
    /// not known here.
    fn nearest<'v>(
        &self,
        meant: Meant<'v>,
        draw: Draw,
    ) -> impl Iterator<Item = (&'v ServiceInstance, CheckStatus)> + use<'v> {
        let Meant { mut instances, near, .. } = meant;
        rotate(&mut instances, draw.rotation);
        let near = if near == ASKED_AGENT { self.own_node.as_ref().map_or("", NodeName::as_str) } else { &near };
        if !near.is_empty() {
            instances.sort_by_key(|(instance, _)| !instance.key.node.as_str().eq_ignore_ascii_case(near));
        }
        instances.into_iter()
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

/// Those of `instances` whose health is `worst` or better, beginning where the draw says. It is looked up as they are taken.
fn serving<'a>(
    view: &'a View,
    mut instances: Vec<&'a ServiceInstance>,
    worst: CheckStatus,
    draw: Draw,
) -> impl Iterator<Item = (&'a ServiceInstance, CheckStatus)> {
    rotate(&mut instances, draw.rotation);
    let with_health = instances.into_iter().map(|instance| (instance, view.snapshot().health(&instance.key)));
    with_health.map(|(instance, health)| (instance, health.0)).filter(move |(_, health)| *health <= worst)
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
