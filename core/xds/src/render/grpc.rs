//! What a gRPC library that speaks xDS itself is told: no sidecar stands between it and the services that it calls.
//!
//! It understands a part of Envoy's messages and refuses others (gRFC A27, A28, A29, A36), so its listeners and clusters
//! are written apart; endpoints and routes are the same bytes as Envoy's. Keys do not travel: it reads certificates
//! through the certificate provider that its bootstrap calls [`CERTIFICATE_PROVIDER`].

use envoy_types::pb::envoy::config::cluster::v3::Cluster as Message;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, DiscoveryType, EdsClusterConfig, LbPolicy,
};
use envoy_types::pb::envoy::config::listener::v3::{ApiListener, Listener};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{HttpConnectionManager, Rds};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::{
    CombinedCertificateValidationContext, ValidationContextType,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateProviderPluginInstance, CertificateValidationContext, CommonTlsContext, UpstreamTlsContext,
};
use envoy_types::pb::envoy::r#type::matcher::v3::StringMatcher;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use prost::Message as _;
use starling_plan::{Cluster, Routes};

use super::cluster::identities;
use super::listener::router;
use super::proto::{ads, any, duration, tls_socket};
use super::route::outbound_name;
use crate::resource::{Resource, ResourceType};

/// The name under which a client's bootstrap says where its certificates are; existing set-ups use it, too.
pub const CERTIFICATE_PROVIDER: &str = "default";

/// What `xds:///SERVICE` resolves to.
pub(super) fn listener(routes: &Routes) -> Resource {
    let name = outbound_name(&routes.service);
    let manager = HttpConnectionManager {
        route_specifier: Some(RouteSpecifier::Rds(Rds {
            config_source: Some(ads()),
            route_config_name: name.to_owned(),
        })),
        http_filters: vec![router()],
        ..Default::default()
    };
    let message = Listener {
        name: name.to_owned(),
        api_listener: Some(ApiListener { api_listener: Some(any(&manager)) }),
        ..Default::default()
    };
    Resource::new(ResourceType::Listener, name, &message.encode_to_vec())
        .with_children([(ResourceType::Route, name.into())])
}

fn exactly(uri: String) -> StringMatcher {
    StringMatcher { match_pattern: Some(MatchPattern::Exact(uri)), ..Default::default() }
}

/// The cluster through which a service is called.
pub(super) fn cluster(cluster: &Cluster) -> Resource {
    let provider = || {
        Some(CertificateProviderPluginInstance { instance_name: CERTIFICATE_PROVIDER.to_owned(), ..Default::default() })
    };
    // The typed form of the name's test is newer than some of the libraries.
    #[expect(deprecated, reason = "gRFC A29 names this field")]
    let validation = CertificateValidationContext {
        ca_certificate_provider_instance: provider(),
        match_subject_alt_names: identities(cluster).into_iter().map(exactly).collect(),
        ..Default::default()
    };
    let tls = UpstreamTlsContext {
        common_tls_context: Some(CommonTlsContext {
            tls_certificate_provider_instance: provider(),
            validation_context_type: Some(ValidationContextType::CombinedValidationContext(
                CombinedCertificateValidationContext {
                    default_validation_context: Some(validation),
                    ..Default::default()
                },
            )),
            ..Default::default()
        }),
        ..Default::default()
    };
    let message = Message {
        name: cluster.sni.clone(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: Some(ads()), ..Default::default() }),
        connect_timeout: Some(duration(cluster.connect_timeout)),
        // The one policy that every library has.
        lb_policy: LbPolicy::RoundRobin.into(),
        transport_socket: Some(tls_socket(&tls)),
        ..Default::default()
    };
    Resource::new(ResourceType::Cluster, &message.name, &message.encode_to_vec())
        .with_children([(ResourceType::Endpoints, message.name.as_str().into())])
}
