//! Exits: services outside the mesh, for which a gateway stands. One listener takes the connections for all of them and tells
//! them apart by the name that is asked for in the handshake; behind that each is like the public listener of a sidecar,
//! with a certificate, a policy and a cluster of its own.

use std::net::{Ipv4Addr, SocketAddr};

use envoy_types::pb::envoy::config::cluster::v3::Cluster as Message;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CommonLbConfig, DiscoveryType, DnsLookupFamily, EdsClusterConfig,
};
use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::endpoint::v3::LbEndpoint;
use envoy_types::pb::envoy::config::listener::v3::{
    FilterChain, FilterChainMatch, Listener, ListenerFilter, listener_filter,
};
use envoy_types::pb::envoy::extensions::filters::listener::tls_inspector::v3::TlsInspector;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::UpstreamTlsContext;
use envoy_types::pb::envoy::r#type::v3::Percent;
use prost::Message as _;
use starling_model::OriginTls;
use starling_plan::plan::Limits;
use starling_plan::{Exit, Origins};

use super::cluster::{alpn, shared};
use super::endpoint::{self, lb_endpoint, load_assignment};
use super::listener::{Behind, peer_chain};
use super::proto::{ads, any, duration, socket, tls_socket};
use super::route::{self, InboundRoutes};
use super::telemetry::Telemetry;
use super::{MeshNames, rbac, secret};
use crate::resource::{Resource, ResourceType, Version};

/// The cluster and the routes of an exit; the colon keeps them apart from any service's.
fn name(exit: &Exit) -> String {
    format!("exit:{}", exit.target())
}

/// The listener of a gateway, for all its exits.
pub(super) fn listener(exits: &[&Exit], telemetry: &Telemetry) -> Resource {
    // All of a gateway are at one address.
    let bind = exits.first().map_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), |exit| exit.bind);
    let name = format!("terminating:{bind}");
    let message = Listener {
        name: name.clone(),
        address: Some(socket(bind)),
        traffic_direction: TrafficDirection::Inbound.into(),
        listener_filters: vec![ListenerFilter {
            name: "envoy.filters.listener.tls_inspector".to_owned(),
            config_type: Some(listener_filter::ConfigType::TypedConfig(any(&TlsInspector::default()))),
            ..Default::default()
        }],
        filter_chains: exits.iter().map(|exit| filter_chain(exit, telemetry)).collect(),
        ..Default::default()
    };
    let child = |exit: &&Exit| {
        if exit.protocol.is_l7() {
            (ResourceType::Route, self::name(exit).into())
        } else {
            (ResourceType::Extension, rbac::extension_name(&exit.service).into())
        }
    };
    let mut children: Vec<_> = exits.iter().map(child).collect();
    children.sort();
    children.dedup();
    let clusters = exits.iter().filter(|exit| !exit.protocol.is_l7()).map(|exit| self::name(exit).into());
    Resource::new(ResourceType::Listener, &name, &message.encode_to_vec())
        .with_children(children)
        .with_clusters(clusters)
}

/// Connections for one exit. Who asks for a name that nobody has finds no chain, and is closed.
fn filter_chain(exit: &Exit, telemetry: &Telemetry) -> FilterChain {
    let name = name(exit);
    let behind = Behind {
        stat_prefix: format!("terminating.{}", exit.target()),
        leaf: secret::leaf_name(&exit.service),
        routes: name.clone(),
        cluster: name.clone(),
    };
    FilterChain {
        filter_chain_match: Some(FilterChainMatch {
            server_names: vec![exit.sni.to_ascii_lowercase()],
            ..Default::default()
        }),
        name,
        ..peer_chain(&exit.as_inbound(), &behind, telemetry)
    }
}

/// What tells the chain of an exit from another: for its version alone.
pub(super) fn version(exit: &Exit, telemetry: &Telemetry) -> Resource {
    Resource::new(ResourceType::Listener, "", &filter_chain(exit, telemetry).encode_to_vec())
}

/// What tells where a service is from another place: for its version alone.
pub(super) fn place(origins: &Origins) -> Resource {
    Resource::new(ResourceType::Endpoints, "", &load_assignment("", listed(origins)).encode_to_vec())
}

/// The routes of an exit that tells requests apart, with the policy of its service.
pub(super) fn routes(exit: &Exit, host: Option<&str>, names: &MeshNames) -> Resource {
    let name = name(exit);
    let routes = InboundRoutes { name: &name, cluster: &name, host };
    route::inbound(&exit.as_inbound(), &routes, names).with_clusters([name.as_str().into()])
}

/// The cluster of a service outside. Where instances are known by name Envoy resolves them, and they stand in the cluster.
pub(super) fn cluster(exit: &Exit, origins: &Origins) -> Resource {
    let name = name(exit);
    let by_name = origins.has_names();
    let discovery = if by_name { DiscoveryType::StrictDns } else { DiscoveryType::Eds };
    let message = Message {
        name: name.clone(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(discovery.into())),
        eds_cluster_config: (!by_name).then(|| EdsClusterConfig { eds_config: Some(ads()), ..Default::default() }),
        load_assignment: by_name.then(|| load_assignment(&name, listed(origins))),
        dns_lookup_family: if by_name { DnsLookupFamily::V4Preferred.into() } else { 0 },
        connect_timeout: Some(duration(exit.connect_timeout)),
        transport_socket: exit.tls.as_ref().map(|tls| tls_socket(&upstream_tls(tls, exit))),
        // Health is decided by the catalog, as inside.
        common_lb_config: Some(CommonLbConfig {
            healthy_panic_threshold: Some(Percent { value: 0.0 }),
            ..Default::default()
        }),
        ..shared(exit.protocol, Limits::default())
    };
    let resource = Resource::new(ResourceType::Cluster, &name, &message.encode_to_vec());
    if by_name { resource } else { resource.with_children([(ResourceType::Endpoints, name.into())]) }
}

/// The endpoints of a service outside of which none is known by name.
pub(super) fn assignment(exit: &Exit, origins: &Origins, cluster: Version) -> Resource {
    let name = name(exit);
    if origins.origins.is_empty() {
        return endpoint::empty(&name, cluster);
    }
    endpoint::resource(&load_assignment(&name, listed(origins)), cluster)
}

fn listed(origins: &Origins) -> Vec<LbEndpoint> {
    origins.origins.iter().map(|origin| lb_endpoint(&origin.address, origin.port, origin.weight)).collect()
}

fn upstream_tls(tls: &OriginTls, exit: &Exit) -> UpstreamTlsContext {
    UpstreamTlsContext {
        common_tls_context: Some(secret::origin_tls(tls, alpn(exit.protocol))),
        sni: tls.server_name.clone().unwrap_or_default(),
        ..Default::default()
    }
}
