//! Reads the opaque settings that users give to proxies and upstreams; what cannot be used is told and left out.

use std::time::Duration;

use serde_json::{Map, Value};
use starling_model::{InstanceKey, Protocol, ServiceName};

use crate::diagnostic::{Diagnostic, Object, Severity};

/// Milliseconds that any timeout may have: a day. More is taken for a mistake of unit.
pub(crate) const TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1_000;

/// One map of settings, with the place it was written at.
pub(crate) struct Opaque<'a> {
    map: &'a Map<String, Value>,
    object: Object,
    /// Path of the map inside the object.
    path: String,
    pub diagnostics: Vec<Diagnostic>,
}

impl<'a> Opaque<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>, object: Object, path: impl Into<String>) -> Self {
        Self { map, object, path: path.into(), diagnostics: Vec::new() }
    }

    /// A time in milliseconds; 0 is a value like any other.
    pub(crate) fn milliseconds(&mut self, key: &str) -> Option<Duration> {
        self.number(key, TIMEOUT_MS_MAX).map(Duration::from_millis)
    }

    /// A time in nanoseconds, as durations in settings are kept; 0 is none.
    pub(crate) fn nanoseconds(&mut self, key: &str) -> Option<Duration> {
        self.number(key, TIMEOUT_MS_MAX * 1_000_000).map(Duration::from_nanos).filter(|time| !time.is_zero())
    }

    /// A count that fits 32 bits.
    pub(crate) fn count(&mut self, key: &str) -> Option<u32> {
        self.number(key, u64::from(u32::MAX)).and_then(|count| u32::try_from(count).ok())
    }

    /// A port.
    pub(crate) fn port(&mut self, key: &str) -> Option<u16> {
        let port = self.number(key, u64::from(u16::MAX))?;
        if port == 0 {
            self.refuse(key, "a port is 1 to 65535");
        }
        u16::try_from(port).ok().filter(|port| *port != 0)
    }

    /// A value as text, whatever its type.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        let value = self.map.get(key)?;
        Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }

    /// The settings nested under `key`.
    pub(crate) fn nested(&mut self, key: &str) -> Option<Opaque<'a>> {
        let map = self.map;
        let value = map.get(key)?;
        let nested = value.as_object();
        if nested.is_none() {
            self.refuse(key, &format!("{value} is no map"));
        }
        nested.map(|nested| Opaque::new(nested, self.object.clone(), format!("{}.{key}", self.path)))
    }

    /// Consul's users write numbers as numbers, as whole floats (HCL) or as text.
    fn number(&mut self, key: &str, max: u64) -> Option<u64> {
        let value = self.map.get(key)?;
        let number = match value {
            Value::Number(number) => number.as_u64().or_else(|| whole(number.as_f64()?)),
            Value::String(text) => text.parse().ok(),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        };
        let number = number.filter(|number| *number <= max);
        if number.is_none() {
            self.refuse(key, &format!("{value} is no whole number from 0 to {max}"));
        }
        number
    }

    fn refuse(&mut self, key: &str, reason: &str) {
        self.diagnostics.push(Diagnostic {
            object: self.object.clone(),
            field: format!("{}.{key}", self.path),
            reason: format!("{reason}, so it is not used"),
            fix: "correct the value".to_owned(),
            severity: Severity::Warning,
        });
    }
}

/// Tells of a protocol written where it cannot count.
pub(crate) fn misplaced_protocol(
    proxy: &InstanceKey,
    path: &str,
    config: &Map<String, Value>,
    service: &ServiceName,
    spoken: Protocol,
) -> Option<Diagnostic> {
    let written = config.get("protocol")?.as_str()?;
    (written != spoken.as_str()).then(|| Diagnostic {
        object: Object::Instance(proxy.clone()),
        field: format!("{path}.protocol"),
        reason: format!("{service} speaks {} for every caller, so {written:?} is not used", spoken.as_str()),
        fix: format!("give {service} a service-defaults entry with protocol {written}"),
        severity: Severity::Warning,
    })
}

fn whole(number: f64) -> Option<u64> {
    /// Whole numbers up to here are exact in a float.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be whole and in range")]
    let whole = |number: f64| number as u64;
    (number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number)).then(|| whole(number))
}
/// What a sidecar was registered with and nothing acts upon.
pub(crate) fn kept_only(proxy: &InstanceKey, sidecar: &starling_model::SidecarProxy) -> Vec<Diagnostic> {
    let told = |field: &str, reason: &str, fix: &str| Diagnostic {
        object: Object::Instance(proxy.clone()),
        field: format!("Proxy.{field}"),
        reason: reason.to_owned(),
        fix: fix.to_owned(),
        severity: Severity::Warning,
    };
    let mut diagnostics = Vec::new();
    if sidecar.kept.contains_key("Expose") {
        let fix = "have the application answer them on a port beside the sidecar's";
        diagnostics.push(told("Expose", "paths are not exposed past the sidecar in this release", fix));
    }
    if sidecar.kept.contains_key("Upstreams") {
        let reason = "an upstream that is a prepared query has no listener in this release";
        diagnostics.push(told("Upstreams", reason, "name the service that is to be called"));
    }
    diagnostics
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_kept_and_not_acted_upon_is_told() {
        let proxy = InstanceKey { node: "n1".parse().expect("a name"), id: "web".parse().expect("an id") };
        let told = |kept: Value| {
            let sidecar = serde_json::from_value(json!({"destination": "web", "kept": kept})).expect("a sidecar");
            kept_only(&proxy, &sidecar).into_iter().map(|it| it.field).collect::<Vec<_>>()
        };
        assert!(told(json!({})).is_empty());
        assert_eq!(told(json!({"Expose": {"Checks": true}})), ["Proxy.Expose"]);
        assert_eq!(told(json!({"Upstreams": [{}]})), ["Proxy.Upstreams"]);
    }
}
