//! LDS: where the proxy listens. Nothing here changes with policy, routes or endpoints, as replacing a listener
//! drains its connections.

use std::net::SocketAddr;

use envoy_types::pb::envoy::config::common::mutation_rules;
use envoy_types::pb::envoy::config::common::mutation_rules::v3::header_mutation;
use envoy_types::pb::envoy::config::core::v3::{ExtensionConfigSource, TrafficDirection, TypedExtensionConfig};
use envoy_types::pb::envoy::config::listener::v3::filter::ConfigType;
use envoy_types::pb::envoy::config::listener::v3::{Filter, FilterChain, Listener};
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::network::connection_limit::v3::ConnectionLimit;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::{
    ForwardClientCertDetails, PathWithEscapedSlashesAction, RouteSpecifier, SetCurrentClientCertDetails, UpgradeConfig,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds, http_filter,
};
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::tcp_proxy::{
    ClusterSpecifier, WeightedCluster, weighted_cluster,
};
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::{TcpProxy, UpstreamConnectMode};
use envoy_types::pb::envoy::extensions::http::early_header_mutation::header_mutation::v3::HeaderMutation as EarlyHeaderMutation;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::DownstreamTlsContext;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::downstream_tls_context::SessionTicketKeysType;
use envoy_types::pb::envoy::r#type::matcher::v3::StringMatcher;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::v3::HashPolicy;
use envoy_types::pb::envoy::r#type::v3::hash_policy::{PolicySpecifier, SourceIp};
use envoy_types::pb::google::protobuf::{Any, UInt64Value};
use prost::Message;
use starling_model::{AccessLog, HashOn, Protocol};
use starling_plan::{Inbound, Outbound, Routes};
use starling_traffic::{RouteRule, WeightedTarget};

use super::cluster::{LOCAL_APP, http2};
use super::proto::{ads, any, any_of, duration, flag, number, socket, tls_socket};
use super::route::{self, REQUEST_HEADERS_TIMEOUT, STREAM_IDLE_TIMEOUT};
use super::secret::{LEAF, mutual_tls_of};
use super::telemetry::Telemetry;
use super::{access_log, fault, rate_limit, rbac};
use crate::resource::{Resource, ResourceType};

/// Statistics of the public listener bear Consul's prefix.
const PUBLIC_LISTENER: &str = "public_listener";

/// A listener for the application's calls to one service.
pub(super) fn outbound(outbound: &Outbound, routes: &Routes, telemetry: &Telemetry) -> Resource {
    let name = format!("{}:{}", outbound.service, outbound.bind);
    let stat_prefix = format!("upstream.{}", outbound.service);
    let loggers = access_log::loggers(&telemetry.access_log);
    let filter = if outbound.protocol.is_l7() {
        let routes = route::outbound_name(&outbound.service);
        let manager = HttpConnectionManager {
            access_log: loggers,
            tracing: telemetry.tracing(),
            http_filters: vec![switched_off(fault::HTTP_FILTER, any(&fault::nothing())), router()],
            ..connection_manager(&stat_prefix, routes, outbound.protocol)
        };
        filter("envoy.filters.network.http_connection_manager", any(&manager))
    } else {
        let proxy = TcpProxy { stat_prefix, access_log: loggers, ..by_connection(routes) };
        filter("envoy.filters.network.tcp_proxy", any(&proxy))
    };
    let chain = FilterChain { filters: vec![filter], ..Default::default() };
    let resource = listener(&name, outbound.bind, TrafficDirection::Outbound, chain);
    if outbound.protocol.is_l7() {
        resource.with_children([(ResourceType::Route, route::outbound_name(&outbound.service).into())])
    } else {
        resource.with_clusters(routes.table.clusters().into_iter().map(Into::into))
    }
}

/// Where connections go: the targets of the only rule.
pub(super) fn by_connection(routes: &Routes) -> TcpProxy {
    let Some(forward) = routes.table.rules().last().and_then(RouteRule::forward) else { return TcpProxy::default() };
    let specifier = match forward.targets.as_slice() {
        [one] => ClusterSpecifier::Cluster(one.cluster.to_string()),
        several => {
            let weight = |target: &WeightedTarget| weighted_cluster::ClusterWeight {
                name: target.cluster.to_string(),
                weight: target.weight,
                ..Default::default()
            };
            ClusterSpecifier::WeightedClusters(WeightedCluster { clusters: several.iter().map(weight).collect() })
        }
    };
    // Nothing else is known of a connection.
    let source = forward.hash.iter().any(|policy| policy.on == HashOn::SourceAddress);
    let hash = PolicySpecifier::SourceIp(SourceIp {});
    TcpProxy {
        cluster_specifier: Some(specifier),
        hash_policy: source.then_some(HashPolicy { policy_specifier: Some(hash) }).into_iter().collect(),
        ..Default::default()
    }
}

/// The public listener.
pub(super) fn inbound(inbound: &Inbound, telemetry: &Telemetry) -> Resource {
    let name = format!("{PUBLIC_LISTENER}:{}", inbound.bind);
    let routes = route::inbound_name(&inbound.service);
    let child = if inbound.protocol.is_l7() {
        (ResourceType::Route, routes.as_str().into())
    } else {
        (ResourceType::Extension, rbac::extension_name(&inbound.service).into())
    };
    let behind = Behind {
        stat_prefix: PUBLIC_LISTENER.to_owned(),
        leaf: LEAF.to_owned(),
        routes,
        cluster: LOCAL_APP.to_owned(),
    };
    let chain = peer_chain(inbound, &behind, telemetry);
    listener(&name, inbound.bind, TrafficDirection::Inbound, chain)
        .with_children([child])
        .with_clusters([LOCAL_APP.into()])
}

/// What is behind a listener for peers.
pub(super) struct Behind {
    pub(super) stat_prefix: String,
    /// The secret with the certificate that is shown.
    pub(super) leaf: String,
    pub(super) routes: String,
    pub(super) cluster: String,
}

/// What is done with a connection of a peer.
pub(super) fn peer_chain(inbound: &Inbound, behind: &Behind, telemetry: &Telemetry) -> FilterChain {
    let l7 = inbound.protocol.is_l7();
    let mut filters = Vec::new();
    if let Some(max) = inbound.max_connections {
        filters.push(connection_limit(&behind.stat_prefix, max));
    }
    if l7 {
        let manager = inbound_manager(inbound, behind, telemetry);
        filters.push(filter("envoy.filters.network.http_connection_manager", any(&manager)));
    } else {
        filters.push(discovered_policy(&rbac::extension_name(&inbound.service)));
        filters.push(filter("envoy.filters.network.tcp_proxy", any(&inbound_tcp(behind, &telemetry.access_log))));
    }
    let alpn: &[&str] = if l7 { &["h2", "http/1.1"] } else { &[] };
    let tls = DownstreamTlsContext {
        common_tls_context: Some(mutual_tls_of(&behind.leaf, &[], alpn)),
        require_client_certificate: flag(true),
        // A resumed session would outlive the peer's certificate and the root that it chains to.
        disable_stateful_session_resumption: true,
        session_ticket_keys_type: Some(SessionTicketKeysType::DisableStatelessSessionResumption(true)),
        ..Default::default()
    };
    FilterChain { filters, transport_socket: Some(tls_socket(&tls)), ..Default::default() }
}

fn listener(name: &str, bind: SocketAddr, direction: TrafficDirection, chain: FilterChain) -> Resource {
    let message = Listener {
        name: name.to_owned(),
        address: Some(socket(bind)),
        traffic_direction: direction.into(),
        filter_chains: vec![chain],
        ..Default::default()
    };
    Resource::new(ResourceType::Listener, name, &message.encode_to_vec())
}

pub(super) fn filter(name: &str, config: Any) -> Filter {
    Filter { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)) }
}

pub(super) fn connection_limit(stat_prefix: &str, max: u32) -> Filter {
    let limit = ConnectionLimit {
        stat_prefix: stat_prefix.to_owned(),
        max_connections: Some(UInt64Value { value: max.into() }),
        ..Default::default()
    };
    filter("envoy.filters.network.connection_limit", any(&limit))
}

/// The policy of a TCP service is decided once per connection. It comes by itself, so that a change of it leaves the
/// listener, and with it the open connections, alone.
///
/// Envoy asks the filter when the caller's first byte comes. Where the server speaks first, a caller who is refused
/// sees what it says before the caller speaks, and no more (envoyproxy/envoy#9023).
fn discovered_policy(name: &str) -> Filter {
    let source = ExtensionConfigSource {
        config_source: Some(ads()),
        type_urls: vec![rbac::NETWORK_TYPE_URL.to_owned()],
        ..Default::default()
    };
    Filter { name: name.to_owned(), config_type: Some(ConfigType::ConfigDiscovery(source)) }
}

/// Nothing is known of the peer before its certificate is: the application is called after the handshake.
fn inbound_tcp(behind: &Behind, access_log: &AccessLog) -> TcpProxy {
    TcpProxy {
        stat_prefix: behind.stat_prefix.clone(),
        access_log: access_log::loggers(access_log),
        cluster_specifier: Some(ClusterSpecifier::Cluster(behind.cluster.clone())),
        upstream_connect_mode: UpstreamConnectMode::OnDownstreamTlsHandshake.into(),
        max_early_data_bytes: number(0),
        ..Default::default()
    }
}

/// HTTP from peers. The policy comes first: who is refused costs others nothing of what they may send.
fn inbound_manager(inbound: &Inbound, behind: &Behind, telemetry: &Telemetry) -> HttpConnectionManager {
    HttpConnectionManager {
        access_log: access_log::loggers(&telemetry.access_log),
        tracing: telemetry.tracing(),
        http_filters: vec![
            policy_filter(),
            switched_off(rate_limit::HTTP_FILTER, any(&rate_limit::nothing())),
            router(),
        ],
        // What a peer says of its own certificate is dropped; what we have verified is written instead.
        forward_client_cert_details: ForwardClientCertDetails::SanitizeSet.into(),
        set_current_client_cert_details: Some(SetCurrentClientCertDetails { uri: true, ..Default::default() }),
        request_headers_timeout: Some(duration(REQUEST_HEADERS_TIMEOUT)),
        ..connection_manager(&behind.stat_prefix, &behind.routes, inbound.protocol)
    }
}

/// What both directions have in common. Host and path are brought to their one form before anything looks at them, and
/// passed on in that form.
///
/// A sidecar stands next to its application and is no edge: `x-forwarded-for`, `x-forwarded-proto` and `x-request-id`
/// pass as they came, from an ingress gateway to the last service. Headers that steer Envoy (`x-envoy-retry-on`,
/// `x-envoy-upstream-rq-timeout-ms`, …) are taken off whoever sends them. Envoy would believe them from addresses that
/// it takes for internal, and which address that is, `x-forwarded-for` says.
pub(super) fn connection_manager(stat_prefix: &str, routes: &str, protocol: Protocol) -> HttpConnectionManager {
    let (idle, upgrades) = match protocol {
        Protocol::Grpc => (std::time::Duration::ZERO, Vec::new()),
        Protocol::Tcp | Protocol::Http | Protocol::Http2 => (STREAM_IDLE_TIMEOUT, vec![websocket()]),
    };
    HttpConnectionManager {
        stat_prefix: stat_prefix.to_owned(),
        route_specifier: Some(RouteSpecifier::Rds(Rds {
            config_source: Some(ads()),
            route_config_name: routes.to_owned(),
        })),
        http2_protocol_options: Some(http2()),
        stream_idle_timeout: Some(duration(idle)),
        upgrade_configs: upgrades,
        use_remote_address: flag(false),
        strip_trailing_host_dot: true,
        normalize_path: flag(true),
        merge_slashes: true,
        path_with_escaped_slashes_action: PathWithEscapedSlashesAction::UnescapeAndForward.into(),
        early_header_mutation_extensions: vec![taken_off([MatchPattern::Prefix("x-envoy-".to_owned())])],
        ..Default::default()
    }
}

/// Takes fields off a request before anything looks at it.
pub(super) fn taken_off(names: impl IntoIterator<Item = MatchPattern>) -> TypedExtensionConfig {
    let removal = |pattern| mutation_rules::v3::HeaderMutation {
        action: Some(header_mutation::Action::RemoveOnMatch(header_mutation::RemoveOnMatch {
            key_matcher: Some(StringMatcher { match_pattern: Some(pattern), ..Default::default() }),
        })),
    };
    TypedExtensionConfig {
        name: "envoy.http.early_header_mutation.header_mutation".to_owned(),
        typed_config: Some(any(&EarlyHeaderMutation { mutations: names.into_iter().map(removal).collect() })),
    }
}

fn websocket() -> UpgradeConfig {
    UpgradeConfig { upgrade_type: "websocket".to_owned(), ..Default::default() }
}

/// Refuses everything by itself; the route says what is let through.
fn policy_filter() -> HttpFilter {
    http_filter(rbac::HTTP_FILTER, any_of(rbac::HTTP_TYPE_URL, &rbac::refuse_all()))
}

pub(super) fn router() -> HttpFilter {
    http_filter("envoy.filters.http.router", any(&Router::default()))
}

/// A filter that a route switches on: until one does, requests pass without it, and when one does, no listener changes.
pub(super) fn switched_off(name: &str, config: Any) -> HttpFilter {
    HttpFilter { disabled: true, ..http_filter(name, config) }
}

fn http_filter(name: &str, config: Any) -> HttpFilter {
    HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..Default::default()
    }
}
