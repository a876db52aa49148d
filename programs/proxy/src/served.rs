//! One workload as one worker serves it: what is decided about a call, and where it goes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use starling_http1::{RequestHead, put_field};
use starling_identity::Identity;
use starling_model::{Action, Protocol, ServiceName};
use starling_plan::{Inbound, Outbound};
use starling_traffic::{CompiledPolicy, HeaderFields, PolicyTable, Request};

use crate::keys::Keys;
use crate::random::Random;
use crate::upstream::Upstream;
use crate::workload::{Slot, Workload};

/// Time for a whole HTTP request to another service, as with the Envoy that Starling configures.
const OUTBOUND_TIMEOUT: Duration = Duration::from_secs(15);

/// Fields that say who the caller is: only what this proxy has verified may stand there.
pub(crate) const CLIENT_CERTIFICATE: &str = "x-forwarded-client-cert";

/// Fields that would steer an Envoy behind; nobody has a say in that but the plan.
const STEERING: &str = "x-envoy-";

/// The other end of a connection.
pub(crate) struct Peer {
    /// The service that calls; `None` where an application calls through its own sidecar.
    pub(crate) source: Option<ServiceName>,
    /// The value of [`CLIENT_CERTIFICATE`] for its requests.
    pub(crate) certificate: String,
}

impl Peer {
    /// An application behind its own sidecar.
    pub(crate) fn local() -> Self {
        Self { source: None, certificate: String::new() }
    }
}

/// What becomes of a request.
pub(crate) enum Decision<'a> {
    /// It goes there.
    Forward(Forward<'a>),
    /// It is answered here.
    Reply { status: u16, text: &'static str },
}

/// Where a request goes and how.
pub(crate) struct Forward<'a> {
    pub(crate) upstream: Rc<Upstream>,
    /// The target in its normal form.
    pub(crate) request: Request<'a>,
    /// Time for the whole of it.
    pub(crate) timeout: Option<Duration>,
}

/// The listener for peers.
pub(crate) struct InboundSide {
    pub(crate) part: Arc<Inbound>,
    pub(crate) app: Rc<Upstream>,
    policies: Arc<Slot<PolicyTable>>,
    /// The policy, and the table that it was taken from.
    policy: RefCell<Option<(Arc<PolicyTable>, Rc<CompiledPolicy>)>>,
}

/// A listener for the application's calls.
pub(crate) struct OutboundSide {
    pub(crate) part: Arc<Outbound>,
    pub(crate) upstream: Rc<Upstream>,
}

/// One direction of a workload.
pub(crate) enum Side {
    Inbound(InboundSide),
    Outbound(OutboundSide),
}

/// A workload as a worker serves it.
pub(crate) struct Served {
    pub(crate) workload: Arc<Workload>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) sides: Vec<Rc<Side>>,
}

impl Side {
    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            Self::Inbound(inbound) => inbound.part.protocol,
            Self::Outbound(outbound) => outbound.part.protocol,
        }
    }

    /// Where it listens.
    pub(crate) fn bind(&self) -> SocketAddr {
        match self {
            Self::Inbound(inbound) => inbound.part.bind,
            Self::Outbound(outbound) => outbound.part.bind,
        }
    }

    pub(crate) fn upstream(&self) -> &Rc<Upstream> {
        match self {
            Self::Inbound(inbound) => &inbound.app,
            Self::Outbound(outbound) => &outbound.upstream,
        }
    }

    /// Decides about a request.
    pub(crate) fn decide<'a>(
        &self,
        peer: &Peer,
        method: &'a str,
        target: &'a str,
        fields: &'a dyn HeaderFields,
    ) -> Decision<'a> {
        // `*` is no path, and of OPTIONS only.
        let Ok(request) = Request::new(method, target, fields) else {
            return Decision::Reply { status: 400, text: "the path has no normal form" };
        };
        let (upstream, timeout) = match self {
            Self::Inbound(inbound) => {
                if !inbound.allows(peer, Some(&request)) {
                    return Decision::Reply { status: 403, text: "RBAC: access denied" };
                }
                (&inbound.app, inbound.part.local_app.request_timeout)
            }
            Self::Outbound(outbound) => {
                let timeout = match outbound.part.protocol {
                    Protocol::Grpc => None,
                    Protocol::Tcp | Protocol::Http | Protocol::Http2 => Some(OUTBOUND_TIMEOUT),
                };
                (&outbound.upstream, timeout)
            }
        };
        Decision::Forward(Forward { upstream: Rc::clone(upstream), request, timeout })
    }

    /// Whether a bare connection may pass.
    pub(crate) fn allows_connection(&self, peer: &Peer) -> bool {
        match self {
            Self::Inbound(inbound) => inbound.allows(peer, None),
            Self::Outbound(_) => true,
        }
    }

    /// The fields of a request as they are passed on, but for `Host` and what frames its body.
    pub(crate) fn fields<'a>(
        &'a self,
        peer: &'a Peer,
        head: &'a RequestHead,
    ) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let own = match self {
            Self::Inbound(_) => Some((CLIENT_CERTIFICATE, peer.certificate.as_bytes())),
            Self::Outbound(_) => None,
        };
        head.end_to_end().filter(|(name, _)| self.passes(name)).chain(own)
    }

    /// Appends a request's head but for the framing of its body.
    pub(crate) fn put_request(&self, out: &mut BytesMut, peer: &Peer, head: &RequestHead, request: &Request<'_>) {
        out.reserve(head.method().len() + request.target().len() + 32);
        out.put_slice(head.method().as_bytes());
        out.put_u8(b' ');
        out.put_slice(request.target().as_bytes());
        out.put_slice(b" HTTP/1.1\r\n");
        let authority = head.authority();
        // A trailing dot names the same host to some and another to others.
        let authority = authority.strip_suffix('.').unwrap_or(authority);
        put_field(out, "host", if authority.is_empty() { "localhost" } else { authority }.as_bytes());
        for (name, value) in self.fields(peer, head) {
            put_field(out, name, value);
        }
    }

    /// Whether a request's field is passed on as it is.
    pub(crate) fn passes(&self, name: &str) -> bool {
        match name.as_bytes() {
            [b'h' | b'H', _, _, _] => !name.eq_ignore_ascii_case("host"),
            [b'x' | b'X', b'-', b'f' | b'F', ..] if matches!(self, Self::Inbound(_)) => {
                !name.eq_ignore_ascii_case(CLIENT_CERTIFICATE)
            }
            [b'x' | b'X', b'-', b'e' | b'E', ..] => {
                !name.get(..STEERING.len()).is_some_and(|start| start.eq_ignore_ascii_case(STEERING))
            }
            _ => true,
        }
    }
}

impl InboundSide {
    fn allows(&self, peer: &Peer, request: Option<&Request<'_>>) -> bool {
        let Some(source) = &peer.source else { return false };
        self.policy().authorise(source, request).action == Action::Allow
    }

    /// The policy in force.
    fn policy(&self) -> Rc<CompiledPolicy> {
        let table = self.policies.peek();
        let mut policy = self.policy.borrow_mut();
        match &*policy {
            Some((of, policy)) if Arc::ptr_eq(of, &table) => Rc::clone(policy),
            Some(_) | None => {
                let compiled = Rc::new(table.policy(&self.part.service));
                *policy = Some((Arc::clone(&table), Rc::clone(&compiled)));
                compiled
            }
        }
    }
}

impl Served {
    /// What a worker serves of `workload`; of `before`, parts that are the same stay with their connections.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(crate) fn new(
        workload: Arc<Workload>,
        keys: Arc<Keys>,
        before: Option<&Self>,
        random: &Rc<Random>,
    ) -> anyhow::Result<Self> {
        let same_keys = |before: &&Self| Arc::ptr_eq(&before.keys, &keys);
        let plan = &workload.plan;
        let mut upstreams = BTreeMap::new();
        for (cluster, slot) in plan.clusters.iter().zip(&workload.endpoints) {
            let kept = before.filter(same_keys).and_then(|before| before.upstream_of(cluster, slot));
            let upstream = match kept {
                Some(kept) => kept,
                None => Upstream::service(cluster, Arc::clone(slot), &keys, Rc::clone(random))?,
            };
            upstreams.insert(cluster.service.clone(), upstream);
        }
        let mut sides = Vec::new();
        if let Some(part) = &plan.inbound {
            let kept = before.and_then(|before| before.app_of(part));
            let app = kept.unwrap_or_else(|| Upstream::app(&part.local_app, part.protocol, Rc::clone(random)));
            let (part, policies) = (Arc::clone(part), Arc::clone(&workload.policies));
            sides.push(Rc::new(Side::Inbound(InboundSide { part, app, policies, policy: RefCell::default() })));
        }
        for part in &plan.outbounds {
            let Some(upstream) = upstreams.get(&part.service).cloned() else { continue };
            sides.push(Rc::new(Side::Outbound(OutboundSide { part: Arc::clone(part), upstream })));
        }
        Ok(Self { workload, keys, sides })
    }

    fn upstream_of(
        &self,
        cluster: &Arc<starling_plan::Cluster>,
        slot: &Arc<Slot<starling_plan::Endpoints>>,
    ) -> Option<Rc<Upstream>> {
        let place =
            self.workload.plan.clusters.iter().position(|old| Arc::ptr_eq(old, cluster) || **old == **cluster)?;
        if !Arc::ptr_eq(&self.workload.endpoints[place], slot) {
            return None;
        }
        let named = |side: &&Rc<Side>| matches!(&***side, Side::Outbound(it) if it.upstream.name == cluster.sni);
        self.sides.iter().find(named).map(|side| Rc::clone(side.upstream()))
    }

    fn app_of(&self, part: &Inbound) -> Option<Rc<Upstream>> {
        self.sides.iter().find_map(|side| match &**side {
            Side::Inbound(old) if old.part.local_app == part.local_app && old.part.protocol == part.protocol => {
                Some(Rc::clone(&old.app))
            }
            Side::Inbound(_) | Side::Outbound(_) => None,
        })
    }
}

/// Who a peer is, by its certificate: of the mesh, so that its handshake succeeded, and a workload, so that it may call.
pub(crate) fn source_of(identity: &Identity) -> Option<ServiceName> {
    match identity {
        Identity::Workload(id) => Some(id.service.clone()),
        Identity::Agent { .. } | Identity::Server { .. } | Identity::Authority(_) => None,
    }
}
