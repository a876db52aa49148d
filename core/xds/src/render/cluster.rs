//! CDS: how a service, and the application itself, are called.

use std::net::IpAddr;

use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::{Thresholds, thresholds};
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CommonLbConfig, DiscoveryType, EdsClusterConfig, LbConfig, LbPolicy, LeastRequestLbConfig,
    RingHashLbConfig,
};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster as Message, OutlierDetection};
use envoy_types::pb::envoy::config::core::v3::{Http1ProtocolOptions, Http2ProtocolOptions};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::UpstreamTlsContext;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::{
    ExplicitHttpConfig, UpstreamProtocolOptions,
};
use envoy_types::pb::envoy::r#type::v3::Percent;
use envoy_types::pb::google::protobuf::UInt64Value;
use prost::Message as _;
use starling_identity::SpiffeId;
use starling_model::{BalancePolicy, PassiveHealthCheck, Protocol};
use starling_plan::plan::Limits;
use starling_plan::{Cluster, Inbound};

use super::endpoint::{lb_endpoint, load_assignment};
use super::proto::{ads, any, duration, number, tls_socket};
use super::secret::mutual_tls;
use crate::resource::{Resource, ResourceType};

/// The cluster of the application behind the proxy. A service's cluster has dots in its name, so none has this.
pub(super) const LOCAL_APP: &str = "local_app";

/// Connections, queued requests and requests in flight to one cluster. Envoy's default of 1,024 is met by a single
/// load test and then looks like an outage; this stays below the file descriptors that a process usually has.
const CONCURRENCY_MAX: u32 = 16_384;

/// Retries in flight to one cluster.
const RETRIES_MAX: u32 = 64;

/// Where the options of an HTTP cluster stand.
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// Streams on one HTTP/2 connection; peers allow at least this many.
pub(super) const HTTP2_STREAMS_MAX: u32 = 1_024;

/// Unacknowledged bytes on one HTTP/2 stream: enough for a gigabit at 8 ms.
const HTTP2_STREAM_WINDOW: u32 = 1024 * 1024;

/// Unacknowledged bytes on one HTTP/2 connection.
const HTTP2_CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// The cluster through which a service is called.
pub(super) fn upstream(cluster: &Cluster) -> Resource {
    let tls = UpstreamTlsContext {
        common_tls_context: Some(mutual_tls(&identities(cluster), alpn(cluster.protocol))),
        sni: cluster.sni.clone(),
        // As for the server side: see the public listener.
        max_session_keys: number(0),
        ..Default::default()
    };
    let mut shared = shared(cluster.protocol, cluster.limits);
    balance(&mut shared, cluster.balance);
    if let Some(budget) = cluster.retry_budget {
        let budget = thresholds::RetryBudget {
            budget_percent: Some(Percent { value: budget.percent.as_number() }),
            min_retry_concurrency: number(budget.min_concurrency),
            ..Default::default()
        };
        let thresholds = shared.circuit_breakers.iter_mut().flat_map(|breakers| &mut breakers.thresholds);
        thresholds.for_each(|thresholds| thresholds.retry_budget = Some(budget));
    }
    let message = Message {
        name: cluster.sni.clone(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(EdsClusterConfig { eds_config: Some(ads()), ..Default::default() }),
        connect_timeout: Some(duration(cluster.connect_timeout)),
        transport_socket: Some(tls_socket(&tls)),
        // Health is decided by the catalog: the endpoints that are there are used, be they few.
        common_lb_config: Some(CommonLbConfig {
            healthy_panic_threshold: Some(Percent { value: 0.0 }),
            ..Default::default()
        }),
        outlier_detection: cluster.outlier.as_ref().map(outlier),
        ..shared
    };
    let name = message.name.as_str();
    Resource::new(ResourceType::Cluster, name, &message.encode_to_vec())
        .with_children([(ResourceType::Endpoints, name.into())])
}

/// Who may answer: the service's own identity, and those of services that it fails over to.
pub(super) fn identities(cluster: &Cluster) -> Vec<String> {
    std::iter::once(&cluster.identity).chain(&cluster.failover_identities).map(SpiffeId::to_uri).collect()
}

fn balance(message: &mut Message, policy: BalancePolicy) {
    let size = |size: Option<u64>| size.map(|value| UInt64Value { value });
    let (policy, config) = match policy {
        // Envoy has no rule that heeds peaks; the one that is nearest takes the one with the fewest requests.
        BalancePolicy::PeakEwma | BalancePolicy::LeastRequest { choice_count: None } => (LbPolicy::LeastRequest, None),
        BalancePolicy::LeastRequest { choice_count } => {
            let config = LeastRequestLbConfig { choice_count: choice_count.and_then(number), ..Default::default() };
            (LbPolicy::LeastRequest, Some(LbConfig::LeastRequestLbConfig(config)))
        }
        BalancePolicy::RoundRobin => (LbPolicy::RoundRobin, None),
        BalancePolicy::Random => (LbPolicy::Random, None),
        BalancePolicy::Maglev => (LbPolicy::Maglev, None),
        BalancePolicy::RingHash { minimum_size, maximum_size } => {
            let config = RingHashLbConfig {
                minimum_ring_size: size(minimum_size),
                maximum_ring_size: size(maximum_size),
                ..Default::default()
            };
            (LbPolicy::RingHash, Some(LbConfig::RingHashLbConfig(config)))
        }
    };
    message.set_lb_policy(policy);
    message.lb_config = config;
}

/// Failures in a row are looked at, and nothing else: what Envoy would make of success rates nobody asked for.
fn outlier(check: &PassiveHealthCheck) -> OutlierDetection {
    let whole =
        |share: Option<starling_model::Percent>| share.and_then(|share| number(u32::from(share.hundredths() / 100)));
    OutlierDetection {
        interval: check.interval.map(duration),
        consecutive_5xx: check.max_failures.and_then(number),
        enforcing_consecutive_5xx: whole(check.enforcing),
        enforcing_success_rate: number(0),
        max_ejection_percent: whole(check.max_ejected),
        base_ejection_time: check.base_ejection_time.map(duration),
        ..Default::default()
    }
}

/// The cluster of the application.
pub(super) fn local_app(inbound: &Inbound) -> Resource {
    let app = &inbound.local_app;
    let is_ip = app.address.parse::<IpAddr>().is_ok();
    let discovery = if is_ip { DiscoveryType::Static } else { DiscoveryType::StrictDns };
    let message = Message {
        name: LOCAL_APP.to_owned(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(discovery.into())),
        load_assignment: Some(load_assignment(LOCAL_APP, vec![lb_endpoint(&app.address, app.port, 1)])),
        connect_timeout: Some(duration(app.connect_timeout)),
        ..shared(inbound.protocol, Limits::default())
    };
    Resource::new(ResourceType::Cluster, LOCAL_APP, &message.encode_to_vec())
}

/// What upstreams and the application have in common.
pub(super) fn shared(protocol: Protocol, limits: Limits) -> Message {
    let mut message = Message {
        lb_policy: LbPolicy::LeastRequest.into(),
        circuit_breakers: Some(CircuitBreakers {
            thresholds: vec![Thresholds {
                max_connections: number(limits.connections.unwrap_or(CONCURRENCY_MAX)),
                max_pending_requests: number(limits.pending_requests.unwrap_or(CONCURRENCY_MAX)),
                max_requests: number(limits.concurrent_requests.unwrap_or(CONCURRENCY_MAX)),
                max_retries: number(RETRIES_MAX),
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    };
    let spoken = match protocol {
        Protocol::Tcp => None,
        Protocol::Http => Some(ProtocolConfig::HttpProtocolOptions(Http1ProtocolOptions::default())),
        Protocol::Http2 | Protocol::Grpc => Some(ProtocolConfig::Http2ProtocolOptions(http2())),
    };
    if let Some(spoken) = spoken {
        let options = HttpProtocolOptions {
            upstream_protocol_options: Some(UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
                protocol_config: Some(spoken),
            })),
            ..Default::default()
        };
        // One entry at most: a map with more has no settled order of bytes.
        message.typed_extension_protocol_options.insert(HTTP_OPTIONS.to_owned(), any(&options));
    }
    message
}

/// HTTP/2 in either direction.
pub(super) fn http2() -> Http2ProtocolOptions {
    Http2ProtocolOptions {
        max_concurrent_streams: number(HTTP2_STREAMS_MAX),
        initial_stream_window_size: number(HTTP2_STREAM_WINDOW),
        initial_connection_window_size: number(HTTP2_CONNECTION_WINDOW),
        allow_connect: true,
        ..Default::default()
    }
}

pub(super) fn alpn(protocol: Protocol) -> &'static [&'static str] {
    match protocol {
        Protocol::Tcp => &[],
        Protocol::Http => &["http/1.1"],
        Protocol::Http2 | Protocol::Grpc => &["h2"],
    }
}
