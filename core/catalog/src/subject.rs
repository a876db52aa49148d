//! What one can subscribe to.

use starling_model::{ConfigKind, InstanceKey, IntentionSubject, KvKey, NodeName, ServiceName, Uuid};

/// A part of the catalog with a revision of its own. A write wakes exactly the subscribers of the subjects it touches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A node, and everything registered on it.
    Node(NodeName),
    /// One instance's own registration, and its node's; not its health.
    Instance(InstanceKey),
    /// The instances that bear this name, with their checks (the catalog's view).
    Service(ServiceName),
    /// Where the service is reached in the mesh: its sidecars and native instances, and the health of what they front.
    Endpoints(ServiceName),
    /// Where the service is outside the mesh, if a gateway links it: its instances there, and their health.
    Origins(ServiceName),
    /// Which services have nobody in the mesh, for gateways that link them all.
    ServicesOutside,
    /// How the service is called: its service-defaults, router, splitter and resolver, and its virtual address; of a gateway,
    /// what it lets in or stands for.
    Routing(ServiceName),
    /// The intentions written for this destination.
    Intentions(IntentionSubject),
    /// The services whose own intentions name this one as a source that they allow.
    Destinations(ServiceName),
    /// Settings of every proxy, and those of the whole mesh.
    ProxyDefaults,
    /// The roots that the mesh trusts.
    Roots,
    /// Which servers there are, and which of them leads.
    Servers,
    /// Which services there are, with their tags.
    ServiceList,
    /// Which nodes there are.
    NodeList,
    /// Every check.
    CheckList,
    /// Every config entry of a kind.
    ConfigList(ConfigKind),
    /// An entry of the key-value store.
    Kv(KvKey),
    /// The entries in a folder, at whatever depth; its name ends with `/`, or is empty for all of them.
    KvFolder(String),
    /// A session.
    Session(Uuid),
    /// The sessions of a node.
    NodeSessions(NodeName),
    /// Every session.
    SessionList,
    /// Tokens, and what they may.
    Access,
}

impl Subject {
    /// The instance, if this is one.
    pub(crate) fn instance(&self) -> Option<&InstanceKey> {
        if let Self::Instance(key) = self { Some(key) } else { None }
    }

    /// The key of an entry, if this is one.
    pub(crate) fn kv(&self) -> Option<&KvKey> {
        if let Self::Kv(key) = self { Some(key) } else { None }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Instance(key) => write!(f, "instance/{key}"),
            Self::Service(name) => write!(f, "service/{name}"),
            Self::Endpoints(name) => write!(f, "endpoints/{name}"),
            Self::Origins(name) => write!(f, "origins/{name}"),
            Self::ServicesOutside => f.write_str("services-outside"),
            Self::Routing(name) => write!(f, "routing/{name}"),
            Self::Intentions(name) => write!(f, "intentions/{name}"),
            Self::Destinations(name) => write!(f, "destinations/{name}"),
            Self::ProxyDefaults => f.write_str("proxy-defaults"),
            Self::Roots => f.write_str("roots"),
            Self::Servers => f.write_str("servers"),
            Self::ServiceList => f.write_str("services"),
            Self::NodeList => f.write_str("nodes"),
            Self::CheckList => f.write_str("checks"),
            Self::ConfigList(kind) => write!(f, "config/{}", kind.as_str()),
            Self::Kv(key) => write!(f, "kv/{key}"),
            Self::KvFolder(folder) => write!(f, "kv-folder/{folder}"),
            Self::Session(id) => write!(f, "session/{id}"),
            Self::NodeSessions(node) => write!(f, "node-sessions/{node}"),
            Self::SessionList => f.write_str("sessions"),
            Self::Access => f.write_str("access"),
        }
    }
}
