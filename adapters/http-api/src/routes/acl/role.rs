//! Roles.

use std::sync::Arc;

use serde_json::{Value, json};
use starling_catalog::{AclCommand, Command, Subject};
use starling_model::{AclKey, AclRecord, AclRole};

use super::{draw, grants_of, id_of, not_found, same_id};
use crate::answer::Answer;
use crate::answer::forms::acl as forms;
use crate::blocking::view;
use crate::call::Call;
use crate::error::ApiError;
use crate::parse::acl::parse_role;
use crate::router::{Api, Outcome};

pub(super) async fn create(api: Arc<Api>, call: Call) -> Outcome {
    let body = {
        let context = Call::context(&api.catalog.authority());
        parse_role(call.fields(&context)?)?
    };
    if body.id.is_some() {
        return Err(ApiError::bad_request("ID: is drawn when the role is made; leave it out"));
    }
    let name = body.name.ok_or_else(|| ApiError::bad_request("Name: must be given"))?;
    let grants = grants_of(&api, body.grants)?;
    put(&api, &call, AclRole { id: draw()?, name, description: body.description, grants }, true).await
}

pub(super) async fn update(api: Arc<Api>, call: Call) -> Outcome {
    let body = {
        let context = Call::context(&api.catalog.authority());
        parse_role(call.fields(&context)?)?
    };
    let id = same_id(&call, "id", body.id)?;
    let before = api.catalog.snapshot().acl_role(id).cloned().ok_or_else(|| not_found("role", &id.to_string()))?;
    let name = body.name.unwrap_or_else(|| before.value.name.clone());
    let grants = grants_of(&api, body.grants)?;
    put(&api, &call, AclRole { id, name, description: body.description, grants }, false).await
}

async fn put(api: &Api, call: &Call, role: AclRole, is_new: bool) -> Outcome {
    let id = role.id;
    let record = AclRecord::Role(Box::new(role));
    let revision = api.commit(call, Command::Acl(AclCommand::Put { record, is_new })).await?;
    let snapshot = api.catalog.snapshot();
    let role = snapshot.acl_role(id).ok_or_else(|| not_found("role", &id.to_string()))?;
    Ok(Answer::json(forms::role(role, &snapshot)).written_at(revision))
}

pub(super) async fn delete(api: Arc<Api>, call: Call) -> Outcome {
    let id = id_of(&call, "id")?;
    let revision = api.commit(&call, Command::Acl(AclCommand::Delete(AclKey::Role(id)))).await?;
    Ok(Answer::json(json!(true)).written_at(revision))
}

pub(super) async fn read(api: Arc<Api>, mut call: Call) -> Outcome {
    let id = id_of(&call, "id")?;
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    let role = view.snapshot.acl_role(id).ok_or_else(|| not_found("role", &id.to_string()).at(view.index))?;
    Ok(Answer::json(forms::role(role, &view.snapshot)).read_at(view.index))
}

pub(super) async fn read_named(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    let name = call.param("name");
    let role = view.snapshot.acl_role_named(name).ok_or_else(|| not_found("role", name).at(view.index))?;
    Ok(Answer::json(forms::role(role, &view.snapshot)).read_at(view.index))
}

pub(super) async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    let policy = call.query.text("policy");
    let has = |role: &AclRole| policy.is_none_or(|id| role.grants.policies.iter().any(|it| it.to_string() == id));
    let roles = view.snapshot.acl_roles().filter(|role| has(&role.value));
    let roles: Vec<Value> = roles.map(|role| forms::role(role, &view.snapshot)).collect();
    Ok(Answer::json(Value::Array(roles)).read_at(view.index))
}
