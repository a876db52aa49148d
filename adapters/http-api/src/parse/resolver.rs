//! `service-resolver` and `service-splitter` entries.

use std::collections::BTreeMap;

use starling_model::{
    BalancePolicy, Failovers, HashOn, HashPolicy, LoadBalancer, LocalityMode, ServiceName, ServiceResolver,
    ServiceSplit, ServiceSplitter, ServiceTarget, Splits, Subset, SubsetName,
};

use super::field::{Field, FieldError, Fields};
use super::router::{named_service, parse_edits, percent, service, subset};

/// Parts of one split: a flag day of every version that anybody runs.
pub const SPLITS_MAX: usize = 256;

/// Subsets of one service.
pub const SUBSETS_MAX: usize = 256;

/// Groups of instances that are tried one after the other; Envoy has 128 priorities, one being the first choice's.
pub const FAILOVER_TARGETS_MAX: usize = 16;

/// Entries of a hash ring; Envoy's own limit.
pub const RING_SIZE_MAX: u64 = 8 * 1024 * 1024;

pub(super) fn parse_service_splitter(fields: &mut Fields<'_>) -> Result<ServiceSplitter, FieldError> {
    let service = named_service(fields)?;
    let list = fields.list("Splits")?;
    if list.len() > SPLITS_MAX {
        return Err(fields.error("Splits", format!("has {} parts; at most {SPLITS_MAX} are allowed", list.len())));
    }
    let splits: Result<Vec<_>, FieldError> = list.into_iter().map(|item| parse_split(item.fields()?)).collect();
    let splits = Splits::try_from(splits?).map_err(|error| fields.error("Splits", error))?;
    Ok(ServiceSplitter { service, splits, meta: fields.meta("Meta")? })
}

fn parse_split(mut fields: Fields<'_>) -> Result<ServiceSplit, FieldError> {
    fields.tenancy()?;
    let split = ServiceSplit {
        weight: percent(&mut fields, "Weight")?.unwrap_or_default(),
        service: service(&mut fields, "Service")?,
        subset: subset(&mut fields, "ServiceSubset")?,
        request_headers: parse_edits(&mut fields, "RequestHeaders")?,
        response_headers: parse_edits(&mut fields, "ResponseHeaders")?,
    };
    fields.finish()?;
    Ok(split)
}

pub(super) fn parse_service_resolver(fields: &mut Fields<'_>) -> Result<ServiceResolver, FieldError> {
    let own = named_service(fields)?;
    let mut entry = ServiceResolver::bare(own.clone());
    entry.subsets = parse_subsets(fields)?;
    entry.default_subset = subset(fields, "DefaultSubset")?;
    if let Some(name) = entry.default_subset.as_ref().filter(|name| !entry.subsets.contains_key(*name)) {
        return Err(fields.error("DefaultSubset", format!("{name:?} is none of the Subsets")));
    }
    if let Some(inner) = fields.object("Redirect")? {
        entry.redirect = Some(parse_target(inner, &own, &entry.subsets)?);
    }
    entry.failover = parse_failover(fields, &own, &entry.subsets)?;
    entry.connect_timeout = fields.duration("ConnectTimeout")?;
    entry.request_timeout = fields.duration("RequestTimeout")?;
    entry.load_balancer = fields.object("LoadBalancer")?.map(parse_load_balancer).transpose()?;
    entry.prioritize_by_locality =
        fields.object("PrioritizeByLocality")?.map(parse_locality_mode).transpose()?.flatten();
    entry.meta = fields.meta("Meta")?;
    if entry.redirect.is_some() {
        let bare = ServiceResolver {
            redirect: entry.redirect.clone(),
            meta: entry.meta.clone(),
            subsets: entry.subsets.clone(),
            ..ServiceResolver::bare(own)
        };
        if bare != entry {
            return Err(fields.error("Redirect", "stands alone: whoever is called instead has a resolver of its own"));
        }
    }
    Ok(entry)
}

/// The order in which instances are called; nothing is said where the mode is left out.
pub(super) fn parse_locality_mode(mut fields: Fields<'_>) -> Result<Option<LocalityMode>, FieldError> {
    let mode = match fields.text("Mode")?.as_deref() {
        None => None,
        Some("none") => Some(LocalityMode::None),
        Some("failover") => Some(LocalityMode::Failover),
        Some(other) => {
            return Err(fields.error("Mode", format!("{other:?} is no mode; it is \"failover\" or \"none\"")));
        }
    };
    fields.finish()?;
    Ok(mode)
}

type Subsets = BTreeMap<SubsetName, Subset>;

fn parse_subsets(fields: &mut Fields<'_>) -> Result<Subsets, FieldError> {
    let mut subsets = BTreeMap::new();
    for (name, item) in by_name(fields, "Subsets")? {
        let name = SubsetName::new(&name).map_err(|error| FieldError::new(&item.path, error))?;
        let mut inner = item.fields()?;
        let filter = inner.text("Filter")?.map(|text| text.parse()).transpose();
        let filter = filter.map_err(|error| inner.error("Filter", error))?;
        let only_passing = inner.flag("OnlyPassing")?;
        inner.finish()?;
        subsets.insert(name, Subset { filter, only_passing });
    }
    if subsets.len() > SUBSETS_MAX {
        return Err(
            fields.error("Subsets", format!("has {} subsets; at most {SUBSETS_MAX} are allowed", subsets.len()))
        );
    }
    Ok(subsets)
}

/// The fields of an object whose keys are names.
fn by_name<'c>(fields: &mut Fields<'c>, name: &str) -> Result<Vec<(String, Field<'c>)>, FieldError> {
    let Some(field) = fields.take(name) else { return Ok(Vec::new()) };
    let (context, path) = (field.context, field.path.clone());
    let item = |(key, value): (String, _)| {
        let path = format!("{path}.{key}");
        (key, Field { context, path, value })
    };
    Ok(field.opaque()?.into_iter().map(item).collect())
}

/// A service or subset that is called instead of this one.
fn parse_target(mut fields: Fields<'_>, own: &ServiceName, subsets: &Subsets) -> Result<ServiceTarget, FieldError> {
    let target = take_target(&mut fields, own, subsets)?;
    own_datacenter(&mut fields)?;
    fields.finish()?;
    if target.service.is_none() && target.subset.is_none() {
        return Err(fields.missing("Service", "a Service or a ServiceSubset must be given"));
    }
    Ok(target)
}

fn take_target(fields: &mut Fields<'_>, own: &ServiceName, subsets: &Subsets) -> Result<ServiceTarget, FieldError> {
    fields.tenancy()?;
    for name in ["Peer", "SamenessGroup"] {
        fields.unsupported(name)?;
    }
    let target = ServiceTarget { service: service(fields, "Service")?, subset: subset(fields, "ServiceSubset")? };
    let of_own = target.service.as_ref().is_none_or(|service| service == own);
    match &target.subset {
        Some(name) if of_own && !subsets.contains_key(name) => {
            Err(fields.error("ServiceSubset", format!("{name:?} is none of the Subsets of {own}")))
        }
        Some(_) | None => Ok(target),
    }
}

/// A datacentre, which may only be the one that there is.
fn own_datacenter(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    match fields.text("Datacenter")? {
        Some(text) => refuse_foreign(fields, "Datacenter", &text),
        None => Ok(()),
    }
}

fn refuse_foreign(fields: &Fields<'_>, at: &str, datacenter: &str) -> Result<(), FieldError> {
    let own = fields.context.datacenter.as_str();
    if datacenter == own {
        return Ok(());
    }
    Err(fields.error(at, format!("{datacenter:?} is another datacenter; this mesh has only {own:?}")))
}

fn parse_failover(fields: &mut Fields<'_>, own: &ServiceName, subsets: &Subsets) -> Result<Failovers, FieldError> {
    let mut failovers = Failovers::default();
    for (name, item) in by_name(fields, "Failover")? {
        let path = item.path.clone();
        let targets = parse_failover_targets(item.fields()?, own, subsets)?;
        if name == "*" {
            failovers.any = targets;
            continue;
        }
        let known = SubsetName::new(&name).ok().filter(|name| subsets.contains_key(name));
        let known = known.ok_or_else(|| FieldError::new(path, "is neither * nor one of the Subsets"))?;
        failovers.by_subset.insert(known, targets);
    }
    Ok(failovers)
}

fn parse_failover_targets(
    mut fields: Fields<'_>,
    own: &ServiceName,
    subsets: &Subsets,
) -> Result<Vec<ServiceTarget>, FieldError> {
    let single = take_target(&mut fields, own, subsets)?;
    for (index, datacenter) in fields.texts("Datacenters")?.iter().enumerate() {
        refuse_foreign(&fields, &format!("Datacenters[{index}]"), datacenter)?;
    }
    fields.unsupported("Policy")?;
    let list = fields.list("Targets")?;
    fields.finish()?;
    let targets: Result<Vec<_>, FieldError> =
        list.into_iter().map(|item| parse_target(item.fields()?, own, subsets)).collect();
    let targets = targets?;
    let has_single = single.service.is_some() || single.subset.is_some();
    match (has_single, targets.is_empty()) {
        (true, true) => Ok(vec![single]),
        (false, false) if targets.len() <= FAILOVER_TARGETS_MAX => Ok(targets),
        (false, false) => {
            let reason = format!("has {} targets; at most {FAILOVER_TARGETS_MAX} are allowed", targets.len());
            Err(fields.error("Targets", reason))
        }
        (true, false) => Err(fields.error("Targets", "must be left out where Service or ServiceSubset is given")),
        (false, true) => Err(fields.missing("Service", "one of Service, ServiceSubset and Targets must be given")),
    }
}

fn parse_load_balancer(mut fields: Fields<'_>) -> Result<LoadBalancer, FieldError> {
    let policy = fields.text("Policy")?;
    let choice_count = match fields.object("LeastRequestConfig")? {
        Some(mut inner) => {
            let count = inner.count("ChoiceCount")?.filter(|count| *count > 0);
            inner.finish()?;
            if count == Some(1) {
                return Err(inner.error("ChoiceCount", "is 2 at least: of one there is no choice"));
            }
            count
        }
        None => None,
    };
    let (minimum_size, maximum_size) = parse_ring(&mut fields)?;
    let hash_policies: Result<Vec<_>, FieldError> =
        fields.list("HashPolicies")?.into_iter().map(|item| parse_hash_policy(item.fields()?)).collect();
    let hash_policies = hash_policies?;
    fields.finish()?;
    let policy = match policy.as_deref() {
        None | Some("least_request") => BalancePolicy::LeastRequest { choice_count },
        Some("peak_ewma") => BalancePolicy::PeakEwma,
        Some("round_robin") => BalancePolicy::RoundRobin,
        Some("random") => BalancePolicy::Random,
        Some("ring_hash") => BalancePolicy::RingHash { minimum_size, maximum_size },
        Some("maglev") => BalancePolicy::Maglev,
        Some(other) => {
            let reason =
                format!("{other:?} is none of least_request, peak_ewma, round_robin, random, ring_hash and maglev");
            return Err(fields.error("Policy", reason));
        }
    };
    if choice_count.is_some() && !matches!(policy, BalancePolicy::LeastRequest { .. }) {
        return Err(fields.error("LeastRequestConfig", "is for the policy least_request"));
    }
    if (minimum_size, maximum_size) != (None, None) && !matches!(policy, BalancePolicy::RingHash { .. }) {
        return Err(fields.error("RingHashConfig", "is for the policy ring_hash"));
    }
    if !hash_policies.is_empty() && !policy.is_hashing() {
        return Err(fields.error("HashPolicies", "are for the policies ring_hash and maglev"));
    }
    Ok(LoadBalancer { policy, hash_policies })
}

fn parse_ring(fields: &mut Fields<'_>) -> Result<(Option<u64>, Option<u64>), FieldError> {
    let Some(mut inner) = fields.object("RingHashConfig")? else { return Ok((None, None)) };
    let mut size = |name: &str| {
        let number = inner.integer(name)?.filter(|number| *number != 0);
        let wrong = |_| inner.error(name, format!("is outside 1 to {RING_SIZE_MAX}"));
        let size = number.map(|number| u64::try_from(number).map_err(wrong)).transpose()?;
        match size {
            Some(size) if size > RING_SIZE_MAX => Err(inner.error(name, format!("is outside 1 to {RING_SIZE_MAX}"))),
            size => Ok(size),
        }
    };
    let (minimum, maximum) = (size("MinimumRingSize")?, size("MaximumRingSize")?);
    inner.finish()?;
    if minimum.zip(maximum).is_some_and(|(minimum, maximum)| minimum > maximum) {
        return Err(inner.error("MinimumRingSize", "is larger than MaximumRingSize"));
    }
    Ok((minimum, maximum))
}

fn parse_hash_policy(mut fields: Fields<'_>) -> Result<HashPolicy, FieldError> {
    let (field, value) = (fields.text("Field")?, fields.text("FieldValue")?);
    let cookie = fields.object("CookieConfig")?;
    let source = fields.flag("SourceIP")?;
    let terminal = fields.flag("Terminal")?;
    fields.finish()?;
    if source {
        if field.is_some() || value.is_some() || cookie.is_some() {
            return Err(fields.error("SourceIP", "stands without Field, FieldValue and CookieConfig"));
        }
        return Ok(HashPolicy { on: HashOn::SourceAddress, terminal });
    }
    let field = field.ok_or_else(|| fields.missing("Field", "a Field or SourceIP must be given"))?;
    let name = value
        .ok_or_else(|| fields.missing("FieldValue", "must be given: the name of the header, cookie or parameter"))?;
    if cookie.is_some() && field != "cookie" {
        return Err(fields.error("CookieConfig", "is for the field cookie"));
    }
    let on = match field.as_str() {
        "header" => {
            let name = name.to_ascii_lowercase();
            if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
                return Err(fields.error("FieldValue", format!("{name:?} is no header field name")));
            }
            HashOn::Header(name)
        }
        "cookie" => parse_cookie(name, cookie)?,
        "query_parameter" => HashOn::QueryParameter(name),
        other => {
            return Err(fields.error("Field", format!("{other:?} is none of header, cookie and query_parameter")));
        }
    };
    Ok(HashPolicy { on, terminal })
}

fn parse_cookie(name: String, config: Option<Fields<'_>>) -> Result<HashOn, FieldError> {
    let Some(mut config) = config else { return Ok(HashOn::Cookie { name, ttl: None, path: None, session: false }) };
    let session = config.flag("Session")?;
    let (ttl, path) = (config.duration("TTL")?, config.text("Path")?);
    config.finish()?;
    if session && ttl.is_some() {
        return Err(config.error("TTL", "must be left out for a cookie of the session"));
    }
    Ok(HashOn::Cookie { name, ttl, path, session })
}
