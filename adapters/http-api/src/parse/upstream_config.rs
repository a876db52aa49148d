//! `UpstreamConfig` and `RateLimits` of `service-defaults`.

use std::time::Duration;

use starling_model::{PassiveHealthCheck, Percent, RateLimit, UpstreamConfig, UpstreamSettings};

use super::field::{FieldError, Fields};
use super::router::service;

pub(super) fn parse_upstream_config(fields: &mut Fields<'_>) -> Result<UpstreamConfig, FieldError> {
    let mut config = UpstreamConfig::default();
    let Some(mut outer) = fields.object("UpstreamConfig")? else { return Ok(config) };
    for item in outer.list("Overrides")? {
        let mut inner = item.fields()?;
        let name = service(&mut inner, "Name")?.ok_or_else(|| inner.missing("Name", "must be given"))?;
        let settings = parse_settings(&mut inner)?;
        inner.finish()?;
        if config.overrides.insert(name.clone(), settings).is_some() {
            return Err(inner.error("Name", format!("{name} is given twice")));
        }
    }
    if let Some(mut inner) = outer.object("Defaults")? {
        config.defaults = parse_settings(&mut inner)?;
        inner.finish()?;
    }
    outer.finish()?;
    Ok(config)
}

fn parse_settings(fields: &mut Fields<'_>) -> Result<UpstreamSettings, FieldError> {
    fields.tenancy()?;
    for name in
        ["EnvoyListenerJSON", "EnvoyClusterJSON", "Protocol", "Peer", "MeshGateway", "BalanceOutboundConnections"]
    {
        fields.unsupported(name)?;
    }
    let connect = fields.count("ConnectTimeoutMs")?.filter(|count| *count > 0);
    let mut settings = UpstreamSettings {
        connect_timeout: connect.map(|count| Duration::from_millis(u64::from(count))),
        ..UpstreamSettings::default()
    };
    if let Some(mut limits) = fields.object("Limits")? {
        parse_limits(&mut limits, &mut settings)?;
        limits.finish()?;
    }
    settings.passive_health_check = parse_passive_health_check(fields)?;
    Ok(settings)
}

/// How much may be under way at once.
pub(super) fn parse_limits(fields: &mut Fields<'_>, settings: &mut UpstreamSettings) -> Result<(), FieldError> {
    settings.max_connections = fields.count("MaxConnections")?;
    settings.max_pending_requests = fields.count("MaxPendingRequests")?;
    settings.max_concurrent_requests = fields.count("MaxConcurrentRequests")?;
    Ok(())
}

pub(super) fn parse_passive_health_check(fields: &mut Fields<'_>) -> Result<Option<PassiveHealthCheck>, FieldError> {
    let Some(mut fields) = fields.object("PassiveHealthCheck")? else { return Ok(None) };
    let check = PassiveHealthCheck {
        interval: fields.duration("Interval")?,
        max_failures: fields.count("MaxFailures")?,
        enforcing: whole_percent(&mut fields, "EnforcingConsecutive5xx")?,
        max_ejected: whole_percent(&mut fields, "MaxEjectionPercent")?,
        base_ejection_time: fields.duration("BaseEjectionTime")?,
    };
    fields.finish()?;
    Ok(Some(check))
}

fn whole_percent(fields: &mut Fields<'_>, name: &str) -> Result<Option<Percent>, FieldError> {
    let Some(number) = fields.count(name)? else { return Ok(None) };
    let percent = u16::try_from(number).ok().and_then(|number| Percent::of_hundredths(number.checked_mul(100)?));
    percent.map(Some).ok_or_else(|| fields.error(name, format!("{number} is outside 0 to 100")))
}

/// What one instance takes, by Consul's `RateLimits.InstanceLevel`.
pub(super) fn parse_rate_limits(fields: &mut Fields<'_>) -> Result<Option<RateLimit>, FieldError> {
    let Some(mut outer) = fields.object("RateLimits")? else { return Ok(None) };
    let mut limit = None;
    if let Some(mut inner) = outer.object("InstanceLevel")? {
        let (rate, burst) = (inner.count("RequestsPerSecond")?, inner.count("RequestsMaxBurst")?);
        inner.unsupported("Routes")?;
        inner.finish()?;
        let rate = rate.filter(|rate| *rate > 0);
        limit = rate.map(|per_second| RateLimit { per_second, burst: burst.unwrap_or(0).max(per_second) });
        if limit.is_none() && burst.is_some_and(|burst| burst > 0) {
            return Err(inner.missing("RequestsPerSecond", "must be given with RequestsMaxBurst"));
        }
    }
    outer.finish()?;
    Ok(limit)
}
