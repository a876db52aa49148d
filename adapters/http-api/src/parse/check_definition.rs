//! How a check in the catalog is run by whoever registered it: read, kept and given back, and run by nobody here.

use serde_json::{Map, Value};
use starling_model::OpaqueSettings;

use super::duration::duration_text;
use super::field::{FieldError, Fields};

/// What a check asks, by the name of its field, and Consul's word for a check that does.
const KINDS: [(&str, &str); 8] = [
    ("HTTP", "http"),
    ("TCP", "tcp"),
    ("UDP", "udp"),
    ("GRPC", "grpc"),
    ("H2PING", "h2ping"),
    ("OSService", "os_service"),
    ("AliasService", "alias"),
    ("AliasNode", "alias"),
];

const TEXTS: [&str; 5] = ["Method", "Body", "TLSServerName", "DockerContainerID", "Shell"];
const FLAGS: [&str; 5] = ["TLSSkipVerify", "TCPUseTLS", "GRPCUseTLS", "H2PingUseTLS", "DisableRedirects"];
const DURATIONS: [&str; 4] = ["Interval", "Timeout", "DeregisterCriticalServiceAfter", "TTL"];

/// Reads a definition; with it Consul's word for the kind of check, empty if it says none.
pub(super) fn parse_definition(fields: Option<Fields<'_>>) -> Result<(OpaqueSettings, &'static str), FieldError> {
    let mut definition = Map::new();
    let Some(mut fields) = fields else { return Ok((definition.into(), "")) };
    let mut kind = "";
    for (name, word) in KINDS {
        if let Some(text) = fields.text(name)? {
            definition.insert(name.to_owned(), text.into());
            kind = if kind.is_empty() { word } else { kind };
        }
    }
    for name in TEXTS {
        if let Some(text) = fields.text(name)? {
            definition.insert(name.to_owned(), text.into());
        }
    }
    for name in FLAGS {
        if fields.flag(name)? {
            definition.insert(name.to_owned(), true.into());
        }
    }
    for name in DURATIONS {
        if let Some(duration) = fields.duration(name)? {
            definition.insert(name.to_owned(), duration_text(duration).into());
        }
    }
    let args = fields.take_any(&["ScriptArgs", "Args"])?.map_or(Ok(Vec::new()), |field| field.texts())?;
    if !args.is_empty() {
        definition.insert("ScriptArgs".to_owned(), args.into());
    }
    let header = fields.opaque("Header")?;
    if !header.is_empty() {
        definition.insert("Header".to_owned(), Value::Object(header));
    }
    fields.finish()?;
    if kind.is_empty() && definition.contains_key("TTL") {
        kind = "ttl";
    }
    Ok((definition.into(), kind))
}
