//! Messages whose standard Rust form does not serve here: the same bytes on the wire, another shape in memory.
//!
//! Responses carry resources that are encoded already, so that a fan-out copies no content. Messages with maps keep
//! them ordered, so that equal content has equal bytes, and with them an equal version.

use std::collections::BTreeMap;

use bytes::Bytes;
use envoy_types::pb::envoy::config::rbac::v3::Policy;

/// `envoy.service.discovery.v3.DeltaDiscoveryResponse` with encoded resources.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeltaResponse {
    /// For people: the revision.
    #[prost(string, tag = "1")]
    pub system_version_info: String,
    /// Encoded `envoy.service.discovery.v3.Resource`s.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub resources: Vec<Bytes>,
    /// The kind.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// What the client echoes.
    #[prost(string, tag = "5")]
    pub nonce: String,
    /// Names of resources that are gone.
    #[prost(string, repeated, tag = "6")]
    pub removed_resources: Vec<String>,
}

/// `envoy.service.discovery.v3.DiscoveryResponse` with encoded resources.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SotwResponse {
    /// The version of everything of the kind that the client has once it has applied this.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// Encoded `google.protobuf.Any`s.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub resources: Vec<Bytes>,
    /// The kind.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// What the client echoes.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// `envoy.config.rbac.v3.RBAC`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RbacRules {
    /// `RBAC.Action`: 0 lets through what matches, 1 refuses it.
    #[prost(int32, tag = "1")]
    pub action: i32,
    #[prost(btree_map = "string, message", tag = "2")]
    pub policies: BTreeMap<String, Policy>,
}

/// `envoy.extensions.filters.http.rbac.v3.RBAC`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HttpRbac {
    #[prost(message, optional, tag = "1")]
    pub rules: Option<RbacRules>,
}

/// `envoy.extensions.filters.http.rbac.v3.RBACPerRoute`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HttpRbacPerRoute {
    #[prost(message, optional, tag = "2")]
    pub rbac: Option<HttpRbac>,
}

/// `envoy.extensions.filters.network.rbac.v3.RBAC`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NetworkRbac {
    #[prost(message, optional, tag = "1")]
    pub rules: Option<RbacRules>,
    #[prost(string, tag = "3")]
    pub stat_prefix: String,
}

/// `envoy.extensions.access_loggers.stream.v3.StdoutAccessLog`, and `StderrAccessLog`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamAccessLog {
    #[prost(message, optional, tag = "1")]
    pub log_format: Option<LogFormat>,
}

/// `envoy.extensions.access_loggers.file.v3.FileAccessLog`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FileAccessLog {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(message, optional, tag = "5")]
    pub log_format: Option<LogFormat>,
}

/// `envoy.config.core.v3.SubstitutionFormatString`, in one of the two forms.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LogFormat {
    #[prost(message, optional, tag = "2")]
    pub json_format: Option<LogFields>,
    #[prost(message, optional, tag = "5")]
    pub text_format_source: Option<LogText>,
}

/// `envoy.config.core.v3.DataSource` with the text in it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LogText {
    #[prost(string, optional, tag = "3")]
    pub inline_string: Option<String>,
}

/// `google.protobuf.Struct` of strings.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LogFields {
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, LogValue>,
}

/// `google.protobuf.Value` with a string.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LogValue {
    #[prost(string, optional, tag = "3")]
    pub string_value: Option<String>,
}
