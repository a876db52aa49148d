//! What peers find: a listener for them, who may call there, and what is behind it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use starling_model::Action;
use starling_plan::{Inbound, Origins};
use starling_traffic::{CompiledPolicy, PolicyTable, Request, Verdict};

use crate::access_log::Logger;
use crate::bucket::Bucket;
use crate::metrics::SideMetrics;
use crate::served::Peer;
use crate::spans::Tracer;
use crate::upstream::Upstream;
use crate::workload::Slot;

/// Where it is counted, logged and traced.
pub(crate) type Noting = (Rc<SideMetrics>, Option<Rc<Logger>>, Option<Tracer>);

/// The listener for peers.
pub(crate) struct InboundSide {
    pub(crate) part: Arc<Inbound>,
    pub(crate) app: Rc<Upstream>,
    /// Where the service is, if it is outside the mesh.
    origins: Option<Arc<Slot<Origins>>>,
    policies: Arc<Slot<PolicyTable>>,
    /// The policy, and the table that it was taken from.
    policy: RefCell<Option<(Arc<PolicyTable>, Rc<CompiledPolicy>)>>,
    /// What the workload has let through, with all workers.
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) metrics: Rc<SideMetrics>,
    pub(crate) log: Option<Rc<Logger>>,
    pub(crate) tracer: Option<Tracer>,
}

/// What is behind such a listener.
pub(crate) struct Behind {
    pub(crate) app: Rc<Upstream>,
    pub(crate) origins: Option<Arc<Slot<Origins>>>,
}

impl InboundSide {
    pub(crate) fn new(
        part: Arc<Inbound>,
        Behind { app, origins }: Behind,
        (policies, bucket): (Arc<Slot<PolicyTable>>, Arc<Bucket>),
        (metrics, log, tracer): Noting,
    ) -> Self {
        Self { part, app, origins, policies, policy: RefCell::default(), bucket, metrics, log, tracer }
    }

    /// The host that requests are told to be for, in place of the one that was asked for.
    pub(crate) fn host(&self) -> Option<String> {
        self.origins.as_ref()?.peek().host.clone()
    }

    /// Whether a caller may call, or may send a request.
    pub(crate) fn allows(&self, peer: &Peer, request: Option<&Request<'_>>) -> bool {
        let policy = self.policy();
        let verdict = peer.source.as_ref().map(|source| policy.authorise(source, request));
        if let Some(Verdict { action: Action::Allow, .. }) = verdict {
            return true;
        }
        self.metrics.denied(&policy, verdict.as_ref(), peer.source.as_ref(), &self.part.service);
        false
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
