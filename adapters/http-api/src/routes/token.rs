//! Join tokens: what lets the agents of new nodes in.

use std::sync::Arc;

use serde_json::{Value, json};
use starling_catalog::{Command, JoinTokenCommand, NewJoinToken};
use starling_model::{
    JoinTokenDescription, JoinTokenId, JoinTokenRecord, JoinTokenUse, JoinTokenUses, SERVICE_PATTERNS_MAX,
    ServicePattern,
};

use crate::answer::{Answer, forms};
use crate::call::Call;
use crate::error::ApiError;
use crate::parse::Fields;
use crate::router::{Api, Outcome};

pub(super) async fn create(api: Arc<Api>, call: Call) -> Outcome {
    let wanted = {
        let context = Call::context(&api.catalog.authority());
        let mut fields = call.fields(&context)?;
        let description = fields.text("Description")?;
        let description = description.map(|text| JoinTokenDescription::new(&text)).transpose();
        let wanted = NewJoinToken {
            for_relays: fields.flag("ForRelays")?,
            reusable: fields.flag("Reusable")?,
            ttl: fields.duration("TTL")?,
            description: description.map_err(|error| fields.error("Description", error))?,
            services: services(&mut fields)?,
        };
        fields.finish()?;
        wanted
    };
    let (token, expires_at) = api.catalog.create_join_token(wanted).await?;
    Ok(Answer::json(json!({
        "id": token.id.to_string(),
        "token": token.expose().as_str(),
        "expires_at": forms::time(expires_at),
    })))
}

/// The services of a token. Without any, the mesh's default decides what nodes may register.
fn services(fields: &mut Fields<'_>) -> Result<Option<Vec<ServicePattern>>, ApiError> {
    let list = fields.texts("Services")?;
    if list.is_empty() {
        return Ok(None);
    }
    if list.len() > SERVICE_PATTERNS_MAX {
        let error = format!("has {} patterns; at most {SERVICE_PATTERNS_MAX} are allowed", list.len());
        return Err(fields.error("Services", error).into());
    }
    let parsed: Result<Vec<_>, _> = list.iter().map(|text| text.parse::<ServicePattern>()).collect();
    Ok(Some(parsed.map_err(|error| fields.error("Services", error))?))
}

pub(super) async fn list(api: Arc<Api>, _: Call) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let tokens: Vec<Value> = snapshot.join_tokens().map(|token| form(&token.value)).collect();
    Ok(Answer::json(json!({"revision": snapshot.revision().0, "tokens": tokens})))
}

fn form(token: &JoinTokenRecord) -> Value {
    let used = match &token.uses {
        JoinTokenUses::Reusable | JoinTokenUses::OneTime { used: None } => Value::Null,
        JoinTokenUses::OneTime { used: Some(JoinTokenUse { node, at }) } => {
            json!({"node": node.as_str(), "at": forms::time(*at)})
        }
    };
    json!({
        "id": token.id.to_string(),
        "description": token.description.as_ref().map_or("", |description| description.as_str()),
        "for_relays": token.for_relays,
        "services": token.services.as_ref().map(|services| services.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "reusable": token.uses == JoinTokenUses::Reusable,
        "used": used,
        "created_at": forms::time(token.created_at),
        "expires_at": forms::time(token.expires_at),
    })
}

pub(super) async fn revoke(api: Arc<Api>, call: Call) -> Outcome {
    let text = call.param("id");
    let id: JoinTokenId = text.parse().map_err(|error| ApiError::bad_request(format!("id: {text:?}: {error}")))?;
    if api.catalog.snapshot().join_token(&id).is_none() {
        return Err(ApiError::not_found(format!("there is no join token {id}")));
    }
    let revision = api.catalog.commit(Command::JoinToken(JoinTokenCommand::Revoke(id))).await?;
    Ok(Answer::empty().written_at(revision))
}
