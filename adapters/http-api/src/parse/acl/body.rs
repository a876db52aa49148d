//! Bodies of tokens, policies, roles, auth methods and binding rules.

use std::time::Duration;

use serde_json::Value;
use starling_model::acl::Template;
use starling_model::{
    AclAuthMethod, AclName, AclRule, AuthMethodConfig, NodeIdentity, ServiceIdentity, TemplatedPolicy, UnixSeconds,
    Uuid,
};

use super::parse_rules;
use crate::parse::duration::parse_duration;
use crate::parse::field::{FieldError, Fields};

/// Bytes of a description.
const DESCRIPTION_BYTES_MAX: usize = 1_024;

/// Links, identities and templates of a token or a role, of each kind.
const GRANTS_MAX: usize = 512;

/// What is answered and sent back, and means nothing then.
const OF_ANSWERS: [&str; 5] = ["CreateIndex", "ModifyIndex", "CreateTime", "Hash", "Legacy"];

/// Kinds of auth methods; Consul's.
const METHOD_KINDS: [&str; 4] = ["kubernetes", "jwt", "oidc", "aws-iam"];

/// What binding rules give.
const BIND_TYPES: [&str; 5] = ["service", "node", "role", "policy", "templated-policy"];

/// A policy or a role that is named by its identifier or its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkBody {
    /// Where it stands.
    pub path: String,
    /// Its identifier.
    pub id: Option<Uuid>,
    /// Its name; counts without the other.
    pub name: String,
}

/// What a token or a role is to have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GrantsBody {
    /// Policies.
    pub policies: Vec<LinkBody>,
    /// Roles.
    pub roles: Vec<LinkBody>,
    /// Services for which it stands.
    pub services: Vec<ServiceIdentity>,
    /// Nodes for which it stands.
    pub nodes: Vec<NodeIdentity>,
    /// Templates.
    pub templated: Vec<TemplatedPolicy>,
}

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBody {
    /// Its accessor, if it is said.
    pub accessor: Option<Uuid>,
    /// Its secret, if it is said.
    pub secret: Option<String>,
    /// What it is for.
    pub description: String,
    /// What it is to have.
    pub grants: GrantsBody,
    /// Whether it is this datacentre's alone.
    pub local: bool,
    /// Until when it is good.
    pub expires_at: Option<UnixSeconds>,
    /// For how long it is good.
    pub ttl: Option<Duration>,
}

fn uuid(fields: &mut Fields<'_>, name: &str) -> Result<Option<Uuid>, FieldError> {
    let Some(text) = fields.text(name)? else { return Ok(None) };
    let parsed = text.to_ascii_lowercase().parse();
    parsed.map(Some).map_err(|_| fields.error(name, format!("{text:?} is no UUID")))
}

fn description(fields: &mut Fields<'_>) -> Result<String, FieldError> {
    let text = fields.text("Description")?.unwrap_or_default();
    if text.len() > DESCRIPTION_BYTES_MAX {
        let reason = format!("is {} bytes long; at most {DESCRIPTION_BYTES_MAX} are allowed", text.len());
        return Err(fields.error("Description", reason));
    }
    Ok(text)
}

/// Reads a token.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_token(mut fields: Fields<'_>) -> Result<TokenBody, FieldError> {
    let accessor = uuid(&mut fields, "AccessorID")?;
    let secret = fields.text("SecretID")?;
    let expires_at = match fields.text("ExpirationTime")? {
        Some(text) => {
            let time: jiff::Timestamp = text.parse().map_err(|error| fields.error("ExpirationTime", error))?;
            // Go writes year 1 where there is none.
            u64::try_from(time.as_second()).ok().map(UnixSeconds)
        }
        None => None,
    };
    let token = TokenBody {
        accessor,
        secret,
        description: description(&mut fields)?,
        local: fields.flag("Local")?,
        expires_at,
        ttl: fields.duration("ExpirationTTL")?.filter(|ttl| !ttl.is_zero()),
        grants: grants(&mut fields, true)?,
    };
    fields.ignored(&OF_ANSWERS);
    fields.ignored(&["Name", "AuthMethod", "AuthMethodNamespace"]);
    fields.tenancy()?;
    fields.finish()?;
    Ok(token)
}

fn grants(fields: &mut Fields<'_>, with_roles: bool) -> Result<GrantsBody, FieldError> {
    let mut grants = GrantsBody { policies: links(fields, "Policies")?, ..GrantsBody::default() };
    if with_roles {
        grants.roles = links(fields, "Roles")?;
    }
    for element in fields.list("ServiceIdentities")? {
        let mut element = element.fields()?;
        let name = element.required_text("ServiceName")?;
        let service = name.parse().map_err(|error| element.error("ServiceName", error))?;
        grants.services.push(ServiceIdentity { service, datacenters: element.texts("Datacenters")? });
        element.finish()?;
    }
    for element in fields.list("NodeIdentities")? {
        let mut element = element.fields()?;
        let name = element.required_text("NodeName")?;
        let node = name.parse().map_err(|error| element.error("NodeName", error))?;
        let datacenter = element.text("Datacenter")?;
        let datacenter = datacenter.unwrap_or_else(|| element.context.datacenter.to_string());
        grants.nodes.push(NodeIdentity { node, datacenter });
        element.finish()?;
    }
    for element in fields.list("TemplatedPolicies")? {
        grants.templated.push(templated(element.fields()?)?);
    }
    let most =
        [grants.policies.len(), grants.roles.len(), grants.services.len(), grants.nodes.len(), grants.templated.len()];
    if most.iter().any(|count| *count > GRANTS_MAX) {
        return Err(FieldError::new("body", format!("a token or a role has at most {GRANTS_MAX} of a kind")));
    }
    Ok(grants)
}

fn links(fields: &mut Fields<'_>, name: &str) -> Result<Vec<LinkBody>, FieldError> {
    let mut links = Vec::new();
    for element in fields.list(name)? {
        let path = element.path.clone();
        let mut element = element.fields()?;
        let (id, name) = (uuid(&mut element, "ID")?, element.text("Name")?.unwrap_or_default());
        if id.is_none() && name.is_empty() {
            return Err(element.error("Name", "must be given, or ID"));
        }
        element.finish()?;
        links.push(LinkBody { path, id, name });
    }
    Ok(links)
}

fn templated(mut fields: Fields<'_>) -> Result<TemplatedPolicy, FieldError> {
    let name = fields.required_text("TemplateName")?;
    let template =
        Template::named(&name).ok_or_else(|| fields.error("TemplateName", format!("there is no {name:?}")))?;
    let given = match fields.object("TemplateVariables")? {
        Some(mut variables) => {
            let name = variables.text("Name")?;
            variables.finish()?;
            name
        }
        None => None,
    };
    let datacenters = fields.texts("Datacenters")?;
    let filled = fill(template, given, &fields.path("TemplateVariables.Name"))?;
    fields.ignored(&["TemplateID"]);
    fields.finish()?;
    let template = AclName::of_template(&name).map_err(|error| fields.error("TemplateName", error))?;
    Ok(TemplatedPolicy { template, name: filled, datacenters })
}

/// What is filled in, where something is.
pub(crate) fn fill(template: Template, name: Option<String>, path: &str) -> Result<Option<String>, FieldError> {
    match name {
        None if template.takes_name => Err(FieldError::new(path, "must be given")),
        Some(_) if !template.takes_name => Err(FieldError::new(path, "this template takes none")),
        Some(name)
            if name.len() > DESCRIPTION_BYTES_MAX
                || !name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c)) =>
        {
            Err(FieldError::new(path, "has to be letters, digits, '-', '_' and '.'"))
        }
        name => Ok(name),
    }
}

/// A policy: identifier, name, description, rules as they are written and as they are read, and datacentres.
pub struct PolicyBody {
    /// Its identifier, if it is said.
    pub id: Option<Uuid>,
    /// Its name, if it is said.
    pub name: Option<AclName>,
    /// What it is for.
    pub description: String,
    /// Its rules as they are written.
    pub text: String,
    /// The same, read.
    pub rules: Vec<AclRule>,
    /// Where it counts.
    pub datacenters: Vec<String>,
}

/// Reads a policy.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_policy(mut fields: Fields<'_>) -> Result<PolicyBody, FieldError> {
    let id = uuid(&mut fields, "ID")?;
    let name = fields.text("Name")?;
    let name = name.map(|name| AclName::new(&name).map_err(|error| fields.error("Name", error))).transpose()?;
    let text = fields.text("Rules")?.unwrap_or_default();
    let rules = parse_rules(&fields.path("Rules"), &text)?;
    let body = PolicyBody {
        id,
        name,
        description: description(&mut fields)?,
        text,
        rules,
        datacenters: fields.texts("Datacenters")?,
    };
    fields.ignored(&OF_ANSWERS);
    fields.tenancy()?;
    fields.finish()?;
    Ok(body)
}

/// A role: identifier, name, description, and what it has.
pub struct RoleBody {
    /// Its identifier, if it is said.
    pub id: Option<Uuid>,
    /// Its name, if it is said.
    pub name: Option<AclName>,
    /// What it is for.
    pub description: String,
    /// What it is to have.
    pub grants: GrantsBody,
}

/// Reads a role.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_role(mut fields: Fields<'_>) -> Result<RoleBody, FieldError> {
    let id = uuid(&mut fields, "ID")?;
    let name = fields.text("Name")?;
    let name = name.map(|name| AclName::of_role(&name).map_err(|error| fields.error("Name", error))).transpose()?;
    let body = RoleBody { id, name, description: description(&mut fields)?, grants: grants(&mut fields, false)? };
    fields.ignored(&OF_ANSWERS);
    fields.tenancy()?;
    fields.finish()?;
    Ok(body)
}

/// Reads an auth method; `name` is the one in the path, if there is one.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_auth_method(mut fields: Fields<'_>, name: Option<&str>) -> Result<AclAuthMethod, FieldError> {
    let said = fields.text("Name")?;
    let named = match (said.as_deref(), name) {
        (Some(said), Some(name)) if said != name => {
            return Err(fields.error("Name", "differs from the one in the path"));
        }
        (Some(name), _) | (None, Some(name)) => name.to_owned(),
        (None, None) => return Err(fields.missing("Name", "must be given")),
    };
    let kind = fields.required_text("Type")?;
    if !METHOD_KINDS.contains(&kind.as_str()) {
        return Err(fields.error("Type", format!("{kind:?} is none of {}", METHOD_KINDS.join(", "))));
    }
    let ttl = match fields.take("MaxTokenTTL") {
        Some(field) => {
            let parsed = match &field.value {
                Value::String(text) if text.is_empty() => Some(Duration::ZERO),
                Value::String(text) => parse_duration(text),
                Value::Number(number) => number.as_u64().map(Duration::from_nanos),
                Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
            };
            parsed.ok_or_else(|| FieldError::new(&field.path, "must be a duration such as \"1h\""))?
        }
        None => Duration::ZERO,
    };
    let locality = fields.text("TokenLocality")?.unwrap_or_else(|| "local".to_owned());
    if !["local", "global"].contains(&locality.as_str()) {
        return Err(fields.error("TokenLocality", "must be \"local\" or \"global\""));
    }
    let method = AclAuthMethod {
        name: AclName::new(&named).map_err(|error| fields.error("Name", error))?,
        kind,
        display_name: fields.text("DisplayName")?.unwrap_or_default(),
        description: description(&mut fields)?,
        max_token_ttl_ns: u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX),
        token_locality: locality,
        token_name_format: fields.text("TokenNameFormat")?.unwrap_or_default(),
        config: AuthMethodConfig(fields.opaque("Config")?),
    };
    fields.ignored(&OF_ANSWERS);
    fields.unsupported("NamespaceRules")?;
    fields.tenancy()?;
    fields.finish()?;
    Ok(method)
}

/// A binding rule.
pub struct BindingRuleBody {
    /// Its identifier, if it is said.
    pub id: Option<Uuid>,
    /// What it is for.
    pub description: String,
    /// By which method.
    pub method: AclName,
    /// Which of those who come by it.
    pub selector: String,
    /// What it gives.
    pub bind_type: String,
    /// The name of that.
    pub bind_name: String,
    /// What is filled in.
    pub bind_vars: Option<String>,
}

/// Reads a binding rule.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_binding_rule(mut fields: Fields<'_>) -> Result<BindingRuleBody, FieldError> {
    let id = uuid(&mut fields, "ID")?;
    let method = fields.required_text("AuthMethod")?;
    let bind_type = fields.required_text("BindType")?;
    if !BIND_TYPES.contains(&bind_type.as_str()) {
        return Err(fields.error("BindType", format!("{bind_type:?} is none of {}", BIND_TYPES.join(", "))));
    }
    let bind_vars = match fields.object("BindVars")? {
        Some(mut variables) => {
            let name = variables.text("Name")?;
            variables.finish()?;
            name
        }
        None => None,
    };
    let body = BindingRuleBody {
        id,
        description: description(&mut fields)?,
        method: AclName::new(&method).map_err(|error| fields.error("AuthMethod", error))?,
        selector: fields.text("Selector")?.unwrap_or_default(),
        bind_type,
        bind_name: fields.required_text("BindName")?,
        bind_vars,
    };
    fields.ignored(&OF_ANSWERS);
    fields.tenancy()?;
    fields.finish()?;
    Ok(body)
}
