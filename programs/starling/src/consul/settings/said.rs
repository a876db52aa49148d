//! Settings as they are written, whatever comes of them: by these it is told which were changed since the start.

use std::collections::BTreeMap;

use serde_json::Value;
use starling_http_api::parse::Fields;

/// What is written, by the paths of the settings; of a list, what all files say together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in super::super) struct Said(BTreeMap<String, Value>);

impl Said {
    /// Adds what a file says.
    pub(super) fn add(&mut self, fields: &Fields<'_>) {
        for (name, value) in fields.left() {
            self.put(name.to_owned(), value);
        }
    }

    fn put(&mut self, path: String, value: &Value) {
        match (value, self.0.get_mut(&path)) {
            (Value::Object(inner), _) => {
                inner.iter().for_each(|(name, value)| self.put(format!("{path}.{name}"), value))
            }
            // A block of HCL is a list of one.
            (Value::Array(list), _) if matches!(list.as_slice(), [Value::Object(_)]) => self.put(path, &list[0]),
            (Value::Array(more), Some(Value::Array(list))) => list.extend(more.iter().cloned()),
            (value, _) => drop(self.0.insert(path, value.clone())),
        }
    }

    /// The settings that say something else than they did, but for those that have no effect.
    pub(in super::super) fn changed<'i>(
        &self,
        before: &Self,
        ignored: impl Iterator<Item = &'i String>,
    ) -> Vec<String> {
        let ignored: Vec<_> = ignored.map(|name| name.split(' ').next().unwrap_or_default()).collect();
        let counts = |path: &str| {
            let is_of =
                |name: &&str| path.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            !ignored.iter().any(is_of)
        };
        let paths: std::collections::BTreeSet<_> = self.0.keys().chain(before.0.keys()).collect();
        let changed = paths.into_iter().filter(|path| self.0.get(*path) != before.0.get(*path) && counts(path));
        changed.cloned().collect()
    }
}
