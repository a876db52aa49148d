//! Short ways to write records, shared by this crate's tests.
#![allow(missing_docs, reason = "names say it all")]
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::collections::BTreeMap;

use starling_model::*;

pub fn node(name: &str, address: &str) -> Record {
    Record::Node(Node {
        name: name.parse().unwrap(),
        id: String::new(),
        address: address.to_owned(),
        tagged_addresses: BTreeMap::new(),
        meta: BTreeMap::new(),
    })
}

pub fn key(node: &str, id: &str) -> InstanceKey {
    InstanceKey { node: node.parse().unwrap(), id: id.parse().unwrap() }
}

pub fn instance(node: &str, id: &str, name: &str, port: i64) -> ServiceInstance {
    ServiceInstance {
        key: key(node, id),
        name: name.parse().unwrap(),
        kind: InstanceKind::Typical,
        address: None,
        port: Port::try_from(port).ok(),
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        enable_tag_override: false,
        native: false,
        locality: None,
        kept: starling_model::OpaqueSettings::default(),
    }
}

pub fn sidecar(node: &str, id: &str, name: &str, destination: &str, port: i64) -> ServiceInstance {
    let proxy = SidecarProxy {
        destination: destination.parse().unwrap(),
        destination_id: None,
        local_address: "127.0.0.1".to_owned(),
        local_port: None,
        upstreams: Vec::new(),
        config: OpaqueSettings::default(),
        transparent: None,
        kept: starling_model::OpaqueSettings::default(),
    };
    ServiceInstance { kind: InstanceKind::Sidecar(Box::new(proxy)), ..instance(node, id, name, port) }
}

pub fn check(node: &str, id: &str, service: Option<(&str, &str)>, status: CheckStatus) -> Record {
    Record::Check(Check {
        node: node.parse().unwrap(),
        id: id.parse().unwrap(),
        name: id.to_owned(),
        status,
        notes: String::new(),
        output: String::new(),
        service: service.map(|(id, name)| CheckedService {
            id: id.parse().unwrap(),
            name: name.parse().unwrap(),
            tags: Vec::new(),
        }),
        kind: String::new(),
        interval: String::new(),
        timeout: String::new(),
        definition: starling_model::OpaqueSettings::default(),
    })
}

/// A session that ends with the check `alive` of its node.
pub fn session(id: Uuid, node: &str, lock_delay_ms: u64) -> Record {
    Record::Coordination(CoordinationRecord::Session(Session {
        id,
        name: String::new(),
        node: node.parse().unwrap(),
        node_checks: vec!["alive".parse().unwrap()],
        service_checks: Vec::new(),
        lock_delay_ms,
        behavior: SessionBehavior::Release,
        ttl: String::new(),
        ttl_ms: None,
    }))
}

pub fn defaults(service: &str, protocol: Protocol) -> ConfigEntry {
    ConfigEntry::ServiceDefaults(ServiceDefaults {
        protocol: Some(protocol),
        ..ServiceDefaults::bare(service.parse().unwrap())
    })
}

/// A resolver with a subset `blue` of those with that tag, or of all.
pub fn resolver(service: &str, by_tag: bool) -> ConfigEntry {
    let filter = by_tag.then(|| "Service.Tags contains blue".parse().unwrap());
    let subset = Subset { filter, only_passing: false };
    let mut entry = ServiceResolver::bare(service.parse().unwrap());
    entry.subsets.insert("blue".parse().unwrap(), subset);
    ConfigEntry::ServiceResolver(Box::new(entry))
}

/// A splitter that sends everything to another service.
pub fn splitter(service: &str, to: &str) -> ConfigEntry {
    let split = ServiceSplit {
        weight: Percent::ALL,
        service: Some(to.parse().unwrap()),
        subset: None,
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
    };
    let splits = Splits::try_from(vec![split]).unwrap();
    ConfigEntry::ServiceSplitter(ServiceSplitter { service: service.parse().unwrap(), splits, meta: BTreeMap::new() })
}

pub fn connection(source: &str, action: Action) -> SourceIntention {
    SourceIntention {
        source: source.parse().unwrap(),
        decision: SourceDecision::Connection(action),
        description: String::new(),
        id: None,
    }
}

pub fn requests(source: &str, action: Action, prefix: &str) -> SourceIntention {
    let permission = IntentionPermission {
        action,
        path: Some(PathMatch::Prefix(prefix.to_owned())),
        methods: Vec::new(),
        headers: Vec::new(),
    };
    SourceIntention {
        source: source.parse().unwrap(),
        decision: SourceDecision::Requests(vec![permission]),
        description: String::new(),
        id: None,
    }
}

pub fn intentions(destination: &str, sources: Vec<SourceIntention>) -> ConfigEntry {
    ConfigEntry::ServiceIntentions(ServiceIntentions {
        destination: destination.parse().unwrap(),
        sources,
        meta: BTreeMap::new(),
    })
}

/// The first address that a service is tried at.
pub fn virtual_address(service: &str) -> VirtualAddress {
    VirtualAddress::candidates(&service.parse().unwrap()).next().unwrap()
}
