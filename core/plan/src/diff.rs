//! Plans as text, and what changed between two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use starling_model::{AccessLog, LogFilter, LogForm, LogTarget, ServiceName};

use crate::plan::{Capture, Cluster, Edge, Endpoints, Exit, Inbound, Origins, Outbound, Plan, Routes, Target, Trust};

mod lines;

use lines::{
    capture_lines, cluster_lines, edge_lines, endpoint_lines, exit_lines, first_word, inbound_lines, or_none,
    origin_lines, route_lines,
};

/// A part of a plan, by name; in the order in which text shows them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartName {
    /// What holds for the proxy as a whole.
    Proxy,
    /// The trusted roots.
    Trust,
    /// The public listener.
    Inbound,
    /// A listener for callers from outside.
    Edge(SocketAddr),
    /// What the kernel leads to it.
    Capture,
    /// A listener for calls.
    Outbound(SocketAddr),
    /// Where the requests to a service go.
    Routes(ServiceName),
    /// How a target is called.
    Cluster(Target),
    /// Where a target is.
    Endpoints(Target),
    /// What callers of a target outside the mesh find.
    Exit(Target),
    /// Where a target is outside the mesh.
    Origins(Target),
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
    Edge(&'a Arc<Edge>),
    Capture(&'a Arc<Capture>),
    Outbound(&'a Arc<Outbound>),
    Routes(&'a Arc<Routes>),
    Cluster(&'a Arc<Cluster>),
    Endpoints(&'a Arc<Endpoints>),
    Exit(&'a Arc<Exit>),
    Origins(&'a Arc<Origins>),
}

fn parts(plan: &Plan) -> BTreeMap<PartName, Part<'_>> {
    let mut parts = BTreeMap::from([(PartName::Proxy, Part::Proxy(plan)), (PartName::Trust, Part::Trust(&plan.trust))]);
    parts.extend(plan.inbound.iter().map(|part| (PartName::Inbound, Part::Inbound(part))));
    parts.extend(plan.edges.iter().map(|part| (PartName::Edge(part.bind), Part::Edge(part))));
    parts.extend(plan.capture.iter().map(|part| (PartName::Capture, Part::Capture(part))));
    parts.extend(plan.outbounds.iter().map(|part| (PartName::Outbound(part.bind), Part::Outbound(part))));
    parts.extend(plan.routes.iter().map(|part| (PartName::Routes(part.service.clone()), Part::Routes(part))));
    parts.extend(plan.clusters.iter().map(|part| (PartName::Cluster(part.target()), Part::Cluster(part))));
    parts.extend(plan.endpoints.iter().map(|part| (PartName::Endpoints(part.target()), Part::Endpoints(part))));
    parts.extend(plan.exits.iter().map(|part| (PartName::Exit(part.target()), Part::Exit(part))));
    parts.extend(plan.origins.iter().map(|part| (PartName::Origins(part.target()), Part::Origins(part))));
    parts
}

impl Part<'_> {
    /// Whether both are one part, not merely equal ones; what is no shared part is compared.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Part::Proxy(a), Part::Proxy(b)) => {
                (&a.proxy, &a.service, &a.access_log, &a.tracing) == (&b.proxy, &b.service, &b.access_log, &b.tracing)
            }
            (Part::Trust(a), Part::Trust(b)) => Arc::ptr_eq(a, b),
            (Part::Inbound(a), Part::Inbound(b)) => Arc::ptr_eq(a, b),
            (Part::Edge(a), Part::Edge(b)) => Arc::ptr_eq(a, b),
            (Part::Capture(a), Part::Capture(b)) => Arc::ptr_eq(a, b),
            (Part::Outbound(a), Part::Outbound(b)) => Arc::ptr_eq(a, b),
            (Part::Routes(a), Part::Routes(b)) => Arc::ptr_eq(a, b),
            (Part::Cluster(a), Part::Cluster(b)) => Arc::ptr_eq(a, b),
            (Part::Endpoints(a), Part::Endpoints(b)) => Arc::ptr_eq(a, b),
            (Part::Exit(a), Part::Exit(b)) => Arc::ptr_eq(a, b),
            (Part::Origins(a), Part::Origins(b)) => Arc::ptr_eq(a, b),
            (
                Part::Proxy(_)
                | Part::Trust(_)
                | Part::Inbound(_)
                | Part::Edge(_)
                | Part::Capture(_)
                | Part::Outbound(_)
                | Part::Routes(_)
                | Part::Cluster(_)
                | Part::Endpoints(_)
                | Part::Exit(_)
                | Part::Origins(_),
                _,
            ) => false,
        }
    }

    fn lines(&self) -> Vec<String> {
        match self {
            Part::Proxy(plan) => {
                let head = format!("{} as {}", plan.proxy, plan.service);
                let traces = plan
                    .tracing
                    .collector
                    .as_ref()
                    .map(|collector| format!("traces of {} % to {collector}", plan.tracing.sampled.as_number()));
                let log = format!("access log {}", access_log_line(&plan.access_log));
                [head, log].into_iter().chain(traces).collect()
            }
            Part::Trust(trust) => {
                or_none(trust.roots_pem.iter().map(|pem| format!("root {}", first_word(pem))).collect())
            }
            Part::Inbound(inbound) => inbound_lines(inbound),
            Part::Edge(edge) => edge_lines(edge),
            Part::Capture(capture) => capture_lines(capture),
            Part::Outbound(outbound) => vec![format!("{} {}", outbound.service, outbound.protocol.as_str())],
            Part::Routes(routes) => route_lines(routes),
            Part::Cluster(cluster) => cluster_lines(cluster),
            Part::Endpoints(endpoints) => endpoint_lines(endpoints),
            Part::Exit(exit) => exit_lines(exit),
            Part::Origins(origins) => origin_lines(origins),
        }
    }
}

fn access_log_line(log: &AccessLog) -> String {
    let AccessLog { enabled, filter, target, form, without_listeners: _ } = log;
    if *enabled == Some(false) {
        return "off".to_owned();
    }
    let mut line = "on".to_owned();
    if *filter != LogFilter::All {
        line += &format!(", of {filter}");
    }
    match target {
        LogTarget::Stdout => {}
        LogTarget::Stderr => line += ", to stderr",
        LogTarget::File(path) => line += &format!(", to {}", path.display()),
    }
    match form {
        None => {}
        Some(LogForm::Json(fields)) => line += &format!(", as JSON of {} fields", fields.len()),
        Some(LogForm::Text(template)) => line += &format!(", as {:?}", template.as_str()),
    }
    line
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxy => f.write_str("proxy"),
            Self::Trust => f.write_str("trust"),
            Self::Inbound => f.write_str("inbound"),
            Self::Edge(bind) => write!(f, "edge {bind}"),
            Self::Capture => f.write_str("capture"),
            Self::Outbound(bind) => write!(f, "outbound {bind}"),
            Self::Routes(service) => write!(f, "routes {service}"),
            Self::Cluster(target) => write!(f, "cluster {target}"),
            Self::Endpoints(target) => write!(f, "endpoints {target}"),
            Self::Exit(target) => write!(f, "exit {target}"),
            Self::Origins(target) => write!(f, "origins {target}"),
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
