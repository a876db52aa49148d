//! Several ports of one instance (Consul's `Ports`): one of them counts, all of them are kept and answered.

use serde_json::{Value, json};
use starling_model::{OpaqueSettings, Port};

use crate::parse::field::{FieldError, Fields};

/// Ports of one instance.
const PORTS_MAX: usize = 64;

/// Takes `Ports`, and gives the one that counts: that which is the default, else the first.
pub(crate) fn parse(fields: &mut Fields<'_>, kept: &mut OpaqueSettings) -> Result<Option<Port>, FieldError> {
    let items = fields.list("Ports")?;
    if items.len() > PORTS_MAX {
        return Err(fields.error("Ports", format!("has {} ports; at most {PORTS_MAX} are allowed", items.len())));
    }
    let mut all: Vec<(String, Port, bool)> = Vec::new();
    for item in items {
        let path = item.path.clone();
        let mut inner = item.fields()?;
        let (name, port) = (inner.required_text("Name")?, inner.required_port("Port", "must be given")?);
        let is_default = inner.flag("Default")?;
        inner.finish()?;
        for (other, taken, default) in &all {
            if *other == name || *taken == port {
                return Err(FieldError::new(path, format!("repeats name or port of {other:?}")));
            }
            if *default && is_default {
                return Err(FieldError::new(format!("{path}.Default"), format!("is said of {other:?} already")));
            }
        }
        all.push((name, port, is_default));
    }
    if !all.is_empty() {
        let form = |(name, port, default): &(String, Port, bool)| json!({"Name": name, "Port": port.get(), "Default": default});
        kept.insert("Ports".to_owned(), all.iter().map(form).collect::<Vec<Value>>().into());
    }
    Ok(all.iter().find(|(_, _, default)| *default).or(all.first()).map(|(_, port, _)| *port))
}

/// Refuses a `Port` that is none of several.
pub(crate) fn refuse_both(fields: &Fields<'_>, port: Option<Port>, main: Option<Port>) -> Result<(), FieldError> {
    match (port, main) {
        (Some(port), Some(main)) if port != main => {
            Err(fields.error("Port", format!("contradicts Ports, of which {main} counts; leave it out")))
        }
        _ => Ok(()),
    }
}
