//! What each subject looks like from afar, and what a commit changes about that.
//!
//! A subject is a set of items. Whoever has the items of the subjects that a plan reads makes the same plan as the server
//! would. What a planner does not read is not in them: upstreams and output of checks stay at home, and tags and metadata,
//! unless the service's resolver tells its instances apart by them.
//! Cost model: a commit costs two look-ups per front that it touches, never a pass over a subject; only a node's
//! address or a node-wide check costs as many as the node has instances, and a resolver with filters as many as its
//! service has.

mod touched;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use starling_catalog::quarantine::deny_all;
use starling_catalog::{Front, Marks, MeshRead, Snapshot, Subject};
use starling_model::{
    CaRootRecord, Change, CheckStatus, ConfigEntry, ConfigEntryKey, ConfigKind, InstanceKey, Locality, MeshEntry,
    NameError, Port, ServerId, ServerRecord, ServiceName, Weights,
};

use crate::message::{MessageError, WireItem};
use touched::Touched;

/// Names an item within its subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ItemKey {
    /// The only one; of `Routing`, the service-defaults.
    Sole,
    /// Of `Routing` and `ProxyDefaults`, an entry of another kind.
    Entry(ConfigKind),
    /// Of `Routing`, the virtual address.
    VirtualAddress,
    /// A front.
    Front(InstanceKey),
    /// A root, by its identifier.
    Root(String),
    /// A server.
    Server(ServerId),
}

/// An item of a subject.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// Of `Endpoints` and `Origins`.
    Front(Front),
    /// Of `Routing`, `Intentions` and `ProxyDefaults`.
    Entry(ConfigEntry),
    /// Of `Roots`.
    Root(CaRootRecord),
    /// Of `Servers`.
    Server(ServerRecord),
    /// Of `Routing`.
    VirtualAddress(Ipv4Addr),
    /// Of `Destinations` and `ServicesOutside`, in order.
    Services(Vec<ServiceName>),
    /// Of `Service`: there are instances. Of `Node`: something was written there.
    Mark,
}

/// What a commit did to an item; `None` where it is gone.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemChange {
    /// The subject.
    pub subject: Subject,
    /// The item.
    pub key: ItemKey,
    /// What it is now.
    pub item: Option<Item>,
}

/// Every item of a subject.
#[must_use]
pub fn content(snapshot: &Snapshot, subject: &Subject) -> Vec<(ItemKey, Item)> {
    if let Subject::Endpoints(service) = subject {
        let mut fronts = Vec::new();
        snapshot.visit_fronts(service, &mut |front| {
            fronts.push((ItemKey::Front(front.key.clone()), Item::Front(front.clone())));
        });
        return fronts;
    }
    if let Subject::Origins(service) = subject {
        let mut origins = Vec::new();
        snapshot.visit_origins(service, &mut |front| {
            origins.push((ItemKey::Front(front.key.clone()), Item::Front(front.clone())));
        });
        return origins;
    }
    if *subject == Subject::Roots {
        let roots = snapshot.roots().into_iter();
        return roots.map(|root| (ItemKey::Root(root.value.id.clone()), Item::Root(root.value.clone()))).collect();
    }
    if *subject == Subject::Servers {
        let servers = snapshot.servers();
        return servers.map(|it| (ItemKey::Server(it.value.id), Item::Server(it.value.clone()))).collect();
    }
    let keys: &[ItemKey] = if let Subject::Routing(_) = subject {
        &ROUTING_ITEMS
    } else if *subject == Subject::ProxyDefaults {
        &[ItemKey::Sole, MESH]
    } else {
        &[ItemKey::Sole]
    };
    keys.iter().filter_map(|key| Some((key.clone(), named(snapshot, subject, key)?))).collect()
}

/// Of `ProxyDefaults`, the settings of the whole mesh.
const MESH: ItemKey = ItemKey::Entry(ConfigKind::Mesh);

/// The items of `Routing`.
const ROUTING_ITEMS: [ItemKey; 7] = [
    ItemKey::Sole,
    ItemKey::Entry(ConfigKind::ServiceResolver),
    ItemKey::Entry(ConfigKind::ServiceRouter),
    ItemKey::Entry(ConfigKind::ServiceSplitter),
    ItemKey::Entry(ConfigKind::IngressGateway),
    ItemKey::Entry(ConfigKind::TerminatingGateway),
    ItemKey::VirtualAddress,
];

/// An item of a subject that has at most one of each key, known beforehand.
fn named(snapshot: &Snapshot, subject: &Subject, key: &ItemKey) -> Option<Item> {
    let entry = |kind, name: String| {
        let entry = snapshot.config(&ConfigEntryKey { kind, name })?;
        Some(Item::Entry(entry.value.clone()))
    };
    match subject {
        Subject::Service(service) => snapshot.has_instances(service).then_some(Item::Mark),
        Subject::Routing(service) => match key {
            ItemKey::Entry(kind) => entry(*kind, service.to_string()),
            ItemKey::VirtualAddress => snapshot.virtual_address(service).map(Item::VirtualAddress),
            ItemKey::Sole | ItemKey::Front(_) | ItemKey::Root(_) | ItemKey::Server(_) => {
                entry(ConfigKind::ServiceDefaults, service.to_string())
            }
        },
        Subject::Intentions(destination) => entry(ConfigKind::ServiceIntentions, destination.to_string()),
        Subject::ProxyDefaults if *key == MESH => entry(ConfigKind::Mesh, "mesh".to_owned()),
        Subject::ProxyDefaults => entry(ConfigKind::ProxyDefaults, "global".to_owned()),
        Subject::Destinations(source) => {
            let destinations: Vec<_> = snapshot.destinations(source).cloned().collect();
            (!destinations.is_empty()).then_some(Item::Services(destinations))
        }
        Subject::ServicesOutside => {
            let services: Vec<_> = snapshot.services_outside().cloned().collect();
            (!services.is_empty()).then_some(Item::Services(services))
        }
        Subject::Node(_) => Some(Item::Mark),
        Subject::Servers => {
            let ItemKey::Server(id) = key else { return None };
            snapshot.server(*id).map(|server| Item::Server(server.value.clone()))
        }
        Subject::Endpoints(_)
        | Subject::Origins(_)
        | Subject::Roots
        | Subject::Instance(_)
        | Subject::ServiceList
        | Subject::NodeList
        | Subject::CheckList
        | Subject::ConfigList(_)
        | Subject::Kv(_)
        | Subject::KvFolder(_)
        | Subject::Session(_)
        | Subject::NodeSessions(_)
        | Subject::SessionList
        | Subject::Access => None,
    }
}

/// What `changes`, which led from `before` to `after`, did to the items of every subject; each item once, those that
/// look as before left out.
#[must_use]
pub fn difference(before: &Snapshot, after: &Snapshot, changes: &[Change]) -> Vec<ItemChange> {
    let mut touched = Touched::default();
    for change in changes {
        touched.add(before, &change.key());
        touched.add(after, &change.key());
    }
    touched.add_moved(before, after);
    let mut all = Vec::new();
    for (service, key) in touched.outside {
        let seen = [
            (Subject::Endpoints(service.clone()), before.stand_in(&service, &key), after.stand_in(&service, &key)),
            (Subject::Origins(service.clone()), before.origin(&service, &key), after.origin(&service, &key)),
        ];
        let changes = seen.into_iter().filter(|(_, old, new)| old != new);
        all.extend(changes.map(|(subject, _, new)| ItemChange {
            subject,
            key: ItemKey::Front(key.clone()),
            item: new.map(Item::Front),
        }));
    }
    for key in touched.fronts {
        front_changes(before, after, &key, &mut all);
    }
    for (subject, key) in touched.named {
        let item = named(after, &subject, &key);
        // A mark on a node says that something was written, so it is never as before.
        if matches!(subject, Subject::Node(_)) || named(before, &subject, &key) != item {
            all.push(ItemChange { subject, key, item });
        }
    }
    if touched.roots {
        root_changes(before, after, &mut all);
    }
    all
}

fn front_changes(before: &Snapshot, after: &Snapshot, key: &InstanceKey, all: &mut Vec<ItemChange>) {
    let (old, new) = (before.front(key), after.front(key));
    if old == new {
        return;
    }
    let change = |service: &ServiceName, item| ItemChange {
        subject: Subject::Endpoints(service.clone()),
        key: ItemKey::Front(key.clone()),
        item,
    };
    if let Some((service, _)) = &old
        && new.as_ref().is_none_or(|(other, _)| other != service)
    {
        all.push(change(service, None));
    }
    if let Some((service, front)) = new {
        all.push(change(service, Some(Item::Front(front))));
    }
}

fn root_changes(before: &Snapshot, after: &Snapshot, all: &mut Vec<ItemChange>) {
    let (old, new) = (content(before, &Subject::Roots), content(after, &Subject::Roots));
    let gone = old.iter().filter(|(key, _)| new.iter().all(|(other, _)| other != key)).map(|(key, _)| (key, None));
    let put = new.iter().filter(|root| !old.contains(root)).map(|(key, item)| (key, Some(item)));
    all.extend(gone.chain(put).map(|(key, item)| ItemChange {
        subject: Subject::Roots,
        key: key.clone(),
        item: item.cloned(),
    }));
}

/// A front on the wire; its key is the item's.
#[derive(Clone, PartialEq, Eq, Message)]
struct WireFront {
    #[prost(string, optional, tag = "1")]
    address: Option<String>,
    /// 0 for none.
    #[prost(uint32, tag = "2")]
    port: u32,
    #[prost(uint32, tag = "3")]
    passing: u32,
    #[prost(uint32, tag = "4")]
    warning: u32,
    /// 0 passing, 1 warning, 2 critical.
    #[prost(uint32, tag = "5")]
    health: u32,
    #[prost(string, repeated, tag = "6")]
    tags: Vec<String>,
    #[prost(btree_map = "string, string", tag = "7")]
    meta: BTreeMap<String, String>,
    /// Empty where it is not known.
    #[prost(string, tag = "8")]
    region: String,
    /// Empty for none.
    #[prost(string, tag = "9")]
    zone: String,
    #[prost(bool, tag = "10")]
    stands_in: bool,
}

/// The key of the virtual address among the items of `Routing`; no kind of entry is called so.
const VIRTUAL_ADDRESS: &str = "virtual-address";

/// An item on the wire.
#[must_use]
pub fn encode_item(key: &ItemKey, item: Option<&Item>) -> WireItem {
    let key = match key {
        ItemKey::Sole => String::new(),
        ItemKey::Entry(kind) => kind.as_str().to_owned(),
        ItemKey::VirtualAddress => VIRTUAL_ADDRESS.to_owned(),
        ItemKey::Front(key) => format!("{}/{}", key.node, key.id),
        ItemKey::Root(id) => id.clone(),
        ItemKey::Server(id) => id.to_string(),
    };
    let json = "invariant: records have string keys only and always serialise";
    let value = item.map(|item| match item {
        Item::Front(front) => encode_front(front).encode_to_vec(),
        Item::Entry(entry) => serde_json::to_vec(entry).expect(json),
        Item::Root(root) => serde_json::to_vec(root).expect(json),
        Item::Server(server) => serde_json::to_vec(server).expect(json),
        Item::VirtualAddress(address) => address.octets().to_vec(),
        Item::Services(services) => serde_json::to_vec(services).expect(json),
        Item::Mark => Vec::new(),
    });
    WireItem { key, value: value.map(Bytes::from) }
}

fn encode_front(front: &Front) -> WireFront {
    let marks = front.marks.as_deref().cloned().unwrap_or_default();
    let locality = front.locality.as_deref();
    let zone = locality.and_then(|locality| locality.zone.as_ref());
    WireFront {
        region: locality.map(|locality| locality.region.to_string()).unwrap_or_default(),
        zone: zone.map(ToString::to_string).unwrap_or_default(),
        tags: marks.tags,
        meta: marks.meta,
        address: front.address.clone(),
        stands_in: front.stands_in,
        port: front.port.map_or(0, |port| u32::from(port.get())),
        passing: front.weights.passing,
        warning: front.weights.warning,
        health: match front.health {
            CheckStatus::Passing => 0,
            CheckStatus::Warning => 1,
            CheckStatus::Critical => 2,
        },
    }
}

/// The item that is meant.
///
/// # Errors
/// [`MessageError`] if the item does not fit the subject.
pub fn decode_item(subject: &Subject, wire: &WireItem) -> Result<(ItemKey, Option<Item>), MessageError> {
    let wrong = |reason: String| MessageError::Item { subject: subject.to_string(), reason };
    let value = wire.value.as_ref();
    match subject {
        Subject::Endpoints(_) | Subject::Origins(_) => {
            let (node, id) = wire.key.split_once('/').ok_or_else(|| wrong("its key is no instance".to_owned()))?;
            let key = InstanceKey { node: node.parse()?, id: id.parse()? };
            let front = value.map(|value| decode_front(&key, value).map(Item::Front).map_err(wrong)).transpose()?;
            Ok((ItemKey::Front(key), front))
        }
        Subject::Roots => {
            let root: Option<CaRootRecord> =
                value.map(|value| serde_json::from_slice(value)).transpose().map_err(|e| wrong(e.to_string()))?;
            match root {
                Some(root) if root.id != wire.key => Err(wrong("it is another root".to_owned())),
                root => Ok((ItemKey::Root(wire.key.clone()), root.map(Item::Root))),
            }
        }
        Subject::Servers => {
            let id = wire.key.parse().map_err(|error: starling_model::ServerIdError| wrong(error.to_string()))?;
            let server: Option<ServerRecord> =
                value.map(|value| serde_json::from_slice(value)).transpose().map_err(|e| wrong(e.to_string()))?;
            match server {
                Some(server) if server.id != id => Err(wrong("it is another server".to_owned())),
                server => Ok((ItemKey::Server(id), server.map(Item::Server))),
            }
        }
        Subject::Routing(_) if wire.key == VIRTUAL_ADDRESS => {
            let address = value.map(|value| <[u8; 4]>::try_from(&value[..])).transpose();
            let address = address.map_err(|_| wrong("it is no IPv4 address".to_owned()))?;
            Ok((ItemKey::VirtualAddress, address.map(|octets| Item::VirtualAddress(octets.into()))))
        }
        Subject::Routing(_) | Subject::ProxyDefaults => {
            let key = match wire.key.as_str() {
                "" => ItemKey::Sole,
                other => ItemKey::Entry(other.parse().map_err(|_| wrong(format!("{other:?} is no kind of entry")))?),
            };
            let place = (subject.clone(), key);
            let entry = decode_entry(value, &place).map_err(wrong)?;
            Ok((place.1, entry))
        }
        // What there is one of has no key.
        _ if !wire.key.is_empty() => Err(wrong("its key is not its own".to_owned())),
        Subject::Intentions(_) => {
            let entry = decode_entry(value, &(subject.clone(), ItemKey::Sole)).map_err(wrong)?;
            Ok((ItemKey::Sole, entry))
        }
        Subject::Destinations(_) | Subject::ServicesOutside => {
            let services: Option<Vec<ServiceName>> =
                value.map(|value| serde_json::from_slice(value)).transpose().map_err(|e| wrong(e.to_string()))?;
            Ok((ItemKey::Sole, services.map(Item::Services)))
        }
        Subject::Service(_) | Subject::Node(_) => Ok((ItemKey::Sole, value.map(|_| Item::Mark))),
        Subject::Instance(_)
        | Subject::ServiceList
        | Subject::NodeList
        | Subject::CheckList
        | Subject::ConfigList(_)
        | Subject::Kv(_)
        | Subject::KvFolder(_)
        | Subject::Session(_)
        | Subject::NodeSessions(_)
        | Subject::SessionList
        | Subject::Access => Err(wrong("it is not sent to agents".to_owned())),
    }
}

/// An item as an agent keeps it: also one whose value it cannot read.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadItem {
    /// The key on the wire.
    pub wire_key: String,
    /// Where it belongs; `None` for a kind of entry of a newer release.
    pub key: Option<ItemKey>,
    /// The item; of an unreadable one a stand-in that allows nothing, or `None`.
    pub item: Option<Item>,
    /// Why the value cannot be read.
    pub unreadable: Option<String>,
}

/// Reads an item. One whose value is damaged, or of a newer release, does not end the stream: a stand-in replaces it.
/// Unreadable intentions deny every source.
///
/// # Errors
/// [`MessageError`] if the key does not fit the subject, or a root cannot be read: the agent then keeps the roots it trusts.
pub fn read_item(subject: &Subject, wire: &WireItem) -> Result<ReadItem, MessageError> {
    let wire_key = wire.key.clone();
    let error = match decode_item(subject, wire) {
        Ok((key, item)) => return Ok(ReadItem { wire_key, key: Some(key), item, unreadable: None }),
        Err(error) => error,
    };
    // The key on its own decides whether the item belongs here at all.
    let bare = decode_item(subject, &WireItem { key: wire_key.clone(), value: None });
    let (key, item) = match (subject, bare) {
        (Subject::Roots, _) => return Err(error),
        (Subject::Intentions(destination), Ok((key, _))) if wire.value.is_some() => {
            (Some(key), Some(Item::Entry(ConfigEntry::ServiceIntentions(deny_all(destination.clone())))))
        }
        (_, Ok((MESH, _))) if wire.value.is_some() => {
            let entry = MeshEntry { mesh_destinations_only: true, ..MeshEntry::default() };
            (Some(MESH), Some(Item::Entry(ConfigEntry::Mesh(entry))))
        }
        (_, Ok((key, _))) if wire.value.is_some() => (Some(key), None),
        (Subject::Routing(_) | Subject::ProxyDefaults, Err(_)) => (None, None),
        (_, _) => return Err(error),
    };
    Ok(ReadItem { wire_key, key, item, unreadable: Some(error.to_string()) })
}

/// The subject that a config entry belongs to, and its key there; `None` for one that agents are not told of.
fn place_of(entry: &ConfigEntry) -> Option<(Subject, ItemKey)> {
    Some(match entry {
        ConfigEntry::Kept(_) => return None,
        ConfigEntry::ProxyDefaults(_) => (Subject::ProxyDefaults, ItemKey::Sole),
        ConfigEntry::Mesh(_) => (Subject::ProxyDefaults, MESH),
        ConfigEntry::ServiceIntentions(entry) => (Subject::Intentions(entry.destination.clone()), ItemKey::Sole),
        ConfigEntry::ServiceDefaults(entry) => (Subject::Routing(entry.service.clone()), ItemKey::Sole),
        ConfigEntry::IngressGateway(entry) => {
            (Subject::Routing(entry.gateway.clone()), ItemKey::Entry(ConfigKind::IngressGateway))
        }
        ConfigEntry::TerminatingGateway(entry) => {
            (Subject::Routing(entry.gateway.clone()), ItemKey::Entry(ConfigKind::TerminatingGateway))
        }
        ConfigEntry::ServiceResolver(_) | ConfigEntry::ServiceRouter(_) | ConfigEntry::ServiceSplitter(_) => {
            let service = entry.routing_of().expect("invariant: these kinds are of a service").clone();
            (Subject::Routing(service), ItemKey::Entry(entry.key().kind))
        }
    })
}

/// The entry that stands at `place`; `None` if it is gone.
fn decode_entry(value: Option<&Bytes>, place: &(Subject, ItemKey)) -> Result<Option<Item>, String> {
    let Some(value) = value else { return Ok(None) };
    let entry: ConfigEntry = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    if place_of(&entry).as_ref() == Some(place) {
        Ok(Some(Item::Entry(entry)))
    } else {
        Err("it is another's config entry".to_owned())
    }
}

fn decode_front(key: &InstanceKey, value: &Bytes) -> Result<Front, String> {
    let wire = WireFront::decode(value.clone()).map_err(|error| error.to_string())?;
    let port = match wire.port {
        0 => None,
        port => Some(Port::try_from(i64::from(port)).map_err(|error| error.to_string())?),
    };
    let health = match wire.health {
        0 => CheckStatus::Passing,
        1 => CheckStatus::Warning,
        2 => CheckStatus::Critical,
        other => return Err(format!("health {other} is unknown")),
    };
    let weights = Weights { passing: wire.passing, warning: wire.warning };
    let none = wire.tags.is_empty() && wire.meta.is_empty();
    let marks = (!none).then(|| Arc::new(Marks { tags: wire.tags, meta: wire.meta }));
    let locality = decode_locality(&wire.region, &wire.zone).map_err(|error| error.to_string())?;
    let stands_in = wire.stands_in;
    Ok(Front { key: key.clone(), address: wire.address, port, weights, health, marks, locality, stands_in })
}

fn decode_locality(region: &str, zone: &str) -> Result<Option<Arc<Locality>>, NameError> {
    if region.is_empty() && zone.is_empty() {
        return Ok(None);
    }
    let zone = (!zone.is_empty()).then(|| zone.parse()).transpose()?;
    Ok(Some(Arc::new(Locality { region: region.parse()?, zone })))
}

/// How urgent a change is: what takes something away comes first, then what adds, then the rest (DESIGN §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A removal, or an intention, which may deny.
    Restricts,
    /// Something to call that was not there.
    Extends,
    /// Everything else.
    Adjusts,
}

impl ItemChange {
    /// How urgent it is.
    #[must_use]
    pub fn urgency(&self) -> Urgency {
        match (&self.subject, &self.item) {
            (Subject::Intentions(_), _) | (_, None) => Urgency::Restricts,
            (_, Some(Item::Front(front))) if front.health == CheckStatus::Critical => Urgency::Restricts,
            (_, Some(Item::Front(_))) => Urgency::Extends,
            (_, Some(Item::VirtualAddress(_) | Item::Services(_))) => Urgency::Extends,
            (_, Some(Item::Entry(_) | Item::Root(_) | Item::Server(_) | Item::Mark)) => Urgency::Adjusts,
        }
    }
}
