//! Config entries on which nothing acts, and fields of others on which nothing acts (ADR 0021).
//!
//! They are kept as they were given. What is looked at is that an entry is of Consul's form at the top, so that a misspelt
//! field is told of here and not when a release begins to act on it.

use serde_json::{Map, Value};
use starling_model::{KeptEntry, KeptKind, OpaqueSettings, ServiceName};

use super::field::{Field, FieldError, Fields, is_zero};

/// What a field holds.
#[derive(Debug, Clone, Copy)]
enum Holds {
    Text,
    Number,
    Object,
    List,
}

/// The fields of a kind.
fn fields_of(kind: KeptKind) -> &'static [(&'static str, Holds)] {
    match kind {
        KeptKind::ApiGateway => &[
            ("TLS", Holds::Object),
            ("Listeners", Holds::List),
            ("Defaults", Holds::Object),
            ("ExtAuthz", Holds::Object),
        ],
        KeptKind::ExportedServices => &[("Services", Holds::List)],
        KeptKind::FileSystemCertificate => &[("Certificate", Holds::Text), ("PrivateKey", Holds::Text)],
        KeptKind::HttpRoute => &[("Parents", Holds::List), ("Rules", Holds::List), ("Hostnames", Holds::List)],
        KeptKind::InlineCertificate => &[("Certificate", Holds::Text)],
        KeptKind::JwtProvider => &[
            ("JSONWebKeySet", Holds::Object),
            ("Issuer", Holds::Text),
            ("Audiences", Holds::List),
            ("Locations", Holds::List),
            ("Forwarding", Holds::Object),
            ("ClockSkewSeconds", Holds::Number),
            ("CacheConfig", Holds::Object),
        ],
        // No entry that is read here.
        KeptKind::Autopilot | KeptKind::PreparedQuery | KeptKind::TerminatingGateway => &[],
        KeptKind::TcpRoute => &[("Parents", Holds::List), ("Services", Holds::List)],
    }
}

pub(super) fn parse_kept_entry(fields: &mut Fields<'_>, kind: KeptKind) -> Result<KeptEntry, FieldError> {
    let name = fields.required_text("Name")?;
    let name = ServiceName::new(&name).map_err(|error| fields.error("Name", error))?;
    let mut settings = Map::new();
    for (name, holds) in fields_of(kind) {
        if let Some(field) = fields.take(name) {
            settings.insert((*name).to_owned(), held(field, *holds)?);
        }
    }
    if kind == KeptKind::InlineCertificate {
        drop_private_key(fields)?;
    }
    // What Consul's own controllers report there.
    fields.ignored(&["Status"]);
    let meta = fields.meta("Meta")?;
    if !meta.is_empty() {
        settings.insert("Meta".to_owned(), meta.into_iter().map(|(key, value)| (key, Value::from(value))).collect());
    }
    fields.context.notice(fields.path("Kind"), "entries of this kind are kept and have no effect in this release");
    Ok(KeptEntry { kind, name, settings: settings.into() })
}

/// Nothing would use it, and whoever reads config entries would read it.
fn drop_private_key(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    if fields.text("PrivateKey")?.is_some() {
        fields.context.notice(fields.path("PrivateKey"), "is not kept, since nothing uses it in this release");
    }
    Ok(())
}

fn held(field: Field<'_>, holds: Holds) -> Result<Value, FieldError> {
    match holds {
        Holds::Text => field.text().map(Value::from),
        Holds::Number => field.integer().map(Value::from),
        Holds::Object => field.opaque().map(Value::Object),
        Holds::List => Ok(field.list()?.into_iter().map(|item| item.value).collect()),
    }
}

/// Takes fields on which nothing acts and keeps those that say something, each remembered as a notice.
pub(super) fn keep(fields: &mut Fields<'_>, names: &[&str]) -> OpaqueSettings {
    let mut kept = OpaqueSettings::default();
    for name in names {
        if let Some(field) = fields.take(name).filter(|field| !is_zero(&field.value)) {
            field.context.notice(&field.path, "is kept and has no effect in this release");
            kept.insert((*name).to_owned(), field.value);
        }
    }
    kept
}
