//! One workload as one worker serves it: what is decided about a call, and where it goes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use http::HeaderMap;
use http::header::HeaderValue;
use starling_http1::{RequestHead, put_field};
use starling_identity::Identity;
use starling_model::{HeaderEdits, Protocol, RetryPolicy, ServiceName};
use starling_plan::{EdgeHost, Inbound, Outbound, Routes, Virtual};
use starling_traffic::forwarded::{
    CLIENT_CERTIFICATE, FORWARDED_FOR, FORWARDED_PROTO, is_client_certificate, is_trace, passes_edge,
};
use starling_traffic::{HeaderFields, Request, RuleAction, WeightedTarget, hits, scheme};

use crate::access_log::{Logger, Sinks};
use crate::affinity;
use crate::connections::Connection;
use crate::edge::certificates::EdgeConfigs;
use crate::edge::{EdgeSide, Outside};
use crate::edits::{edit_map, put_fields};
use crate::exits::{self, ExitSide, OriginConfigs};
use crate::inbound::{Behind, InboundSide};
use crate::keys::Keys;
use crate::metrics::{SideMetrics, WorkerMetrics};
use crate::spans::{Kind, Tracer};
use crate::upstream::Upstream;
use crate::workload::{Slot, Workload};

/// Fields that would steer an Envoy behind; nobody has a say in that but the plan.
const STEERING: &str = "x-envoy-";

/// The other end of a connection.
pub(crate) struct Peer {
    /// The service that calls; `None` where an application calls through its own sidecar.
    pub(crate) source: Option<ServiceName>,
    /// The value of [`CLIENT_CERTIFICATE`] for its requests.
    pub(crate) certificate: String,
    pub(crate) connection: Rc<Connection>,
    /// Who calls from outside the mesh.
    pub(crate) outside: Option<Box<Outside>>,
}

impl Peer {
    /// An application behind its own sidecar.
    pub(crate) fn local(connection: Rc<Connection>) -> Self {
        Self { source: None, certificate: String::new(), connection, outside: None }
    }

    /// A caller from outside the mesh.
    pub(crate) fn outside(connection: Rc<Connection>, outside: Outside) -> Self {
        Self { outside: Some(Box::new(outside)), ..Self::local(connection) }
    }
}

/// What becomes of a request.
pub(crate) enum Decision<'a> {
    /// It goes there.
    Forward(Forward<'a>),
    /// It is answered here.
    Reply { status: u16, text: &'static str },
    /// The caller is told to go elsewhere.
    Redirect { status: u16, location: String },
}

/// Where a request goes and how.
pub(crate) struct Forward<'a> {
    pub(crate) upstream: Rc<Upstream>,
    /// The target as the next hop gets it.
    pub(crate) target: Cow<'a, str>,
    /// Time for the whole of it, all tries included.
    pub(crate) timeout: Option<Duration>,
    /// Time that it may stand still, if the plan says so.
    pub(crate) still: Option<Duration>,
    /// Time that it waits first.
    pub(crate) delay: Option<Duration>,
    /// What stays with one endpoint has one hash.
    pub(crate) hash: Option<u64>,
    /// The cookie that gives later requests the same hash.
    pub(crate) cookie: Option<String>,
    /// What the plan says beside; `None` towards the application.
    pub(crate) route: Option<Route<'a>>,
    /// Who gets a copy.
    pub(crate) mirror: Option<Rc<Upstream>>,
    /// The host that the next hop is told that it is for, in place of the one that was asked for.
    pub(crate) host: Option<String>,
    /// What the next hop is told of the trace.
    pub(crate) trace: Option<&'a HeaderEdits>,
}

/// What the plan says of a request.
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    pub(crate) forward: &'a starling_traffic::Forward,
    pub(crate) to: &'a WeightedTarget,
    /// The host by which it was called from outside.
    pub(crate) host: Option<&'a EdgeHost>,
}

impl<'a> Forward<'a> {
    /// To an upstream, with nothing else said.
    fn plainly(upstream: &Rc<Upstream>, target: Cow<'a, str>, timeout: Option<Duration>) -> Self {
        let upstream = Rc::clone(upstream);
        let (still, delay, hash, cookie, route, mirror, host, trace) = (None, None, None, None, None, None, None, None);
        Self { upstream, target, timeout, still, delay, hash, cookie, route, mirror, host, trace }
    }

    /// The host that the next hop is told that a request is for which was sent to `asked`.
    pub(crate) fn authority<'h>(&'h self, asked: &'h str) -> &'h str {
        self.host.as_deref().unwrap_or(asked)
    }

    /// What is done to the head of the request, in this order.
    pub(crate) fn request_edits(&self) -> impl Iterator<Item = &'a HeaderEdits> + use<'a> {
        let edits = |route: Route<'a>| {
            let host = route.host.map(|host| &host.request_headers);
            [Some(&route.to.request_headers), Some(&route.forward.request_headers), host]
        };
        let of_route = self.route.into_iter().flat_map(edits).flatten();
        self.trace.into_iter().chain(of_route).filter(|edits| !edits.is_empty())
    }

    /// What is done to the head of the response, in this order.
    pub(crate) fn response_edits(&self) -> impl Iterator<Item = &'a HeaderEdits> + use<'a> {
        let route = self.route;
        route
            .into_iter()
            .flat_map(|route| {
                let host = route.host.map(|host| &host.response_headers);
                [Some(&route.to.response_headers), Some(&route.forward.response_headers), host]
            })
            .flatten()
            .filter(|edits| !edits.is_empty())
    }

    /// Does to a header list what is done to the head of the response.
    pub(crate) fn edit_response(&self, headers: &mut HeaderMap) {
        edit_map(headers, self.response_edits());
        if let Some(cookie) = self.cookie.as_ref().and_then(|cookie| HeaderValue::from_str(cookie).ok()) {
            headers.append(http::header::SET_COOKIE, cookie);
        }
    }

    /// The same, called by this host.
    pub(crate) fn by_host(self, host: &'a EdgeHost) -> Self {
        Self { route: self.route.map(|route| Route { host: Some(host), ..route }), ..self }
    }

    /// When the request is tried again.
    pub(crate) fn retry(&self) -> Option<&'a RetryPolicy> {
        self.route?.forward.retry.as_ref().filter(|policy| policy.retries_at_all())
    }
}

impl<'a> Decision<'a> {
    /// Has the next hop told of the trace, if there is one.
    pub(crate) fn traced(&mut self, edits: &'a HeaderEdits) {
        match self {
            Self::Forward(forward) => forward.trace = Some(edits),
            Self::Reply { .. } | Self::Redirect { .. } => {}
        }
    }
}

/// A listener for the application's calls.
pub(crate) struct OutboundSide {
    pub(crate) part: Arc<Outbound>,
    routes: Arc<Routes>,
    upstreams: Rc<Upstreams>,
    metrics: Rc<SideMetrics>,
    log: Option<Rc<Logger>>,
    tracer: Option<Tracer>,
}

/// One direction of a workload.
pub(crate) enum Side {
    Inbound(InboundSide),
    Outbound(OutboundSide),
    /// In a box: a sidecar has none, and one outbound side for each service that is called.
    Edge(Box<EdgeSide>),
}

/// Who is called, by the name of the cluster.
pub(crate) type Upstreams = BTreeMap<Arc<str>, Rc<Upstream>>;

/// A workload as a worker serves it.
pub(crate) struct Served {
    pub(crate) workload: Arc<Workload>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) sides: Vec<Rc<Side>>,
    /// Services that are called by addresses of their own.
    pub(crate) virtuals: Vec<(Vec<IpAddr>, Rc<Side>)>,
    /// Services outside the mesh, for which it stands.
    pub(crate) exits: Vec<ExitSide>,
    upstreams: Rc<Upstreams>,
}

impl Side {
    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            Self::Inbound(inbound) => inbound.part.protocol,
            Self::Outbound(outbound) => outbound.part.protocol,
            Self::Edge(edge) => edge.part.protocol,
        }
    }

    /// Where it listens.
    pub(crate) fn bind(&self) -> SocketAddr {
        match self {
            Self::Inbound(inbound) => inbound.part.bind,
            Self::Outbound(outbound) => outbound.part.bind,
            Self::Edge(edge) => edge.part.bind,
        }
    }

    /// Where a connection goes of which nothing is known but bytes.
    pub(crate) fn upstream(&self) -> Option<Rc<Upstream>> {
        match self {
            Self::Inbound(inbound) => Some(Rc::clone(&inbound.app)),
            Self::Outbound(outbound) => by_connection(&outbound.routes, &outbound.upstreams),
            Self::Edge(edge) => edge.sole().and_then(|(routes, upstreams)| by_connection(routes, upstreams)),
        }
    }

    pub(crate) fn metrics(&self) -> &Rc<SideMetrics> {
        match self {
            Self::Inbound(inbound) => &inbound.metrics,
            Self::Outbound(outbound) => &outbound.metrics,
            Self::Edge(edge) => &edge.metrics,
        }
    }

    /// Where its requests are logged, if they are.
    pub(crate) fn log(&self) -> Option<&Logger> {
        match self {
            Self::Inbound(inbound) => inbound.log.as_deref(),
            Self::Outbound(outbound) => outbound.log.as_deref(),
            Self::Edge(edge) => edge.log.as_deref(),
        }
    }

    /// Where its spans go, if it takes part in traces.
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        match self {
            Self::Inbound(inbound) => inbound.tracer.as_ref(),
            Self::Outbound(outbound) => outbound.tracer.as_ref(),
            Self::Edge(edge) => edge.tracer.as_ref(),
        }
    }

    /// Decides about a request.
    pub(crate) fn decide<'a>(
        &'a self,
        peer: &Peer,
        (method, named, authority, target): (&'a str, Option<&str>, &str, &'a str),
        fields: &'a dyn HeaderFields,
    ) -> Decision<'a> {
        if named == Some("https") && peer.outside.as_ref().is_some_and(|outside| !outside.https) {
            // RFC 9110 section 7.4: what is asked for by `https` must not be answered to who has not come by it.
            return Decision::Reply { status: 403, text: "an https URI asks for TLS" };
        }
        if target == "*" {
            // Of OPTIONS, about the server as a whole, which no route leads to.
            return Decision::Reply { status: 404, text: "no route" };
        }
        let Ok(request) = Request::new(method, target, fields) else {
            return Decision::Reply { status: 400, text: "the path has no normal form" };
        };
        match self {
            Self::Inbound(inbound) => {
                if !inbound.allows(peer, Some(&request)) {
                    return Decision::Reply { status: 403, text: "RBAC: access denied" };
                }
                if inbound.part.rate_limit.is_some_and(|limit| !inbound.bucket.admits(limit)) {
                    return Decision::Reply { status: 429, text: "local_rate_limited" };
                }
                let timeout = inbound.part.local_app.request_timeout;
                let forward = Forward::plainly(&inbound.app, request.into_target(), timeout);
                Decision::Forward(Forward { host: inbound.host(), ..forward })
            }
            Self::Outbound(outbound) => {
                by_routes((&outbound.routes, &outbound.upstreams), peer, (named, authority), request)
            }
            Self::Edge(edge) => edge.decide(peer, authority, request),
        }
    }

    /// Whether the same calls may pass as at another one.
    pub(crate) fn judges_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Inbound(one), Self::Inbound(other)) => {
                Arc::ptr_eq(&one.part.policy, &other.part.policy) || one.part.policy == other.part.policy
            }
            (Self::Inbound(_) | Self::Outbound(_) | Self::Edge(_), _) => true,
        }
    }

    /// Whether a request that is under way may go on.
    pub(crate) fn still_allows(&self, peer: &Peer, (method, target): (&str, &str), fields: &dyn HeaderFields) -> bool {
        match self {
            Self::Inbound(inbound) => {
                Request::new(method, target, fields).is_ok_and(|request| inbound.allows(peer, Some(&request)))
            }
            Self::Outbound(_) | Self::Edge(_) => true,
        }
    }

    /// Whether a bare connection may pass.
    pub(crate) fn allows_connection(&self, peer: &Peer) -> bool {
        match self {
            Self::Inbound(inbound) => inbound.allows(peer, None),
            Self::Outbound(_) | Self::Edge(_) => true,
        }
    }

    /// The fields of a request as they are passed on, but for `Host` and what frames its body.
    pub(crate) fn fields<'a>(
        &'a self,
        peer: &'a Peer,
        head: &'a RequestHead,
    ) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let said = || head.end_to_end().any(|(name, _)| name == FORWARDED_PROTO);
        let own = self.own_fields(peer, said).into_iter().flatten();
        head.end_to_end().filter(|(name, _)| self.passes(peer, name)).chain(own)
    }

    /// The fields that say who calls; `says_proto` is whether the request itself says by what its caller has come.
    pub(crate) fn own_fields<'a>(
        &self,
        peer: &'a Peer,
        says_proto: impl FnOnce() -> bool,
    ) -> [Option<(&'static str, &'a [u8])>; 2] {
        match self {
            Self::Inbound(_) => [Some((CLIENT_CERTIFICATE, peer.certificate.as_bytes())), None],
            Self::Outbound(_) => [None, None],
            Self::Edge(_) => {
                let Some(outside) = &peer.outside else { return [None, None] };
                let proto = (!(outside.trusted && says_proto())).then(|| outside.scheme().as_bytes());
                [Some((FORWARDED_FOR, outside.address.as_bytes())), proto.map(|proto| (FORWARDED_PROTO, proto))]
            }
        }
    }

    /// Appends a request's head but for the framing of its body.
    pub(crate) fn put_request(&self, out: &mut BytesMut, peer: &Peer, head: &RequestHead, forward: &Forward<'_>) {
        out.reserve(head.method().len() + forward.target.len() + 32);
        out.put_slice(head.method().as_bytes());
        out.put_u8(b' ');
        out.put_slice(forward.target.as_bytes());
        out.put_slice(b" HTTP/1.1\r\n");
        let authority = forward.authority(head.authority());
        // HTTP/1.0 may name none, HTTP/1.1 may name the empty one.
        let nameless = authority.is_empty() && head.version == 0;
        put_field(out, "host", if nameless { "localhost" } else { authority }.as_bytes());
        let edits = forward.request_edits();
        put_fields(out, self.fields(peer, head), edits);
    }

    /// Whether a field says of a trace what a stranger may not: what is recorded at the edge is the mesh's own affair.
    fn begins_traces(&self, peer: &Peer, name: &str) -> bool {
        let from_stranger = || !peer.outside.as_ref().is_some_and(|outside| outside.trusted);
        matches!(self, Self::Edge(_)) && self.tracer().is_some() && from_stranger() && is_trace(name)
    }

    /// Whether a request's field is passed on as it is.
    pub(crate) fn passes(&self, peer: &Peer, name: &str) -> bool {
        if let Self::Edge(_) = self {
            let trusted = peer.outside.as_ref().is_some_and(|outside| outside.trusted);
            return passes_edge(name, trusted) && !name.eq_ignore_ascii_case("host");
        }
        match name.as_bytes() {
            [b'h' | b'H', _, _, _] => !name.eq_ignore_ascii_case("host"),
            [b'x' | b'X', b'-' | b'_', b'f' | b'F', ..] if matches!(self, Self::Inbound(_)) => {
                !is_client_certificate(name)
            }
            [b'x' | b'X', b'-', b'e' | b'E', ..] => {
                !name.get(..STEERING.len()).is_some_and(|start| start.eq_ignore_ascii_case(STEERING))
            }
            _ => true,
        }
    }
}

/// The fields of a request as it is decided about: those that are passed on, and what is said in place of the others. Whoever
/// sends a field that it has no right to decides nothing by it.
pub(crate) struct Heeded<'a> {
    pub(crate) side: &'a Side,
    pub(crate) peer: &'a Peer,
    pub(crate) fields: &'a dyn HeaderFields,
}

impl HeaderFields for Heeded<'_> {
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let Self { side, peer, fields } = self;
        let is_host = name == "host" || name == ":authority";
        if (is_host || side.passes(peer, name)) && !side.begins_traces(peer, name) && fields.any(name, test) {
            return true;
        }
        let says_proto = || fields.any(FORWARDED_PROTO, &mut |_| true);
        let own = side.own_fields(peer, says_proto).into_iter().flatten();
        own.filter(|(own, _)| *own == name).any(|(_, value)| test(value))
    }
}

/// Where a connection goes by the routes of a service.
fn by_connection(routes: &Routes, upstreams: &Upstreams) -> Option<Rc<Upstream>> {
    let forward = routes.table.rules().last()?.forward()?;
    upstreams.get(&forward.pick(fastrand::u64(..))?.cluster).cloned()
}

/// Decides about a request by the routes of a service.
pub(crate) fn by_routes<'a>(
    (routes, upstreams): (&'a Routes, &Upstreams),
    peer: &Peer,
    (named, authority): (Option<&str>, &str),
    request: Request<'a>,
) -> Decision<'a> {
    let Some(rule) = routes.table.find(&request) else {
        return Decision::Reply { status: 404, text: "no route" };
    };
    let forward = match &rule.action {
        RuleAction::Forward(forward) => forward,
        RuleAction::Redirect(redirect) => {
            let scheme = scheme(named, request.headers());
            let location = rule.location(scheme, authority, request.target()).unwrap_or_default();
            return Decision::Redirect { status: redirect.status.into(), location };
        }
    };
    let hits = |percent| hits(percent, fastrand::u64(..));
    let fault = forward.fault.as_ref();
    if let Some(abort) = fault.and_then(|fault| fault.abort).filter(|abort| hits(abort.percent)) {
        return Decision::Reply { status: abort.status, text: "fault filter abort" };
    }
    let delay = fault.and_then(|fault| fault.delay).filter(|delay| hits(delay.percent)).map(|delay| delay.duration);
    let target = forward.pick(fastrand::u64(..));
    let upstream = target.and_then(|target| Some((target, upstreams.get(&target.cluster)?)));
    let Some((to, upstream)) = upstream else {
        return Decision::Reply { status: 503, text: "no healthy upstream" };
    };
    let (hash, cookie) = affinity::hash(&forward.hash, &request, peer);
    let mirror = forward.mirror.as_ref().filter(|mirror| hits(mirror.percent));
    let mirror = mirror.and_then(|mirror| upstreams.get(&mirror.cluster).cloned());
    let rewritten = match rule.rewrite(request.target()) {
        Cow::Owned(rewritten) => Some(rewritten),
        Cow::Borrowed(_) => None,
    };
    let target = rewritten.map_or_else(|| request.into_target(), Cow::Owned);
    let (timeout, still, route) = (forward.timeout, forward.idle_timeout, Some(Route { forward, to, host: None }));
    let plainly = Forward::plainly(upstream, target, timeout);
    Decision::Forward(Forward { still, delay, hash, cookie, route, mirror, ..plainly })
}

impl Served {
    /// Everybody who is called, the application included.
    pub(crate) fn upstreams(&self) -> impl Iterator<Item = &Rc<Upstream>> {
        let app = self.sides.iter().find_map(|side| match &**side {
            Side::Inbound(inbound) => Some(&inbound.app),
            Side::Outbound(_) | Side::Edge(_) => None,
        });
        let outside = self.exits.iter().filter_map(ExitSide::upstream);
        app.into_iter().chain(outside).chain(self.upstreams.values())
    }

    /// What a worker serves of `workload`; of `before`, parts that are the same stay with their connections.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(crate) fn new(
        workload: Arc<Workload>,
        (keys, edges, origins): (Arc<Keys>, &EdgeConfigs, &OriginConfigs),
        before: Option<&Self>,
        (metrics, sinks): (&WorkerMetrics, &Sinks),
    ) -> anyhow::Result<Self> {
        let same_keys = |before: &&Self| Arc::ptr_eq(&before.keys, &keys);
        let plan = &workload.plan;
        let log = Logger::new(&plan.access_log, sinks).map(Rc::new);
        let side_metrics = |upstream: Option<&_>| metrics.side(&plan.service, upstream);
        let mut upstreams = BTreeMap::new();
        for ((cluster, slot), usage) in plan.clusters.iter().zip(&workload.endpoints).zip(&workload.usage) {
            let kept = before.filter(same_keys).and_then(|before| before.upstream_of(cluster, slot));
            let upstream = match kept {
                Some(kept) => kept,
                None => {
                    let counted = side_metrics(Some(&cluster.service));
                    Upstream::service(cluster, (Arc::clone(slot), usage.clone()), &keys, counted)?
                }
            };
            upstreams.insert(Arc::from(&*cluster.sni), upstream);
        }
        let upstreams = Rc::new(upstreams);
        let mut sides = Vec::new();
        if let Some(part) = &plan.inbound {
            let kept = before.and_then(|before| before.app_of(part));
            let metrics = side_metrics(None);
            let counted = Rc::clone(&metrics);
            let app = kept.unwrap_or_else(|| Upstream::app(&part.local_app, part.protocol, counted));
            let (part, policies) = (Arc::clone(part), Arc::clone(&workload.policies));
            let noting = (metrics, log.clone(), Tracer::new(plan, Kind::Server, &sinks.collectors));
            let behind = Behind { app, origins: None };
            let bucket = Arc::clone(&workload.bucket);
            sides.push(Rc::new(Side::Inbound(InboundSide::new(part, behind, (policies, bucket), noting))));
        }
        let outbound = |part: Arc<Outbound>| {
            let place = plan.routes.binary_search_by(|routes| routes.service.cmp(&part.service)).ok()?;
            Some(Rc::new(Side::Outbound(OutboundSide {
                routes: Arc::clone(&plan.routes[place]),
                upstreams: Rc::clone(&upstreams),
                metrics: side_metrics(Some(&part.service)),
                log: log.clone(),
                tracer: Tracer::new(plan, Kind::Client, &sinks.collectors),
                part,
            })))
        };
        sides.extend(plan.outbounds.iter().filter_map(|part| outbound(Arc::clone(part))));
        for part in &plan.edges {
            let tls = edges.get(&part.bind).cloned();
            // Without what encrypts it, it is not opened; that was told.
            if part.tls.is_none() || tls.is_some() {
                let tls = tls.filter(|_| part.tls.is_some());
                let tracer = Tracer::new(plan, Kind::Server, &sinks.collectors);
                let noting = (side_metrics(None), log.clone(), tracer);
                let edge = EdgeSide::new(part, tls, &plan.routes, &upstreams, noting);
                sides.push(Rc::new(Side::Edge(Box::new(edge))));
            }
        }
        let of_virtual = |it: &Virtual| {
            let bind = SocketAddr::new(*it.addresses.first()?, 0);
            let part = Outbound { service: it.service.clone(), bind, protocol: it.protocol };
            Some((it.addresses.clone(), outbound(Arc::new(part))?))
        };
        let noting = |service: &ServiceName| {
            (metrics.side(service, None), log.clone(), Tracer::new(plan, Kind::Server, &sinks.collectors))
        };
        let exits = exits::sides(&workload, origins, before.map(|before| &*before.exits), &noting);
        let virtuals = plan.capture.iter().flat_map(|capture| &capture.virtuals).filter_map(of_virtual).collect();
        Ok(Self { workload, keys, sides, virtuals, exits, upstreams })
    }

    fn upstream_of(
        &self,
        cluster: &Arc<starling_plan::Cluster>,
        slot: &Arc<Slot<starling_plan::Endpoints>>,
    ) -> Option<Rc<Upstream>> {
        let clusters = &self.workload.plan.clusters;
        let target = (&cluster.service, &cluster.subset);
        let place = clusters.binary_search_by(|old| (&old.service, &old.subset).cmp(&target)).ok()?;
        let same = Arc::ptr_eq(&clusters[place], cluster) || *clusters[place] == **cluster;
        if !same || !Arc::ptr_eq(&self.workload.endpoints[place], slot) {
            return None;
        }
        self.upstreams.get(&*cluster.sni).cloned()
    }

    fn app_of(&self, part: &Inbound) -> Option<Rc<Upstream>> {
        self.sides.iter().find_map(|side| match &**side {
            Side::Inbound(old) if old.part.local_app == part.local_app && old.part.protocol == part.protocol => {
                Some(Rc::clone(&old.app))
            }
            Side::Inbound(_) | Side::Outbound(_) | Side::Edge(_) => None,
        })
    }
}

/// Who a peer is, by its certificate: of the mesh, so that its handshake succeeded, and a workload, so that it may call.
pub(crate) fn source_of(identity: &Identity) -> Option<ServiceName> {
    match identity {
        Identity::Workload(id) => Some(id.service.clone()),
        Identity::Agent { .. } | Identity::Server { .. } | Identity::Relay { .. } | Identity::Authority(_) => None,
    }
}
