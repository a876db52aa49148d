//! Resources: encoded parts of a proxy's configuration, and the whole of them at one revision.

use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use sha2::{Digest, Sha256};
use starling_model::Revision;

/// The kinds of resource that are served, in the order in which a change of several is sent: what is referred to
/// goes before what refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// CDS: how a service is called.
    Cluster,
    /// EDS: where a service is.
    Endpoints,
    /// SDS: the leaf certificate and the roots.
    Secret,
    /// ECDS: the network filter that holds the policy of a TCP service.
    Extension,
    /// LDS: where the proxy listens.
    Listener,
    /// RDS: how requests are routed, and the policy of an HTTP service.
    Route,
    /// Starling's own, for its native proxy: a part of the plan as it is.
    PlanPart,
}

impl ResourceType {
    /// Every kind, in sending order.
    pub const ALL: [Self; 7] =
        [Self::Cluster, Self::Endpoints, Self::Secret, Self::Extension, Self::Listener, Self::Route, Self::PlanPart];

    /// The number of kinds.
    pub const COUNT: usize = Self::ALL.len();

    /// The type URL that stands in requests and responses.
    #[must_use]
    pub fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Secret => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            Self::Extension => "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Route => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::PlanPart => "type.googleapis.com/starling.plan.v1.Part",
        }
    }

    /// The kind that a type URL names; `None` for one that is not served.
    #[must_use]
    pub fn from_type_url(type_url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == type_url)
    }

    /// The protocol's abbreviation.
    #[must_use]
    pub fn abbreviation(self) -> &'static str {
        match self {
            Self::Cluster => "cds",
            Self::Endpoints => "eds",
            Self::Secret => "sds",
            Self::Extension => "ecds",
            Self::Listener => "lds",
            Self::Route => "rds",
            Self::PlanPart => "plan",
        }
    }

    /// Whether a state-of-the-world response carries every resource of the kind, so that absence means removal.
    ///
    /// Source: xDS protocol, "How the client specifies what resources to return": true of LDS and CDS only, beside what
    /// is Starling's own.
    #[must_use]
    pub fn is_full_state(self) -> bool {
        match self {
            Self::Cluster | Self::Listener | Self::PlanPart => true,
            Self::Endpoints | Self::Secret | Self::Extension | Self::Route => false,
        }
    }

    /// Whether a refusal is of all that was sent together, which the client has all the same: the native proxy puts a state
    /// in force as one, and tries again.
    pub(crate) fn is_refused_whole(self) -> bool {
        self == Self::PlanPart
    }

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Cluster => 0,
            Self::Endpoints => 1,
            Self::Secret => 2,
            Self::Extension => 3,
            Self::Listener => 4,
            Self::Route => 5,
            Self::PlanPart => 6,
        }
    }
}

/// The version of a resource: its content's hash, so that it survives the server that gave it.
///
/// The first 8 bytes of a SHA-256; versions are compared between states of one resource only, and nobody gains by a
/// collision.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// The version of these bytes.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        let digest = Sha256::digest(content);
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Self(u64::from_be_bytes(first))
    }

    /// The version of a set of resources, given in ascending order of name.
    #[must_use]
    pub fn of_set<'a>(parts: impl IntoIterator<Item = (&'a str, Version)>) -> Self {
        let mut hash = Sha256::new();
        for (name, version) in parts {
            hash.update((name.len() as u64).to_be_bytes());
            hash.update(name.as_bytes());
            hash.update(version.0.to_be_bytes());
        }
        let digest = hash.finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Self(u64::from_be_bytes(first))
    }

    /// Reads what [`fmt::Display`] wrote; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if digits { u64::from_str_radix(text, 16).ok().map(Self) } else { None }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Names one resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceKey {
    /// Its kind.
    pub kind: ResourceType,
    /// Its name.
    pub name: Arc<str>,
}

/// One encoded resource.
///
/// Both forms of the protocol are slices of one buffer: the incremental form (`Resource`) ends with the
/// state-of-the-world form (`Any`).
#[derive(Clone)]
pub struct Resource {
    /// Its kind.
    pub kind: ResourceType,
    /// Its name, unique in its kind.
    pub name: Arc<str>,
    /// The hash of its content.
    pub version: Version,
    /// Resources that it makes the client ask for. Sent again after this one has changed: a client may wait for them
    /// anew, although it has them.
    pub children: Box<[ResourceKey]>,
    /// Clusters to which it sends traffic.
    pub clusters: Box<[Arc<str>]>,
    delta: Bytes,
    any_offset: usize,
}

/// `Resource.version`, `.resource` and `.name` (envoy.service.discovery.v3).
const RESOURCE_VERSION_TAG: u32 = 1;
const RESOURCE_ANY_TAG: u32 = 2;
const RESOURCE_NAME_TAG: u32 = 3;
/// `Any.type_url` and `.value` (google.protobuf).
const ANY_TYPE_URL_TAG: u32 = 1;
const ANY_VALUE_TAG: u32 = 2;

impl Resource {
    /// Wraps an encoded message.
    #[must_use]
    pub fn new(kind: ResourceType, name: &str, message: &[u8]) -> Self {
        Self::with_version(kind, name, Version::of(message), message)
    }

    /// Wraps an encoded message that a client must have again whenever its parent has changed: the version is that of
    /// both. So a client that lost its connection between the two does not seem to have what it still waits for.
    #[must_use]
    pub fn below(parent: Version, kind: ResourceType, name: &str, message: &[u8]) -> Self {
        let version = Version::of_set([("", parent), (name, Version::of(message))]);
        Self::with_version(kind, name, version, message)
    }

    fn with_version(kind: ResourceType, name: &str, version: Version, message: &[u8]) -> Self {
        let version_text = version.to_string();
        let any_len = field_len(kind.type_url().len()) + field_len(message.len());
        let head_len = field_len(version_text.len()) + field_len(name.len());
        let mut buffer = BytesMut::with_capacity(head_len + field_len(any_len));
        put_field(RESOURCE_VERSION_TAG, version_text.as_bytes(), &mut buffer);
        put_field(RESOURCE_NAME_TAG, name.as_bytes(), &mut buffer);
        encode_key(RESOURCE_ANY_TAG, WireType::LengthDelimited, &mut buffer);
        encode_varint(any_len as u64, &mut buffer);
        let any_offset = buffer.len();
        put_field(ANY_TYPE_URL_TAG, kind.type_url().as_bytes(), &mut buffer);
        put_field(ANY_VALUE_TAG, message, &mut buffer);
        Self {
            kind,
            name: name.into(),
            version,
            children: Box::default(),
            clusters: Box::default(),
            delta: buffer.freeze(),
            any_offset,
        }
    }

    /// Adds what it makes the client ask for.
    #[must_use]
    pub fn with_children(mut self, children: impl IntoIterator<Item = (ResourceType, Arc<str>)>) -> Self {
        self.children = children.into_iter().map(|(kind, name)| ResourceKey { kind, name }).collect();
        self
    }

    /// Adds the clusters to which it sends traffic.
    #[must_use]
    pub fn with_clusters(mut self, clusters: impl IntoIterator<Item = Arc<str>>) -> Self {
        self.clusters = clusters.into_iter().collect();
        self
    }

    /// The encoded `envoy.service.discovery.v3.Resource`, as incremental responses carry it.
    #[must_use]
    pub fn delta_bytes(&self) -> Bytes {
        self.delta.clone()
    }

    /// The encoded `google.protobuf.Any`, as state-of-the-world responses carry it.
    #[must_use]
    pub fn any_bytes(&self) -> Bytes {
        self.delta.slice(self.any_offset..)
    }

    /// Bytes in a response.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.delta.len()
    }
}

/// The content is left out: secrets are resources, too.
impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.kind.abbreviation(), self.name, self.version)
    }
}

impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.delta == other.delta
            && self.children == other.children
            && self.clusters == other.clusters
    }
}

/// Bytes of a length-delimited field with a tag below 16.
fn field_len(content: usize) -> usize {
    1 + encoded_len_varint(content as u64) + content
}

fn put_field(tag: u32, content: &[u8], buffer: &mut BytesMut) {
    encode_key(tag, WireType::LengthDelimited, buffer);
    encode_varint(content.len() as u64, buffer);
    buffer.put_slice(content);
}

/// Everything that one proxy may ask for, at one revision.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceSet {
    /// The revision of the plan.
    pub revision: Revision,
    kinds: [Box<[Arc<Resource>]>; ResourceType::COUNT],
}

impl ResourceSet {
    /// Sorts resources into a set; of several with one kind and name the last stays.
    #[must_use]
    pub fn new(revision: Revision, resources: impl IntoIterator<Item = Arc<Resource>>) -> Self {
        let mut kinds: [Vec<Arc<Resource>>; ResourceType::COUNT] = Default::default();
        for resource in resources {
            kinds[resource.kind.index()].push(resource);
        }
        let kinds = kinds.map(|mut list| {
            list.reverse();
            list.sort_by(|a, b| a.name.cmp(&b.name));
            list.dedup_by(|a, b| a.name == b.name);
            list.into_boxed_slice()
        });
        Self { revision, kinds }
    }

    /// The resources of a kind, in ascending order of name.
    #[must_use]
    pub fn of_kind(&self, kind: ResourceType) -> &[Arc<Resource>] {
        &self.kinds[kind.index()]
    }

    /// One resource.
    #[must_use]
    pub fn get(&self, kind: ResourceType, name: &str) -> Option<&Arc<Resource>> {
        let list = self.of_kind(kind);
        list.binary_search_by(|resource| (*resource.name).cmp(name)).ok().map(|index| &list[index])
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::discovery::v3 as discovery;
    use envoy_types::pb::google::protobuf::Any;
    use prost::Message;

    use super::*;

    #[test]
    fn both_forms_decode_as_envoys_messages() {
        for size in [0, 1, 200, 70_000] {
            let message = vec![7; size];
            let resource = Resource::new(ResourceType::Cluster, "db", &message);
            let delta = discovery::Resource::decode(resource.delta_bytes()).unwrap();
            assert_eq!((delta.name.as_str(), delta.version), ("db", resource.version.to_string()));
            let any = Any::decode(resource.any_bytes()).unwrap();
            assert_eq!((any.type_url.as_str(), any.value.len()), (ResourceType::Cluster.type_url(), size));
            assert_eq!(delta.resource, Some(any));
        }
    }

    #[test]
    fn versions_survive_the_round_trip_as_text() {
        let version = Version::of(b"x");
        assert_eq!(Version::parse(&version.to_string()), Some(version));
        for bad in ["", "1", "00000000000000000", "000000000000000G", "+00000000000000f"] {
            assert_eq!(Version::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn of_resources_with_one_name_the_last_stays() {
        let new = |content: &[u8]| Arc::new(Resource::new(ResourceType::Route, "r", content));
        let set = ResourceSet::new(Revision(1), [new(b"1"), new(b"2")]);
        assert_eq!(set.of_kind(ResourceType::Route).len(), 1);
        assert_eq!(set.get(ResourceType::Route, "r").unwrap().version, Version::of(b"2"));
        assert!(set.get(ResourceType::Cluster, "r").is_none());
    }
}
