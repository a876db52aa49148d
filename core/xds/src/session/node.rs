//! Who is at the other end of a stream, by its own account.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::config::core::v3::node::UserAgentVersionType;
use envoy_types::pb::google::protobuf::value::Kind;

/// The field of a native proxy's metadata by which it says whether another process serves beside it: [`BESIDE_ANOTHER`], or
/// anything else once that is over. It may say so again with any request.
pub const BESIDE: &str = "beside";

/// What it says while one does.
pub const BESIDE_ANOTHER: &str = "another";

/// Whether a client serves beside another process of the same proxy, if it says so.
pub(super) fn is_beside_another(node: &Node) -> Option<bool> {
    match &node.metadata.as_ref()?.fields.get(BESIDE)?.kind {
        Some(Kind::StringValue(text)) => Some(text == BESIDE_ANOTHER),
        Some(_) | None => None,
    }
}

/// What a client says of itself in its first request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProxyNode {
    /// Its identifier; by custom that of the sidecar's instance.
    pub id: String,
    /// Its group; by custom the service.
    pub cluster: String,
    /// Program and version, as far as given: `envoy 1.40.0`.
    pub user_agent: String,
    /// Text fields of its metadata; other fields are left out.
    pub metadata: BTreeMap<String, String>,
}

impl ProxyNode {
    /// Whether it is an application's gRPC library, which is sent no keys: each calls itself `gRPC`, and then by its language.
    #[must_use]
    pub fn is_grpc_library(&self) -> bool {
        self.user_agent.starts_with("gRPC")
    }
}

impl From<&Node> for ProxyNode {
    fn from(node: &Node) -> Self {
        let version = match &node.user_agent_version_type {
            Some(UserAgentVersionType::UserAgentVersion(text)) => text.clone(),
            Some(UserAgentVersionType::UserAgentBuildVersion(build)) => {
                let number = build.version.unwrap_or_default();
                format!("{}.{}.{}", number.major_number, number.minor_number, number.patch)
            }
            None => String::new(),
        };
        let mut metadata = BTreeMap::new();
        if let Some(fields) = &node.metadata {
            for (name, value) in &fields.fields {
                if let Some(Kind::StringValue(text)) = &value.kind {
                    metadata.insert(name.clone(), text.clone());
                }
            }
        }
        Self {
            id: node.id.clone(),
            cluster: node.cluster.clone(),
            user_agent: format!("{} {version}", node.user_agent_name).trim().to_owned(),
            metadata,
        }
    }
}
