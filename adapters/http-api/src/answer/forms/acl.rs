//! Access control in Consul's JSON forms.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use starling_catalog::Snapshot;
use starling_model::acl::Template;
use starling_model::{
    AclAuthMethod, AclBindingRule, AclGrants, AclPolicy, AclRole, AclToken, TemplatedPolicy, Uuid, Versioned,
};

use super::{Form, strings, time};
use crate::parse::duration_text;

/// What is written where a secret stands that the reader may not have.
const HIDDEN: &str = "<hidden>";

/// A number of the content, which changes with it.
fn hash(content: &Value) -> String {
    STANDARD.encode(Sha256::digest(content.to_string()))
}

fn link(id: Uuid, name: &str) -> Value {
    json!({"ID": id.to_string(), "Name": name})
}

/// The grants that are still there.
fn grants(form: Form, grants: &AclGrants, snapshot: &Snapshot) -> Form {
    let policies = grants.policies.iter().filter_map(|id| snapshot.acl_policy(*id));
    let policies: Vec<_> = policies.map(|policy| link(policy.value.id, policy.value.name.as_str())).collect();
    let roles = grants.roles.iter().filter_map(|id| snapshot.acl_role(*id));
    let roles: Vec<_> = roles.map(|role| link(role.value.id, role.value.name.as_str())).collect();
    let services = grants.services.iter().map(|identity| {
        let form = Form::new().field("ServiceName", identity.service.as_str());
        form.nonempty("Datacenters", strings(&identity.datacenters)).end()
    });
    let nodes = grants
        .nodes
        .iter()
        .map(|identity| json!({"NodeName": identity.node.as_str(), "Datacenter": identity.datacenter}));
    form.nonempty("Policies", policies)
        .nonempty("Roles", roles)
        .nonempty("ServiceIdentities", services.collect::<Vec<_>>())
        .nonempty("NodeIdentities", nodes.collect::<Vec<_>>())
        .nonempty("TemplatedPolicies", grants.templated.iter().map(templated).collect::<Vec<_>>())
}

fn templated(policy: &TemplatedPolicy) -> Value {
    let variables = policy.name.as_ref().map_or(Value::Null, |name| json!({"Name": name}));
    Form::new()
        .field("TemplateName", policy.template.as_str())
        .nonempty("TemplateVariables", variables)
        .nonempty("Datacenters", strings(&policy.datacenters))
        .end()
}

/// A token; its secret is shown to who may write tokens, and to who has it.
pub(crate) fn token(token: &Versioned<AclToken>, snapshot: &Snapshot, with_secret: bool) -> Value {
    let AclToken { accessor, secret, description, grants: of, local, created_at, expires_at, ttl_s, .. } = &token.value;
    let method = token.value.auth_method.as_ref().map_or("", |method| method.as_str());
    let content = json!([accessor.to_string(), description, of, local]);
    let ttl = ttl_s.map(|seconds| u64::saturating_mul(seconds, 1_000_000_000)).unwrap_or_default();
    let form = Form::new()
        .field("AccessorID", accessor.to_string())
        .field("SecretID", if with_secret { secret.reveal() } else { HIDDEN })
        .field("Description", description.as_str());
    grants(form, of, snapshot)
        .field("Local", *local)
        .nonempty("AuthMethod", method)
        .nonempty("ExpirationTTL", ttl)
        .nonempty("ExpirationTime", expires_at.map(time).unwrap_or_default())
        .field("CreateTime", time(*created_at))
        .field("Hash", hash(&content))
        .indexes(token.created, token.modified)
        .end()
}

/// A policy; in a list without its rules.
pub(crate) fn policy(policy: &Versioned<AclPolicy>, with_rules: bool) -> Value {
    let AclPolicy { id, name, description, text, datacenters, .. } = &policy.value;
    let content = json!([name.as_str(), description, text, datacenters]);
    let form =
        Form::new().field("ID", id.to_string()).field("Name", name.as_str()).field("Description", description.as_str());
    let form = if with_rules { form.field("Rules", text.as_str()) } else { form };
    form.nonempty("Datacenters", strings(datacenters))
        .field("Hash", hash(&content))
        .indexes(policy.created, policy.modified)
        .end()
}

/// A role.
pub(crate) fn role(role: &Versioned<AclRole>, snapshot: &Snapshot) -> Value {
    let AclRole { id, name, description, grants: of } = &role.value;
    let form =
        Form::new().field("ID", id.to_string()).field("Name", name.as_str()).field("Description", description.as_str());
    grants(form, of, snapshot)
        .field("Hash", hash(&json!([name.as_str(), description, of])))
        .indexes(role.created, role.modified)
        .end()
}

/// An auth method; in a list without its settings.
pub(crate) fn auth_method(method: &Versioned<AclAuthMethod>, with_config: bool) -> Value {
    let AclAuthMethod { name, kind, display_name, description, token_locality, token_name_format, config, .. } =
        &method.value;
    let ttl = match method.value.max_token_ttl_ns {
        0 => String::new(),
        nanos => duration_text(std::time::Duration::from_nanos(nanos)),
    };
    let form = Form::new()
        .field("Name", name.as_str())
        .field("Type", kind.as_str())
        .nonempty("DisplayName", display_name.as_str())
        .field("Description", description.as_str())
        .nonempty("MaxTokenTTL", ttl)
        .nonempty("TokenLocality", token_locality.as_str())
        .nonempty("TokenNameFormat", token_name_format.as_str());
    let form = if with_config { form.field("Config", config.0.clone()) } else { form };
    form.indexes(method.created, method.modified).end()
}

/// A binding rule.
pub(crate) fn binding_rule(rule: &Versioned<AclBindingRule>) -> Value {
    let AclBindingRule { id, description, method, selector, bind_type, bind_name, bind_vars } = &rule.value;
    Form::new()
        .field("ID", id.to_string())
        .field("Description", description.as_str())
        .field("AuthMethod", method.as_str())
        .field("Selector", selector.as_str())
        .field("BindType", bind_type.as_str())
        .field("BindName", bind_name.as_str())
        .nonempty("BindVars", bind_vars.as_ref().map_or(Value::Null, |name| json!({"Name": name})))
        .indexes(rule.created, rule.modified)
        .end()
}

/// A template.
pub(crate) fn template(template: Template) -> Value {
    let schema = if template.takes_name {
        json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}).to_string()
    } else {
        String::new()
    };
    json!({
        "TemplateName": template.name,
        "Schema": schema,
        "Template": template.text("{{.Name}}"),
        "Description": template.description,
    })
}
