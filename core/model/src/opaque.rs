//! Settings that users give to proxies and that the mesh keeps as given.

use std::ops::Deref;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

/// Settings by name, as given: read as a [`Map`], stored as one.
///
/// There are two for each sidecar of a mesh, and nearly all are empty; an empty one takes a pointer's room and no more.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OpaqueSettings(Option<Box<Map<String, Value>>>);

impl OpaqueSettings {
    /// Writes one, over an older one of the same name.
    pub fn insert(&mut self, name: String, value: Value) {
        self.0.get_or_insert_default().insert(name, value);
    }

    /// Writes all of `other`, over older ones of the same names.
    pub fn extend(&mut self, other: Self) {
        for (name, value) in other.0.into_iter().flat_map(|settings| *settings) {
            self.insert(name, value);
        }
    }
}

impl Deref for OpaqueSettings {
    type Target = Map<String, Value>;
    fn deref(&self) -> &Self::Target {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl From<Map<String, Value>> for OpaqueSettings {
    fn from(settings: Map<String, Value>) -> Self {
        Self((!settings.is_empty()).then(|| Box::new(settings)))
    }
}

impl From<OpaqueSettings> for Value {
    fn from(settings: OpaqueSettings) -> Self {
        Self::Object(settings.0.map_or_else(Map::new, |settings| *settings))
    }
}

impl Serialize for OpaqueSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for OpaqueSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Map::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_settings_take_a_pointer_and_are_stored_as_an_empty_map() {
        assert_eq!(size_of::<OpaqueSettings>(), size_of::<usize>());
        let none: OpaqueSettings = serde_json::from_str("{}").expect("settings");
        assert_eq!((&none, none.0.is_none()), (&OpaqueSettings::default(), true));
        assert_eq!(serde_json::to_string(&none).expect("settings"), "{}");
        assert_eq!(Value::from(none), serde_json::json!({}));
    }

    #[test]
    fn settings_are_kept_as_given_in_their_order() {
        let text = r#"{"protocol":"http","connect_timeout_ms":500,"a":null}"#;
        let given: OpaqueSettings = serde_json::from_str(text).expect("settings");
        assert_eq!(given["connect_timeout_ms"], 500);
        assert_eq!(serde_json::to_string(&given).expect("settings"), text);
        let mut written = OpaqueSettings::default();
        written.insert("protocol".to_owned(), "tcp".into());
        written.insert("protocol".to_owned(), "http".into());
        assert_eq!(Value::from(written), serde_json::json!({ "protocol": "http" }));
        assert!(serde_json::from_str::<OpaqueSettings>("[]").is_err());
    }
}
