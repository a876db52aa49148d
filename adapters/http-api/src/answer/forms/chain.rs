//! Discovery chains: what routers, splitters and resolvers make of a service's name, in Consul's form.
//!
//! Source: <https://developer.hashicorp.com/consul/api-docs/discovery-chain>. What proxies do is decided by the planner (`core/plan`), which
//! follows the same entries by the same rules; this shows them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value, json};
use starling_catalog::Snapshot;
use starling_identity::{service_sni, subset_sni};
use starling_model::{
    Datacenter, Namespace, Protocol, RouteAction, ServiceName, ServiceResolver, ServiceTarget, SubsetName, TrustDomain,
};

use super::{Form, routing};
use crate::parse::duration_text;

/// Time to connect where nobody says another; Consul's.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Redirects that are followed from one name, as by the planner.
const REDIRECTS_MAX: usize = 16;

/// Nodes of a chain; past this, entries lead in circles or a user means harm.
const NODES_MAX: usize = 1_000;

/// What a chain is compiled for.
pub(crate) struct ChainOf<'a> {
    pub(crate) service: &'a ServiceName,
    pub(crate) datacenter: &'a Datacenter,
    pub(crate) trust_domain: &'a TrustDomain,
    /// In place of what the entries say.
    pub(crate) overrides: Overrides,
}

/// What somebody wants to be otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Overrides {
    pub(crate) protocol: Option<Protocol>,
    pub(crate) connect_timeout: Option<Duration>,
}

/// A chain, and the services whose entries it follows.
pub(crate) struct Chain {
    pub(crate) form: Value,
    pub(crate) services: BTreeSet<ServiceName>,
}

/// Follows the entries.
pub(crate) fn chain(snapshot: &Snapshot, of: &ChainOf<'_>) -> Chain {
    let protocol = of.overrides.protocol.unwrap_or_else(|| snapshot.protocol(of.service));
    let mut compiler = Compiler {
        snapshot,
        of,
        by_requests: protocol.is_l7(),
        nodes: Map::new(),
        targets: Map::new(),
        services: BTreeSet::new(),
        is_default: true,
    };
    let start = compiler.start(of.service);
    let Compiler { nodes, targets, services, is_default, .. } = compiler;
    let form = Form::new()
        .field("ServiceName", of.service.as_str())
        .field("Namespace", "default")
        .field("Partition", "default")
        .field("Datacenter", of.datacenter.as_str())
        .nonempty("CustomizationHash", of.overrides.hash())
        .nonempty("Default", is_default)
        .field("Protocol", protocol.as_str())
        .field("StartNode", start)
        .field("Nodes", nodes)
        .field("Targets", targets);
    Chain { form: json!({"Chain": form.end()}), services }
}

impl Overrides {
    /// Tells chains with different overrides apart; empty without any.
    fn hash(&self) -> String {
        if *self == Self::default() {
            return String::new();
        }
        let timeout = self.connect_timeout.map(duration_text).unwrap_or_default();
        let text = format!("{} {timeout}", self.protocol.map(Protocol::as_str).unwrap_or_default());
        // FNV-1a: nobody gains by making two alike.
        let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        format!("{hash:08x}")
    }
}

struct Compiler<'a> {
    snapshot: &'a Snapshot,
    of: &'a ChainOf<'a>,
    /// Whether requests can be told apart.
    by_requests: bool,
    nodes: Map<String, Value>,
    targets: Map<String, Value>,
    services: BTreeSet<ServiceName>,
    /// Whether no entry was met.
    is_default: bool,
}

impl Compiler<'_> {
    /// The node at which a call of `service` begins.
    fn start(&mut self, service: &ServiceName) -> String {
        self.services.insert(service.clone());
        let Some(router) = self.snapshot.service_router(service).filter(|_| self.by_requests) else {
            return self.split(service);
        };
        self.is_default = false;
        let name = format!("{service}.default.default");
        let mut routes = Vec::new();
        for route in &router.routes {
            let mut form = Form::new().field("Definition", routing::route(route));
            if let RouteAction::Forward(to) = &route.action {
                let next = to.service.as_ref().unwrap_or(service);
                form = form.field("NextNode", self.named(next, to.subset.as_ref()));
            }
            routes.push(form.end());
        }
        let rest = json!({"Match": {"HTTP": {"PathPrefix": "/"}}, "Destination": {"Service": service.as_str()}});
        routes.push(json!({"Definition": rest, "NextNode": self.split(service)}));
        let key = format!("router:{name}");
        self.nodes.insert(key.clone(), json!({"Type": "router", "Name": name, "Routes": routes}));
        key
    }

    /// The node of a service, or of a subset of it, as routes and splits name them.
    fn named(&mut self, service: &ServiceName, subset: Option<&SubsetName>) -> String {
        match subset {
            Some(_) => self.resolve(service, subset),
            None => self.split(service),
        }
    }

    fn split(&mut self, service: &ServiceName) -> String {
        self.services.insert(service.clone());
        let name = format!("{service}.default.default");
        let key = format!("splitter:{name}");
        let Some(splitter) = self.snapshot.service_splitter(service).filter(|_| self.by_requests) else {
            return self.resolve(service, None);
        };
        if self.nodes.contains_key(&key) {
            return key;
        }
        if self.nodes.len() >= NODES_MAX {
            return self.resolve(service, None);
        }
        self.is_default = false;
        // Splits that lead back here find it.
        self.nodes.insert(key.clone(), Value::Null);
        let mut splits = Vec::new();
        for split in splitter.splits.as_slice() {
            let next = match split.service.as_ref().filter(|other| *other != service) {
                Some(other) => self.named(other, split.subset.as_ref()),
                // Its own share is not divided again.
                None => self.resolve(service, split.subset.as_ref()),
            };
            let form = Form::new()
                .field("Definition", routing::split(split))
                .field("Weight", routing::percent(split.weight))
                .field("NextNode", next);
            splits.push(form.end());
        }
        self.nodes.insert(key.clone(), json!({"Type": "splitter", "Name": name, "Splits": splits}));
        key
    }

    /// The node of who is called in the end.
    fn resolve(&mut self, service: &ServiceName, subset: Option<&SubsetName>) -> String {
        let (service, subset) = self.redirected(service, subset);
        let id = self.target(&service, subset.as_ref());
        let key = format!("resolver:{id}");
        if self.nodes.contains_key(&key) {
            return key;
        }
        let resolver = self.snapshot.service_resolver(&service);
        let own = resolver.map_or(&[][..], |resolver| resolver.failover.of(subset.as_ref()));
        let mut failover = Vec::new();
        for ServiceTarget { service: other, subset } in own {
            let (other, subset) = match other {
                Some(other) if *other != service => self.redirected(other, subset.as_ref()),
                _ => (service.clone(), subset.clone()),
            };
            let other = self.target(&other, subset.as_ref());
            if other != id {
                failover.push(other);
            }
        }
        let failover = if failover.is_empty() { Value::Null } else { json!({"Targets": failover}) };
        let inner = Form::new()
            .nonempty("Default", resolver.is_none())
            .field("ConnectTimeout", duration_text(self.connect_timeout(resolver)))
            .field("Target", id.as_str())
            .nonempty("Failover", failover);
        let balancer = resolver.and_then(|resolver| resolver.load_balancer.as_ref());
        let node = Form::new()
            .field("Type", "resolver")
            .field("Name", id.as_str())
            .field("Resolver", inner.end())
            .nonempty("LoadBalancer", balancer.map_or(Value::Null, routing::load_balancer));
        self.nodes.insert(key.clone(), node.end());
        key
    }

    /// Who is called where a service, or a subset of it, is named: redirects and default subsets followed.
    fn redirected(&mut self, service: &ServiceName, subset: Option<&SubsetName>) -> (ServiceName, Option<SubsetName>) {
        let (mut service, mut subset) = (service.clone(), subset.cloned());
        for _ in 0..REDIRECTS_MAX {
            self.services.insert(service.clone());
            let Some(resolver) = self.snapshot.service_resolver(&service) else { break };
            self.is_default = false;
            let Some(redirect) = &resolver.redirect else {
                subset = subset.or_else(|| resolver.default_subset.clone());
                break;
            };
            subset = redirect.subset.clone();
            match &redirect.service {
                Some(next) if *next != service => service = next.clone(),
                _ => break,
            }
        }
        (service, subset)
    }

    /// Enters whom a call can go to, and answers its name.
    fn target(&mut self, service: &ServiceName, subset: Option<&SubsetName>) -> String {
        self.services.insert(service.clone());
        let ChainOf { datacenter, trust_domain, .. } = self.of;
        let prefix = subset.map(|subset| format!("{subset}.")).unwrap_or_default();
        let id = format!("{prefix}{service}.default.default.{datacenter}");
        let namespace = Namespace::new("default").expect("invariant: a name");
        let sni = match subset {
            Some(subset) => subset_sni(subset.as_str(), service, &namespace, datacenter, trust_domain),
            None => service_sni(service, &namespace, datacenter, trust_domain),
        };
        let resolver = self.snapshot.service_resolver(service);
        let chosen = subset.and_then(|subset| resolver?.subsets.get(subset));
        let form = Form::new()
            .field("ID", id.as_str())
            .field("Service", service.as_str())
            .nonempty("ServiceSubset", subset.map_or("", SubsetName::as_str))
            .field("Namespace", "default")
            .field("Partition", "default")
            .field("Datacenter", datacenter.as_str())
            .field("MeshGateway", json!({}))
            .field("Subset", chosen.map_or_else(|| json!({}), routing::subset))
            .field("ConnectTimeout", duration_text(self.connect_timeout(resolver)))
            .field("SNI", sni.as_str())
            .field("Name", sni.as_str());
        self.targets.insert(id.clone(), form.end());
        id
    }

    fn connect_timeout(&self, resolver: Option<&ServiceResolver>) -> Duration {
        let own = resolver.and_then(|resolver| resolver.connect_timeout);
        self.of.overrides.connect_timeout.or(own).unwrap_or(CONNECT_TIMEOUT)
    }
}
