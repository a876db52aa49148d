//! Binding rules: what those have who come by an auth method.

use std::borrow::Cow;
use std::cell::RefCell;

use serde_json::Value;
use starling_catalog::Snapshot;
use starling_model::{
    AclAuthMethod, AclBindingRule, AclGrants, Datacenter, NodeIdentity, NodeName, ServiceIdentity, ServiceName,
    TemplatedPolicy, WrittenTest, parse_expression,
};

use starling_model::acl::TEMPLATES;

use super::{JwtSettings, LoginRefusal};
use crate::filter::{ListFilter, Shape};
use crate::parse::FieldError;
use crate::parse::acl::fill;

/// Bytes of a name that a rule makes.
const NAME_BYTES_MAX: usize = 256;

/// Refuses a rule of which nothing could come: one that cannot be read, or speaks of what no caller of its method has. Without settings that
/// can be read, what callers have is not known.
pub(crate) fn check_rule(
    selector: &str,
    names: &[(&str, &str)],
    settings: Option<&JwtSettings>,
) -> Result<(), FieldError> {
    let has = |kind: &str, name: &str| settings.is_none_or(|settings| settings.has_variable(kind, name));
    if !selector.is_empty() {
        ListFilter::parse(selector, Shape::CLAIMS).map_err(|error| FieldError::new("Selector", error.text()))?;
        for path in selectors(selector) {
            let [kind, name @ ..] = path.as_slice() else { continue };
            // A name may have points in it.
            if !name.is_empty() && !has(kind, &name[0]) && !has(kind, &name.join(".")) {
                let of = if kind == "list" { "ListClaimMappings" } else { "ClaimMappings" };
                let reason = format!("{} is no {kind}.NAME of {of} of the auth method", path.join("."));
                return Err(FieldError::new("Selector", reason));
            }
        }
    }
    for (field, name) in names {
        for part in parts(name).map_err(|reason| FieldError::new(*field, reason))? {
            if let Part::Variable(variable) = part
                && !variable.strip_prefix("value.").is_some_and(|name| has("value", name))
            {
                let reason = format!("${{{variable}}} is no ${{value.NAME}} of ClaimMappings of the auth method");
                return Err(FieldError::new(*field, reason));
            }
        }
    }
    Ok(())
}

/// What a selector that can be read is about.
fn selectors(selector: &str) -> Vec<Vec<String>> {
    let found = RefCell::new(Vec::new());
    let read = parse_expression(selector, |WrittenTest { selector, .. }| {
        found.borrow_mut().push(selector);
        Ok::<(), Cow<'static, str>>(())
    });
    drop(read);
    found.into_inner()
}

/// What the rules of `method` come to.
pub(super) fn grants(
    method: &AclAuthMethod,
    variables: &Value,
    snapshot: &Snapshot,
    datacenter: &Datacenter,
) -> Result<AclGrants, LoginRefusal> {
    let mut grants = AclGrants::default();
    for rule in snapshot.acl_binding_rules().filter(|rule| rule.value.method == method.name) {
        let rule = &rule.value;
        let failed = |reason: String| LoginRefusal::Rule { rule: rule.id.to_string(), reason };
        if is_selected(rule, variables).map_err(failed)? {
            bind(rule, variables, (snapshot, datacenter), &mut grants).map_err(failed)?;
        }
    }
    if grants == AclGrants::default() { Err(LoginRefusal::Unbound) } else { Ok(grants) }
}

fn is_selected(rule: &AclBindingRule, variables: &Value) -> Result<bool, String> {
    if rule.selector.is_empty() {
        return Ok(true);
    }
    let selector = ListFilter::parse(&rule.selector, Shape::CLAIMS).map_err(|error| error.text().to_owned())?;
    Ok(selector.admits(variables))
}

fn bind(
    rule: &AclBindingRule,
    variables: &Value,
    (snapshot, datacenter): (&Snapshot, &Datacenter),
    grants: &mut AclGrants,
) -> Result<(), String> {
    let name = filled(&rule.bind_name, variables)?;
    let is_no_name = |error: &dyn std::fmt::Display| format!("it makes the name {name:?}: {error}");
    match rule.bind_type.as_str() {
        "service" => {
            let service = ServiceName::new(&name).map_err(|error| is_no_name(&error))?;
            grants.services.push(ServiceIdentity { service, datacenters: Vec::new() });
        }
        "node" => {
            let node = NodeName::new(&name).map_err(|error| is_no_name(&error))?;
            grants.nodes.push(NodeIdentity { node, datacenter: datacenter.to_string() });
        }
        // What is not there gives nobody anything.
        "role" => grants.roles.extend(snapshot.acl_role_named(&name).map(|role| role.value.id)),
        "policy" => grants.policies.extend(snapshot.acl_policy_named(&name).map(|policy| policy.value.id)),
        "templated-policy" => {
            let template = TEMPLATES.iter().find(|template| template.name == name);
            let template = *template.ok_or_else(|| is_no_name(&"there is no such template"))?;
            let own = rule.bind_vars.as_deref().map(|text| filled(text, variables)).transpose()?;
            let own = fill(template, own, "BindVars.Name").map_err(|error| error.to_string())?;
            let template = starling_model::AclName::of_template(&name).map_err(|error| is_no_name(&error))?;
            grants.templated.push(TemplatedPolicy { template, name: own, datacenters: Vec::new() });
        }
        other => return Err(format!("nothing is bound by {other:?}")),
    }
    Ok(())
}

enum Part<'t> {
    Text(&'t str),
    Variable(&'t str),
}

/// A name, taken apart.
fn parts(text: &str) -> Result<Vec<Part<'_>>, String> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let (variable, behind) = after.split_once('}').ok_or("a ${ has no } behind it")?;
        parts.extend([Part::Text(before), Part::Variable(variable.trim())]);
        rest = behind;
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

/// A name with what is known of the caller put in.
fn filled(text: &str, variables: &Value) -> Result<String, String> {
    let mut filled = String::new();
    for part in parts(text)? {
        match part {
            Part::Text(text) => filled.push_str(text),
            Part::Variable(variable) => {
                let value = variable.strip_prefix("value.").and_then(|name| variables["value"][name].as_str());
                filled.push_str(value.ok_or_else(|| format!("the caller has no {variable}"))?);
            }
        }
        if filled.len() > NAME_BYTES_MAX {
            return Err(format!("it makes a name of more than {NAME_BYTES_MAX} bytes"));
        }
    }
    Ok(filled)
}
