//! `service-router` entries, and what routers and splitters have in common.

use std::collections::{BTreeMap, BTreeSet};

use starling_model::{
    Fault, FaultAbort, FaultDelay, HeaderEdits, Mirror, PathMatch, Percent, QueryMatch, QueryTest, RedirectPath,
    RedirectStatus, RequestMatch, RetryBudget, RetryOn, RetryPolicy, RouteAction, RouteDestination, RouteRedirect,
    ServiceName, ServiceRoute, ServiceRouter, SubsetName,
};

use super::field::{FieldError, Fields};
use super::intention::{check_regex, parse_header, parse_methods, parse_path};

/// Routes of one router: twice what the largest published meshes write for one service.
pub const ROUTES_MAX: usize = 10_000;

/// Retries of one request beyond which a retry is a flood.
pub const RETRIES_MAX: u32 = 100;

/// Bytes of a header field's value that a proxy writes.
const HEADER_VALUE_BYTES_MAX: usize = 4 * 1024;

/// Envoy's own share of retries among the requests under way.
const BUDGET_PERCENT_DEFAULT: u16 = 2_000;

/// Envoy's own number of retries that are always allowed.
const BUDGET_MIN_CONCURRENCY_DEFAULT: u32 = 3;

pub(super) fn parse_service_router(fields: &mut Fields<'_>) -> Result<ServiceRouter, FieldError> {
    let service = named_service(fields)?;
    let routes = fields.list("Routes")?;
    if routes.len() > ROUTES_MAX {
        return Err(fields.error("Routes", format!("has {} routes; at most {ROUTES_MAX} are allowed", routes.len())));
    }
    let routes: Result<_, FieldError> = routes.into_iter().map(|item| parse_route(item.fields()?)).collect();
    Ok(ServiceRouter { service, routes: routes?, meta: fields.meta("Meta")? })
}

/// The `Name` of an entry that is of one service.
pub(super) fn named_service(fields: &mut Fields<'_>) -> Result<ServiceName, FieldError> {
    let name = fields.required_text("Name")?;
    if name == "*" {
        return Err(fields.error("Name", "must be the name of a service, not the wildcard *"));
    }
    ServiceName::new(&name).map_err(|error| fields.error("Name", error))
}

/// A service that may be left out.
pub(super) fn service(fields: &mut Fields<'_>, name: &str) -> Result<Option<ServiceName>, FieldError> {
    let text = fields.text(name)?;
    text.map(|text| ServiceName::new(&text).map_err(|error| fields.error(name, error))).transpose()
}

/// A subset that may be left out.
pub(super) fn subset(fields: &mut Fields<'_>, name: &str) -> Result<Option<SubsetName>, FieldError> {
    let text = fields.text(name)?;
    text.map(|text| SubsetName::new(&text).map_err(|error| fields.error(name, error))).transpose()
}

/// A percentage in steps of 0.01; `None` if absent.
pub(super) fn percent(fields: &mut Fields<'_>, name: &str) -> Result<Option<Percent>, FieldError> {
    let Some(field) = fields.take(name) else { return Ok(None) };
    let percent = field.value.as_f64().and_then(Percent::parse);
    percent.map(Some).ok_or_else(|| {
        FieldError::new(&field.path, format!("{} is no percentage from 0 to 100 in steps of 0.01", field.value))
    })
}

fn parse_route(mut fields: Fields<'_>) -> Result<ServiceRoute, FieldError> {
    let mut matches = RequestMatch::default();
    if let Some(mut outer) = fields.object("Match")? {
        if let Some(mut http) = outer.object("HTTP")? {
            matches = parse_match(&mut http)?;
            http.finish()?;
        }
        outer.finish()?;
    }
    let destination = fields.object("Destination")?;
    let redirect = fields.object("Redirect")?;
    let action = match (destination, redirect) {
        (Some(_), Some(_)) => return Err(fields.error("Redirect", "must be left out where Destination is given")),
        (None, Some(redirect)) => RouteAction::Redirect(parse_redirect(redirect, &matches)?),
        (Some(destination), None) => RouteAction::Forward(Box::new(parse_destination(destination, &matches)?)),
        (None, None) => RouteAction::Forward(Box::default()),
    };
    fields.finish()?;
    Ok(ServiceRoute { matches, action })
}

fn parse_match(http: &mut Fields<'_>) -> Result<RequestMatch, FieldError> {
    let path = parse_path(http)?;
    let ignore_path_case = http.flag("CaseInsensitive")?;
    if ignore_path_case && matches!(path, Some(PathMatch::Regex(_))) {
        return Err(http.error("CaseInsensitive", "is for PathExact and PathPrefix; an expression says it by (?i)"));
    }
    let headers: Result<_, FieldError> =
        http.list("Header")?.into_iter().map(|item| parse_header(item.fields()?)).collect();
    let query: Result<_, FieldError> =
        http.list("QueryParam")?.into_iter().map(|item| parse_query(item.fields()?)).collect();
    Ok(RequestMatch { path, ignore_path_case, headers: headers?, query: query?, methods: parse_methods(http)? })
}

fn parse_query(mut fields: Fields<'_>) -> Result<QueryMatch, FieldError> {
    let name = fields.required_text("Name")?;
    let mut tests = Vec::new();
    if fields.flag("Present")? {
        tests.push(QueryTest::Present);
    }
    tests.extend(fields.text("Exact")?.map(QueryTest::Exact));
    if let Some(expression) = fields.text("Regex")? {
        check_regex(&fields, "Regex", &expression)?;
        tests.push(QueryTest::Regex(expression));
    }
    fields.finish()?;
    let (Some(test), None) = (tests.pop(), tests.pop()) else {
        return Err(fields.error("Present", "exactly one of Present, Exact and Regex must be given"));
    };
    Ok(QueryMatch { name, test })
}

fn parse_destination(mut fields: Fields<'_>, matches: &RequestMatch) -> Result<RouteDestination, FieldError> {
    fields.tenancy()?;
    let destination = RouteDestination {
        service: service(&mut fields, "Service")?,
        subset: subset(&mut fields, "ServiceSubset")?,
        prefix_rewrite: parse_rewrite(&mut fields, "PrefixRewrite", matches)?,
        request_timeout: fields.duration("RequestTimeout")?,
        per_try_timeout: fields.duration("PerTryTimeout")?,
        idle_timeout: fields.duration("IdleTimeout")?,
        retry: parse_retry(&mut fields)?,
        request_headers: parse_edits(&mut fields, "RequestHeaders")?,
        response_headers: parse_edits(&mut fields, "ResponseHeaders")?,
        mirror: parse_mirror(&mut fields)?,
        fault: parse_fault(&mut fields)?,
    };
    fields.finish()?;
    if destination.per_try_timeout.is_some() && !destination.retry.retries_at_all() {
        return Err(fields.error("PerTryTimeout", "is for requests that are tried again; say when, by RetryOn"));
    }
    Ok(destination)
}

/// What takes the place of a path or prefix that matched.
fn parse_rewrite(fields: &mut Fields<'_>, name: &str, matches: &RequestMatch) -> Result<Option<String>, FieldError> {
    let Some(path) = fields.text(name)? else { return Ok(None) };
    if !matches!(matches.path, Some(PathMatch::Exact(_) | PathMatch::Prefix(_))) {
        return Err(fields.error(name, "needs a PathExact or PathPrefix in Match, which it takes the place of"));
    }
    check_target(fields, name, &path)?;
    Ok(Some(path))
}

fn check_target(fields: &Fields<'_>, name: &str, path: &str) -> Result<(), FieldError> {
    let fits = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#');
    if path.starts_with('/') && path.chars().all(fits) {
        return Ok(());
    }
    Err(fields.error(name, format!("{path:?} is no path: it begins with '/' and has no query, fragment or space")))
}

fn parse_retry(fields: &mut Fields<'_>) -> Result<RetryPolicy, FieldError> {
    let retries = fields.count("NumRetries")?.filter(|count| *count > 0);
    if retries.is_some_and(|count| count > RETRIES_MAX) {
        return Err(fields.error("NumRetries", format!("at most {RETRIES_MAX} are allowed")));
    }
    let mut on = BTreeSet::new();
    for (index, text) in fields.texts("RetryOn")?.into_iter().enumerate() {
        let condition: RetryOn = text.parse().map_err(|error| fields.error(&format!("RetryOn[{index}]"), error))?;
        on.insert(condition);
    }
    if fields.flag("RetryOnConnectFailure")? {
        on.insert(RetryOn::ConnectFailure);
    }
    let mut on_statuses = BTreeSet::new();
    for item in fields.list("RetryOnStatusCodes")? {
        let status = u16::try_from(item.integer()?).ok().filter(|status| (100..=599).contains(status));
        on_statuses.insert(status.ok_or_else(|| FieldError::new(&item.path, "is no status from 100 to 599"))?);
    }
    let mut budget = None;
    if let Some(mut inner) = fields.object("RetryBudget")? {
        let default = || Percent::of_hundredths(BUDGET_PERCENT_DEFAULT).unwrap_or_default();
        budget = Some(RetryBudget {
            percent: percent(&mut inner, "Percent")?.unwrap_or_else(default),
            min_concurrency: inner.count("MinConcurrency")?.unwrap_or(BUDGET_MIN_CONCURRENCY_DEFAULT),
        });
        inner.finish()?;
    }
    let policy = RetryPolicy { retries, on, on_statuses, budget };
    if (policy.retries.is_some() || policy.budget.is_some()) && !policy.retries_at_all() {
        let reason = "nothing is tried again; say when, by RetryOn, RetryOnConnectFailure or RetryOnStatusCodes";
        return Err(fields.error(if policy.retries.is_some() { "NumRetries" } else { "RetryBudget" }, reason));
    }
    Ok(policy)
}

/// `Add`, `Set` and `Remove`, empty if absent.
pub(super) fn parse_edits(fields: &mut Fields<'_>, name: &str) -> Result<HeaderEdits, FieldError> {
    let Some(mut inner) = fields.object(name)? else { return Ok(HeaderEdits::default()) };
    let edits = HeaderEdits {
        add: header_values(&mut inner, "Add")?,
        set: header_values(&mut inner, "Set")?,
        remove: inner
            .texts("Remove")?
            .iter()
            .map(|field| header_name(&inner, "Remove", field))
            .collect::<Result<_, _>>()?,
    };
    inner.finish()?;
    Ok(edits)
}

fn header_values(fields: &mut Fields<'_>, name: &str) -> Result<BTreeMap<String, String>, FieldError> {
    let mut values = BTreeMap::new();
    for (field, value) in fields.text_map(name)? {
        let field = header_name(fields, name, &field)?;
        if value.len() > HEADER_VALUE_BYTES_MAX || http::HeaderValue::from_str(&value).is_err() {
            let reason = format!("{value:?} is no value of a header field of at most {HEADER_VALUE_BYTES_MAX} bytes");
            return Err(fields.error(&format!("{name}.{field}"), reason));
        }
        values.insert(field, value);
    }
    Ok(values)
}

/// Fields that say how the message itself is to be read are the proxy's own matter.
fn header_name(fields: &Fields<'_>, at: &str, name: &str) -> Result<String, FieldError> {
    const OWN: &[&str] =
        &["connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];
    let lower = name.to_ascii_lowercase();
    if http::HeaderName::from_bytes(lower.as_bytes()).is_err() {
        return Err(fields.error(at, format!("{name:?} is no header field name")));
    }
    if OWN.contains(&lower.as_str()) {
        return Err(fields.error(at, format!("{lower} is the proxy's own matter")));
    }
    Ok(lower)
}

fn parse_mirror(fields: &mut Fields<'_>) -> Result<Option<Mirror>, FieldError> {
    let Some(mut inner) = fields.object("Mirror")? else { return Ok(None) };
    let service = service(&mut inner, "Service")?.ok_or_else(|| inner.missing("Service", "must be given"))?;
    let subset = subset(&mut inner, "ServiceSubset")?;
    let percent = percent(&mut inner, "Percent")?.unwrap_or(Percent::ALL);
    inner.finish()?;
    Ok(Some(Mirror { service, subset, percent }))
}

fn parse_fault(fields: &mut Fields<'_>) -> Result<Option<Fault>, FieldError> {
    let Some(mut inner) = fields.object("Fault")? else { return Ok(None) };
    let mut fault = Fault::default();
    if let Some(mut delay) = inner.object("Delay")? {
        let duration = delay.duration("Duration")?.ok_or_else(|| delay.missing("Duration", "must be given"))?;
        fault.delay = Some(FaultDelay { duration, percent: percent(&mut delay, "Percent")?.unwrap_or(Percent::ALL) });
        delay.finish()?;
    }
    if let Some(mut abort) = inner.object("Abort")? {
        let status = abort.integer("Status")?.ok_or_else(|| abort.missing("Status", "must be given"))?;
        let status = u16::try_from(status).ok().filter(|status| (200..=599).contains(status));
        let status = status.ok_or_else(|| abort.error("Status", "is no status from 200 to 599"))?;
        fault.abort = Some(FaultAbort { status, percent: percent(&mut abort, "Percent")?.unwrap_or(Percent::ALL) });
        abort.finish()?;
    }
    inner.finish()?;
    Ok((fault != Fault::default()).then_some(fault))
}

fn parse_redirect(mut fields: Fields<'_>, matches: &RequestMatch) -> Result<RouteRedirect, FieldError> {
    let status = match fields.integer("Status")? {
        None => RedirectStatus::MovedPermanently,
        Some(number) => {
            let status = u16::try_from(number).map_err(|_| format!("{number} is no status of a redirect"));
            status.and_then(RedirectStatus::try_from).map_err(|reason| fields.error("Status", reason))?
        }
    };
    let whole = fields.text("Path")?;
    if let Some(path) = &whole {
        check_target(&fields, "Path", path)?;
    }
    let path = match (whole, parse_rewrite(&mut fields, "PrefixRewrite", matches)?) {
        (Some(_), Some(_)) => return Err(fields.error("PrefixRewrite", "must be left out where Path is given")),
        (Some(path), None) => Some(RedirectPath::Whole(path)),
        (None, prefix) => prefix.map(RedirectPath::Prefix),
    };
    let redirect = RouteRedirect {
        status,
        https: fields.flag("HTTPS")?,
        host: fields.address("Host")?,
        port: fields.port("Port", "for that of the scheme")?,
        path,
        strip_query: fields.flag("StripQuery")?,
    };
    fields.finish()?;
    if !redirect.https && redirect.host.is_none() && redirect.port.is_none() && redirect.path.is_none() {
        return Err(fields.error("Host", "one of HTTPS, Host, Port, Path and PrefixRewrite must be given"));
    }
    Ok(redirect)
}
