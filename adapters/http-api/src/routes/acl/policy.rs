//! Policies.

use std::sync::Arc;

use serde_json::{Value, json};
use starling_catalog::{AclCommand, Command, Subject};
use starling_model::{AclKey, AclPolicy, AclRecord};

use super::{draw, id_of, not_found, same_id};
use crate::answer::Answer;
use crate::answer::forms::acl as forms;
use crate::blocking::view;
use crate::call::Call;
use crate::error::ApiError;
use crate::parse::acl::parse_policy;
use crate::router::{Api, Outcome};

pub(super) async fn create(api: Arc<Api>, call: Call) -> Outcome {
    let body = {
        let context = Call::context(&api.catalog.authority());
        parse_policy(call.fields(&context)?)?
    };
    if body.id.is_some() {
        return Err(ApiError::bad_request("ID: is drawn when the policy is made; leave it out"));
    }
    let name = body.name.ok_or_else(|| ApiError::bad_request("Name: must be given"))?;
    let (id, description, text, rules, datacenters) =
        (draw()?, body.description, body.text, body.rules, body.datacenters);
    put(&api, &call, AclPolicy { id, name, description, text, rules, datacenters }, true).await
}

pub(super) async fn update(api: Arc<Api>, call: Call) -> Outcome {
    let body = {
        let context = Call::context(&api.catalog.authority());
        parse_policy(call.fields(&context)?)?
    };
    let id = same_id(&call, "id", body.id)?;
    let before = api.catalog.snapshot().acl_policy(id).cloned().ok_or_else(|| not_found("policy", &id.to_string()))?;
    let name = body.name.unwrap_or_else(|| before.value.name.clone());
    let (description, text, rules, datacenters) = (body.description, body.text, body.rules, body.datacenters);
    put(&api, &call, AclPolicy { id, name, description, text, rules, datacenters }, false).await
}

async fn put(api: &Api, call: &Call, policy: AclPolicy, is_new: bool) -> Outcome {
    let id = policy.id;
    let record = AclRecord::Policy(Box::new(policy));
    let revision = api.commit(call, Command::Acl(AclCommand::Put { record, is_new })).await?;
    let snapshot = api.catalog.snapshot();
    let policy = snapshot.acl_policy(id).ok_or_else(|| not_found("policy", &id.to_string()))?;
    Ok(Answer::json(forms::policy(policy, true)).written_at(revision))
}

pub(super) async fn delete(api: Arc<Api>, call: Call) -> Outcome {
    let id = id_of(&call, "id")?;
    let revision = api.commit(&call, Command::Acl(AclCommand::Delete(AclKey::Policy(id)))).await?;
    Ok(Answer::json(json!(true)).written_at(revision))
}

pub(super) async fn read(api: Arc<Api>, mut call: Call) -> Outcome {
    let id = id_of(&call, "id")?;
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    let policy = view.snapshot.acl_policy(id);
    let policy = policy.ok_or_else(|| not_found("policy", &id.to_string()).at(view.index))?;
    Ok(Answer::json(forms::policy(policy, true)).read_at(view.index))
}

pub(super) async fn read_named(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    let name = call.param("name");
    let policy = view.snapshot.acl_policy_named(name);
    let policy = policy.ok_or_else(|| not_found("policy", name).at(view.index))?;
    Ok(Answer::json(forms::policy(policy, true)).read_at(view.index))
}

pub(super) async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    let policies: Vec<Value> = view.snapshot.acl_policies().map(|policy| forms::policy(policy, false)).collect();
    Ok(Answer::json(Value::Array(policies)).read_at(view.index))
}
