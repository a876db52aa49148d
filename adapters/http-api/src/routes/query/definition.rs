//! Prepared queries as clients write and read them.

use regex::Regex;
use serde::Serialize;
use serde_json::{Value, json};
use starling_model::{PreparedQuery, ServiceQuery, Uuid};

use crate::parse::{FieldError, Fields, duration_text};

/// Bytes of a name: a label of DNS, or several.
const NAME_BYTES_MAX: usize = 253;

/// The only type of templates.
const NAME_PREFIX_MATCH: &str = "name_prefix_match";

/// Reads a query whose identifier is `id`.
pub(super) fn parse(mut fields: Fields<'_>, id: Uuid) -> Result<PreparedQuery, FieldError> {
    if let Some(written) = fields.text("ID")?.filter(|written| *written != id.to_string()) {
        return Err(fields.error("ID", format!("{written} is not the identifier in the address")));
    }
    let name = fields.text("Name")?.unwrap_or_default();
    if name.len() > NAME_BYTES_MAX {
        return Err(fields.error("Name", format!("has more than {NAME_BYTES_MAX} bytes")));
    }
    if name.parse::<Uuid>().is_ok() {
        return Err(fields.error("Name", "looks like an identifier"));
    }
    // A query that is to end with a session would stay.
    fields.unsupported("Session")?;
    if fields.text("Token")?.is_some() {
        fields.context.notice(fields.path("Token"), "is not kept: a query is carried out with the rights of who asks");
    }
    let (template, remove_empty_tags) = match fields.object("Template")? {
        Some(template) => parse_template(template)?,
        None => (None, false),
    };
    let service = fields.object("Service")?.ok_or_else(|| fields.missing("Service", "must be given"))?;
    let service = parse_service(service, template.is_some())?;
    let (mut dns_ttl, mut dns_ttl_s) = (String::new(), 0);
    if let Some(mut dns) = fields.object("DNS")? {
        if let Some(ttl) = dns.duration("TTL")? {
            (dns_ttl, dns_ttl_s) = (duration_text(ttl), u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX));
        }
        dns.finish()?;
    }
    fields.ignored(&["CreateIndex", "ModifyIndex"]);
    fields.finish()?;
    Ok(PreparedQuery { name, template, remove_empty_tags, service, dns_ttl, dns_ttl_s })
}

/// A query as it is answered, without its identifier.
pub(super) fn form(query: &PreparedQuery) -> Value {
    fn or_null<T: Serialize>(value: &T, is_empty: bool) -> Value {
        if is_empty { Value::Null } else { json!(value) }
    }
    let service = &query.service;
    let template = query.template.as_ref();
    json!({
        "Name": query.name,
        "Session": "",
        "Token": "",
        "Template": {
            "Type": if template.is_some() { NAME_PREFIX_MATCH } else { "" },
            "Regexp": template.map_or("", String::as_str),
            "RemoveEmptyTags": query.remove_empty_tags,
        },
        "Service": {
            "Service": service.service,
            "Near": service.near,
            "Failover": service.failover,
            "IgnoreCheckIDs": or_null(&service.ignore_check_ids, service.ignore_check_ids.is_empty()),
            "OnlyPassing": service.only_passing,
            "Tags": or_null(&service.tags, service.tags.is_empty()),
            "NodeMeta": or_null(&service.node_meta, service.node_meta.is_empty()),
            "ServiceMeta": or_null(&service.service_meta, service.service_meta.is_empty()),
            "Connect": service.connect,
        },
        "DNS": {"TTL": query.dns_ttl},
    })
}

fn parse_template(mut fields: Fields<'_>) -> Result<(Option<String>, bool), FieldError> {
    let kind = fields.text("Type")?;
    let regexp = fields.text("Regexp")?;
    if let Some(regexp) = &regexp
        && (Regex::new(regexp).is_err() || starling_traffic::check_regex(regexp).is_err())
    {
        return Err(fields.error("Regexp", format!("{regexp:?} is no regular expression")));
    }
    let remove_empty_tags = fields.flag("RemoveEmptyTags")?;
    fields.finish()?;
    match kind.as_deref() {
        Some(NAME_PREFIX_MATCH) => Ok((Some(regexp.unwrap_or_default()), remove_empty_tags)),
        Some(other) => Err(fields.error("Type", format!("{other:?} is not {NAME_PREFIX_MATCH:?}, the only one"))),
        None if regexp.is_some() => Err(fields.missing("Type", "must be given with Regexp")),
        None => Ok((None, remove_empty_tags)),
    }
}

fn parse_service(mut fields: Fields<'_>, is_template: bool) -> Result<ServiceQuery, FieldError> {
    let service = fields.required_text("Service")?;
    if !is_template && let Err(error) = starling_model::ServiceName::new(&service) {
        return Err(fields.error("Service", error));
    }
    fields.tenancy()?;
    fields.unsupported("SamenessGroup")?;
    let failover = fields.opaque("Failover")?;
    if failover.values().any(|value| !crate::parse::field::is_zero(value)) {
        let reason = "is kept, and nobody is asked: there is no other datacenter";
        fields.context.notice(fields.path("Failover"), reason);
    }
    let query = ServiceQuery {
        service,
        failover,
        near: fields.text("Near")?.unwrap_or_default(),
        only_passing: fields.flag("OnlyPassing")?,
        ignore_check_ids: fields.texts("IgnoreCheckIDs")?,
        tags: fields.texts("Tags")?,
        node_meta: fields.text_map("NodeMeta")?,
        service_meta: fields.text_map("ServiceMeta")?,
        connect: fields.flag("Connect")?,
    };
    fields.finish()?;
    Ok(query)
}
