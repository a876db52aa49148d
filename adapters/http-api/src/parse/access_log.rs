//! `AccessLogs` of proxy-defaults.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value};
use starling_model::access_log::LogTemplateError;
use starling_model::{AccessLog, LogForm, LogTarget, LogTemplate};

use super::field::{FieldError, Fields};

/// Fields of one line in JSON.
const JSON_FIELDS_MAX: usize = 64;

/// Reads it; `Filter` is Starling's own.
pub(super) fn parse(fields: &mut Fields<'_>) -> Result<AccessLog, FieldError> {
    let Some(mut logs) = fields.object("AccessLogs")? else { return Ok(AccessLog::default()) };
    let enabled = logs.take("Enabled").map(|field| field.flag()).transpose()?;
    let without_listeners = logs.flag("DisableListenerLogs")?;
    let filter = match logs.text("Filter")? {
        Some(text) => text.parse().map_err(|error| logs.error("Filter", error))?,
        None => starling_model::LogFilter::default(),
    };
    let target = parse_target(&mut logs)?;
    let form = parse_form(&mut logs)?;
    logs.finish()?;
    Ok(AccessLog { enabled, filter, target, form, without_listeners })
}

fn parse_target(logs: &mut Fields<'_>) -> Result<LogTarget, FieldError> {
    let (kind, path) = (logs.text("Type")?, logs.text("Path")?);
    let target = match (kind.as_deref().unwrap_or("stdout"), &path) {
        ("file", Some(path)) => return Ok(LogTarget::File(PathBuf::from(path))),
        ("file", None) => return Err(logs.missing("Path", "must be given with Type \"file\"")),
        ("stdout", _) => LogTarget::Stdout,
        ("stderr", _) => LogTarget::Stderr,
        (other, _) => {
            return Err(logs.error("Type", format!("{other:?} is none of \"stdout\", \"stderr\" and \"file\"")));
        }
    };
    if path.is_some() { Err(logs.error("Path", "is for Type \"file\" only")) } else { Ok(target) }
}

fn parse_form(logs: &mut Fields<'_>) -> Result<Option<LogForm>, FieldError> {
    let (json, text) = (logs.text("JSONFormat")?, logs.text("TextFormat")?);
    match (json, text) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(logs.error("TextFormat", "contradicts JSONFormat; give one of them")),
        (None, Some(text)) => {
            let template = text.parse().map_err(|error| logs.error("TextFormat", error))?;
            Ok(Some(LogForm::Text(template)))
        }
        (Some(json), None) => json_fields(&json)
            .map(|fields| Some(LogForm::Json(fields)))
            .map_err(|reason| logs.error("JSONFormat", reason)),
    }
}

fn json_fields(json: &str) -> Result<BTreeMap<String, LogTemplate>, String> {
    let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(json) else {
        return Err("is no JSON object".to_owned());
    };
    let count = fields.len();
    if count == 0 || count > JSON_FIELDS_MAX {
        return Err(format!("has {count} fields; it takes 1 to {JSON_FIELDS_MAX}"));
    }
    templates(fields)
}

fn templates(fields: Map<String, Value>) -> Result<BTreeMap<String, LogTemplate>, String> {
    let template = |(name, value): (String, Value)| {
        let Value::String(text) = value else { return Err(format!("has a field {name:?} that is no text")) };
        let template = text.parse().map_err(|error: LogTemplateError| format!("has a field {name:?}: {error}"))?;
        Ok((name, template))
    };
    fields.into_iter().map(template).collect()
}
