//! What a prepared query says, and what a template makes of a name.

use std::collections::BTreeMap;

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use starling_model::{Node, ServiceInstance, Uuid};

use crate::parse::{FieldError, Fields};

/// Bytes of a name: a label of DNS, or several.
const NAME_BYTES_MAX: usize = 253;

/// Bytes of a rendered text: templates may put a name in many times.
const RENDERED_BYTES_MAX: usize = 16 * 1024;

/// The only type of templates.
const NAME_PREFIX_MATCH: &str = "name_prefix_match";

/// A query, as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Definition {
    pub(super) name: String,
    /// The expression of a template; empty for none.
    pub(super) template: Option<String>,
    remove_empty_tags: bool,
    pub(super) service: ServiceQuery,
    pub(super) dns_ttl: String,
}

/// Which instances are meant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct ServiceQuery {
    pub(super) service: String,
    pub(super) near: String,
    pub(super) only_passing: bool,
    pub(super) ignore_check_ids: Vec<String>,
    pub(super) tags: Vec<String>,
    pub(super) node_meta: BTreeMap<String, String>,
    pub(super) service_meta: BTreeMap<String, String>,
    pub(super) connect: bool,
    /// As it was given: there is no other datacentre.
    failover: Map<String, Value>,
}

impl Definition {
    pub(super) fn parse(mut fields: Fields<'_>, id: Uuid) -> Result<Self, FieldError> {
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
            fields
                .context
                .notice(fields.path("Token"), "is not kept: a query is carried out with the rights of who asks");
        }
        let (template, remove_empty_tags) = match fields.object("Template")? {
            Some(template) => parse_template(template)?,
            None => (None, false),
        };
        let service = fields.object("Service")?.ok_or_else(|| fields.missing("Service", "must be given"))?;
        let service = parse_service(service, template.is_some())?;
        let mut dns_ttl = String::new();
        if let Some(mut dns) = fields.object("DNS")? {
            dns_ttl = dns.duration("TTL")?.map(crate::parse::duration_text).unwrap_or_default();
            dns.finish()?;
        }
        fields.ignored(&["CreateIndex", "ModifyIndex"]);
        fields.finish()?;
        Ok(Self { name, template, remove_empty_tags, service, dns_ttl })
    }

    pub(super) fn of_settings(settings: &Map<String, Value>) -> Option<Self> {
        serde_json::from_value(Value::Object(settings.clone())).ok()
    }

    pub(super) fn into_settings(self) -> Map<String, Value> {
        if let Ok(Value::Object(settings)) = serde_json::to_value(self) { settings } else { Map::new() }
    }

    /// Whether both would be meant by one name.
    pub(super) fn has_name_of(&self, other: &Self) -> bool {
        let named = !self.name.is_empty() || self.template.is_some();
        named && self.name == other.name && self.template.is_some() == other.template.is_some()
    }

    pub(super) fn form(&self) -> Value {
        fn or_null<T: Serialize>(value: &T, is_empty: bool) -> Value {
            if is_empty { Value::Null } else { json!(value) }
        }
        let service = &self.service;
        let template = self.template.as_ref();
        json!({
            "Name": self.name,
            "Session": "",
            "Token": "",
            "Template": {
                "Type": if template.is_some() { NAME_PREFIX_MATCH } else { "" },
                "Regexp": template.map_or("", String::as_str),
                "RemoveEmptyTags": self.remove_empty_tags,
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
            "DNS": {"TTL": self.dns_ttl},
        })
    }

    /// Whether an instance is meant, its health aside.
    pub(super) fn admits(&self, instance: &ServiceInstance, node: Option<&Node>) -> bool {
        let has = |wanted: &str| instance.tags.iter().any(|tag| tag.eq_ignore_ascii_case(wanted));
        let of_tags = self.service.tags.iter().all(|tag| match tag.strip_prefix('!') {
            Some(unwanted) => !has(unwanted),
            None => has(tag),
        });
        let within = |wanted: &BTreeMap<String, String>, there: &BTreeMap<String, String>| {
            wanted.iter().all(|(key, value)| there.get(key) == Some(value))
        };
        of_tags
            && within(&self.service.service_meta, &instance.meta)
            && node.is_some_and(|node| within(&self.service.node_meta, &node.meta))
    }

    /// The query that a template makes of `name`; a query that is none as it is.
    pub(super) fn rendered(self, name: &str) -> Result<Self, String> {
        let Some(template) = self.template.clone() else { return Ok(self) };
        let groups: Vec<String> = match template.as_str() {
            "" => Vec::new(),
            regexp => {
                let regexp = Regex::new(regexp).map_err(|error| format!("Template.Regexp: {error}"))?;
                let groups = regexp.captures(name);
                let text = |group: Option<regex::Match<'_>>| group.map_or("", |group| group.as_str()).to_owned();
                groups.map(|groups| groups.iter().map(text).collect()).unwrap_or_default()
            }
        };
        let names = Names { full: name, prefix: &self.name, groups: &groups };
        let service = serde_json::to_value(&self.service).map_err(|error| error.to_string())?;
        let service = names.fill_all(service)?;
        let mut service: ServiceQuery = serde_json::from_value(service).map_err(|error| error.to_string())?;
        if self.remove_empty_tags {
            service.tags.retain(|tag| !tag.is_empty());
        }
        Ok(Self { service, ..self })
    }
}

/// What a template puts in.
struct Names<'n> {
    full: &'n str,
    prefix: &'n str,
    groups: &'n [String],
}

impl Names<'_> {
    fn fill_all(&self, value: Value) -> Result<Value, String> {
        Ok(match value {
            Value::String(text) => Value::String(self.fill(&text)?),
            Value::Array(list) => list.into_iter().map(|item| self.fill_all(item)).collect::<Result<_, _>>()?,
            Value::Object(map) => {
                let filled = map.into_iter().map(|(key, item)| Ok((key, self.fill_all(item)?)));
                filled.collect::<Result<Map<_, _>, String>>()?.into()
            }
            plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => plain,
        })
    }

    fn fill(&self, text: &str) -> Result<String, String> {
        let (mut filled, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once("${") {
            let (expression, behind) = after.split_once('}').ok_or("a ${ has no } behind it")?;
            filled.push_str(before);
            filled.push_str(self.value_of(expression.trim())?);
            if filled.len() > RENDERED_BYTES_MAX {
                return Err(format!("a text of the template comes to more than {RENDERED_BYTES_MAX} bytes"));
            }
            rest = behind;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn value_of(&self, expression: &str) -> Result<&str, String> {
        match expression {
            "name.full" => Ok(self.full),
            "name.prefix" => Ok(self.prefix),
            "name.suffix" => Ok(self.full.strip_prefix(self.prefix).unwrap_or_default()),
            "agent.segment" => Ok(""),
            other => {
                let number = other.strip_prefix("match(").and_then(|rest| rest.strip_suffix(')'));
                let number: usize = number.and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
                    format!("${{{other}}} is none of name.full, name.prefix, name.suffix, match(N) and agent.segment")
                })?;
                Ok(self.groups.get(number).map_or("", String::as_str))
            }
        }
    }
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
