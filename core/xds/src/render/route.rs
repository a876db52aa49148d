//! RDS: where requests go, for how long, and who may send them.

use std::time::Duration;

use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::{
    ClusterSpecifier, HostRewriteSpecifier, MaxStreamDuration,
};
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost};
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use starling_model::{Protocol, ServiceName};
use starling_plan::{Inbound, Routes};

use super::cluster::LOCAL_APP;
use super::proto::{any, any_of, duration, flag};
use super::{MeshNames, rate_limit, rbac};
use crate::resource::{Resource, ResourceType};

pub(super) mod rule;

pub(super) use rule::edits;

/// Time that an HTTP request or response may stand still: Envoy's default. gRPC streams may be silent for as long as
/// they like.
pub const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Time for the head of a request to arrive: bounds what a peer can hold open by dripping bytes.
pub const REQUEST_HEADERS_TIMEOUT: Duration = Duration::from_secs(60);

/// The routes of an outbound listener are named by the service.
pub(super) fn outbound_name(service: &ServiceName) -> &str {
    service.as_str()
}

/// The routes of the public listener; the colon keeps them apart from any service's.
pub(super) fn inbound_name(service: &ServiceName) -> String {
    format!("inbound:{service}")
}

/// The routes of calls to a service.
pub(super) fn outbound(routes: &Routes) -> Resource {
    let name = outbound_name(&routes.service);
    let rules = routes.table.rules().iter().map(|rule| rule::render(rule, routes.protocol)).collect();
    let message = configuration(name, rules, None);
    let clusters = routes.table.clusters().into_iter().map(Into::into);
    Resource::new(ResourceType::Route, name, &message.encode_to_vec()).with_clusters(clusters)
}

/// Routes for peers.
pub(super) struct InboundRoutes<'a> {
    pub(super) name: &'a str,
    /// Where all of them lead.
    pub(super) cluster: &'a str,
    /// The host that requests are told to be for.
    pub(super) host: Option<&'a str>,
}

/// The routes to the application.
pub(super) fn to_app(inbound: &Inbound, names: &MeshNames) -> Resource {
    let name = inbound_name(&inbound.service);
    self::inbound(inbound, &InboundRoutes { name: &name, cluster: LOCAL_APP, host: None }, names)
}

/// Routes for peers, with the policy.
pub(super) fn inbound(inbound: &Inbound, routes: &InboundRoutes<'_>, names: &MeshNames) -> Resource {
    let InboundRoutes { name, cluster, host } = *routes;
    let timeout = inbound.local_app.request_timeout;
    let policy = any_of(rbac::PER_ROUTE_TYPE_URL, &rbac::per_route(&inbound.policy, names));
    let mut route = route((cluster, host), timeout, inbound.protocol);
    if let Some(limit) = inbound.rate_limit {
        route.typed_per_filter_config.insert(rate_limit::HTTP_FILTER.to_owned(), any(&rate_limit::per_route(limit)));
    }
    let message = configuration(name, vec![route], Some(policy));
    Resource::new(ResourceType::Route, name, &message.encode_to_vec())
}

fn configuration(name: &str, routes: Vec<Route>, policy: Option<Any>) -> RouteConfiguration {
    RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![VirtualHost {
            name: name.to_owned(),
            domains: vec!["*".to_owned()],
            routes,
            // One entry at most, here as in a route: a map with more has no settled order of bytes.
            typed_per_filter_config: policy.map(|policy| (rbac::HTTP_FILTER.to_owned(), policy)).into_iter().collect(),
            ..Default::default()
        }],
        // The order in which resources are sent sees to it that clusters come first.
        validate_clusters: flag(false),
        ..Default::default()
    }
}

/// Everything to one cluster; without a timeout, a request may take as long as its deadline allows.
fn route((cluster, host): (&str, Option<&str>), timeout: Option<Duration>, protocol: Protocol) -> Route {
    Route {
        r#match: Some(RouteMatch { path_specifier: Some(PathSpecifier::Prefix("/".to_owned())), ..Default::default() }),
        action: Some(Action::Route(RouteAction {
            cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_owned())),
            host_rewrite_specifier: host.map(|host| HostRewriteSpecifier::HostRewriteLiteral(host.to_owned())),
            ..timed(timeout, protocol)
        })),
        ..Default::default()
    }
}

/// An action with this timeout and no more.
fn timed(timeout: Option<Duration>, protocol: Protocol) -> RouteAction {
    let max_stream_duration = match protocol {
        // 0 puts no cap on the deadline in `grpc-timeout`.
        Protocol::Grpc if timeout.is_none() => {
            Some(MaxStreamDuration { grpc_timeout_header_max: Some(duration(Duration::ZERO)), ..Default::default() })
        }
        Protocol::Tcp | Protocol::Http | Protocol::Http2 | Protocol::Grpc => None,
    };
    RouteAction { timeout: Some(duration(timeout.unwrap_or_default())), max_stream_duration, ..Default::default() }
}
