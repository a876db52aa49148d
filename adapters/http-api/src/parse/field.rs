//! Reading objects field by field: one reader for API bodies and files.
//!
//! Field names are compared without regard to case and underscores, so `EnableTagOverride` and `enable_tag_override` are
//! the same field. Every field must be taken before [`Fields::finish`]; one that nobody knows is an error with its path.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};
use starling_model::{Datacenter, NodeName, Port};

use super::duration::parse_duration_value;
use super::nearest::nearest;

/// Metadata pairs on one object, and bytes of a key and a value; Consul's limits.
const META_PAIRS_MAX: usize = 64;
/// Bytes of a metadata key; Consul's limit.
const META_KEY_BYTES_MAX: usize = 128;
/// Bytes of a metadata value; Consul's limit.
const META_VALUE_BYTES_MAX: usize = 512;
/// Bytes of an address; a DNS name has at most 253.
const ADDRESS_BYTES_MAX: usize = 255;

/// Why a field is refused: its path, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct FieldError {
    /// The path from the object given, such as `Proxy.Upstreams[0].LocalBindPort`.
    pub path: String,
    /// What is wrong with it.
    pub reason: String,
}

impl FieldError {
    /// An error at `path`.
    #[must_use]
    pub fn new(path: impl fmt::Display, reason: impl fmt::Display) -> Self {
        let path = path.to_string();
        let path = if path.is_empty() { "body".to_owned() } else { path };
        Self { path, reason: reason.to_string() }
    }

    /// An error at a field that nobody knows and whose name looks like that of `meant`.
    #[must_use]
    pub fn misspelt(path: impl fmt::Display, meant: &str) -> Self {
        Self::new(path, format!("unknown field; did you mean {meant}?"))
    }
}

/// Where the object comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// JSON from an API client.
    Api,
    /// A file, in which HCL's blocks make an object and a list of one object the same.
    File,
}

/// What parsing needs to know of the place it happens in, and what it wants to tell about harmless fields.
#[derive(Debug)]
pub struct Context {
    /// Where the object comes from.
    pub dialect: Dialect,
    /// The node on which services are registered.
    pub node: NodeName,
    /// The only datacentre.
    pub datacenter: Datacenter,
    notices: RefCell<Vec<FieldError>>,
}

impl Context {
    /// A context without notices.
    #[must_use]
    pub fn new(dialect: Dialect, node: NodeName, datacenter: Datacenter) -> Self {
        Self { dialect, node, datacenter, notices: RefCell::new(Vec::new()) }
    }

    /// Remembers that a field was read, is valid Consul, and has no effect in this release.
    pub fn notice(&self, path: impl fmt::Display, reason: &str) {
        self.notices.borrow_mut().push(FieldError::new(path, reason));
    }

    /// Takes what was remembered.
    pub fn take_notices(&self) -> Vec<FieldError> {
        std::mem::take(&mut self.notices.borrow_mut())
    }
}

/// The fields of one object that nobody has taken yet.
pub struct Fields<'c> {
    /// Where parsing happens.
    pub context: &'c Context,
    path: String,
    values: BTreeMap<String, (String, Value)>,
}

/// One field's value and its path.
pub struct Field<'c> {
    /// Where parsing happens.
    pub context: &'c Context,
    /// The path.
    pub path: String,
    /// The value; never null.
    pub value: Value,
}

fn normal(name: &str) -> String {
    name.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

impl<'c> Fields<'c> {
    /// The fields of the object `value` at `path`; a null is an object without fields.
    ///
    /// # Errors
    /// [`FieldError`] if it is no object, or names one field twice in different spellings.
    pub fn of(context: &'c Context, path: &str, value: Value) -> Result<Self, FieldError> {
        let map = match (value, context.dialect) {
            (Value::Null, _) => Map::new(),
            (Value::Object(map), _) => map,
            (Value::Array(mut list), Dialect::File) if list.len() == 1 && list[0].is_object() => {
                return Self::of(context, path, list.remove(0));
            }
            (other, _) => return Err(FieldError::new(path, format!("must be an object, not {}", kind_of(&other)))),
        };
        let mut values = BTreeMap::new();
        for (name, value) in map {
            let key = normal(&name);
            if let Some((other, _)) = values.get(&key) {
                return Err(FieldError::new(join(path, &name), format!("is given twice, also as {other}")));
            }
            values.insert(key, (name, value));
        }
        Ok(Self { context, path: path.to_owned(), values })
    }

    /// The path of a field of this object.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        join(&self.path, name)
    }

    /// An error at a field of this object.
    pub fn error(&self, name: &str, reason: impl fmt::Display) -> FieldError {
        FieldError::new(self.path(name), reason)
    }

    /// An error at a required field that is not there: at the field that looks like it if there is one, else at its own
    /// path with `reason`.
    pub fn missing(&self, name: &str, reason: &str) -> FieldError {
        match nearest(&normal(name), self.values.keys().map(String::as_str)) {
            Some(found) => FieldError::misspelt(self.path(&self.values[found].0), name),
            None => self.error(name, reason),
        }
    }

    /// Takes a field; `None` if it is absent or null. `name` is Consul's own spelling.
    pub fn take(&mut self, name: &str) -> Option<Field<'c>> {
        let (_, value) = self.values.remove(&normal(name))?;
        let path = self.path(name);
        (!value.is_null()).then_some(Field { context: self.context, path, value })
    }

    /// Takes the first of several fields that is there; giving two of them is refused.
    ///
    /// # Errors
    /// [`FieldError`] if two are there.
    pub fn take_any(&mut self, names: &[&str]) -> Result<Option<Field<'c>>, FieldError> {
        let mut found: Option<Field<'c>> = None;
        for name in names {
            let Some(field) = self.take(name) else { continue };
            match &found {
                Some(first) if first.value != field.value => {
                    return Err(FieldError::new(&field.path, format!("contradicts {}", first.path)));
                }
                Some(_) => {}
                None => found = Some(field),
            }
        }
        Ok(found)
    }

    /// A text; the empty text counts as absent, as it does in Consul.
    ///
    /// # Errors
    /// [`FieldError`] if it is no string.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, FieldError> {
        match self.take(name) {
            Some(field) => field.text().map(|text| (!text.is_empty()).then_some(text)),
            None => Ok(None),
        }
    }

    /// A text that must be given.
    ///
    /// # Errors
    /// [`FieldError`] if it is absent, empty or no string.
    pub fn required_text(&mut self, name: &str) -> Result<String, FieldError> {
        self.text(name)?.ok_or_else(|| self.missing(name, "must be given"))
    }

    /// A boolean, false if absent.
    ///
    /// # Errors
    /// [`FieldError`] if it is no boolean.
    pub fn flag(&mut self, name: &str) -> Result<bool, FieldError> {
        self.take(name).map_or(Ok(false), |field| field.flag())
    }

    /// A whole number.
    ///
    /// # Errors
    /// [`FieldError`] if it is none.
    pub fn integer(&mut self, name: &str) -> Result<Option<i64>, FieldError> {
        self.take(name).map(|field| field.integer()).transpose()
    }

    /// A whole number from 0 to `u32::MAX`; `None` if absent.
    ///
    /// # Errors
    /// [`FieldError`] if it is none.
    pub fn count(&mut self, name: &str) -> Result<Option<u32>, FieldError> {
        let Some(number) = self.integer(name)? else { return Ok(None) };
        u32::try_from(number).map(Some).map_err(|_| self.error(name, format!("{number} is outside 0 to {}", u32::MAX)))
    }

    /// A port, where 0 means none: Consul's own types write it there.
    ///
    /// # Errors
    /// [`FieldError`] if it is no port.
    pub fn port_or_zero(&mut self, name: &str) -> Result<Option<Port>, FieldError> {
        match self.integer(name)? {
            None | Some(0) => Ok(None),
            Some(number) => Port::try_from(number).map(Some).map_err(|error| self.error(name, error)),
        }
    }

    /// A port, where 0 is refused. `left_out` is what leaving it out stands for.
    ///
    /// # Errors
    /// [`FieldError`] if it is no port.
    pub fn port(&mut self, name: &str, left_out: &str) -> Result<Option<Port>, FieldError> {
        match self.integer(name)? {
            None => Ok(None),
            Some(0) => Err(self.error(name, format!("port 0 is outside 1 to 65535; leave it out {left_out}"))),
            Some(number) => Port::try_from(number).map(Some).map_err(|error| self.error(name, error)),
        }
    }

    /// A port that must be given.
    ///
    /// # Errors
    /// [`FieldError`] if it is absent or no port.
    pub fn required_port(&mut self, name: &str, absent: &str) -> Result<Port, FieldError> {
        let number = self.integer(name)?.ok_or_else(|| self.missing(name, absent))?;
        Port::try_from(number).map_err(|error| self.error(name, error))
    }

    /// A number from 0 to 2^64 - 1, which are more than a signed one holds; 0 if absent.
    ///
    /// # Errors
    /// [`FieldError`] if it is none.
    pub fn whole_number(&mut self, name: &str) -> Result<u64, FieldError> {
        let Some(field) = self.take(name) else { return Ok(0) };
        field.value.as_u64().ok_or_else(|| FieldError::new(&field.path, "must be a whole number, not below 0"))
    }

    /// A duration; zero counts as absent.
    ///
    /// # Errors
    /// [`FieldError`] if it is none.
    pub fn duration(&mut self, name: &str) -> Result<Option<std::time::Duration>, FieldError> {
        let Some(field) = self.take(name) else { return Ok(None) };
        if field.value == Value::String(String::new()) {
            return Ok(None);
        }
        match parse_duration_value(&field.value) {
            Some(duration) => Ok((!duration.is_zero()).then_some(duration)),
            None => Err(FieldError::new(
                &field.path,
                format!("invalid duration {}; write it like \"10s\" or \"1m30s\"", field.value),
            )),
        }
    }

    /// An IP or host name; the empty text counts as absent.
    ///
    /// # Errors
    /// [`FieldError`] if it is neither.
    pub fn address(&mut self, name: &str) -> Result<Option<String>, FieldError> {
        let Some(address) = self.text(name)? else { return Ok(None) };
        let is_any = address.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        if is_any {
            return Err(self.error(name, format!("{address} is no address that a peer can reach")));
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if address.len() > ADDRESS_BYTES_MAX || !address.chars().all(fits) {
            return Err(self.error(name, format!("{address:?} is neither an IP nor a host name")));
        }
        Ok(Some(address))
    }

    /// A list of texts, empty if absent.
    ///
    /// # Errors
    /// [`FieldError`] if it is no list of strings.
    pub fn texts(&mut self, name: &str) -> Result<Vec<String>, FieldError> {
        self.take(name).map_or(Ok(Vec::new()), |field| field.texts())
    }

    /// A list, empty if absent.
    ///
    /// # Errors
    /// [`FieldError`] if it is no list.
    pub fn list(&mut self, name: &str) -> Result<Vec<Field<'c>>, FieldError> {
        self.take(name).map_or(Ok(Vec::new()), Field::list)
    }

    /// An object; `None` if absent.
    ///
    /// # Errors
    /// [`FieldError`] if it is no object.
    pub fn object(&mut self, name: &str) -> Result<Option<Fields<'c>>, FieldError> {
        self.take(name).map(Field::fields).transpose()
    }

    /// An object kept as it is, empty if absent.
    ///
    /// # Errors
    /// [`FieldError`] if it is no object.
    pub fn opaque(&mut self, name: &str) -> Result<Map<String, Value>, FieldError> {
        let Some(field) = self.take(name) else { return Ok(Map::new()) };
        field.opaque()
    }

    /// An object of texts by name, empty if absent.
    ///
    /// # Errors
    /// [`FieldError`] if it is no object, or a value no string.
    pub fn text_map(&mut self, name: &str) -> Result<BTreeMap<String, String>, FieldError> {
        let Some(field) = self.take(name) else { return Ok(BTreeMap::new()) };
        let (context, path) = (field.context, field.path.clone());
        let mut texts = BTreeMap::new();
        for (key, value) in field.opaque()? {
            let entry = Field { context, path: join(&path, &key), value };
            texts.insert(key, entry.text()?);
        }
        Ok(texts)
    }

    /// Metadata under Consul's limits.
    ///
    /// # Errors
    /// [`FieldError`] if it is no object of strings or past a limit.
    pub fn meta(&mut self, name: &str) -> Result<BTreeMap<String, String>, FieldError> {
        let meta = self.text_map(name)?;
        if meta.len() > META_PAIRS_MAX {
            return Err(self.error(name, format!("has {} pairs; at most {META_PAIRS_MAX} are allowed", meta.len())));
        }
        for (key, value) in &meta {
            let path = join(&self.path(name), key);
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            if key.is_empty() || !key.chars().all(fits) {
                return Err(FieldError::new(path, "keys are made of letters, digits, '-' and '_'"));
            }
            if key.len() > META_KEY_BYTES_MAX {
                return Err(FieldError::new(path, format!("keys have at most {META_KEY_BYTES_MAX} bytes")));
            }
            if value.len() > META_VALUE_BYTES_MAX {
                return Err(FieldError::new(path, format!("values have at most {META_VALUE_BYTES_MAX} bytes")));
            }
        }
        Ok(meta)
    }

    /// Takes a field that would change traffic if it were honoured, and refuses it unless it has no effect.
    ///
    /// # Errors
    /// [`FieldError`] if it says anything.
    pub fn unsupported(&mut self, name: &str) -> Result<(), FieldError> {
        match self.take(name) {
            Some(field) if !is_zero(&field.value) => {
                Err(FieldError::new(field.path, "is not supported in this release; remove it"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Takes a field that may hold only one of `allowed` or nothing.
    ///
    /// # Errors
    /// [`FieldError`] if it holds anything else.
    pub fn only(&mut self, name: &str, allowed: &[&str]) -> Result<(), FieldError> {
        match self.text(name)? {
            Some(text) if !allowed.contains(&text.as_str()) => {
                Err(self.error(name, format!("{text:?} is not supported in this release; leave it out")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The same, and leaves it for who takes it.
    ///
    /// # Errors
    /// [`FieldError`] if it holds anything else.
    pub fn may_only(&mut self, name: &str, allowed: &[&str]) -> Result<(), FieldError> {
        let Some(entry) = self.values.get(&normal(name)).cloned() else { return Ok(()) };
        self.only(name, allowed)?;
        self.values.insert(normal(name), entry);
        Ok(())
    }

    /// Takes a field that is read and has no effect on traffic in this release; a value in it is remembered as a notice.
    pub fn without_effect(&mut self, name: &str) {
        if let Some(field) = self.take(name)
            && !is_zero(&field.value)
        {
            field.context.notice(field.path, "has no effect in this release");
        }
    }

    /// Takes fields that Consul itself fills in or ignores on a write.
    pub fn ignored(&mut self, names: &[&str]) {
        for name in names {
            self.take(name);
        }
    }

    /// Takes the fields of Consul Enterprise, which may name the defaults only.
    ///
    /// # Errors
    /// [`FieldError`] if they name anything else.
    pub fn tenancy(&mut self) -> Result<(), FieldError> {
        self.only("Namespace", &["default"])?;
        self.only("Partition", &["default"])
    }

    /// What nobody has taken yet and says something, by its names as they were given.
    pub fn left(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.values().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.as_str(), value))
    }

    /// Takes all that is left and says something; the names, as they were given.
    pub fn rest(&mut self) -> impl Iterator<Item = String> + use<> {
        let left = std::mem::take(&mut self.values).into_values();
        left.filter(|(_, value)| !value.is_null()).map(|(name, _)| name)
    }

    /// Ends the object; what is wrong with it as a whole can still be told after.
    ///
    /// # Errors
    /// [`FieldError`] if a field was given that nobody took.
    pub fn finish(&self) -> Result<(), FieldError> {
        match self.values.values().next() {
            Some((name, _)) => Err(FieldError::new(self.path(name), "unknown field")),
            None => Ok(()),
        }
    }
}

/// Whether a value is what Go's zero value looks like, at any depth.
#[must_use]
pub fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_zero),
    }
}

impl<'c> Field<'c> {
    fn wrong(&self, wanted: &str) -> FieldError {
        FieldError::new(&self.path, format!("must be {wanted}, not {}", kind_of(&self.value)))
    }

    /// The value as text.
    ///
    /// # Errors
    /// [`FieldError`] if it is no string.
    pub fn text(&self) -> Result<String, FieldError> {
        match &self.value {
            Value::String(text) => Ok(text.clone()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                Err(self.wrong("a string"))
            }
        }
    }

    /// The value as boolean.
    ///
    /// # Errors
    /// [`FieldError`] if it is none.
    pub fn flag(&self) -> Result<bool, FieldError> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    /// The value as whole number.
    ///
    /// # Errors
    /// [`FieldError`] if it is none.
    pub fn integer(&self) -> Result<i64, FieldError> {
        match &self.value {
            Value::Number(number) => number
                .as_i64()
                .ok_or_else(|| FieldError::new(&self.path, format!("{number} is no whole number in range"))),
            Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                Err(self.wrong("a number"))
            }
        }
    }

    /// The value as list; in a file an object stands for a list of one.
    ///
    /// # Errors
    /// [`FieldError`] if it is none.
    pub fn list(self) -> Result<Vec<Field<'c>>, FieldError> {
        let (context, path) = (self.context, self.path.clone());
        let list = match (self.value, context.dialect) {
            (Value::Array(list), _) => list,
            (Value::Object(map), Dialect::File) => vec![Value::Object(map)],
            (value, _) => return Err(Field { context, path, value }.wrong("a list")),
        };
        let item = |(index, value)| Field { context, path: format!("{path}[{index}]"), value };
        Ok(list.into_iter().enumerate().map(item).collect())
    }

    /// The value as list of texts.
    ///
    /// # Errors
    /// [`FieldError`] if it is none.
    pub fn texts(self) -> Result<Vec<String>, FieldError> {
        self.list()?.iter().map(Field::text).collect()
    }

    /// The value as object.
    ///
    /// # Errors
    /// [`FieldError`] if it is none.
    pub fn fields(self) -> Result<Fields<'c>, FieldError> {
        Fields::of(self.context, &self.path, self.value)
    }

    /// The value as an object kept as it is.
    ///
    /// # Errors
    /// [`FieldError`] if it is none.
    pub fn opaque(self) -> Result<Map<String, Value>, FieldError> {
        let (context, path) = (self.context, self.path);
        match (self.value, context.dialect) {
            (Value::Object(map), _) => Ok(map),
            (Value::Array(mut list), Dialect::File) if list.len() == 1 && list[0].is_object() => {
                Field { context, path, value: list.remove(0) }.opaque()
            }
            (value, _) => Err(Field { context, path, value }.wrong("an object")),
        }
    }
}

/// Reads JSON from an API client.
///
/// # Errors
/// [`FieldError`] with the path `body` if the bytes are no JSON.
pub fn parse_json(bytes: &[u8]) -> Result<Value, FieldError> {
    serde_json::from_slice(bytes).map_err(|error| FieldError::new("body", format!("is no JSON: {error}")))
}
