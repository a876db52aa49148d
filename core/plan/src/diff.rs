//! Plans as text, and what changed between two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use starling_model::{HeaderTest, IntentionPermission, PathMatch, ServiceName, SourceDecision};
use starling_traffic::Policy;

use crate::plan::{Cluster, Endpoints, Inbound, Limits, Outbound, Plan, Trust};

/// A part of a plan, by name; in the order in which text shows them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartName {
    /// What holds for the proxy as a whole.
    Proxy,
    /// The trusted roots.
    Trust,
    /// The public listener.
    Inbound,
    /// A listener for calls.
    Outbound(SocketAddr),
    /// How a service is called.
    Cluster(ServiceName),
    /// Where a service is.
    Endpoints(ServiceName),
}

/// What changed from one plan to another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlanDiff {
    /// Parts that differ, in order.
    pub parts: Vec<PartDiff>,
}

/// One part that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartDiff {
    /// Which.
    pub part: PartName,
    /// Lines of the old form that are gone.
    pub removed: Vec<String>,
    /// Lines of the new form that were not there.
    pub added: Vec<String>,
}

/// What changed from `old` to `new`; parts that both share are not looked into.
#[must_use]
pub fn diff(old: &Plan, new: &Plan) -> PlanDiff {
    let (old_parts, new_parts) = (parts(old), parts(new));
    let names: BTreeSet<_> = old_parts.keys().chain(new_parts.keys()).collect();
    let mut diffs = Vec::new();
    for name in names {
        let (before, after) = (old_parts.get(name), new_parts.get(name));
        if before.zip(after).is_some_and(|(a, b)| a.is(b)) {
            continue;
        }
        let lines = |part: Option<&Part<'_>>| part.map(Part::lines).unwrap_or_default();
        let (before, after) = (lines(before), lines(after));
        let without = |some: &[String], others: &[String]| {
            let others: BTreeSet<_> = others.iter().collect();
            some.iter().filter(|line| !others.contains(line)).cloned().collect::<Vec<_>>()
        };
        let (removed, added) = (without(&before, &after), without(&after, &before));
        if !removed.is_empty() || !added.is_empty() {
            diffs.push(PartDiff { part: name.clone(), removed, added });
        }
    }
    PlanDiff { parts: diffs }
}

/// The parts of `new` that are not the very ones of `old`: those that a renderer must look at again.
#[must_use]
pub fn replaced(old: &Plan, new: &Plan) -> Vec<PartName> {
    let old = parts(old);
    let fresh = |(name, part): &(PartName, Part<'_>)| !old.get(name).is_some_and(|before| before.is(part));
    parts(new).into_iter().filter(fresh).map(|(name, _)| name).collect()
}

/// A plan as text, for people and golden tests.
#[must_use]
pub fn describe(plan: &Plan) -> String {
    let mut text = String::new();
    for (name, part) in parts(plan) {
        text.push_str(&format!("{name}\n"));
        for line in part.lines() {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}

enum Part<'a> {
    Proxy(&'a Plan),
    Trust(&'a Arc<Trust>),
    Inbound(&'a Arc<Inbound>),
    Outbound(&'a Arc<Outbound>),
    Cluster(&'a Arc<Cluster>),
    Endpoints(&'a Arc<Endpoints>),
}

fn parts(plan: &Plan) -> BTreeMap<PartName, Part<'_>> {
    let mut parts = BTreeMap::from([(PartName::Proxy, Part::Proxy(plan)), (PartName::Trust, Part::Trust(&plan.trust))]);
    parts.extend(plan.inbound.iter().map(|part| (PartName::Inbound, Part::Inbound(part))));
    parts.extend(plan.outbounds.iter().map(|part| (PartName::Outbound(part.bind), Part::Outbound(part))));
    parts.extend(plan.clusters.iter().map(|part| (PartName::Cluster(part.service.clone()), Part::Cluster(part))));
    parts.extend(plan.endpoints.iter().map(|part| (PartName::Endpoints(part.service.clone()), Part::Endpoints(part))));
    parts
}

impl Part<'_> {
    /// Whether both are one part, not merely equal ones; what is no shared part is compared.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Part::Proxy(a), Part::Proxy(b)) => {
                (&a.proxy, &a.service, a.access_log) == (&b.proxy, &b.service, b.access_log)
            }
            (Part::Trust(a), Part::Trust(b)) => Arc::ptr_eq(a, b),
            (Part::Inbound(a), Part::Inbound(b)) => Arc::ptr_eq(a, b),
            (Part::Outbound(a), Part::Outbound(b)) => Arc::ptr_eq(a, b),
            (Part::Cluster(a), Part::Cluster(b)) => Arc::ptr_eq(a, b),
            (Part::Endpoints(a), Part::Endpoints(b)) => Arc::ptr_eq(a, b),
            (
                Part::Proxy(_)
                | Part::Trust(_)
                | Part::Inbound(_)
                | Part::Outbound(_)
                | Part::Cluster(_)
                | Part::Endpoints(_),
                _,
            ) => false,
        }
    }

    fn lines(&self) -> Vec<String> {
        match self {
            Part::Proxy(plan) => vec![
                format!("{} as {}", plan.proxy, plan.service),
                format!("access log {}", if plan.access_log { "on" } else { "off" }),
            ],
            Part::Trust(trust) => {
                or_none(trust.roots_pem.iter().map(|pem| format!("root {}", first_word(pem))).collect())
            }
            Part::Inbound(inbound) => inbound_lines(inbound),
            Part::Outbound(outbound) => vec![format!("{} {}", outbound.service, outbound.protocol.as_str())],
            Part::Cluster(cluster) => cluster_lines(cluster),
            Part::Endpoints(endpoints) => {
                let line =
                    |e: &crate::plan::Endpoint| format!("{} weight {}", SocketAddr::new(e.address, e.port), e.weight);
                or_none(endpoints.endpoints.iter().map(line).collect())
            }
        }
    }
}

/// Every part has a line, so that one that comes or goes shows.
fn or_none(lines: Vec<String>) -> Vec<String> {
    if lines.is_empty() { vec!["none".to_owned()] } else { lines }
}

/// Enough of a certificate to tell it from another: the first line of its body.
fn first_word(pem: &str) -> &str {
    pem.lines().find(|line| !line.starts_with("-----")).unwrap_or_default()
}

fn inbound_lines(inbound: &Inbound) -> Vec<String> {
    let Inbound { service, bind, protocol, local_app, max_connections, policy } = inbound;
    let request = local_app.request_timeout.map_or("none".to_owned(), duration);
    let mut lines = vec![
        format!("{bind} {} {service} -> {}:{}", protocol.as_str(), local_app.address, local_app.port),
        format!("timeouts connect {} request {request}", duration(local_app.connect_timeout)),
    ];
    lines.extend(max_connections.map(|max| format!("at most {max} connections")));
    lines.extend(policy_lines(policy));
    lines
}

fn policy_lines(policy: &Policy) -> Vec<String> {
    let mut lines = Vec::new();
    for rule in &policy.rules {
        let head = format!("from {} to {} ({})", rule.source, rule.written_for, rule.precedence);
        match &rule.decision {
            SourceDecision::Connection(action) => lines.push(format!("{head}: {}", action.as_str())),
            SourceDecision::Requests(permissions) => {
                lines.extend(permissions.iter().map(|permission| format!("{head}: {}", permission_text(permission))));
            }
        }
    }
    lines.push(format!("else {}", policy.default.as_str()));
    lines
}

fn permission_text(permission: &IntentionPermission) -> String {
    let mut text = permission.action.as_str().to_owned();
    match &permission.path {
        None => {}
        Some(PathMatch::Exact(path)) => text.push_str(&format!(" path = {path}")),
        Some(PathMatch::Prefix(path)) => text.push_str(&format!(" path = {path}…")),
        Some(PathMatch::Regex(path)) => text.push_str(&format!(" path ~ {path}")),
    }
    if !permission.methods.is_empty() {
        text.push_str(&format!(" method {}", permission.methods.join("|")));
    }
    for header in &permission.headers {
        let test = match &header.test {
            HeaderTest::Present => "present".to_owned(),
            HeaderTest::Exact(value) => format!("= {value}"),
            HeaderTest::Prefix(value) => format!("= {value}…"),
            HeaderTest::Suffix(value) => format!("= …{value}"),
            HeaderTest::Contains(value) => format!("= …{value}…"),
            HeaderTest::Regex(value) => format!("~ {value}"),
        };
        let not = if header.invert { "not " } else { "" };
        let case = if header.ignore_case { " in any case" } else { "" };
        text.push_str(&format!(" {not}{} {test}{case}", header.name));
    }
    text
}

fn cluster_lines(cluster: &Cluster) -> Vec<String> {
    let Cluster { service: _, sni, identity, protocol, connect_timeout, limits } = cluster;
    let mut lines = vec![
        format!("{} connect {}", protocol.as_str(), duration(*connect_timeout)),
        format!("sni {sni}"),
        format!("identity {identity}"),
    ];
    let Limits { connections, pending_requests, concurrent_requests } = limits;
    let named =
        [("connections", connections), ("pending requests", pending_requests), ("requests", concurrent_requests)];
    lines.extend(named.iter().filter_map(|(name, limit)| limit.map(|limit| format!("at most {limit} {name}"))));
    lines
}

fn duration(duration: Duration) -> String {
    format!("{duration:?}")
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxy => f.write_str("proxy"),
            Self::Trust => f.write_str("trust"),
            Self::Inbound => f.write_str("inbound"),
            Self::Outbound(bind) => write!(f, "outbound {bind}"),
            Self::Cluster(service) => write!(f, "cluster {service}"),
            Self::Endpoints(service) => write!(f, "endpoints {service}"),
        }
    }
}

impl fmt::Display for PlanDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            writeln!(f, "{}", part.part)?;
            for line in &part.removed {
                writeln!(f, "  - {line}")?;
            }
            for line in &part.added {
                writeln!(f, "  + {line}")?;
            }
        }
        Ok(())
    }
}
