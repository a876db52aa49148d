//! The parts of a plan as lines of text.

use std::net::SocketAddr;
use std::time::Duration;

use starling_model::{
    BalancePolicy, Fault, HashOn, HashPolicy, HeaderEdits, HeaderMatch, HeaderTest, IntentionPermission,
    PassiveHealthCheck, PathMatch, QueryTest, RedirectPath, RequestMatch, RetryBudget, RouteRedirect, SourceDecision,
};
use starling_traffic::{Forward, Policy, RouteRule, RuleAction, WEIGHT_TOTAL};

use crate::plan::{
    Capture, Cluster, Edge, EdgeHost, EdgeRoute, Endpoint, Endpoints, Exit, Inbound, Limits, Origins, Routes,
};

/// Every part has a line, so that one that comes or goes shows.
pub(super) fn or_none(lines: Vec<String>) -> Vec<String> {
    if lines.is_empty() { vec!["none".to_owned()] } else { lines }
}

/// Enough of a certificate to tell it from another: the first line of its body.
pub(super) fn first_word(pem: &str) -> &str {
    pem.lines().find(|line| !line.starts_with("-----")).unwrap_or_default()
}

pub(super) fn inbound_lines(inbound: &Inbound) -> Vec<String> {
    let Inbound { service, bind, protocol, local_app, max_connections, rate_limit, policy } = inbound;
    let request = local_app.request_timeout.map_or("none".to_owned(), duration);
    let mut lines = vec![
        format!("{bind} {} {service} -> {}:{}", protocol.as_str(), local_app.address, local_app.port),
        format!("timeouts connect {} request {request}", duration(local_app.connect_timeout)),
    ];
    lines.extend(max_connections.map(|max| format!("at most {max} connections")));
    lines.extend(rate_limit.map(|limit| format!("at most {} requests/s, {} at once", limit.per_second, limit.burst)));
    lines.extend(policy_lines(policy));
    lines
}

pub(super) fn exit_lines(exit: &Exit) -> Vec<String> {
    let Exit {
        service: _,
        subset: _,
        bind,
        sni,
        protocol,
        tls,
        connect_timeout,
        request_timeout,
        max_connections,
        rate_limit,
        policy,
    } = exit;
    let request = request_timeout.map_or("none".to_owned(), duration);
    let mut lines = vec![
        format!("{bind} {}", protocol.as_str()),
        format!("sni {sni}"),
        format!("timeouts connect {} request {request}", duration(*connect_timeout)),
    ];
    lines.extend(tls.as_ref().map(|tls| {
        let shown = tls.certificate.as_ref().map(|files| format!(" showing {}", files.certificate.display()));
        let named = tls.server_name.as_ref().map(|name| format!(" as {name}"));
        let (shown, named) = (shown.unwrap_or_default(), named.unwrap_or_default());
        format!("tls by {}{named}{shown}", tls.authorities.display())
    }));
    lines.extend(max_connections.map(|max| format!("at most {max} connections")));
    lines.extend(rate_limit.map(|limit| format!("at most {} requests/s, {} at once", limit.per_second, limit.burst)));
    lines.extend(policy_lines(policy));
    lines
}

pub(super) fn origin_lines(origins: &Origins) -> Vec<String> {
    let lines = origins.origins.iter().map(|it| format!("{}:{} weight {}", it.address, it.port, it.weight));
    let mut lines = or_none(lines.collect());
    lines.extend(origins.shuns_local.then(|| "nothing of its own machine or link".to_owned()));
    lines.extend(origins.keeps_host.then(|| "keeps the caller's host".to_owned()));
    lines.extend(origins.host.as_ref().map(|host| format!("host {host}")));
    lines
}

/// How it is encrypted and whom it believes, then one line for a service.
pub(super) fn edge_lines(edge: &Edge) -> Vec<String> {
    let Edge { bind: _, protocol, tls, proxy_protocol, trusted_proxies, max_connections, route } = edge;
    let mut words = vec![protocol.as_str().to_owned()];
    words.extend(tls.as_ref().map(|tls| {
        let files = tls.certificates.iter().map(|files| files.certificate.display().to_string());
        let from =
            if tls.certificates.is_empty() { "the mesh".to_owned() } else { files.collect::<Vec<_>>().join(",") };
        format!("tls {} with {from}", tls.min_version.as_str())
    }));
    words.extend(proxy_protocol.then(|| "PROXY".to_owned()));
    let mut lines = vec![words.join(" ")];
    lines.extend(max_connections.map(|max| format!("at most {max} connections")));
    let trusted: Vec<_> = trusted_proxies.iter().map(ToString::to_string).collect();
    lines.extend((!trusted.is_empty()).then(|| format!("trusts {}", trusted.join(","))));
    match route {
        EdgeRoute::Redirect(redirect) => {
            lines.push(format!("redirect {} to https:{}", u16::from(redirect.status), redirect.port));
        }
        EdgeRoute::Hosts(hosts) => lines.extend(or_none(hosts.iter().map(edge_host_line).collect())),
    }
    lines
}

fn edge_host_line(host: &EdgeHost) -> String {
    let EdgeHost { service, hosts, request_headers, response_headers } = host;
    let mut words: Vec<_> = hosts.iter().map(ToString::to_string).collect();
    words.push(format!("-> {service}"));
    words.extend(edits_text("request", request_headers));
    words.extend(edits_text("response", response_headers));
    words.join(" ")
}

pub(super) fn capture_lines(capture: &Capture) -> Vec<String> {
    let Capture { outbound_port, inbound_port, permissive, mesh_only, virtuals } = capture;
    let others = if *mesh_only { "refused" } else { "passed on" };
    let plain = if *permissive { "passed on" } else { "refused" };
    let mut lines = vec![
        format!("out at {outbound_port}, others {others}"),
        format!("in at {inbound_port}, without mutual TLS {plain}"),
    ];
    lines.extend(virtuals.iter().map(|it| {
        let addresses: Vec<_> = it.addresses.iter().map(ToString::to_string).collect();
        format!("{} {} at {}", it.service, it.protocol.as_str(), addresses.join(" "))
    }));
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
        text.push_str(&format!(" {}", header_text(header)));
    }
    text
}

fn header_text(header: &HeaderMatch) -> String {
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
    format!("{not}{} {test}{case}", header.name)
}

/// What is spoken, then one line for a rule: everything that it says, and nothing that it leaves open.
pub(super) fn route_lines(routes: &Routes) -> Vec<String> {
    let line = |rule: &RouteRule| {
        let to = match &rule.action {
            RuleAction::Forward(forward) => forward_text(routes, forward),
            RuleAction::Redirect(redirect) => redirect_text(redirect),
        };
        format!("{} -> {to}", match_text(&rule.matches))
    };
    let spoken = routes.protocol.as_str().to_owned();
    std::iter::once(spoken).chain(routes.table.rules().iter().map(line)).collect()
}

fn match_text(matches: &RequestMatch) -> String {
    let path = match &matches.path {
        None => "/…".to_owned(),
        Some(PathMatch::Exact(path)) => path.clone(),
        Some(PathMatch::Prefix(path)) => format!("{path}…"),
        Some(PathMatch::Regex(path)) => format!("~{path}"),
    };
    let mut words = vec![path];
    words.extend(matches.ignore_path_case.then(|| "in any case".to_owned()));
    words.extend((!matches.methods.is_empty()).then(|| matches.methods.join("|")));
    words.extend(matches.headers.iter().map(|header| format!("header {}", header_text(header))));
    words.extend(matches.query.iter().map(|query| match &query.test {
        QueryTest::Present => format!("query {}", query.name),
        QueryTest::Exact(value) => format!("query {} = {value}", query.name),
        QueryTest::Regex(value) => format!("query {} ~ {value}", query.name),
    }));
    words.join(" ")
}

fn forward_text(routes: &Routes, forward: &Forward) -> String {
    let mut words = Vec::new();
    for target in &forward.targets {
        let share =
            if target.weight == WEIGHT_TOTAL { String::new() } else { format!(" {}", share_text(target.weight)) };
        words.push(format!("{}{share}", short(routes, &target.cluster)));
        words.extend(edits_text("request", &target.request_headers));
        words.extend(edits_text("response", &target.response_headers));
    }
    words.extend(forward.prefix_rewrite.as_ref().map(|path| format!("rewrite {path}")));
    words.extend(forward.timeout.map(|timeout| format!("timeout {}", duration(timeout))));
    words.extend(forward.per_try_timeout.map(|timeout| format!("per try {}", duration(timeout))));
    words.extend(forward.idle_timeout.map(|timeout| format!("idle {}", duration(timeout))));
    if let Some(retry) = &forward.retry {
        let on = retry.on.iter().map(ToString::to_string);
        let on: Vec<_> = on.chain(retry.on_statuses.iter().map(ToString::to_string)).collect();
        words.push(format!("retry {} on {}", retry.retries.unwrap_or(1), on.join(",")));
        words.extend(retry.budget.as_ref().map(budget_text));
    }
    words.extend(edits_text("request", &forward.request_headers));
    words.extend(edits_text("response", &forward.response_headers));
    if let Some(mirror) = &forward.mirror {
        words.push(format!("mirror {} to {}", mirror.percent, short(routes, &mirror.cluster)));
    }
    if let Some(Fault { delay, abort }) = &forward.fault {
        words.extend(delay.map(|delay| format!("delay {} by {}", delay.percent, duration(delay.duration))));
        words.extend(abort.map(|abort| format!("abort {} with {}", abort.percent, abort.status)));
    }
    words.extend((!forward.hash.is_empty()).then(|| format!("hash {}", hash_text(&forward.hash))));
    words.join(" ")
}

fn share_text(weight: u32) -> String {
    format!("{}%", f64::from(weight) / f64::from(WEIGHT_TOTAL) * 100.0)
}

/// The target that has this cluster name.
fn short(routes: &Routes, cluster: &str) -> String {
    let names = routes.targets.iter().map(ToString::to_string);
    let fitting = names.filter(|name| cluster.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.')));
    fitting.max_by_key(String::len).unwrap_or_else(|| cluster.to_owned())
}

fn edits_text(of: &str, edits: &HeaderEdits) -> Option<String> {
    let removed = edits.remove.iter().map(|name| format!("-{name}"));
    let set = edits.set.iter().map(|(name, value)| format!("{name}={value}"));
    let added = edits.add.iter().map(|(name, value)| format!("{name}+={value}"));
    let all: Vec<_> = removed.chain(set).chain(added).collect();
    (!all.is_empty()).then(|| format!("{of} [{}]", all.join(" ")))
}

fn hash_text(policies: &[HashPolicy]) -> String {
    let text = |policy: &HashPolicy| {
        let on = match &policy.on {
            HashOn::Header(name) => format!("header {name}"),
            HashOn::Cookie { name, ttl, path, session } => {
                let life = match (session, ttl) {
                    (true, _) => " for the session".to_owned(),
                    (false, Some(ttl)) => format!(" for {}", duration(*ttl)),
                    (false, None) => String::new(),
                };
                format!("cookie {name}{}{life}", path.as_ref().map(|path| format!(" at {path}")).unwrap_or_default())
            }
            HashOn::QueryParameter(name) => format!("query {name}"),
            HashOn::SourceAddress => "source".to_owned(),
        };
        if policy.terminal { format!("{on} terminal") } else { on }
    };
    policies.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn redirect_text(to: &RouteRedirect) -> String {
    let scheme = if to.https { "https://" } else { "" };
    let host = to.host.as_deref().unwrap_or_default();
    let port = to.port.map(|port| format!(":{port}")).unwrap_or_default();
    let path = match &to.path {
        None => String::new(),
        Some(RedirectPath::Whole(path)) => path.clone(),
        Some(RedirectPath::Prefix(path)) => format!("{path}…"),
    };
    let query = if to.strip_query { " without query" } else { "" };
    format!("redirect {} {scheme}{host}{port}{path}{query}", u16::from(to.status))
}

pub(super) fn endpoint_lines(endpoints: &Endpoints) -> Vec<String> {
    let line = |e: &Endpoint| format!("{} weight {}", SocketAddr::new(e.address, e.port), e.weight);
    let mut lines: Vec<_> = endpoints.from.iter().map(|from| format!("from {from}")).collect();
    lines.extend(or_none(endpoints.endpoints.iter().map(line).collect()));
    for (place, group) in endpoints.failover.iter().enumerate() {
        let members: Vec<_> = or_none(group.endpoints.iter().map(line).collect());
        // Of one target several groups may follow one another: who is in which of them is told, too.
        let earlier = endpoints.failover[..place].iter().filter(|other| other.target == group.target).count();
        let tried = "else ".repeat(earlier + 1);
        lines.extend(members.iter().map(|member| format!("{tried}{} {member}", group.target)));
    }
    lines
}

pub(super) fn cluster_lines(cluster: &Cluster) -> Vec<String> {
    let Cluster {
        service: _,
        subset: _,
        sni,
        identity,
        failover_identities,
        protocol,
        connect_timeout,
        limits,
        balance,
        outlier,
        retry_budget,
    } = cluster;
    let mut lines = vec![
        format!("{} connect {}", protocol.as_str(), duration(*connect_timeout)),
        format!("sni {sni}"),
        format!("identity {identity}"),
    ];
    lines.extend(failover_identities.iter().map(|identity| format!("or identity {identity}")));
    let Limits { connections, pending_requests, concurrent_requests } = limits;
    let named =
        [("connections", connections), ("pending requests", pending_requests), ("requests", concurrent_requests)];
    lines.extend(named.iter().filter_map(|(name, limit)| limit.map(|limit| format!("at most {limit} {name}"))));
    lines.extend((*balance != BalancePolicy::default()).then(|| balance_text(*balance)));
    lines.extend(outlier.as_ref().map(outlier_text));
    lines.extend(retry_budget.as_ref().map(|budget| format!("retries {}", budget_text(budget))));
    lines
}

fn duration(duration: Duration) -> String {
    format!("{duration:?}")
}

fn budget_text(budget: &RetryBudget) -> String {
    format!("at most {} of requests, or {}", budget.percent, budget.min_concurrency)
}

fn balance_text(balance: BalancePolicy) -> String {
    let name = balance.as_str();
    match balance {
        BalancePolicy::LeastRequest { choice_count: Some(count) } => format!("balance {name} of {count}"),
        BalancePolicy::RingHash { minimum_size, maximum_size } => {
            let size = |size: Option<u64>| size.map_or("default".to_owned(), |size| size.to_string());
            format!("balance {name} {}..{}", size(minimum_size), size(maximum_size))
        }
        BalancePolicy::LeastRequest { choice_count: None }
        | BalancePolicy::PeakEwma
        | BalancePolicy::RoundRobin
        | BalancePolicy::Random
        | BalancePolicy::Maglev => format!("balance {name}"),
    }
}

fn outlier_text(check: &PassiveHealthCheck) -> String {
    let PassiveHealthCheck { interval, max_failures, enforcing, max_ejected, base_ejection_time } = check;
    let mut words = vec!["eject".to_owned()];
    words.extend(max_failures.map(|failures| format!("after {failures} failures")));
    words.extend(interval.map(|interval| format!("every {}", duration(interval))));
    words.extend(base_ejection_time.map(|time| format!("for {}", duration(time))));
    words.extend(enforcing.map(|share| format!("{share} of them")));
    words.extend(max_ejected.map(|share| format!("at most {share}")));
    words.join(" ")
}
