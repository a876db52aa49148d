//! The listener that peers connect to, and the application behind it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use starling_model::{Port, ServiceInstance, SidecarProxy};
use starling_traffic::Policy;

use crate::diagnostic::{Diagnostic, Object, Severity};
use crate::parts::opaque::Opaque;
use crate::plan::{Inbound, LocalApp};
use crate::view::View;

/// Time to connect to the local application where nobody names one; Consul's default.
const LOCAL_CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// Time for a whole request where nobody names one; Envoy's default, which Consul keeps.
const LOCAL_REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(15);

/// Builds the public listener of a sidecar; `None` if it takes no calls or cannot.
///
/// A setting is taken from the sidecar's own config, else from service-defaults, else from proxy-defaults. The protocol is
/// the service's: it is the same for every instance and caller, so a sidecar cannot set its own.
pub(crate) fn build(
    view: &mut View<'_>,
    instance: &ServiceInstance,
    proxy: &SidecarProxy,
    node_address: Option<&str>,
    policy: Arc<Policy>,
) -> (Option<Inbound>, Vec<Diagnostic>) {
    let Some(local_port) = proxy.local_port else { return (None, Vec::new()) };
    let mut own = Opaque::new(&proxy.config, Object::Instance(instance.key.clone()), "Proxy.Config");
    let mut diagnostics = Vec::new();
    let bind = bind(&mut own, instance, node_address);
    let local_app = local_app(view, proxy, local_port, &mut own);
    let defaults = view.service_defaults(&proxy.destination);
    let max_connections = own.count("max_inbound_connections");
    let max_connections = max_connections.or_else(|| defaults?.max_inbound_connections).filter(|max| *max > 0);
    diagnostics.append(&mut own.diagnostics);
    let inbound = |bind| Inbound {
        service: proxy.destination.clone(),
        bind,
        protocol: view.protocol(&proxy.destination),
        local_app,
        max_connections,
        rate_limit: defaults.and_then(|defaults| defaults.rate_limit),
        policy,
    };
    match bind {
        Ok(bind) => (Some(inbound(bind)), diagnostics),
        Err(diagnostic) => {
            diagnostics.push(*diagnostic);
            (None, diagnostics)
        }
    }
}

/// Whether two listeners are the same; their policies by identity, since equal policies are one part.
pub(crate) fn same(a: &Inbound, b: &Inbound) -> bool {
    let Inbound { service, bind, protocol, local_app, max_connections, rate_limit, policy } = a;
    Arc::ptr_eq(policy, &b.policy)
        && (service, bind, protocol, local_app, max_connections, rate_limit)
            == (&b.service, &b.bind, &b.protocol, &b.local_app, &b.max_connections, &b.rate_limit)
}

fn local_app(view: &mut View<'_>, proxy: &SidecarProxy, port: Port, own: &mut Opaque<'_>) -> LocalApp {
    let defaults = view.service_defaults(&proxy.destination);
    // What proxy-defaults holds was written once for the whole mesh; its mistakes are told where it is read at the door.
    let mesh = view.proxy_defaults().map(|entry| &entry.config);
    let mut mesh = mesh.map(|config| Opaque::new(config, Object::Mesh, "Config"));
    let mut of_mesh = |key: &str| mesh.as_mut().and_then(|mesh| mesh.milliseconds(key));
    let connect = own.milliseconds("local_connect_timeout_ms");
    let connect = connect.or_else(|| defaults?.local_connect_timeout).or_else(|| of_mesh("local_connect_timeout_ms"));
    let request = own.milliseconds("local_request_timeout_ms");
    let request = request.or_else(|| defaults?.local_request_timeout).or_else(|| of_mesh("local_request_timeout_ms"));
    let request = request.unwrap_or(LOCAL_REQUEST_TIMEOUT_DEFAULT);
    LocalApp {
        address: proxy.local_address.clone(),
        port: port.get(),
        connect_timeout: connect.filter(|timeout| !timeout.is_zero()).unwrap_or(LOCAL_CONNECT_TIMEOUT_DEFAULT),
        // 0 means no limit, as in Consul.
        request_timeout: (!request.is_zero()).then_some(request),
    }
}

/// Where to listen: `bind_address`, else the instance's own address, else every address of the node's family; a node on
/// loopback is reached there only, so nothing wider is opened.
fn bind(
    own: &mut Opaque<'_>,
    instance: &ServiceInstance,
    node_address: Option<&str>,
) -> Result<SocketAddr, Box<Diagnostic>> {
    let unusable = |field: &str, reason: String, fix: &str| {
        Box::new(Diagnostic {
            object: Object::Instance(instance.key.clone()),
            field: field.to_owned(),
            reason: format!("{reason}, so it takes no calls"),
            fix: fix.to_owned(),
            severity: Severity::Error,
        })
    };
    let port = own.port("bind_port").or(instance.port.map(Port::get));
    let port =
        port.ok_or_else(|| unusable("Port", "it has no port".to_owned(), "register it with the port it listens on"))?;
    match own.text("bind_address").map(|text| (text.parse::<IpAddr>(), text)) {
        None => {}
        Some((Ok(address), _)) => return Ok(SocketAddr::new(address, port)),
        // Falling back to another address would open more than was written.
        Some((Err(_), text)) => {
            let reason = format!("{text:?} is no IP to listen on");
            return Err(unusable("Proxy.Config.bind_address", reason, "correct the value"));
        }
    }
    let fix = "set Proxy.Config.bind_address to the IP to listen on";
    let address = match &instance.address {
        Some(address) => address
            .parse()
            .map_err(|_| unusable("Address", format!("{address:?} is a host name, not an IP to listen on"), fix))?,
        None => match node_address.and_then(|address| address.parse::<IpAddr>().ok()) {
            Some(node) if node.is_loopback() => node,
            Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            Some(IpAddr::V4(_)) | None => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        },
    };
    Ok(SocketAddr::new(address, port))
}
