//! Which listeners of a proxy can stand side by side.

use std::net::SocketAddr;

use starling_model::{InstanceKey, Upstream};

use crate::diagnostic::{Diagnostic, Object, Severity};

/// The upstreams whose listeners can be opened, by bind address and beside the public listener; the first written wins.
pub(crate) fn admit<'a>(
    proxy: &InstanceKey,
    upstreams: &'a [Upstream],
    public: Option<SocketAddr>,
) -> (Vec<(SocketAddr, &'a Upstream)>, Vec<Diagnostic>) {
    let mut admitted: Vec<(SocketAddr, &Upstream)> = Vec::with_capacity(upstreams.len());
    let mut diagnostics = Vec::new();
    for upstream in upstreams {
        let bind = SocketAddr::new(upstream.bind_address, upstream.bind_port.get());
        let holder = match admitted.iter().find(|(other, _)| clash(bind, *other)) {
            Some((other, holder)) => Some((*other, format!("the listener for {}", holder.destination))),
            None => {
                public.filter(|public| clash(bind, *public)).map(|public| (public, "the public listener".to_owned()))
            }
        };
        match holder {
            None => admitted.push((bind, upstream)),
            Some((address, holder)) => diagnostics.push(Diagnostic {
                object: Object::Instance(proxy.clone()),
                field: format!("Proxy.Upstreams[{}].LocalBindPort", upstream.destination),
                reason: format!("{bind} is taken by {holder} at {address}, so this upstream has no listener"),
                fix: "give each upstream a port of its own".to_owned(),
                severity: Severity::Error,
            }),
        }
    }
    admitted.sort_by_key(|(bind, _)| *bind);
    (admitted, diagnostics)
}

/// Whether the kernel would refuse to open both.
fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    let every = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && (a.ip() == b.ip() || every)
}
