//! Plans for the native proxy in a process of its own: the parts as they are, in JSON, and the leaf beside them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use starling_model::{AccessLog, ServiceName, Tracing};
use starling_plan::{Capture, Cluster, Edge, Endpoints, Exit, Inbound, Origins, Outbound, Part, Plan, Routes, Trust};

use super::cache::PartCache;
use super::{Leaf, ServiceLeaves};
use crate::resource::{Resource, ResourceType};

/// The name of the leaf; no part of a plan has it.
const LEAF: &str = "leaf";

/// Before the name of a service, whose leaf it is then.
const SERVICE_LEAF: &str = "leaf/";

/// What one resource of the native proxy holds.
#[derive(Debug, Clone, PartialEq)]
pub enum NativePart {
    /// A part of its plan.
    Plan(Part),
    /// Its certificate and key.
    Leaf(Leaf),
    /// Those of a service for which it stands.
    ServiceLeaf(ServiceName, Leaf),
}

/// Why a resource is none for the native proxy: it is newer than its agent, or older.
#[derive(Debug, thiserror::Error)]
#[error("{name} is not understood")]
pub struct NativePartError {
    /// The resource's name.
    pub name: String,
    /// What is wrong with it.
    pub source: serde_json::Error,
}

/// A leaf on the wire.
#[derive(Serialize, Deserialize)]
struct LeafText<'a> {
    certificate_chain_pem: std::borrow::Cow<'a, str>,
    private_key_pem: std::borrow::Cow<'a, str>,
}

impl NativePart {
    /// Reads what a resource of this name carries.
    ///
    /// # Errors
    /// [`NativePartError`].
    pub fn decode(name: &str, message: &[u8]) -> Result<Self, NativePartError> {
        let failed = |source| NativePartError { name: name.to_owned(), source };
        let service = name.strip_prefix(SERVICE_LEAF);
        if name != LEAF && service.is_none() {
            return serde_json::from_slice(message).map(Self::Plan).map_err(failed);
        }
        let leaf: LeafText<'_> = serde_json::from_slice(message).map_err(failed)?;
        let leaf = Leaf {
            certificate_chain_pem: leaf.certificate_chain_pem.into_owned(),
            private_key_pem: leaf.private_key_pem.into_owned(),
        };
        let Some(service) = service else { return Ok(Self::Leaf(leaf)) };
        let service = service.parse().map_err(|error| failed(serde::de::Error::custom(error)))?;
        Ok(Self::ServiceLeaf(service, leaf))
    }

    /// The service whose leaf a resource of this name is.
    #[must_use]
    pub fn service_of(name: &str) -> Option<ServiceName> {
        name.strip_prefix(SERVICE_LEAF)?.parse().ok()
    }
}

/// What has been rendered.
#[derive(Debug, Default)]
pub(super) struct NativeParts {
    trusts: PartCache<Trust, ()>,
    access_logs: PartCache<AccessLog, ()>,
    tracings: PartCache<Tracing, ()>,
    inbounds: PartCache<Inbound, ()>,
    edges: PartCache<Edge, ()>,
    captures: PartCache<Capture, ()>,
    outbounds: PartCache<Outbound, ()>,
    routes: PartCache<Routes, ()>,
    clusters: PartCache<Cluster, ()>,
    endpoints: PartCache<Endpoints, ()>,
    exits: PartCache<Exit, ()>,
    origins: PartCache<Origins, ()>,
    leaves: PartCache<Leaf, ()>,
    service_leaves: PartCache<Leaf, ()>,
}

impl NativeParts {
    pub(super) fn render(&mut self, plan: &Plan, leaf: &Arc<Leaf>, leaves: &ServiceLeaves) -> Vec<Arc<Resource>> {
        let mut all = Vec::with_capacity(plan.clusters.len() * 4 + 6);
        for part in plan.parts() {
            all.push(match &part {
                Part::Proxy(_) => Arc::new(encode(&part)),
                Part::Trust(of) => self.trusts.get(of, (), || encode(&part)),
                Part::AccessLog(of) => self.access_logs.get(of, (), || encode(&part)),
                Part::Tracing(of) => self.tracings.get(of, (), || encode(&part)),
                Part::Inbound(of) => self.inbounds.get(of, (), || encode(&part)),
                Part::Edge(of) => self.edges.get(of, (), || encode(&part)),
                Part::Capture(of) => self.captures.get(of, (), || encode(&part)),
                Part::Outbound(of) => self.outbounds.get(of, (), || encode(&part)),
                Part::Routes(of) => self.routes.get(of, (), || encode(&part)),
                Part::Cluster(of) => self.clusters.get(of, (), || encode(&part)),
                Part::Endpoints(of) => self.endpoints.get(of, (), || encode(&part)),
                Part::Exit(of) => self.exits.get(of, (), || encode(&part)),
                Part::Origins(of) => self.origins.get(of, (), || encode(&part)),
            });
        }
        all.push(self.leaves.get(leaf, (), || encode_leaf(LEAF, leaf)));
        for (service, leaf) in leaves {
            let name = format!("{SERVICE_LEAF}{service}");
            all.push(self.service_leaves.get(leaf, (), || encode_leaf(&name, leaf)));
        }
        all
    }
}

fn encode_leaf(name: &str, leaf: &Leaf) -> Resource {
    let text = LeafText {
        certificate_chain_pem: leaf.certificate_chain_pem.as_str().into(),
        private_key_pem: leaf.private_key_pem.as_str().into(),
    };
    json(name, &text)
}

fn encode(part: &Part) -> Resource {
    json(&part.name(), part)
}

fn json(name: &str, content: &impl Serialize) -> Resource {
    let message = serde_json::to_vec(content).expect("invariant: keys are text, and writing to memory cannot fail");
    Resource::new(ResourceType::PlanPart, name, &message)
}
