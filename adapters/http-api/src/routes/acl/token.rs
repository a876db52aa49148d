//! Tokens.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use starling_catalog::{AclCommand, AclRefusal, Command, Refusal, Subject};
use starling_model::{
    ANONYMOUS_TOKEN, Access, AclKey, AclRecord, AclSecret, AclToken, Resource, Revision, UnixSeconds, Uuid, Versioned,
};

use super::{draw, grants_of, id_of, not_found};
use crate::acl::{management_token, now, secret_hash};
use crate::answer::Answer;
use crate::answer::forms::acl as forms;
use crate::blocking::{View, view};
use crate::call::Call;
use crate::error::ApiError;
use crate::parse::acl::{TokenBody, parse_token};
use crate::ports::CommitFailure;
use crate::router::{Api, Outcome};

/// Shortest life of a token; Consul's.
const TTL_SECONDS_MIN: u64 = 60;

/// Longest life of one that ends; Consul's.
const TTL_SECONDS_MAX: u64 = 24 * 60 * 60;

pub(super) async fn bootstrap(api: Arc<Api>, call: Call) -> Outcome {
    let given = if call.body.is_empty() {
        None
    } else {
        let context = Call::context(&api.catalog.authority());
        let mut fields = call.fields(&context)?;
        let given = fields.text("BootstrapSecret")?;
        fields.finish()?;
        given
    };
    let secret = secret_of(given, "BootstrapSecret")?;
    let token = management_token(draw()?, secret, "Bootstrap Token (Global Management)", now());
    let accessor = token.accessor;
    // Who is first may: the right to it is that nobody has been.
    match api.catalog.commit(Command::Acl(AclCommand::Bootstrap(Box::new(token)))).await {
        Ok(revision) => {
            tracing::info!(%accessor, "access control is bootstrapped");
            written(&api, accessor, revision)
        }
        Err(CommitFailure::Refused(Refusal::Acl(refusal @ AclRefusal::Bootstrapped(_)))) => {
            Err(ApiError::new(StatusCode::FORBIDDEN, refusal.to_string()))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// A secret that was given, which is a UUID, or else one that is drawn.
pub(super) fn secret_of(given: Option<String>, field: &str) -> Result<AclSecret, ApiError> {
    let wrong = || ApiError::bad_request(format!("{field}: is no UUID"));
    let id: Uuid = match given {
        Some(text) => text.to_ascii_lowercase().parse().map_err(|_| wrong())?,
        None => draw()?,
    };
    AclSecret::new(&id.to_string()).ok_or_else(wrong)
}

/// What was written, as it stands.
pub(super) fn written(api: &Api, accessor: Uuid, revision: Revision) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let token = snapshot.acl_token(accessor).ok_or_else(|| not_found("token", &accessor.to_string()))?;
    Ok(Answer::json(forms::token(token, &snapshot, true)).written_at(revision))
}

fn body(api: &Api, call: &Call) -> Result<TokenBody, ApiError> {
    let context = Call::context(&api.catalog.authority());
    Ok(parse_token(call.fields(&context)?)?)
}

pub(super) async fn create(api: Arc<Api>, call: Call) -> Outcome {
    let body = body(&api, &call)?;
    let now = now();
    let (expires_at, ttl_s) = life(&body, now)?;
    let accessor = match body.accessor {
        Some(accessor) => accessor,
        None => draw()?,
    };
    let secret = secret_of(body.secret, "SecretID")?;
    let token = AclToken {
        accessor,
        secret_hash: secret_hash(secret.reveal()),
        secret,
        description: body.description,
        grants: grants_of(&api, body.grants)?,
        local: body.local,
        created_at: now,
        expires_at,
        ttl_s,
        auth_method: None,
    };
    put(&api, &call, token, true).await
}

/// Until when a token is good, and for how long, if it ends.
fn life(body: &TokenBody, now: UnixSeconds) -> Result<(Option<UnixSeconds>, Option<u64>), ApiError> {
    let (at, ttl, field) = match (body.expires_at, body.ttl) {
        (None, None) => return Ok((None, None)),
        (Some(_), Some(_)) => {
            return Err(ApiError::bad_request("ExpirationTTL: give it or ExpirationTime, not both"));
        }
        (Some(at), None) => (at, at.0.saturating_sub(now.0), "ExpirationTime"),
        (None, Some(ttl)) => (now.plus(ttl.as_secs()), ttl.as_secs(), "ExpirationTTL"),
    };
    if !(TTL_SECONDS_MIN..=TTL_SECONDS_MAX).contains(&ttl) {
        let text = format!("{field}: a token that ends does so in {TTL_SECONDS_MIN} s to {TTL_SECONDS_MAX} s");
        return Err(ApiError::bad_request(text));
    }
    Ok((Some(at), body.ttl.map(|ttl| ttl.as_secs())))
}

async fn put(api: &Api, call: &Call, token: AclToken, is_new: bool) -> Outcome {
    let accessor = token.accessor;
    let record = AclRecord::Token(Box::new(token));
    let revision = api.commit(call, Command::Acl(AclCommand::Put { record, is_new })).await?;
    written(api, accessor, revision)
}

fn existing(api: &Api, accessor: Uuid) -> Result<Arc<Versioned<AclToken>>, ApiError> {
    let snapshot = api.catalog.snapshot();
    let token = snapshot.acl_token(accessor).filter(|token| !token.value.has_expired(now()));
    token.cloned().ok_or_else(|| not_found("token", &accessor.to_string()))
}

pub(super) async fn update(api: Arc<Api>, call: Call) -> Outcome {
    let accessor = id_of(&call, "accessor")?;
    let body = body(&api, &call)?;
    let before = existing(&api, accessor)?;
    if body.accessor.is_some_and(|said| said != accessor) {
        return Err(ApiError::bad_request("AccessorID: differs from the one in the path"));
    }
    if body.secret.is_some_and(|secret| secret != before.value.secret.reveal()) {
        return Err(ApiError::bad_request(AclRefusal::OtherSecret.to_string()));
    }
    if body.expires_at.is_some() && body.expires_at != before.value.expires_at {
        return Err(ApiError::bad_request("ExpirationTime: cannot be changed"));
    }
    if body.local != before.value.local {
        return Err(ApiError::bad_request("Local: cannot be changed"));
    }
    let token =
        AclToken { description: body.description, grants: grants_of(&api, body.grants)?, ..before.value.clone() };
    put(&api, &call, token, false).await
}

pub(super) async fn copy(api: Arc<Api>, call: Call) -> Outcome {
    let before = existing(&api, id_of(&call, "accessor")?)?;
    if before.value.accessor == ANONYMOUS_TOKEN {
        return Err(ApiError::bad_request("the anonymous token cannot be cloned"));
    }
    let description = if call.body.is_empty() { String::new() } else { body(&api, &call)?.description };
    let secret = secret_of(None, "SecretID")?;
    let token = AclToken {
        accessor: draw()?,
        secret_hash: secret_hash(secret.reveal()),
        secret,
        description: if description.is_empty() { before.value.description.clone() } else { description },
        created_at: now(),
        auth_method: None,
        ..before.value.clone()
    };
    put(&api, &call, token, true).await
}

pub(super) async fn delete(api: Arc<Api>, call: Call) -> Outcome {
    let accessor = id_of(&call, "accessor")?;
    let revision = api.commit(&call, Command::Acl(AclCommand::Delete(AclKey::Token(accessor)))).await?;
    Ok(Answer::json(json!(true)).written_at(revision))
}

pub(super) async fn read(api: Arc<Api>, mut call: Call) -> Outcome {
    let accessor = id_of(&call, "accessor")?;
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    answer(&api, &call, &view, (accessor, may_see_secrets(&call)))
}

pub(super) async fn read_self(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    // Whoever shows a token has its secret.
    let accessor = call.bearer().accessor().unwrap_or(ANONYMOUS_TOKEN);
    answer(&api, &call, &view, (accessor, true))
}

fn may_see_secrets(call: &Call) -> bool {
    call.bearer().rights().allows(Resource::Acl, "", Access::Write)
}

fn answer(api: &Api, call: &Call, view: &View, (accessor, with_secret): (Uuid, bool)) -> Outcome {
    let token = view.snapshot.acl_token(accessor).filter(|token| !token.value.has_expired(now()));
    let token = token.ok_or_else(|| not_found("token", &accessor.to_string()).at(view.index))?;
    let mut form = forms::token(token, &view.snapshot, with_secret);
    if call.query.switch("expanded")? {
        let grants = &token.value.grants;
        let roles: Vec<_> = grants.roles.iter().filter_map(|id| view.snapshot.acl_role(*id)).collect();
        let of_roles = roles.iter().flat_map(|role| &role.value.grants.policies);
        let policies: std::collections::BTreeSet<_> = grants.policies.iter().chain(of_roles).copied().collect();
        let policies = policies.into_iter().filter_map(|id| view.snapshot.acl_policy(id));
        form["ExpandedPolicies"] = policies.map(|policy| forms::policy(policy, true)).collect::<Vec<_>>().into();
        form["ExpandedRoles"] = roles.iter().map(|role| forms::role(role, &view.snapshot)).collect::<Vec<_>>().into();
        let facts = api.catalog.authority();
        form["AgentACLDefaultPolicy"] = facts.acl_default.map_or("", |default| default.as_str()).into();
        form["AgentACLDownPolicy"] = "extend-cache".into();
        form["ResolvedByAgent"] = facts.node_name.as_str().into();
    }
    Ok(Answer::json(form).read_at(view.index))
}

pub(super) async fn list(api: Arc<Api>, mut call: Call) -> Outcome {
    let view = view(&api, &mut call, &[Subject::Access]).await?;
    let wanted = ["policy", "role", "servicename", "authmethod"].map(|name| call.query.text(name));
    if wanted.iter().flatten().count() > 1 {
        return Err(ApiError::bad_request("can only filter by one of: policy, role, servicename, authmethod"));
    }
    let [policy, role, service, method] = wanted;
    let is_wanted = |token: &AclToken| {
        let has = |ids: &[Uuid], text: &str| ids.iter().any(|id| id.to_string() == text);
        let stands_for = |name: &str| token.grants.services.iter().any(|identity| identity.service.as_str() == name);
        !token.has_expired(now())
            && policy.is_none_or(|id| has(&token.grants.policies, id))
            && role.is_none_or(|id| has(&token.grants.roles, id))
            && service.is_none_or(stands_for)
            && method.is_none_or(|name| token.auth_method.as_ref().is_some_and(|own| own.as_str() == name))
    };
    let with_secrets = may_see_secrets(&call);
    let tokens = view.snapshot.acl_tokens().filter(|token| is_wanted(&token.value));
    let tokens: Vec<Value> = tokens.map(|token| forms::token(token, &view.snapshot, with_secrets)).collect();
    Ok(Answer::json(Value::Array(tokens)).read_at(view.index))
}
