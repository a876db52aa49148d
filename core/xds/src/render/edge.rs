//! The edge: where a gateway listens for callers from outside the mesh, and their way by host.
//!
//! Callers are believed by where they come from, which Envoy knows before it looks at a request: those that are trusted have
//! a filter chain of their own.

use envoy_types::pb::envoy::config::core::v3::{CidrRange, TrafficDirection};
use envoy_types::pb::envoy::config::listener::v3::{
    FilterChain, FilterChainMatch, Listener, ListenerFilter, listener_filter,
};
use envoy_types::pb::envoy::config::route::v3::redirect_action::{RedirectResponseCode, SchemeRewriteSpecifier};
use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::config::route::v3::{RedirectAction, Route, RouteConfiguration, RouteMatch, VirtualHost};
use envoy_types::pb::envoy::extensions::filters::listener::proxy_protocol::v3::ProxyProtocol;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::StripPortMode;
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::TcpProxy;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::DownstreamTlsContext;
use envoy_types::pb::envoy::r#type::matcher::v3::RegexMatcher;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use prost::Message;
use starling_model::{HttpsRedirect, IpRange, RedirectStatus};
use starling_plan::{Edge, EdgeHost, EdgeRoute, Routes};
use starling_traffic::forwarded::{CLIENT_CERTIFICATE, FORWARDED, FORWARDED_PREFIX, INTERNAL_PREFIXES};

use super::proto::{any, duration, flag, number, socket, tls_socket};
use super::route::{REQUEST_HEADERS_TIMEOUT, edits, rule};
use super::telemetry::Telemetry;
use super::{access_log, fault, listener, secret};
use crate::resource::{Resource, ResourceType};

/// The port of HTTPS, which no address names.
const HTTPS_PORT: u16 = 443;

/// The routes of an edge; the colon keeps them apart from any service's.
pub(super) fn route_name(edge: &Edge) -> String {
    format!("edge:{}", edge.bind)
}

/// The listener. `routes` are those of the services of the edge, in their order.
pub(super) fn listener(edge: &Edge, routes: &[&Routes], telemetry: &Telemetry) -> Resource {
    let name = format!("ingress:{}", edge.bind);
    let trusted = (!edge.trusted_proxies.is_empty() && edge.protocol.is_l7()).then(|| FilterChain {
        filter_chain_match: Some(FilterChainMatch {
            source_prefix_ranges: edge.trusted_proxies.iter().map(range).collect(),
            ..Default::default()
        }),
        name: "trusted".to_owned(),
        ..chain(edge, routes, telemetry, true)
    });
    let strangers = FilterChain { name: "strangers".to_owned(), ..chain(edge, routes, telemetry, false) };
    let proxy_protocol = edge.proxy_protocol.then(|| ListenerFilter {
        name: "envoy.filters.listener.proxy_protocol".to_owned(),
        config_type: Some(listener_filter::ConfigType::TypedConfig(any(&ProxyProtocol::default()))),
        ..Default::default()
    });
    let message = Listener {
        name: name.clone(),
        address: Some(socket(edge.bind)),
        traffic_direction: TrafficDirection::Outbound.into(),
        listener_filters: proxy_protocol.into_iter().collect(),
        filter_chains: trusted.into_iter().chain([strangers]).collect(),
        ..Default::default()
    };
    let resource = Resource::new(ResourceType::Listener, &name, &message.encode_to_vec());
    if edge.protocol.is_l7() {
        resource.with_children([(ResourceType::Route, route_name(edge).into())])
    } else {
        let clusters = routes.iter().flat_map(|routes| routes.table.clusters());
        resource.with_clusters(clusters.map(Into::into))
    }
}

fn chain(edge: &Edge, routes: &[&Routes], telemetry: &Telemetry, trusted: bool) -> FilterChain {
    let stat_prefix = format!("ingress.{}", edge.bind.port());
    let mut filters: Vec<_> =
        edge.max_connections.map(|max| listener::connection_limit(&stat_prefix, max)).into_iter().collect();
    if edge.protocol.is_l7() {
        let manager = manager(edge, &stat_prefix, telemetry, trusted);
        filters.push(listener::filter("envoy.filters.network.http_connection_manager", any(&manager)));
    } else {
        let by_connection = routes.first().map(|routes| listener::by_connection(routes)).unwrap_or_default();
        let proxy = TcpProxy { stat_prefix, access_log: access_log::loggers(&telemetry.access_log), ..by_connection };
        filters.push(listener::filter("envoy.filters.network.tcp_proxy", any(&proxy)));
    }
    let tls = edge.tls.as_ref().map(|tls| {
        let alpn: &[&str] = if edge.protocol.is_l7() { &["h2", "http/1.1"] } else { &[] };
        let context =
            DownstreamTlsContext { common_tls_context: Some(secret::edge_tls(tls, alpn)), ..Default::default() };
        tls_socket(&context)
    });
    FilterChain { filters, transport_socket: tls, ..Default::default() }
}

/// HTTP from outside. What callers claim is taken off before anything looks at it, and what is known of them is written.
fn manager(edge: &Edge, stat_prefix: &str, telemetry: &Telemetry, trusted: bool) -> HttpConnectionManager {
    let mut off: Vec<_> = INTERNAL_PREFIXES.map(|prefix| named(prefix, ".*")).into();
    if trusted {
        off.push(named(CLIENT_CERTIFICATE, ""));
    } else {
        off.push(named(FORWARDED_PREFIX, ".*"));
        off.extend(FORWARDED.map(|name| named(name, "")));
    }
    let redirects = matches!(edge.route, EdgeRoute::Redirect(_));
    HttpConnectionManager {
        access_log: access_log::loggers(&telemetry.access_log),
        tracing: telemetry.tracing(),
        http_filters: vec![listener::switched_off(fault::HTTP_FILTER, any(&fault::nothing())), listener::router()],
        use_remote_address: flag(true),
        // The proxy before says by what its caller has come.
        xff_num_trusted_hops: u32::from(trusted),
        strip_trailing_host_dot: true,
        strip_port_mode: redirects.then_some(StripPortMode::StripAnyHostPort(true)),
        request_headers_timeout: Some(duration(REQUEST_HEADERS_TIMEOUT)),
        early_header_mutation_extensions: vec![listener::taken_off(off)],
        ..listener::connection_manager(stat_prefix, &route_name(edge), edge.protocol)
    }
}

/// Fields of a name, an underscore in it counting as a hyphen.
fn named(name: &str, rest: &str) -> MatchPattern {
    let regex = format!("{}{rest}", name.replace('-', "[-_]"));
    MatchPattern::SafeRegex(RegexMatcher { regex, ..Default::default() })
}

fn range(range: &IpRange) -> CidrRange {
    CidrRange { address_prefix: range.first().to_string(), prefix_len: number(range.bits().into()) }
}

/// The routes of an edge that tells requests apart. `routes` are those of its services, in their order.
pub(super) fn routes(edge: &Edge, routes: &[&Routes]) -> Resource {
    let name = route_name(edge);
    let virtual_hosts = match &edge.route {
        EdgeRoute::Redirect(redirect) => vec![redirecting(redirect)],
        EdgeRoute::Hosts(hosts) => hosts.iter().filter_map(|host| virtual_host(host, routes)).collect(),
    };
    let message = RouteConfiguration {
        name: name.clone(),
        virtual_hosts,
        ignore_port_in_host_matching: true,
        // The order in which resources are sent sees to it that clusters come first.
        validate_clusters: flag(false),
        ..Default::default()
    };
    let clusters = routes.iter().flat_map(|routes| routes.table.clusters());
    Resource::new(ResourceType::Route, &name, &message.encode_to_vec()).with_clusters(clusters.map(Into::into))
}

fn virtual_host(host: &EdgeHost, routes: &[&Routes]) -> Option<VirtualHost> {
    let routes = routes.iter().find(|routes| routes.service == host.service)?;
    let (request_headers_to_add, request_headers_to_remove) = edits(&host.request_headers);
    let (response_headers_to_add, response_headers_to_remove) = edits(&host.response_headers);
    Some(VirtualHost {
        name: host.service.to_string(),
        domains: host.hosts.iter().map(ToString::to_string).collect(),
        routes: routes.table.rules().iter().map(|it| rule::render(it, routes.protocol)).collect(),
        request_headers_to_add,
        request_headers_to_remove,
        response_headers_to_add,
        response_headers_to_remove,
        ..Default::default()
    })
}

fn redirecting(redirect: &HttpsRedirect) -> VirtualHost {
    let port = redirect.port.get();
    let code = match redirect.status {
        RedirectStatus::Permanent => RedirectResponseCode::PermanentRedirect,
        RedirectStatus::MovedPermanently
        | RedirectStatus::Found
        | RedirectStatus::SeeOther
        | RedirectStatus::Temporary => RedirectResponseCode::MovedPermanently,
    };
    let action = RedirectAction {
        port_redirect: if port == HTTPS_PORT { 0 } else { port.into() },
        response_code: code.into(),
        scheme_rewrite_specifier: Some(SchemeRewriteSpecifier::HttpsRedirect(true)),
        ..Default::default()
    };
    let any_path = RouteMatch { path_specifier: Some(PathSpecifier::Prefix("/".to_owned())), ..Default::default() };
    VirtualHost {
        name: "https".to_owned(),
        domains: vec!["*".to_owned()],
        routes: vec![Route { r#match: Some(any_path), action: Some(Action::Redirect(action)), ..Default::default() }],
        ..Default::default()
    }
}
