//! Tokens, policies and roles, as people read them.

use serde_json::Value;

use crate::print::{self, Format};

/// A field of a form as text: lists by the names in them.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(named).collect::<Vec<_>>().join(", "),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// What an element of a list is called.
fn named(value: &Value) -> String {
    let name = ["Name", "ServiceName", "NodeName", "TemplateName"].iter().find_map(|field| value[field].as_str());
    let Some(name) = name else { return text(value) };
    let more: Vec<_> = match (&value["Datacenter"], &value["Datacenters"], &value["TemplateVariables"]["Name"]) {
        (Value::String(one), ..) => vec![one.as_str()],
        (_, Value::Array(several), _) => several.iter().filter_map(Value::as_str).collect(),
        (.., Value::String(variable)) => vec![variable.as_str()],
        (..) => Vec::new(),
    };
    if more.is_empty() { name.to_owned() } else { format!("{name} ({})", more.join(", ")) }
}

/// Prints the fields that there are, one a line.
fn fields(form: &Value, names: &[&str]) -> anyhow::Result<()> {
    let named = names.iter().map(|name| (format!("{name}:"), text(&form[*name])));
    let shown: Vec<_> = named.filter(|(_, value)| !value.is_empty()).collect();
    let width = shown.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    shown.iter().try_for_each(|(name, value)| print::line(&format!("{name:<width$}  {value}")))
}

const GRANTS: [&str; 5] = ["Policies", "Roles", "ServiceIdentities", "NodeIdentities", "TemplatedPolicies"];

fn one(form: &Value, format: Format, names: &[&str]) -> anyhow::Result<()> {
    match format {
        Format::Json => print::json(form),
        Format::Table => fields(form, &[names, &GRANTS].concat()),
    }
}

/// One token.
pub(super) fn token(form: &Value, format: Format) -> anyhow::Result<()> {
    one(form, format, &["AccessorID", "SecretID", "Description", "AuthMethod", "Local", "CreateTime", "ExpirationTime"])
}

/// What a token comes to beyond its own fields; in JSON it is among them.
pub(super) fn expanded(form: &Value, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return Ok(());
    }
    let list = |name: &str| form[name].as_array().cloned().unwrap_or_default();
    for role in list("ExpandedRoles") {
        print::line("Role:")?;
        self::role(&role, format)?;
    }
    for policy in list("ExpandedPolicies") {
        print::line("Policy:")?;
        self::policy(&policy, format)?;
    }
    let default = text(&form["AgentACLDefaultPolicy"]);
    print::line(&format!("Where no rule holds, at {}: {default}", text(&form["ResolvedByAgent"])))
}

/// One policy, with its rules.
pub(super) fn policy(form: &Value, format: Format) -> anyhow::Result<()> {
    one(form, format, &["ID", "Name", "Description", "Datacenters"])?;
    match (&form["Rules"], format) {
        (Value::String(rules), Format::Table) => print::line(&format!("Rules:\n{rules}")),
        (_, _) => Ok(()),
    }
}

/// One role.
pub(super) fn role(form: &Value, format: Format) -> anyhow::Result<()> {
    one(form, format, &["ID", "Name", "Description"])
}

/// One auth method, with its settings.
pub(super) fn method(form: &Value, format: Format) -> anyhow::Result<()> {
    let names = ["Name", "Type", "DisplayName", "Description", "MaxTokenTTL", "TokenLocality", "Config"];
    one(form, format, &names)
}

/// One binding rule.
pub(super) fn rule(form: &Value, format: Format) -> anyhow::Result<()> {
    let names = ["ID", "AuthMethod", "Description", "BindType", "BindName", "BindVars", "Selector"];
    one(form, format, &names)
}

/// One template of policies, with its text.
pub(super) fn template(form: &Value, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return print::json(form);
    }
    fields(form, &["TemplateName", "Description"])?;
    let takes = if text(&form["Schema"]).is_empty() { "none" } else { "name: what it is for" };
    print::line(&format!("Input variables: {takes}\nRaw template:\n{}", text(&form["Template"]).trim_end()))
}

/// Many, one a line.
pub(super) fn list(forms: &Value, format: Format, names: &[&str]) -> anyhow::Result<()> {
    if format == Format::Json {
        return print::json(forms);
    }
    let mut table = print::table(names);
    for form in forms.as_array().into_iter().flatten() {
        table.add_row(names.iter().map(|name| text(&form[*name])));
    }
    print::rows(&table)
}
