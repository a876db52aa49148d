//! Routers, splitters, resolvers, and what service-defaults say of upstreams, in Consul's JSON forms.

use std::time::Duration;

use serde_json::{Map, Value, json};
use starling_model::{
    BalancePolicy, Fault, HashOn, HashPolicy, HeaderEdits, LoadBalancer, PathMatch, Percent, QueryMatch, QueryTest,
    RateLimit, RedirectPath, RequestMatch, RetryOn, RouteAction, RouteDestination, RouteRedirect, ServiceName,
    ServiceResolver, ServiceRoute, ServiceRouter, ServiceSplit, ServiceSplitter, ServiceTarget, Subset, SubsetName,
    UpstreamConfig, UpstreamSettings,
};

use super::{Form, header, milliseconds, strings, texts};
use crate::parse::duration_text;

fn duration(duration: Option<Duration>) -> String {
    duration.map(duration_text).unwrap_or_default()
}

fn name(service: Option<&ServiceName>) -> &str {
    service.map_or("", ServiceName::as_str)
}

fn subset_name(subset: Option<&SubsetName>) -> &str {
    subset.map_or("", SubsetName::as_str)
}

/// Whole percentages without a fraction, as Go writes them.
pub(super) fn percent(percent: Percent) -> Value {
    let hundredths = percent.hundredths();
    if hundredths.is_multiple_of(100) { (hundredths / 100).into() } else { percent.as_number().into() }
}

pub(super) fn service_router(form: Form, entry: &ServiceRouter) -> Form {
    let routes: Vec<_> = entry.routes.iter().map(route).collect();
    form.field("Routes", routes).nonempty("Meta", texts(&entry.meta))
}

pub(super) fn route(route: &ServiceRoute) -> Value {
    let http = request_match(&route.matches);
    let matches = Form::new().nonempty("HTTP", http).end();
    let form = Form::new().nonempty("Match", matches);
    match &route.action {
        RouteAction::Forward(destination) => form.nonempty("Destination", forward(destination)).end(),
        RouteAction::Redirect(to) => form.field("Redirect", redirect(to)).end(),
    }
}

fn request_match(matches: &RequestMatch) -> Value {
    let form = match &matches.path {
        None => Form::new(),
        Some(PathMatch::Exact(path)) => Form::new().field("PathExact", path.as_str()),
        Some(PathMatch::Prefix(path)) => Form::new().field("PathPrefix", path.as_str()),
        Some(PathMatch::Regex(path)) => Form::new().field("PathRegex", path.as_str()),
    };
    form.nonempty("CaseInsensitive", matches.ignore_path_case)
        .nonempty("Header", matches.headers.iter().map(header).collect::<Vec<_>>())
        .nonempty("QueryParam", matches.query.iter().map(query).collect::<Vec<_>>())
        .nonempty("Methods", strings(&matches.methods))
        .end()
}

fn query(query: &QueryMatch) -> Value {
    let form = Form::new().field("Name", query.name.as_str());
    match &query.test {
        QueryTest::Present => form.field("Present", true),
        QueryTest::Exact(text) => form.field("Exact", text.as_str()),
        QueryTest::Regex(text) => form.field("Regex", text.as_str()),
    }
    .end()
}

fn forward(to: &RouteDestination) -> Value {
    let RouteDestination {
        service,
        subset,
        prefix_rewrite,
        request_timeout,
        per_try_timeout,
        idle_timeout,
        retry,
        request_headers,
        response_headers,
        mirror,
        fault,
    } = to;
    let conditions = retry.on.iter().filter(|on| **on != RetryOn::ConnectFailure).map(|on| on.as_str());
    let budget = retry.budget.map_or(
        Value::Null,
        |budget| json!({"Percent": percent(budget.percent), "MinConcurrency": budget.min_concurrency}),
    );
    let mirror = mirror.as_ref().map_or(Value::Null, |mirror| {
        Form::new()
            .field("Service", mirror.service.as_str())
            .nonempty("ServiceSubset", subset_name(mirror.subset.as_ref()))
            .field("Percent", percent(mirror.percent))
            .end()
    });
    Form::new()
        .nonempty("Service", name(service.as_ref()))
        .nonempty("ServiceSubset", subset_name(subset.as_ref()))
        .nonempty("PrefixRewrite", prefix_rewrite.as_deref().unwrap_or_default())
        .nonempty("RequestTimeout", duration(*request_timeout))
        .nonempty("PerTryTimeout", duration(*per_try_timeout))
        .nonempty("IdleTimeout", duration(*idle_timeout))
        .nonempty("NumRetries", retry.retries.unwrap_or(0))
        .nonempty("RetryOnConnectFailure", retry.on.contains(&RetryOn::ConnectFailure))
        .nonempty("RetryOn", conditions.collect::<Vec<_>>())
        .nonempty("RetryOnStatusCodes", retry.on_statuses.iter().copied().collect::<Vec<_>>())
        .nonempty("RetryBudget", budget)
        .nonempty("RequestHeaders", edits(request_headers))
        .nonempty("ResponseHeaders", edits(response_headers))
        .nonempty("Mirror", mirror)
        .nonempty("Fault", fault.as_ref().map_or(Value::Null, self::fault))
        .end()
}

pub(super) fn edits(edits: &HeaderEdits) -> Value {
    Form::new()
        .nonempty("Add", texts(&edits.add))
        .nonempty("Set", texts(&edits.set))
        .nonempty("Remove", edits.remove.iter().map(String::as_str).collect::<Vec<_>>())
        .end()
}

fn fault(fault: &Fault) -> Value {
    let delay = fault.delay.map_or(
        Value::Null,
        |delay| json!({"Duration": duration_text(delay.duration), "Percent": percent(delay.percent)}),
    );
    let abort =
        fault.abort.map_or(Value::Null, |abort| json!({"Status": abort.status, "Percent": percent(abort.percent)}));
    Form::new().nonempty("Delay", delay).nonempty("Abort", abort).end()
}

fn redirect(to: &RouteRedirect) -> Value {
    let form = Form::new()
        .field("Status", u16::from(to.status))
        .nonempty("HTTPS", to.https)
        .nonempty("Host", to.host.as_deref().unwrap_or_default())
        .nonempty("Port", to.port.map_or(0, starling_model::Port::get));
    let form = match &to.path {
        None => form,
        Some(RedirectPath::Whole(path)) => form.field("Path", path.as_str()),
        Some(RedirectPath::Prefix(path)) => form.field("PrefixRewrite", path.as_str()),
    };
    form.nonempty("StripQuery", to.strip_query).end()
}

pub(super) fn service_splitter(form: Form, entry: &ServiceSplitter) -> Form {
    let splits: Vec<_> = entry.splits.as_slice().iter().map(split).collect();
    form.field("Splits", splits).nonempty("Meta", texts(&entry.meta))
}

pub(super) fn split(split: &ServiceSplit) -> Value {
    Form::new()
        .field("Weight", percent(split.weight))
        .nonempty("Service", name(split.service.as_ref()))
        .nonempty("ServiceSubset", subset_name(split.subset.as_ref()))
        .nonempty("RequestHeaders", edits(&split.request_headers))
        .nonempty("ResponseHeaders", edits(&split.response_headers))
        .end()
}

pub(super) fn subset(subset: &Subset) -> Value {
    let filter = subset.filter.as_ref().map_or("", |filter| filter.as_str());
    Form::new().nonempty("Filter", filter).nonempty("OnlyPassing", subset.only_passing).end()
}

pub(super) fn service_resolver(form: Form, entry: &ServiceResolver) -> Form {
    let subsets: Map<_, _> = entry.subsets.iter().map(|(name, inner)| (name.to_string(), subset(inner))).collect();
    let mut failover: Map<_, _> =
        entry.failover.by_subset.iter().map(|(name, targets)| (name.to_string(), targets_of(targets))).collect();
    if !entry.failover.any.is_empty() {
        failover.insert("*".to_owned(), targets_of(&entry.failover.any));
    }
    form.nonempty("DefaultSubset", subset_name(entry.default_subset.as_ref()))
        .nonempty("Subsets", subsets)
        .nonempty("Redirect", entry.redirect.as_ref().map_or(Value::Null, target))
        .nonempty("Failover", failover)
        .nonempty("ConnectTimeout", duration(entry.connect_timeout))
        .nonempty("RequestTimeout", duration(entry.request_timeout))
        .nonempty("LoadBalancer", entry.load_balancer.as_ref().map_or(Value::Null, load_balancer))
        .nonempty("PrioritizeByLocality", super::locality_mode(entry.prioritize_by_locality))
        .nonempty("Meta", texts(&entry.meta))
}

fn target(target: &ServiceTarget) -> Value {
    Form::new()
        .nonempty("Service", name(target.service.as_ref()))
        .nonempty("ServiceSubset", subset_name(target.subset.as_ref()))
        .end()
}

/// One is written in place, several as `Targets`.
fn targets_of(targets: &[ServiceTarget]) -> Value {
    match targets {
        [one] => target(one),
        _ => json!({"Targets": targets.iter().map(target).collect::<Vec<_>>()}),
    }
}

pub(super) fn load_balancer(balancer: &LoadBalancer) -> Value {
    let form = Form::new().field("Policy", balancer.policy.as_str());
    let form = match balancer.policy {
        BalancePolicy::LeastRequest { choice_count: Some(count) } => {
            form.field("LeastRequestConfig", json!({"ChoiceCount": count}))
        }
        BalancePolicy::RingHash { minimum_size, maximum_size } => {
            let sizes = Form::new()
                .nonempty("MinimumRingSize", minimum_size.unwrap_or(0))
                .nonempty("MaximumRingSize", maximum_size.unwrap_or(0));
            form.nonempty("RingHashConfig", sizes.end())
        }
        BalancePolicy::LeastRequest { choice_count: None }
        | BalancePolicy::PeakEwma
        | BalancePolicy::RoundRobin
        | BalancePolicy::Random
        | BalancePolicy::Maglev => form,
    };
    form.nonempty("HashPolicies", balancer.hash_policies.iter().map(hash_policy).collect::<Vec<_>>()).end()
}

fn hash_policy(policy: &HashPolicy) -> Value {
    let named = |field: &str, name: &str| Form::new().field("Field", field).field("FieldValue", name);
    let form = match &policy.on {
        HashOn::Header(name) => named("header", name),
        HashOn::QueryParameter(name) => named("query_parameter", name),
        HashOn::SourceAddress => Form::new().field("SourceIP", true),
        HashOn::Cookie { name, ttl, path, session } => {
            // In nanoseconds: here Consul's client reads no text.
            let config = Form::new()
                .nonempty("Session", *session)
                .nonempty("TTL", ttl.map_or(0, |ttl| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)))
                .nonempty("Path", path.as_deref().unwrap_or_default());
            named("cookie", name).nonempty("CookieConfig", config.end())
        }
    };
    form.nonempty("Terminal", policy.terminal).end()
}

pub(super) fn upstream_config(config: &UpstreamConfig) -> Value {
    let overrides = config
        .overrides
        .iter()
        .map(|(service, settings)| upstream(Form::new().field("Name", service.as_str()), settings))
        .collect::<Vec<_>>();
    Form::new().nonempty("Overrides", overrides).nonempty("Defaults", upstream(Form::new(), &config.defaults)).end()
}

fn upstream(form: Form, settings: &UpstreamSettings) -> Value {
    form.nonempty("ConnectTimeoutMs", milliseconds(settings.connect_timeout))
        .nonempty("Limits", limits(Form::new(), settings).end())
        .nonempty("PassiveHealthCheck", passive_health_check(settings))
        .end()
}

fn count(form: Form, name: &str, count: Option<u32>) -> Form {
    match count {
        Some(count) => form.field(name, count),
        None => form,
    }
}

pub(super) fn limits(form: Form, settings: &UpstreamSettings) -> Form {
    let form = count(form, "MaxConnections", settings.max_connections);
    let form = count(form, "MaxPendingRequests", settings.max_pending_requests);
    count(form, "MaxConcurrentRequests", settings.max_concurrent_requests)
}

pub(super) fn passive_health_check(settings: &UpstreamSettings) -> Value {
    settings.passive_health_check.map_or(Value::Null, |check| {
        let whole = |share: Option<Percent>| share.map(|share| u32::from(share.hundredths() / 100));
        let form = Form::new().nonempty("Interval", duration(check.interval));
        let form = count(form, "MaxFailures", check.max_failures);
        let form = count(form, "EnforcingConsecutive5xx", whole(check.enforcing));
        let form = count(form, "MaxEjectionPercent", whole(check.max_ejected));
        form.nonempty("BaseEjectionTime", duration(check.base_ejection_time)).end()
    })
}

pub(super) fn rate_limits(limit: RateLimit) -> Value {
    json!({"InstanceLevel": {"RequestsPerSecond": limit.per_second, "RequestsMaxBurst": limit.burst}})
}
