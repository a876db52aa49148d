//! Config entries as Consul's clients and files write them.
//!
//! A field of Consul's that would change traffic if it were honoured, and is not honoured yet, is refused unless it holds
//! nothing: a setting that is accepted and not acted upon is worse than one that is refused.

use std::time::Duration;

use starling_model::{
    ConfigEntry, ConfigKind, IntentionSubject, MeshEntry, OpaqueSettings, Protocol, ProxyDefaults, ServiceDefaults,
    ServiceIntentions,
};

use super::access_log;
use super::field::{FieldError, Fields};
use super::ingress::parse_ingress_gateway;
use super::intention::parse_sources;
use super::kept::{keep, parse_kept_entry};
use super::opaque::{Place, parse_config, protocol_of};
use super::resolver::{parse_locality_mode, parse_service_resolver, parse_service_splitter};
use super::router::{named_service, parse_service_router};
use super::service::parse_mesh_gateway;
use super::terminating::parse_terminating_gateway;
use super::tracing;
use super::upstream_config::{parse_rate_limits, parse_upstream_config};

/// Consul's kinds that this release does not have; a list of them is empty, a write is refused. They are of Consul
/// Enterprise, of its own controllers, or a guard that nothing would stand.
pub const KINDS_UNSUPPORTED: &[&str] =
    &["sameness-group", "bound-api-gateway", "control-plane-request-limit", "rate-limit"];

/// Reads a config entry of any kind.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_config_entry(mut fields: Fields<'_>) -> Result<ConfigEntry, FieldError> {
    let kind = fields.required_text("Kind")?;
    if KINDS_UNSUPPORTED.contains(&kind.as_str()) {
        return Err(fields.error("Kind", format!("{kind:?} is not supported in this release")));
    }
    let kind = ConfigKind::of_users(&kind).map_err(|error| fields.error("Kind", error))?;
    fields.tenancy()?;
    fields.ignored(&["CreateIndex", "ModifyIndex", "Hash", "RaftIndex"]);
    let entry = match kind {
        ConfigKind::ProxyDefaults => ConfigEntry::ProxyDefaults(parse_proxy_defaults(&mut fields)?),
        ConfigKind::ServiceDefaults => ConfigEntry::ServiceDefaults(parse_service_defaults(&mut fields)?),
        ConfigKind::ServiceIntentions => ConfigEntry::ServiceIntentions(parse_service_intentions(&mut fields)?),
        ConfigKind::ServiceResolver => ConfigEntry::ServiceResolver(Box::new(parse_service_resolver(&mut fields)?)),
        ConfigKind::ServiceRouter => ConfigEntry::ServiceRouter(parse_service_router(&mut fields)?),
        ConfigKind::Mesh => ConfigEntry::Mesh(parse_mesh(&mut fields)?),
        ConfigKind::IngressGateway => ConfigEntry::IngressGateway(Box::new(parse_ingress_gateway(&mut fields)?)),
        ConfigKind::TerminatingGateway => {
            ConfigEntry::TerminatingGateway(Box::new(parse_terminating_gateway(&mut fields)?))
        }
        ConfigKind::ServiceSplitter => ConfigEntry::ServiceSplitter(parse_service_splitter(&mut fields)?),
        ConfigKind::Kept(kind) => ConfigEntry::Kept(Box::new(parse_kept_entry(&mut fields, kind)?)),
    };
    fields.finish()?;
    Ok(entry)
}

/// The whole mesh has one entry, which bears no name in Consul.
fn parse_mesh(fields: &mut Fields<'_>) -> Result<MeshEntry, FieldError> {
    fields.only("Name", &["mesh"])?;
    let mut mesh_destinations_only = false;
    if let Some(mut transparent) = fields.object("TransparentProxy")? {
        mesh_destinations_only = transparent.flag("MeshDestinationsOnly")?;
        transparent.finish()?;
    }
    let kept = keep(fields, &["AllowEnablingPermissiveMutualTLS", "ValidateClusters", "Peering"]);
    // Versions of TLS and normal forms are guards.
    for name in ["TLS", "HTTP"] {
        fields.unsupported(name)?;
    }
    let meta = fields.meta("Meta")?;
    Ok(MeshEntry { mesh_destinations_only, kept, meta })
}

fn parse_proxy_defaults(fields: &mut Fields<'_>) -> Result<ProxyDefaults, FieldError> {
    if let Some(name) = fields.text("Name")?
        && name != "global"
    {
        return Err(fields.error("Name", format!("{name:?} is not \"global\", the only proxy-defaults entry")));
    }
    let config = parse_config(fields, Place::ProxyDefaults)?;
    let protocol = protocol_of(&config);
    let access_logs = access_log::parse(fields)?;
    let tracing = Box::new(tracing::parse(fields)?);
    let mut kept = parse_shared(fields)?;
    kept.extend(keep(fields, &["FailoverPolicy"]));
    let prioritize_by_locality = fields.object("PrioritizeByLocality")?.map(parse_locality_mode).transpose()?.flatten();
    let meta = fields.meta("Meta")?;
    Ok(ProxyDefaults { config, protocol, access_logs, tracing, prioritize_by_locality, kept, meta })
}

/// The fields that proxy-defaults and service-defaults share and on which nothing acts: those that say what is so anyway,
/// or take nothing away by being passed over, are kept.
fn parse_shared(fields: &mut Fields<'_>) -> Result<OpaqueSettings, FieldError> {
    fields.may_only("Mode", &["direct"])?;
    fields.may_only("MutualTLSMode", &["strict"])?;
    parse_mesh_gateway(fields)?;
    // Calls that are captured, or checked by an extension, would be so no more.
    for name in ["TransparentProxy", "EnvoyExtensions"] {
        fields.unsupported(name)?;
    }
    Ok(keep(fields, &["Mode", "MutualTLSMode", "Expose"]))
}

fn parse_service_defaults(fields: &mut Fields<'_>) -> Result<ServiceDefaults, FieldError> {
    let service = named_service(fields)?;
    let protocol = match fields.text("Protocol")? {
        Some(text) => {
            let parsed = text.to_ascii_lowercase().parse::<Protocol>();
            Some(parsed.map_err(|error| fields.error("Protocol", error))?)
        }
        None => None,
    };
    let local_connect_timeout = parse_milliseconds(fields, "LocalConnectTimeoutMs")?;
    let local_request_timeout = parse_milliseconds(fields, "LocalRequestTimeoutMs")?;
    let max_inbound_connections = fields.count("MaxInboundConnections")?.filter(|count| *count > 0);
    let mut kept = parse_shared(fields)?;
    let rate_limit = parse_rate_limits(fields)?;
    let upstream_config = Box::new(parse_upstream_config(fields)?);
    kept.extend(keep(fields, &["ExternalSNI", "Destination", "BalanceInboundConnections"]));
    let meta = fields.meta("Meta")?;
    Ok(ServiceDefaults {
        service,
        protocol,
        local_connect_timeout,
        local_request_timeout,
        max_inbound_connections,
        rate_limit,
        upstream_config,
        kept,
        meta,
    })
}

fn parse_milliseconds(fields: &mut Fields<'_>, name: &str) -> Result<Option<Duration>, FieldError> {
    let count = fields.count(name)?.filter(|count| *count > 0);
    Ok(count.map(|count| Duration::from_millis(u64::from(count))))
}

fn parse_service_intentions(fields: &mut Fields<'_>) -> Result<ServiceIntentions, FieldError> {
    let name = fields.required_text("Name")?;
    if name != "*" && name.contains('*') {
        return Err(fields.error("Name", "the wildcard * stands alone or not at all"));
    }
    let destination: IntentionSubject = name.parse().map_err(|error| fields.error("Name", error))?;
    fields.unsupported("JWT")?;
    let sources = parse_sources(fields, &destination)?;
    let meta = fields.meta("Meta")?;
    Ok(ServiceIntentions { destination, sources, meta })
}
