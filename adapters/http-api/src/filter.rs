//! `?filter`: which elements of a list are answered (<https://developer.hashicorp.com/consul/api-docs/features/filtering>).
//!
//! A filter is judged on the elements as they are answered, so that whatever can be read can be filtered by. Which fields elements of a
//! list have is its [`Shape`]: one that no element can have is refused, and not taken for a field that happens to be missing.

use std::borrow::Cow;

use regex::{Regex, RegexBuilder};
use serde_json::Value;
use starling_model::{Expression, Operator, WrittenTest, parse_expression};

use crate::error::ApiError;

/// Bytes that a regular expression may take compiled.
const REGEX_BYTES_MAX: usize = 64 * 1024;

/// The fields of a list's elements: paths, of which `*` at the end stands for any key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape(&'static [(&'static str, &'static [&'static str])]);

const NODE_FIELDS: &[&str] =
    &["Address", "Datacenter", "ID", "Meta.*", "Node", "Partition", "PeerName", "TaggedAddresses.*"];
const MEMBER_FIELDS: &[&str] = &[
    "Addr",
    "DelegateCur",
    "DelegateMax",
    "DelegateMin",
    "Name",
    "Port",
    "ProtocolCur",
    "ProtocolMax",
    "ProtocolMin",
    "Status",
    "Tags.*",
];
const CHECK_FIELDS: &[&str] = &[
    "CheckID",
    "Definition.*",
    "ExposedPort",
    "Interval",
    "Name",
    "Namespace",
    "Node",
    "Notes",
    "Output",
    "Partition",
    "ServiceID",
    "ServiceName",
    "ServiceTags",
    "Status",
    "Timeout",
    "Type",
];
const SERVICE_FIELDS: &[&str] = &[
    "Address",
    "Connect.Native",
    "Datacenter",
    "EnableTagOverride",
    "ID",
    "Kind",
    "Meta.*",
    "Namespace",
    "Partition",
    "PeerName",
    "Port",
    "Proxy.*",
    "Service",
    "ServiceName",
    "SocketPath",
    "TaggedAddresses.*",
    "Tags",
    "Weights.Passing",
    "Weights.Warning",
];
const CATALOG_FIELDS: &[&str] = &[
    "Address",
    "Datacenter",
    "ID",
    "Node",
    "NodeMeta.*",
    "PeerName",
    "ServiceAddress",
    "ServiceConnect.Native",
    "ServiceEnableTagOverride",
    "ServiceID",
    "ServiceKind",
    "ServiceMeta.*",
    "ServiceName",
    "ServicePort",
    "ServiceProxy.*",
    "ServiceTaggedAddresses.*",
    "ServiceTags",
    "ServiceWeights.Passing",
    "ServiceWeights.Warning",
    "TaggedAddresses.*",
];
const INTENTION_FIELDS: &[&str] = &[
    "Action",
    "Description",
    "DestinationName",
    "DestinationNS",
    "ID",
    "Meta.*",
    "Permissions.*",
    "Precedence",
    "SourceName",
    "SourceNS",
    "SourceType",
];

impl Shape {
    /// Nodes.
    pub(crate) const NODES: Self = Self(&[("", NODE_FIELDS)]);
    /// Members.
    pub(crate) const MEMBERS: Self = Self(&[("", MEMBER_FIELDS)]);
    /// Checks.
    pub(crate) const CHECKS: Self = Self(&[("", CHECK_FIELDS)]);
    /// Services as an agent has them, or a node.
    pub(crate) const SERVICES: Self = Self(&[("", SERVICE_FIELDS)]);
    /// Instances with their nodes, in one object.
    pub(crate) const CATALOG: Self = Self(&[("", CATALOG_FIELDS)]);
    /// Instances with their nodes and checks.
    pub(crate) const HEALTH: Self =
        Self(&[("Node.", NODE_FIELDS), ("Service.", SERVICE_FIELDS), ("Checks.", CHECK_FIELDS)]);
    /// What is known of whoever logs in, as binding rules speak of it.
    pub(crate) const CLAIMS: Self = Self(&[("", &["value.*", "list.*"])]);
    /// Intentions.
    pub(crate) const INTENTIONS: Self = Self(&[("", INTENTION_FIELDS)]);

    /// Whether elements have a field at `path`, or fields below it.
    fn has(self, path: &[String]) -> bool {
        let path = path.join(".");
        self.0.iter().any(|(part, fields)| {
            let under = path.strip_prefix(part).map(|rest| fields.iter().any(|field| reaches(field, rest)));
            under.unwrap_or(false) || part.strip_suffix('.') == Some(path.as_str())
        })
    }
}

/// Whether a field of a shape is at `path`, below it, or around it by its star.
fn reaches(field: &str, path: &str) -> bool {
    let (own, is_open) = field.strip_suffix(".*").map_or((field, false), |own| (own, true));
    let below = |longer: &str, shorter: &str| longer.strip_prefix(shorter).is_some_and(|rest| rest.starts_with('.'));
    own == path || below(own, path) || (is_open && below(path, own))
}

/// A filter.
#[derive(Debug)]
pub(crate) struct ListFilter(Expression<Test>);

#[derive(Debug)]
struct Test {
    path: Vec<String>,
    compared: Compared,
}

#[derive(Debug)]
enum Compared {
    Equals(String),
    Contains(String),
    IsEmpty,
    Matches(Regex),
}

impl ListFilter {
    /// Reads a filter of elements of `shape`.
    pub(crate) fn parse(text: &str, shape: Shape) -> Result<Self, ApiError> {
        let test = |WrittenTest { selector, operator }: WrittenTest| -> Result<Test, Cow<'static, str>> {
            if !shape.has(&selector) {
                return Err(format!("a field that there is, not {:?}", selector.join(".")).into());
            }
            let compared = match operator {
                Operator::Equals(value) => Compared::Equals(value),
                Operator::Contains(value) => Compared::Contains(value),
                Operator::IsEmpty => Compared::IsEmpty,
                Operator::Matches(text) => {
                    let regex = RegexBuilder::new(&text).size_limit(REGEX_BYTES_MAX).build();
                    Compared::Matches(regex.map_err(|_| format!("a regular expression, not {text:?},"))?)
                }
            };
            Ok(Test { path: selector, compared })
        };
        let expression = parse_expression(text, test);
        Ok(Self(expression.map_err(|error| {
            ApiError::bad_request(format!("Failed to create boolean expression evaluator: {error}"))
        })?))
    }

    /// Whether an element is answered.
    pub(crate) fn admits(&self, element: &Value) -> bool {
        self.0.holds(&mut |test| test.holds(element))
    }

    /// Leaves out the elements that are not answered: of a list, or of an object the values.
    pub(crate) fn keep(&self, list: &mut Value) {
        match list {
            Value::Array(elements) => elements.retain(|element| self.admits(element)),
            Value::Object(elements) => elements.retain(|_, element| self.admits(element)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

impl Test {
    fn holds(&self, element: &Value) -> bool {
        let mut found = Vec::new();
        find(element, &self.path, &mut found);
        match &self.compared {
            Compared::Equals(wanted) => found.iter().any(|value| scalar(value).as_deref() == Some(wanted)),
            Compared::Contains(wanted) => found.iter().any(|value| contains(value, wanted)),
            Compared::IsEmpty => found.iter().all(|value| is_empty(value)),
            Compared::Matches(regex) => found.iter().any(|value| texts(value).any(|text| regex.is_match(text))),
        }
    }
}

/// The values at a path; in a list of objects those of each.
fn find<'v>(value: &'v Value, path: &[String], found: &mut Vec<&'v Value>) {
    let Some((first, rest)) = path.split_first() else {
        found.push(value);
        return;
    };
    match value {
        Value::Object(fields) => {
            if let Some(field) = fields.get(first) {
                find(field, rest, found);
            } else if let Some(whole) = (!rest.is_empty()).then(|| fields.get(&path.join("."))).flatten() {
                // A key of metadata may have points in it.
                found.push(whole);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| find(element, path, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn scalar(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Number(number) => Some(number.to_string().into()),
        Value::Bool(flag) => Some(if *flag { "true" } else { "false" }.into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn contains(value: &Value, wanted: &str) -> bool {
    match value {
        Value::String(text) => text.contains(wanted),
        Value::Array(elements) => elements.iter().any(|element| scalar(element).as_deref() == Some(wanted)),
        Value::Object(fields) => fields.contains_key(wanted),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    let elements = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    value.as_str().into_iter().chain(elements)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn instance() -> Value {
        json!({
            "Node": {"Node": "n1", "Meta": {"rack": "a", "a.b": "c"}},
            "Service": {"Service": "web", "Port": 80, "Tags": ["v1", "blue"], "Meta": {}, "Connect": {"Native": true}},
            "Checks": [{"Status": "passing", "ServiceTags": null}, {"Status": "warning", "ServiceTags": ["v1"]}],
        })
    }

    #[test]
    fn elements_are_told_apart_by_whatever_they_have() {
        for (filter, expected) in [
            ("Service.Service == web", true),
            ("Service.Port == 80 and Service.Port != 81", true),
            ("Service.Connect.Native == true", true),
            ("v1 in Service.Tags and Service.Tags contains blue", true),
            ("v2 in Service.Tags", false),
            ("Service.Tags matches `^v[0-9]$`", true),
            ("Service.Service not matches \"^a\"", true),
            ("eb in Service.Service", true),
            ("rack in Node.Meta and Node.Meta.rack == a", true),
            ("Node.Meta.a.b == c and Node.Meta[\"a.b\"] == c", true),
            ("\"/Node/Meta/a.b\" == c", true),
            ("Node.Meta.other == a", false),
            ("Node.Meta.other != a", true),
            ("Node.Meta.other is empty and Service.Meta is empty", true),
            ("Service.Tags is not empty", true),
            ("Checks.Status == warning", true),
            ("Checks.Status == critical", false),
            ("v1 in Checks.ServiceTags", true),
            ("Checks is not empty", true),
        ] {
            let read = ListFilter::parse(filter, Shape::HEALTH).expect(filter);
            assert_eq!(read.admits(&instance()), expected, "{filter}");
        }
    }

    #[test]
    fn a_field_that_no_element_has_is_refused_by_name() {
        for (filter, shape, reason) in [
            ("Service.Colour == red", Shape::HEALTH, "not \"Service.Colour\" at byte 0"),
            ("Colour == red", Shape::NODES, "not \"Colour\" at byte 0"),
            ("Node.Node == a", Shape::NODES, "not \"Node.Node\""),
            ("ServiceName.x == a", Shape::CATALOG, "not \"ServiceName.x\""),
            ("Name matches `(`", Shape::CHECKS, "a regular expression, not \"(\""),
            ("Name matches `(a{1000}){1000}`", Shape::CHECKS, "a regular expression"),
            ("Name = a", Shape::CHECKS, "expected =="),
        ] {
            let error = ListFilter::parse(filter, shape).expect_err(filter);
            assert!(error.status == 400 && error.text.contains(reason), "{filter}: {}", error.text);
        }
        for (filter, shape) in [
            ("Meta.x == a and ID == b", Shape::SERVICES),
            ("NodeMeta.x == a and ServiceWeights.Passing == 1", Shape::CATALOG),
            ("SourceName == a", Shape::INTENTIONS),
        ] {
            assert!(ListFilter::parse(filter, shape).is_ok(), "{filter}");
        }
    }

    #[test]
    fn lists_and_objects_keep_what_is_admitted() {
        let filter = ListFilter::parse("ID == b", Shape::SERVICES).expect("a filter");
        let (mut list, mut object) = (json!([{"ID": "a"}, {"ID": "b"}]), json!({"a": {"ID": "a"}, "b": {"ID": "b"}}));
        filter.keep(&mut list);
        filter.keep(&mut object);
        assert_eq!((list, object), (json!([{"ID": "b"}]), json!({"b": {"ID": "b"}})));
    }
}
