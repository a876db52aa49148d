//! A plan in parts, for a proxy in a process of its own: each part has a name and can be sent by itself, so that a change
//! costs the parts that it replaces. What was taken apart here is put together again there, parts that did not change
//! staying the very same.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use starling_model::{AccessLog, InstanceKey, Revision, ServiceName, Tracing};

use crate::plan::{Capture, Cluster, Edge, Endpoints, Exit, Inbound, Origins, Outbound, Plan, Routes, Target, Trust};

/// Whose a plan is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Whose {
    /// [`Plan::proxy`].
    pub proxy: InstanceKey,
    /// [`Plan::service`].
    pub service: ServiceName,
}

/// One part of a plan: as large as a pointer, for a proxy may have as many as four for each service that it calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Whose plan it is. There is no plan without it.
    Proxy(Arc<Whose>),
    /// [`Plan::trust`].
    Trust(Arc<Trust>),
    /// [`Plan::access_log`].
    AccessLog(Arc<AccessLog>),
    /// [`Plan::tracing`].
    Tracing(Arc<Tracing>),
    /// [`Plan::inbound`].
    Inbound(Arc<Inbound>),
    /// One of [`Plan::edges`].
    Edge(Arc<Edge>),
    /// [`Plan::capture`].
    Capture(Arc<Capture>),
    /// One of [`Plan::outbounds`].
    Outbound(Arc<Outbound>),
    /// One of [`Plan::routes`].
    Routes(Arc<Routes>),
    /// One of [`Plan::clusters`].
    Cluster(Arc<Cluster>),
    /// One of [`Plan::endpoints`].
    Endpoints(Arc<Endpoints>),
    /// One of [`Plan::exits`].
    Exit(Arc<Exit>),
    /// One of [`Plan::origins`].
    Origins(Arc<Origins>),
}

impl Part {
    /// Its name: no two parts of one plan have the same.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Proxy(_) => "proxy".to_owned(),
            Self::Trust(_) => "trust".to_owned(),
            Self::AccessLog(_) => "access-log".to_owned(),
            Self::Tracing(_) => "tracing".to_owned(),
            Self::Inbound(_) => "inbound".to_owned(),
            Self::Edge(edge) => format!("edge/{}", edge.bind),
            Self::Capture(_) => "capture".to_owned(),
            Self::Outbound(outbound) => format!("outbound/{}", outbound.bind),
            Self::Routes(routes) => format!("routes/{}", routes.service),
            Self::Cluster(cluster) => format!("cluster/{}", cluster.sni),
            Self::Endpoints(endpoints) => format!("endpoints/{}", endpoints.cluster),
            Self::Exit(exit) => format!("exit/{}", exit.target()),
            Self::Origins(origins) => format!("origins/{}", origins.target()),
        }
    }
}

/// The parts of a plan as they arrive.
#[derive(Debug, Clone, Default)]
pub struct Assembly {
    parts: BTreeMap<Box<str>, Arrived>,
}

#[derive(Debug, Clone)]
struct Arrived {
    part: Part,
    /// As whoever sent it calls this state of it.
    version: Box<str>,
}

impl Assembly {
    /// Takes a part, in place of the one of its name. Whoever sent it calls this state of it by `version`.
    pub fn put(&mut self, part: Part, version: &str) {
        self.parts.insert(part.name().into(), Arrived { part, version: version.into() });
    }

    /// What has arrived: the name of each part, and the version.
    pub fn versions(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.parts.iter().map(|(name, arrived)| (&**name, &*arrived.version))
    }

    /// Forgets a part.
    pub fn remove(&mut self, name: &str) {
        self.parts.remove(name);
    }

    /// Whether nothing is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The plan; `None` for as long as it is not whole: it is not known whose it is or whom it trusts, or what belongs together
    /// has come in part only.
    #[must_use]
    pub fn plan(&self, revision: Revision) -> Option<Plan> {
        let (mut head, mut trust, mut inbound, mut capture) = (None, None, None, None);
        let (mut access_log, mut tracing) = (Arc::default(), Arc::default());
        let (mut edges, mut outbounds, mut routes, mut clusters, mut endpoints) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut exits, mut origins): (BTreeMap<Target, _>, BTreeMap<Target, _>) = Default::default();
        for Arrived { part, .. } in self.parts.values() {
            match part {
                Part::Proxy(whose) => head = Some(Whose::clone(whose)),
                Part::Trust(part) => trust = Some(Arc::clone(part)),
                Part::AccessLog(part) => access_log = Arc::clone(part),
                Part::Tracing(part) => tracing = Arc::clone(part),
                Part::Inbound(part) => inbound = Some(Arc::clone(part)),
                Part::Edge(part) => edges.push(Arc::clone(part)),
                Part::Capture(part) => capture = Some(Arc::clone(part)),
                Part::Outbound(part) => outbounds.push(Arc::clone(part)),
                Part::Routes(part) => routes.push(Arc::clone(part)),
                Part::Cluster(part) => clusters.push(Arc::clone(part)),
                Part::Endpoints(part) => endpoints.push(Arc::clone(part)),
                Part::Exit(part) => drop(exits.insert(part.target(), Arc::clone(part))),
                Part::Origins(part) => drop(origins.insert(part.target(), Arc::clone(part))),
            }
        }
        let Whose { proxy, service } = head?;
        edges.sort_by_key(|edge| edge.bind);
        outbounds.sort_by_key(|outbound| outbound.bind);
        routes.sort_by(|a, b| a.service.cmp(&b.service));
        clusters.sort_by(|a, b| (&a.service, &a.subset).cmp(&(&b.service, &b.subset)));
        endpoints.sort_by(|a, b| (&a.service, &a.subset).cmp(&(&b.service, &b.subset)));
        let is_whole = clusters.len() == endpoints.len()
            && clusters.iter().zip(&endpoints).all(|(cluster, at): (&Arc<Cluster>, &Arc<Endpoints>)| {
                (&cluster.service, &cluster.subset) == (&at.service, &at.subset)
            })
            && exits.keys().eq(origins.keys())
            && outbounds.iter().all(|outbound: &Arc<Outbound>| {
                routes.binary_search_by(|routes: &Arc<Routes>| routes.service.cmp(&outbound.service)).is_ok()
            });
        let trust = trust.filter(|_| is_whole)?;
        Some(Plan {
            revision,
            proxy,
            service,
            trust,
            inbound,
            edges,
            outbounds,
            routes,
            clusters,
            endpoints,
            exits: exits.into_values().collect(),
            origins: origins.into_values().collect(),
            capture,
            access_log,
            tracing,
        })
    }
}

impl Plan {
    /// Whose it is, as a part.
    #[must_use]
    pub fn head(&self) -> Part {
        Part::Proxy(Arc::new(Whose { proxy: self.proxy.clone(), service: self.service.clone() }))
    }

    /// Every part of it.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        let mut parts =
            vec![self.head(), Part::Trust(Arc::clone(&self.trust)), Part::AccessLog(Arc::clone(&self.access_log))];
        // Unless said otherwise there is none.
        parts.extend(self.tracing.collector.is_some().then(|| Part::Tracing(Arc::clone(&self.tracing))));
        parts.extend(self.inbound.iter().map(|part| Part::Inbound(Arc::clone(part))));
        parts.extend(self.edges.iter().map(|part| Part::Edge(Arc::clone(part))));
        parts.extend(self.capture.iter().map(|part| Part::Capture(Arc::clone(part))));
        parts.extend(self.outbounds.iter().map(|part| Part::Outbound(Arc::clone(part))));
        parts.extend(self.routes.iter().map(|part| Part::Routes(Arc::clone(part))));
        parts.extend(self.clusters.iter().map(|part| Part::Cluster(Arc::clone(part))));
        parts.extend(self.endpoints.iter().map(|part| Part::Endpoints(Arc::clone(part))));
        parts.extend(self.exits.iter().map(|part| Part::Exit(Arc::clone(part))));
        parts.extend(self.origins.iter().map(|part| Part::Origins(Arc::clone(part))));
        parts
    }
}
