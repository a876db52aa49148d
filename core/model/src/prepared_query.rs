//! Prepared queries: which instances are meant by a name, and what a template makes of one.
//!
//! Shapes as in Consul 1.22 (developer.hashicorp.com/consul/api-docs/query).

use std::collections::BTreeMap;

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::check::CheckStatus;
use crate::node::Node;
use crate::service::ServiceInstance;

/// Bytes of a rendered text: templates may put a name in many times.
const RENDERED_BYTES_MAX: usize = 16 * 1024;

/// A query, as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreparedQuery {
    /// Its name, or what names of a template begin with; may be empty.
    pub name: String,
    /// The expression of a template, which may be empty; `None` for a query that is none.
    pub template: Option<String>,
    /// Whether tags that a template leaves empty are left out.
    pub remove_empty_tags: bool,
    /// Which instances are meant.
    pub service: ServiceQuery,
    /// How long answers of DNS may be cached, as it was written; empty for not at all.
    pub dns_ttl: String,
    /// The same in seconds.
    #[serde(default)]
    pub dns_ttl_s: u32,
}

/// Which instances are meant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ServiceQuery {
    /// Their service, or a template of its name.
    pub service: String,
    /// The node next to which they are; empty for none.
    pub near: String,
    /// Whether one that warns is left out.
    pub only_passing: bool,
    /// Checks that do not count.
    pub ignore_check_ids: Vec<String>,
    /// Tags that they have, or, behind `!`, have not.
    pub tags: Vec<String>,
    /// Metadata of their nodes.
    pub node_meta: BTreeMap<String, String>,
    /// Their own.
    pub service_meta: BTreeMap<String, String>,
    /// Whether what accepts mesh connections for the service is meant.
    pub connect: bool,
    /// As it was given: there is no other datacentre.
    pub failover: Map<String, Value>,
}

impl PreparedQuery {
    /// Reads it as it is kept.
    #[must_use]
    pub fn of_settings(settings: &Map<String, Value>) -> Option<Self> {
        serde_json::from_value(Value::Object(settings.clone())).ok()
    }

    /// The name of one that is kept, and whether it is a template; nothing else is read.
    #[must_use]
    pub fn name_in(settings: &Map<String, Value>) -> (&str, bool) {
        let name = settings.get("name").and_then(Value::as_str).unwrap_or_default();
        (name, settings.get("template").is_some_and(|template| !template.is_null()))
    }

    /// As it is kept.
    #[must_use]
    pub fn into_settings(self) -> Map<String, Value> {
        if let Ok(Value::Object(settings)) = serde_json::to_value(self) { settings } else { Map::new() }
    }

    /// The worst health with which an instance is still meant.
    #[must_use]
    pub fn worst_served(&self) -> CheckStatus {
        if self.service.only_passing { CheckStatus::Passing } else { CheckStatus::Warning }
    }

    /// Whether both would be meant by one name.
    #[must_use]
    pub fn has_name_of(&self, other: &Self) -> bool {
        let named = !self.name.is_empty() || self.template.is_some();
        named && self.name == other.name && self.template.is_some() == other.template.is_some()
    }

    /// Whether an instance is meant, its health aside.
    #[must_use]
    pub fn admits(&self, instance: &ServiceInstance, node: Option<&Node>) -> bool {
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
    ///
    /// # Errors
    /// What is wrong with the template, in words.
    pub fn rendered(self, name: &str) -> Result<Self, String> {
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
            // DNS knows no upper case.
            "name.suffix" => Ok(match self.full.split_at_checked(self.prefix.len()) {
                Some((beginning, rest)) if beginning.eq_ignore_ascii_case(self.prefix) => rest,
                Some(_) | None => "",
            }),
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
