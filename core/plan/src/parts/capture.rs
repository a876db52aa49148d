//! What the kernel leads to a proxy, and which services its application calls by addresses of their own.

use std::net::IpAddr;

use starling_model::{ServiceName, SidecarProxy, TransparentProxy, TrustDomain, virtual_v6};

use crate::plan::{Capture, Virtual};
use crate::view::View;

/// The services that the application of `proxy` calls by virtual addresses, in order: its upstreams, and those whose
/// intentions allow it by name. Others it may be allowed to call as well, by intentions of `*` or none at all; but then
/// every proxy would hold the whole mesh.
pub(crate) fn called(view: &mut View<'_>, proxy: &SidecarProxy, trust_domain: &TrustDomain) -> Vec<Virtual> {
    let mut services = view.destinations(&proxy.destination);
    services.extend(proxy.upstreams.iter().map(|upstream| upstream.destination.clone()));
    services.sort();
    services.dedup();
    services.into_iter().filter_map(|service| with_address(view, service, trust_domain)).collect()
}

/// A service that was never registered in the mesh has no address yet.
fn with_address(view: &mut View<'_>, service: ServiceName, trust_domain: &TrustDomain) -> Option<Virtual> {
    let v4 = view.virtual_address(&service)?;
    let addresses = vec![IpAddr::V4(v4), IpAddr::V6(virtual_v6(trust_domain, v4))];
    Some(Virtual { protocol: view.protocol(&service), service, addresses })
}

pub(crate) fn build(view: &mut View<'_>, transparent: TransparentProxy, virtuals: Vec<Virtual>) -> Capture {
    let TransparentProxy { outbound_port, inbound_port, permissive } = transparent;
    let (outbound_port, inbound_port) = (outbound_port.get(), inbound_port.get());
    Capture { outbound_port, inbound_port, permissive, mesh_only: view.mesh_destinations_only(), virtuals }
}
