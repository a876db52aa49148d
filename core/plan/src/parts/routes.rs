//! Where the requests to a service go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use starling_model::{
    ConfigEntryKey, ConfigKind, HashPolicy, PathMatch, Protocol, RequestMatch, RouteAction, RouteDestination,
    ServiceName,
};
use starling_traffic::path::can_match;
use starling_traffic::{Forward, MirrorTo, RouteRule, RouteTable, RuleAction, WEIGHT_TOTAL, WeightedTarget};

use super::chain::{Chain, Share};
use super::cluster;
use crate::diagnostic::{Diagnostic, Object, Severity};
use crate::plan::{Routes, Target};
use crate::planner::MeshSettings;
use crate::view::View;

/// Time for a whole HTTP request to another service where nobody names one: Envoy's own default, which Consul's users have,
/// too. gRPC calls have the deadline that the caller gives them.
pub const OUTBOUND_TIMEOUT: Duration = Duration::from_secs(15);

/// Builds the routes of calls to `service`: those of its router, then one for everything else. Connections have only that.
pub(crate) fn build(view: &mut View<'_>, mesh: &MeshSettings, service: &ServiceName) -> (Routes, Vec<Diagnostic>) {
    let protocol = view.protocol(service);
    let router = view.service_router(service);
    let chain = Chain { view, diagnostics: Vec::new() };
    let mut builder = Builder { chain, mesh, service, protocol, targets: BTreeSet::new() };
    let mut rules = Vec::new();
    for (index, route) in router.iter().filter(|_| protocol.is_l7()).flat_map(|router| &router.routes).enumerate() {
        if let Some(path) = route.matches.path.as_ref().filter(|path| !can_match(path)) {
            builder.chain.diagnostics.push(unmatchable(service, index, path));
        }
        let action = match &route.action {
            RouteAction::Redirect(redirect) => RuleAction::Redirect(redirect.clone()),
            RouteAction::Forward(destination) => RuleAction::Forward(Box::new(builder.forward(destination))),
        };
        rules.push(RouteRule { matches: route.matches.clone(), action });
    }
    let rest = RuleAction::Forward(Box::new(builder.forward(&RouteDestination::default())));
    rules.push(RouteRule { matches: RequestMatch::default(), action: rest });
    if let Some(router) = router.filter(|_| !protocol.is_l7()) {
        builder.chain.diagnostics.push(needs_requests(&router.service, protocol));
    }
    let Builder { chain, targets, .. } = builder;
    let retry_budget = rules.iter().filter_map(|rule| rule.forward()?.retry.as_ref()?.budget).max();
    let routes = Routes {
        service: service.clone(),
        protocol,
        targets: targets.into_iter().collect(),
        table: Arc::new(RouteTable::new(rules)),
        retry_budget,
    };
    (routes, chain.diagnostics)
}

struct Builder<'v, 'a> {
    chain: Chain<'v, 'a>,
    mesh: &'v MeshSettings,
    service: &'v ServiceName,
    protocol: Protocol,
    targets: BTreeSet<Target>,
}

impl Builder<'_, '_> {
    fn forward(&mut self, to: &RouteDestination) -> Forward {
        let service = to.service.as_ref().unwrap_or(self.service);
        let shares = match &to.subset {
            Some(subset) => vec![Share {
                target: self.chain.resolve(service, Some(subset)),
                weight: WEIGHT_TOTAL,
                request_headers: starling_model::HeaderEdits::default(),
                response_headers: starling_model::HeaderEdits::default(),
            }],
            None => self.chain.split(service),
        };
        let (timeout, hash) = self.of_resolvers(&shares);
        let timeout = match self.protocol {
            Protocol::Tcp => None,
            Protocol::Grpc => to.request_timeout.or(timeout),
            Protocol::Http | Protocol::Http2 => Some(to.request_timeout.or(timeout).unwrap_or(OUTBOUND_TIMEOUT)),
        };
        let mirror = to.mirror.as_ref().map(|mirror| {
            let target = self.chain.resolve(&mirror.service, mirror.subset.as_ref());
            MirrorTo { cluster: self.cluster(&target), percent: mirror.percent }
        });
        let weighted = |share: Share| WeightedTarget {
            cluster: self.cluster(&share.target),
            weight: share.weight,
            request_headers: share.request_headers,
            response_headers: share.response_headers,
        };
        Forward {
            targets: shares.into_iter().map(weighted).collect(),
            prefix_rewrite: to.prefix_rewrite.clone(),
            timeout,
            per_try_timeout: to.per_try_timeout,
            idle_timeout: to.idle_timeout,
            retry: to.retry.retries_at_all().then(|| to.retry.clone()),
            request_headers: to.request_headers.clone(),
            response_headers: to.response_headers.clone(),
            mirror,
            fault: to.fault.clone(),
            hash,
        }
    }

    /// Remembers who is called; answers with the cluster's name.
    fn cluster(&mut self, target: &Target) -> Arc<str> {
        let fresh = self.targets.insert(target.clone());
        if fresh && target.service != *self.service && self.protocol.is_l7() {
            let spoken = self.chain.view.protocol(&target.service);
            if !spoken.is_l7() {
                self.chain.diagnostics.push(speaks_otherwise(self.service, &target.service, spoken));
            }
        }
        cluster::name(self.mesh, target).into()
    }

    /// What the resolvers of those called say of time and hashes; the first that says anything holds for all.
    fn of_resolvers(&mut self, shares: &[Share]) -> (Option<Duration>, Vec<HashPolicy>) {
        let (mut timeout, mut hash) = (None, Vec::new());
        for share in shares {
            let Some(resolver) = self.chain.resolver(&share.target.service) else { continue };
            timeout = timeout.or(resolver.request_timeout);
            if let Some(balancer) = resolver.load_balancer.as_ref().filter(|_| hash.is_empty()) {
                hash.clone_from(&balancer.hash_policies);
            }
        }
        (timeout, hash)
    }
}

fn router_of(service: &ServiceName) -> Object {
    Object::Config(ConfigEntryKey { kind: ConfigKind::ServiceRouter, name: service.to_string() })
}

fn unmatchable(service: &ServiceName, index: usize, path: &PathMatch) -> Diagnostic {
    let (PathMatch::Exact(text) | PathMatch::Prefix(text) | PathMatch::Regex(text)) = path;
    Diagnostic {
        object: router_of(service),
        field: format!("Routes[{index}].Match.HTTP"),
        reason: format!("{text:?} is not in normal form, so it matches no request"),
        fix: "write it as proxies see it: no query, no dot segments, no double or escaped slashes".to_owned(),
        severity: Severity::Error,
    }
}

fn needs_requests(service: &ServiceName, protocol: Protocol) -> Diagnostic {
    Diagnostic {
        object: router_of(service),
        field: "Routes".to_owned(),
        reason: format!(
            "{service} speaks {}, where requests cannot be told apart, so no route is used",
            protocol.as_str()
        ),
        fix: format!("give {service} a service-defaults entry with protocol http, http2 or grpc"),
        severity: Severity::Error,
    }
}

fn speaks_otherwise(service: &ServiceName, target: &ServiceName, spoken: Protocol) -> Diagnostic {
    Diagnostic {
        object: Object::Service(target.clone()),
        field: String::new(),
        reason: format!(
            "requests to {service} are sent to it, but it speaks {}, so its policy for requests does not apply",
            spoken.as_str()
        ),
        fix: format!("give {target} a service-defaults entry with protocol http, http2 or grpc"),
        severity: Severity::Warning,
    }
}
