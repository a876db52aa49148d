//! Definition files on their way to the API: HCL or JSON as users have them becomes the JSON that the API takes.
//!
//! What the fields mean is the API's to judge. Here, only the two liberties of files are taken out: an object where the
//! API wants a list of one, and a list of one where it wants an object, both of which HCL's blocks make.

use std::io::Read;

use serde_json::{Map, Value};
use starling_http_api::parse::file::FILE_BYTES_MAX;
use starling_http_api::parse::hcl::parse_hcl;
use starling_http_api::parse::{FileFormat, parse_json};

use crate::outcome::usage;

/// The name that stands for standard input.
pub(crate) const STANDARD_INPUT: &str = "-";

/// Fields that hold a list of objects, in lower case without underscores.
const LISTS: &[&str] = &["checks", "services", "upstreams", "sources", "permissions", "header", "headers"];

/// Fields that hold one object.
const OBJECTS: &[&str] = &[
    "accesslogs",
    "check",
    "connect",
    "definition",
    "expose",
    "http",
    "meshgateway",
    "proxy",
    "service",
    "sidecarservice",
    "taggedaddresses",
    "transparentproxy",
    "weights",
];

/// Fields whose content is the user's own, which is passed on untouched.
const OPAQUE: &[&str] = &["config", "meta"];

/// A file that has been read but not understood.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    /// How to call it in messages.
    pub(crate) name: String,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}

impl Document {
    /// Reads a file, or standard input for `-`.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] if it cannot be read or is too large.
    pub(crate) fn read(file: &str) -> anyhow::Result<Self> {
        let name = if file == STANDARD_INPUT { "standard input" } else { file }.to_owned();
        let cannot = |error: std::io::Error| usage(format!("cannot read {name}: {error}"));
        let mut bytes = Vec::new();
        let limit = FILE_BYTES_MAX as u64 + 1;
        if file == STANDARD_INPUT {
            std::io::stdin().lock().take(limit).read_to_end(&mut bytes).map_err(cannot)?;
        } else {
            std::fs::File::open(file).map_err(cannot)?.take(limit).read_to_end(&mut bytes).map_err(cannot)?;
        }
        if bytes.len() > FILE_BYTES_MAX {
            return Err(usage(format!("{name} is larger than {FILE_BYTES_MAX} bytes")));
        }
        Ok(Self { name, bytes })
    }

    /// Its content as the API takes it.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] with the line, if it is neither JSON nor HCL, or holds no object.
    pub(crate) fn value(&self) -> anyhow::Result<Value> {
        let value = self.parsed()?;
        if !value.is_object() {
            return Err(self.wrong("must hold an object"));
        }
        Ok(value)
    }

    /// The objects in it, one or a list, as the API takes them.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] with the line, if it is neither JSON nor HCL, or holds something else.
    pub(crate) fn values(&self) -> anyhow::Result<Vec<Value>> {
        let values = listed(self.parsed()?);
        if !values.iter().all(Value::is_object) {
            return Err(self.wrong("must hold objects"));
        }
        Ok(values)
    }

    fn wrong(&self, reason: impl std::fmt::Display) -> anyhow::Error {
        usage(format!("{}: {reason}", self.name))
    }

    fn parsed(&self) -> anyhow::Result<Value> {
        let mut value = match FileFormat::guess(&self.name, &self.bytes) {
            FileFormat::Json => parse_json(&self.bytes).map_err(|error| self.wrong(error.reason))?,
            FileFormat::Hcl => {
                let text = std::str::from_utf8(&self.bytes).map_err(|_| self.wrong("is no UTF-8 text"))?;
                parse_hcl(text).map_err(|error| self.wrong(error))?
            }
        };
        settle(&mut value);
        Ok(value)
    }
}

/// The field of an object, whichever way it is spelled.
pub(crate) fn field<'v>(object: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    object.iter().find(|(key, _)| plain(key) == name).map(|(_, value)| value)
}

/// The items of a list, or the one thing that is no list.
pub(crate) fn listed(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        one @ (Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => vec![one],
    }
}

/// A field's name without case and underscores: the API compares names in this form.
pub(crate) fn plain(name: &str) -> String {
    name.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

/// The values of a flag that takes `KEY=VALUE` and may be given again.
///
/// # Errors
/// [`crate::outcome::UsageError`] with the flag, if one is of another form.
pub(crate) fn pairs(flag: &str, texts: &[String]) -> anyhow::Result<Map<String, Value>> {
    let pair = |text: &String| match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.into())),
        None => Err(usage(format!("{flag} {text:?} is not of the form KEY=VALUE"))),
    };
    texts.iter().map(pair).collect()
}

fn settle(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                let name = plain(name);
                if OPAQUE.contains(&name.as_str()) {
                    unwrap_block(value);
                    continue;
                }
                if OBJECTS.contains(&name.as_str()) {
                    unwrap_block(value);
                } else if LISTS.contains(&name.as_str()) && holds_fields(&name, value) {
                    *value = Value::Array(vec![value.take()]);
                }
                settle(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Whether it is one item of the list. A check's `header` is a map from names to lists of texts, and stays one.
fn holds_fields(name: &str, value: &Value) -> bool {
    let Value::Object(fields) = value else { return false };
    name != "header" || field(fields, "name").is_some_and(Value::is_string)
}

fn unwrap_block(value: &mut Value) {
    if let Value::Array(items) = value
        && items.len() == 1
        && items[0].is_object()
    {
        *value = items.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(name: &str, text: &str) -> anyhow::Result<Value> {
        Document { name: name.to_owned(), bytes: text.as_bytes().to_vec() }.value()
    }

    #[test]
    fn blocks_become_what_the_api_wants() {
        let text = r#"
            service {
              name = "web"
              checks { http = "http://localhost/", header = { "x-a" = ["1"] } }
              connect { sidecar_service { proxy {
                upstreams { destination_name = "api", local_bind_port = 9000 }
                config { a { b = 1 } }
              } } }
            }"#;
        let expected = json!({"service": {
            "name": "web",
            "checks": [{"http": "http://localhost/", "header": {"x-a": ["1"]}}],
            "connect": {"sidecar_service": {"proxy": {
                "upstreams": [{"destination_name": "api", "local_bind_port": 9000}],
                "config": {"a": {"b": 1}},
            }}},
        }});
        assert_eq!(value("web.hcl", text).unwrap(), expected);
    }

    #[test]
    fn lists_of_one_become_objects_and_others_stay() {
        let text = r#"{"service": [{"Name": "web", "Connect": [{"SidecarService": [{}]}], "Tags": ["a"]}]}"#;
        let expected = json!({"service": {"Name": "web", "Connect": {"SidecarService": {}}, "Tags": ["a"]}});
        assert_eq!(value("-", text).unwrap(), expected);
        let two = r#"{"service": [{"Name": "a"}, {"Name": "b"}]}"#;
        assert_eq!(value("-", two).unwrap()["service"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_file_that_is_neither_is_refused_with_its_name_and_line() {
        let error = value("web.hcl", "service {\n  name = \n}").expect_err("HCL").to_string();
        assert!(error.starts_with("web.hcl: line "), "{error}");
        let error = value("web.json", "{").expect_err("JSON").to_string();
        assert!(error.starts_with("web.json: "), "{error}");
        assert_eq!(value("l.json", "[]").expect_err("a list").to_string(), "l.json: must hold an object");
    }
}
