//! Auth methods and their binding rules. All are kept; one logs in by those of type `jwt`.

use std::sync::Arc;

use serde_json::{Value, json};
use starling_catalog::{AclCommand, Command, Subject};
use starling_model::{AclAuthMethod, AclBindingRule, AclKey, AclName, AclRecord, Uuid};

use super::{draw, id_of, not_found, same_id};
use crate::answer::Answer;
use crate::answer::forms::acl as forms;
use crate::blocking::view;
use crate::call::Call;
use crate::error::ApiError;
use crate::login::{JWT, JwtSettings, check_rule};
use crate::parse::acl::{BindingRuleBody, parse_auth_method, parse_binding_rule};
use crate::router::{Api, Outcome};

fn name_of(call: &Call) -> Result<AclName, ApiError> {
    AclName::new(call.param("name")).map_err(|error| ApiError::bad_request(format!("name: {error}")))
}

pub(super) async fn create(api: Arc<Api>, call: Call) -> Outcome {
    let method = {
        let context = Call::context(&api.catalog.authority());
        parse_auth_method(call.fields(&context)?, None)?
    };
    put(&api, &call, method, true).await
}

pub(super) async fn update(api: Arc<Api>, call: Call) -> Outcome {
    let name = name_of(&call)?;
    let method = {
        let context = Call::context(&api.catalog.authority());
        parse_auth_method(call.fields(&context)?, Some(name.as_str()))?
    };
    put(&api, &call, method, false).await
}

async fn put(api: &Api, call: &Call, method: AclAuthMethod, is_new: bool) -> Outcome {
    if method.kind == JWT {
        let context = Call::context(&api.catalog.authority());
        JwtSettings::parse(&method.config, &context)?;
    }
    let name = method.name.clone();
    let record = AclRecord::AuthMethod(Box::new(method));
    let revision = api.commit(call, Command::Acl(AclCommand::Put { record, is_new })).await?;
    let snapshot = api.catalog.snapshot();
    let method = snapshot.acl_auth_method(&name).ok_or_else(|| not_found("auth method", name.as_str()))?;
    Ok(Answer::json(forms::auth_method(method, true)).written_at(revision))
}

pub(super) async fn delete(api: Arc<Api>, call: Call) -> Outcome {
    let name = name_of(&call)?;
    let revision = api.commit(&call, Command::Acl(AclCommand::Delete(AclKey::AuthMethod(name)))).await?;
    Ok(Answer::json(json!(true)).written_at(revision))
}

pub(super) async fn read(api: Arc<Api>, mut call: Call) -> Outcome {
    let name = name_of(&call)?;
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    let method = view.snapshot.acl_auth_method(&name);
    let method = method.ok_or_else(|| not_found("auth method", name.as_str()).at(view.index))?;
    Ok(Answer::json(forms::auth_method(method, true)).read_at(view.index))
}

pub(super) async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    let methods: Vec<Value> =
        view.snapshot.acl_auth_methods().map(|method| forms::auth_method(method, false)).collect();
    Ok(Answer::json(Value::Array(methods)).read_at(view.index))
}

fn rule_of(id: Uuid, body: BindingRuleBody) -> AclBindingRule {
    let BindingRuleBody { id: _, description, method, selector, bind_type, bind_name, bind_vars } = body;
    AclBindingRule { id, description, method, selector, bind_type, bind_name, bind_vars }
}

fn rule_body(api: &Api, call: &Call) -> Result<BindingRuleBody, ApiError> {
    let context = Call::context(&api.catalog.authority());
    Ok(parse_binding_rule(call.fields(&context)?)?)
}

pub(super) async fn create_rule(api: Arc<Api>, call: Call) -> Outcome {
    let body = rule_body(&api, &call)?;
    if body.id.is_some() {
        return Err(ApiError::bad_request("ID: is drawn when the binding rule is made; leave it out"));
    }
    put_rule(&api, &call, rule_of(draw()?, body), true).await
}

pub(super) async fn update_rule(api: Arc<Api>, call: Call) -> Outcome {
    let body = rule_body(&api, &call)?;
    let id = same_id(&call, "id", body.id)?;
    put_rule(&api, &call, rule_of(id, body), false).await
}

async fn put_rule(api: &Api, call: &Call, rule: AclBindingRule, is_new: bool) -> Outcome {
    let snapshot = api.catalog.snapshot();
    if let Some(method) = snapshot.acl_auth_method(&rule.method)
        && method.value.kind == JWT
    {
        let settings = JwtSettings::parse(&method.value.config, &Call::context(&api.catalog.authority())).ok();
        let named =
            [("BindName", rule.bind_name.as_str()), ("BindVars.Name", rule.bind_vars.as_deref().unwrap_or_default())];
        check_rule(&rule.selector, &named, settings.as_ref())?;
    }
    let id = rule.id;
    let record = AclRecord::BindingRule(Box::new(rule));
    let revision = api.commit(call, Command::Acl(AclCommand::Put { record, is_new })).await?;
    let snapshot = api.catalog.snapshot();
    let rule = snapshot.acl_binding_rule(id).ok_or_else(|| not_found("binding rule", &id.to_string()))?;
    Ok(Answer::json(forms::binding_rule(rule)).written_at(revision))
}

pub(super) async fn delete_rule(api: Arc<Api>, call: Call) -> Outcome {
    let id = id_of(&call, "id")?;
    let revision = api.commit(&call, Command::Acl(AclCommand::Delete(AclKey::BindingRule(id)))).await?;
    Ok(Answer::json(json!(true)).written_at(revision))
}

pub(super) async fn read_rule(api: Arc<Api>, mut call: Call) -> Outcome {
    let id = id_of(&call, "id")?;
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    let rule = view.snapshot.acl_binding_rule(id);
    let rule = rule.ok_or_else(|| not_found("binding rule", &id.to_string()).at(view.index))?;
    Ok(Answer::json(forms::binding_rule(rule)).read_at(view.index))
}

pub(super) async fn list_rules(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    let method = call.query.text("authmethod");
    let rules = view.snapshot.acl_binding_rules();
    let rules = rules.filter(|rule| method.is_none_or(|name| rule.value.method.as_str() == name));
    let rules: Vec<Value> = rules.map(|rule| forms::binding_rule(rule)).collect();
    Ok(Answer::json(Value::Array(rules)).read_at(view.index))
}
