//! The listeners of a gateway, for callers from outside the mesh.

use std::net::{IpAddr, SocketAddr};

use starling_model::{
    ConfigEntryKey, ConfigKind, IngressGateway, IngressListener, IngressRoute, IngressService, OpaqueSettings,
    Protocol, ServiceInstance,
};

use crate::diagnostic::{Diagnostic, Object, Severity};
use crate::parts::opaque::Opaque;
use crate::plan::{Edge, EdgeHost, EdgeRoute};
use crate::view::View;

/// Connections from outside where nobody says how many: with one to a service for each they stay below the descriptors of a
/// process of which nobody has asked for more, so that strangers cannot use them up.
const CONNECTIONS_DEFAULT: u32 = 8_192;

/// Where a gateway listens, and for how many.
pub(crate) struct Standing {
    pub address: IpAddr,
    pub max_connections: Option<u32>,
}

/// Where a gateway listens: `bind_address`, else its own address, else its node's.
pub(crate) fn standing(
    instance: &ServiceInstance,
    config: &OpaqueSettings,
    node_address: Option<&str>,
) -> (Option<Standing>, Vec<Diagnostic>) {
    let object = Object::Instance(instance.key.clone());
    let mut own = Opaque::new(config, object.clone(), "Proxy.Config");
    let max_connections = match own.count("max_inbound_connections") {
        None => Some(CONNECTIONS_DEFAULT),
        Some(max) => Some(max).filter(|max| *max > 0),
    };
    let written = own.text("bind_address");
    let (field, address) = match (&written, &instance.address) {
        (Some(text), _) => ("Proxy.Config.bind_address", text.as_str()),
        (None, Some(text)) => ("Address", text.as_str()),
        (None, None) => ("Address", node_address.unwrap_or_default()),
    };
    let mut diagnostics = own.diagnostics;
    let standing = match address.parse() {
        Ok(address) => Some(Standing { address, max_connections }),
        Err(_) => {
            diagnostics.push(Diagnostic {
                object,
                field: field.to_owned(),
                reason: format!("{address:?} is no IP to listen on, so it listens nowhere"),
                fix: "set Proxy.Config.bind_address to the IP to listen on".to_owned(),
                severity: Severity::Error,
            });
            None
        }
    };
    (standing, diagnostics)
}

/// Builds the listener of a port; services that it cannot let in are left out.
pub(crate) fn build(
    view: &mut View<'_>,
    gateway: &IngressGateway,
    (place, listener): (usize, &IngressListener),
    standing: &Standing,
) -> (Edge, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let route = match &listener.route {
        IngressRoute::Redirect(redirect) => EdgeRoute::Redirect(*redirect),
        IngressRoute::Services(services) => {
            let mut hosts = Vec::new();
            for (at, service) in services.iter().enumerate() {
                let spoken = view.protocol(&service.service);
                if spoken.is_l7() == listener.protocol.is_l7() {
                    hosts.push(host(service));
                } else {
                    let field = format!("Listeners[{place}].Services[{at}].Name");
                    diagnostics.push(speaks_otherwise(gateway, field, listener, (service, spoken)));
                }
            }
            EdgeRoute::Hosts(hosts)
        }
    };
    let edge = Edge {
        bind: SocketAddr::new(standing.address, listener.port.get()),
        protocol: listener.protocol,
        tls: gateway.tls_of(listener).cloned(),
        proxy_protocol: listener.proxy_protocol,
        trusted_proxies: gateway.trusted_proxies.clone(),
        max_connections: standing.max_connections,
        route,
    };
    (edge, diagnostics)
}

fn host(service: &IngressService) -> EdgeHost {
    EdgeHost {
        service: service.service.clone(),
        hosts: service.hosts.clone(),
        request_headers: service.request_headers.clone(),
        response_headers: service.response_headers.clone(),
    }
}

/// The entry of a gateway, as the object of what is wrong with it.
pub(crate) fn entry_of(gateway: &starling_model::ServiceName) -> Object {
    Object::Config(ConfigEntryKey { kind: ConfigKind::IngressGateway, name: gateway.to_string() })
}

/// What a gateway is told of which nobody has written what it lets in.
pub(crate) fn without_entry(instance: &ServiceInstance) -> Diagnostic {
    Diagnostic {
        object: Object::Instance(instance.key.clone()),
        field: String::new(),
        reason: format!("there is no ingress-gateway entry named {}, so it listens nowhere", instance.name),
        fix: format!("write an ingress-gateway entry named {}", instance.name),
        severity: Severity::Error,
    }
}

/// What a gateway is told of a port whose certificate nothing fetches: open without one, it would be open to everybody.
pub(crate) fn without_secret(gateway: &IngressGateway, place: usize) -> Diagnostic {
    Diagnostic {
        object: entry_of(&gateway.gateway),
        field: format!("Listeners[{place}].TLS.SDS"),
        reason: "certificates are not fetched by SDS in this release, so the port is not opened".to_owned(),
        fix: "name files in TLS.Certificates, or take the certificate from the mesh with TLS.Enabled, and remove SDS"
            .to_owned(),
        severity: Severity::Error,
    }
}

fn speaks_otherwise(
    gateway: &IngressGateway,
    field: String,
    listener: &IngressListener,
    (service, spoken): (&IngressService, Protocol),
) -> Diagnostic {
    let (service, spoken, wanted) = (&service.service, spoken.as_str(), listener.protocol.as_str());
    Diagnostic {
        object: entry_of(&gateway.gateway),
        field,
        reason: format!("{service} speaks {spoken}, and the listener {wanted}, so it is not let in there"),
        fix: if listener.protocol.is_l7() {
            format!("give {service} a service-defaults entry with protocol {wanted}, or the listener protocol tcp")
        } else {
            format!("give the listener protocol {spoken}")
        },
        severity: Severity::Error,
    }
}
