//! Intentions: the sources of a `service-intentions` entry, and single intentions of the intention endpoints.

use std::collections::BTreeSet;

use starling_model::{
    Action, HeaderMatch, HeaderTest, IntentionPermission, IntentionSubject, PathMatch, SourceDecision, SourceIntention,
    Uuid,
};

use starling_traffic::path::can_match;

use super::field::{FieldError, Fields, is_zero};

/// Bytes of a description; Consul's limit.
const DESCRIPTION_BYTES_MAX: usize = 512;

/// A single intention, as the legacy endpoint takes it: the names stand in the body.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedIntention {
    /// Who is called.
    pub destination: IntentionSubject,
    /// Who calls, and what is decided.
    pub intention: SourceIntention,
}

/// Reads the sources of an entry; they come out in order of precedence.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_sources(
    fields: &mut Fields<'_>,
    destination: &IntentionSubject,
) -> Result<Vec<SourceIntention>, FieldError> {
    let mut sources: Vec<SourceIntention> = Vec::new();
    for item in fields.list("Sources")? {
        let path = item.path.clone();
        let source = parse_source(item.fields()?, destination)?;
        if sources.iter().any(|other| other.source == source.source) {
            return Err(FieldError::new(
                format!("{path}.Name"),
                format!("{:?} is given twice", source.source.as_str()),
            ));
        }
        sources.push(source);
    }
    if sources.is_empty() {
        return Err(fields.missing("Sources", "at least one source must be given"));
    }
    sources.sort_by_key(|source| std::cmp::Reverse(source.precedence(destination)));
    Ok(sources)
}

fn parse_source(mut fields: Fields<'_>, destination: &IntentionSubject) -> Result<SourceIntention, FieldError> {
    let source = required_subject(&mut fields, "Name")?;
    fields.only("Type", &["consul"])?;
    for name in ["LegacyMeta", "Peer", "SamenessGroup"] {
        fields.unsupported(name)?;
    }
    let id = parse_id(&mut fields, "LegacyID")?;
    fields.ignored(&["Precedence", "LegacyCreateTime", "LegacyUpdateTime"]);
    fields.tenancy()?;
    let mut intention = parse_decision(&mut fields, source, destination)?;
    intention.id = id;
    fields.finish()?;
    Ok(intention)
}

fn parse_id(fields: &mut Fields<'_>, name: &str) -> Result<Option<Uuid>, FieldError> {
    let Some(text) = fields.text(name)? else { return Ok(None) };
    text.parse().map(Some).map_err(|error| fields.error(name, error))
}

fn required_subject(fields: &mut Fields<'_>, name: &str) -> Result<IntentionSubject, FieldError> {
    let text = fields.required_text(name)?;
    parse_subject(&text).map_err(|reason| fields.error(name, reason))
}

/// Reads one side of an intention as endpoints and commands write it: `NAME`, `default/NAME` or `default/default/NAME`.
///
/// # Errors
/// The reason, if it is none of these.
pub fn parse_subject(text: &str) -> Result<IntentionSubject, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] | ["default", name] | ["default", "default", name] => *name,
        _ => return Err(format!("{text:?} names a namespace; this release has only \"default\"")),
    };
    if name != "*" && name.contains('*') {
        return Err("the wildcard * stands alone or not at all".to_owned());
    }
    name.parse().map_err(|error: starling_model::NameError| error.to_string())
}

/// Takes `Action` or `Permissions`, and `Description`.
fn parse_decision(
    fields: &mut Fields<'_>,
    source: IntentionSubject,
    destination: &IntentionSubject,
) -> Result<SourceIntention, FieldError> {
    let action = parse_action(fields)?;
    let permissions = fields.list("Permissions")?;
    let decision = match (action, permissions.is_empty()) {
        (Some(action), true) => SourceDecision::Connection(action),
        (Some(_), false) => {
            return Err(fields.error("Action", "must be left out where Permissions are given"));
        }
        (None, true) => return Err(fields.missing("Action", "must be \"allow\" or \"deny\"")),
        (None, false) if *destination == IntentionSubject::Any => {
            return Err(fields.error("Permissions", "must not be given for the destination *"));
        }
        (None, false) => {
            let parsed: Result<_, FieldError> =
                permissions.into_iter().map(|item| parse_permission(item.fields()?)).collect();
            SourceDecision::Requests(parsed?)
        }
    };
    let description = fields.text("Description")?.unwrap_or_default();
    if description.len() > DESCRIPTION_BYTES_MAX {
        return Err(fields.error("Description", format!("has more than {DESCRIPTION_BYTES_MAX} bytes")));
    }
    Ok(SourceIntention { source, decision, description, id: None })
}

fn parse_action(fields: &mut Fields<'_>) -> Result<Option<Action>, FieldError> {
    match fields.text("Action")?.as_deref() {
        None => Ok(None),
        Some("allow") => Ok(Some(Action::Allow)),
        Some("deny") => Ok(Some(Action::Deny)),
        Some(other) => Err(fields.error("Action", format!("{other:?} is neither \"allow\" nor \"deny\""))),
    }
}

fn parse_permission(mut fields: Fields<'_>) -> Result<IntentionPermission, FieldError> {
    let action = parse_action(&mut fields)?;
    let action = action.ok_or_else(|| fields.missing("Action", "must be \"allow\" or \"deny\""))?;
    fields.unsupported("JWT")?;
    let mut http = fields.object("HTTP")?.ok_or_else(|| fields.missing("HTTP", "must be given"))?;
    let path = parse_path(&mut http)?;
    let headers: Result<Vec<_>, FieldError> =
        http.list("Header")?.into_iter().map(|item| parse_header(item.fields()?)).collect();
    let headers = headers?;
    let methods = parse_methods(&mut http)?;
    http.finish()?;
    if path.is_none() && headers.is_empty() && methods.is_empty() {
        return Err(fields.error("HTTP", "must say something of path, headers or methods"));
    }
    fields.finish()?;
    Ok(IntentionPermission { action, path, methods, headers })
}

pub(super) fn parse_path(http: &mut Fields<'_>) -> Result<Option<PathMatch>, FieldError> {
    let mut found: Option<(&str, PathMatch)> = None;
    for name in ["PathExact", "PathPrefix", "PathRegex"] {
        let Some(text) = http.text(name)? else { continue };
        if let Some((other, _)) = found {
            return Err(http.error(name, format!("contradicts {other}: at most one of the three is allowed")));
        }
        if name == "PathRegex" {
            check_regex(http, name, &text)?;
        } else if !text.starts_with('/') {
            return Err(http.error(name, format!("{text:?} does not begin with '/'")));
        } else if text.contains(['?', '#']) {
            return Err(http.error(name, format!("{text:?} goes beyond the path; queries are not compared")));
        }
        let path = match name {
            "PathExact" => PathMatch::Exact(text),
            "PathPrefix" => PathMatch::Prefix(text),
            _ => PathMatch::Regex(text),
        };
        if !can_match(&path) {
            let reason = "no request can match it: requests are compared in normal form, without //, . or .. and with nothing escaped needlessly";
            return Err(http.error(name, reason));
        }
        found = Some((name, path));
    }
    Ok(found.map(|(_, path)| path))
}

pub(super) fn check_regex(fields: &Fields<'_>, name: &str, text: &str) -> Result<(), FieldError> {
    starling_traffic::check_regex(text).map_err(|error| fields.error(name, error))
}

pub(super) fn parse_methods(http: &mut Fields<'_>) -> Result<Vec<String>, FieldError> {
    const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE"];
    let mut seen = BTreeSet::new();
    let mut methods = Vec::new();
    for (index, method) in http.texts("Methods")?.into_iter().enumerate() {
        let method = method.to_ascii_uppercase();
        let path = format!("Methods[{index}]");
        if !METHODS.contains(&method.as_str()) {
            return Err(http.error(&path, format!("{method:?} is no HTTP method")));
        }
        if !seen.insert(method.clone()) {
            return Err(http.error(&path, format!("{method} is given twice")));
        }
        methods.push(method);
    }
    Ok(methods)
}

pub(super) fn parse_header(mut fields: Fields<'_>) -> Result<HeaderMatch, FieldError> {
    let name = fields.required_text("Name")?;
    let name = name.to_ascii_lowercase();
    if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Err(fields.error("Name", format!("{name:?} is no header field name")));
    }
    let mut tests = Vec::new();
    if fields.flag("Present")? {
        tests.push(HeaderTest::Present);
    }
    for (field, test) in [
        ("Exact", HeaderTest::Exact as fn(String) -> HeaderTest),
        ("Prefix", HeaderTest::Prefix),
        ("Suffix", HeaderTest::Suffix),
        ("Contains", HeaderTest::Contains),
        ("Regex", HeaderTest::Regex),
    ] {
        let Some(text) = fields.text(field)? else { continue };
        if field == "Regex" {
            check_regex(&fields, field, &text)?;
        }
        tests.push(test(text));
    }
    let invert = fields.flag("Invert")?;
    let ignore_case = fields.flag("IgnoreCase")?;
    fields.finish()?;
    let (Some(test), None) = (tests.pop(), tests.pop()) else {
        let reason = "exactly one of Present, Exact, Prefix, Suffix, Contains and Regex must be given";
        return Err(fields.error("Present", reason));
    };
    if ignore_case && matches!(test, HeaderTest::Present | HeaderTest::Regex(_)) {
        return Err(fields.error("IgnoreCase", "is for Exact, Prefix, Suffix and Contains only"));
    }
    Ok(HeaderMatch { name, test, invert, ignore_case })
}

/// Reads the body of `PUT /v1/connect/intentions/exact`; names in it may only repeat those asked for.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_exact(
    mut fields: Fields<'_>,
    source: IntentionSubject,
    destination: &IntentionSubject,
) -> Result<SourceIntention, FieldError> {
    for (name, asked) in [("SourceName", &source), ("DestinationName", destination)] {
        if let Some(text) = fields.text(name)?
            && text != asked.as_str()
        {
            return Err(fields.error(name, format!("is not {:?}, the name in the address", asked.as_str())));
        }
    }
    parse_body(fields, source, destination)
}

/// Reads the body of `POST /v1/connect/intentions`, or of `PUT /v1/connect/intentions/ID`, whose identifier it may repeat.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_named(mut fields: Fields<'_>, id: Option<Uuid>) -> Result<NamedIntention, FieldError> {
    let written = parse_id(&mut fields, "ID")?;
    if let Some((asked, written)) = id.zip(written).filter(|(asked, written)| asked != written) {
        return Err(fields.error("ID", format!("{written} is not {asked}, the identifier in the address")));
    }
    let source = required_subject(&mut fields, "SourceName")?;
    let destination = required_subject(&mut fields, "DestinationName")?;
    let mut intention = parse_body(fields, source, &destination)?;
    intention.id = id;
    Ok(NamedIntention { destination, intention })
}

fn parse_body(
    mut fields: Fields<'_>,
    source: IntentionSubject,
    destination: &IntentionSubject,
) -> Result<SourceIntention, FieldError> {
    fields.only("SourceType", &["consul"])?;
    for name in ["SourceNS", "DestinationNS", "SourcePartition", "DestinationPartition"] {
        fields.only(name, &["default"])?;
    }
    for name in ["SourcePeer", "SourceSamenessGroup", "JWT"] {
        fields.unsupported(name)?;
    }
    if fields.take("Meta").is_some_and(|field| !is_zero(&field.value)) {
        return Err(fields.error("Meta", "belongs to the service-intentions entry of the destination; write it there"));
    }
    fields.ignored(&["ID", "Precedence", "CreatedAt", "UpdatedAt", "CreateIndex", "ModifyIndex", "Hash"]);
    fields.ignored(&["DefaultAddr", "DefaultPort"]);
    let intention = parse_decision(&mut fields, source, destination)?;
    fields.finish()?;
    Ok(intention)
}
