//! The edge of the mesh: listeners of a gateway, and what is decided about those who call from outside.
//!
//! What comes in is told apart by host and goes on as the calls of a sidecar do. Callers have no identity here; the gateway's
//! own is what services see, and what intentions speak of.

pub(crate) mod certificates;
pub(crate) mod proxy_header;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use starling_model::IpRange;
use starling_plan::{Edge, EdgeHost, EdgeRoute, Routes};
use starling_traffic::host::host_of;
use starling_traffic::{HostTable, Request};

use crate::access_log::Logger;
use crate::edge::certificates::EdgeTls;
use crate::metrics::SideMetrics;
use crate::served::{Decision, Peer, Upstreams, by_routes};
use crate::spans::Tracer;

/// The port that `https` stands for.
const HTTPS_PORT: u16 = 443;

/// A caller from outside the mesh.
pub(crate) struct Outside {
    /// Its address, as it stands in `x-forwarded-for`.
    pub(crate) address: String,
    /// Whether it may speak for others.
    pub(crate) trusted: bool,
    /// Whether it has come by TLS.
    pub(crate) https: bool,
}

impl Outside {
    /// The caller at `address`, as the listener sees it.
    pub(crate) fn new(address: IpAddr, https: bool, trusted: &[IpRange]) -> Self {
        let address = address.to_canonical();
        Self { address: address.to_string(), trusted: trusted.iter().any(|range| range.contains(address)), https }
    }

    /// By what it has come.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }
}

/// A listener for callers from outside.
pub(crate) struct EdgeSide {
    pub(crate) part: Arc<Edge>,
    /// `None` where it is not encrypted.
    pub(crate) tls: Option<Arc<EdgeTls>>,
    /// By host the place in `part` and in `routes`.
    hosts: HostTable,
    /// Those of each service of `part`.
    routes: Vec<Option<Arc<Routes>>>,
    upstreams: Rc<Upstreams>,
    pub(crate) metrics: Rc<SideMetrics>,
    pub(crate) log: Option<Rc<Logger>>,
    pub(crate) tracer: Option<Tracer>,
}

impl EdgeSide {
    pub(crate) fn new(
        part: &Arc<Edge>,
        tls: Option<Arc<EdgeTls>>,
        routes: &[Arc<Routes>],
        upstreams: &Rc<Upstreams>,
        (metrics, log, tracer): (Rc<SideMetrics>, Option<Rc<Logger>>, Option<Tracer>),
    ) -> Self {
        let numbered = part.hosts().iter().enumerate();
        let hosts = HostTable::new(numbered.flat_map(|(place, host)| host.hosts.iter().map(move |it| (it, place))));
        let of_host = |host: &EdgeHost| {
            let found = routes.binary_search_by(|routes| routes.service.cmp(&host.service)).ok()?;
            Some(Arc::clone(&routes[found]))
        };
        let routes = part.hosts().iter().map(of_host).collect();
        Self { part: Arc::clone(part), tls, hosts, routes, upstreams: Rc::clone(upstreams), metrics, log, tracer }
    }

    /// The routes of the only service, and who is called by them, where requests cannot be told apart.
    pub(crate) fn sole(&self) -> Option<(&Routes, &Upstreams)> {
        Some((self.routes.first()?.as_deref()?, &self.upstreams))
    }

    /// Decides about a request.
    pub(crate) fn decide<'a>(&'a self, peer: &Peer, authority: &str, request: Request<'a>) -> Decision<'a> {
        let hosts = match &self.part.route {
            EdgeRoute::Hosts(hosts) => hosts,
            EdgeRoute::Redirect(_) if authority.is_empty() => {
                return Decision::Reply { status: 400, text: "there is no host to come again to" };
            }
            EdgeRoute::Redirect(redirect) => {
                let port = match redirect.port.get() {
                    HTTPS_PORT => String::new(),
                    port => format!(":{port}"),
                };
                let location = format!("https://{}{port}{}", host_of(authority), request.target());
                return Decision::Redirect { status: redirect.status.into(), location };
            }
        };
        if self.is_misdirected(peer, authority) {
            return Decision::Reply { status: 421, text: "this connection is for another host" };
        }
        let found = self.hosts.find(authority).and_then(|at| Some((hosts.get(at)?, self.routes.get(at)?.as_deref()?)));
        let Some((host, routes)) = found else {
            return Decision::Reply { status: 404, text: "no service for this host" };
        };
        let scheme = peer.outside.as_ref().map_or("http", |outside| outside.scheme());
        match by_routes((routes, &self.upstreams), peer, (Some(scheme), authority), request) {
            Decision::Forward(forward) => Decision::Forward(forward.by_host(host)),
            other @ (Decision::Reply { .. } | Decision::Redirect { .. }) => other,
        }
    }

    /// Whether another certificate than the one that the caller asked for is for the host of its request (RFC 9110 section
    /// 15.5.20): it must not reach by the one what is for the other.
    fn is_misdirected(&self, peer: &Peer, authority: &str) -> bool {
        let Some(tls) = &self.tls else { return false };
        let (host, Some(asked)) = (host_of(authority), peer.connection.server_name()) else { return false };
        !asked.eq_ignore_ascii_case(host) && tls.are_apart(asked, host)
    }
}
