//! Logging in by an auth method, and out again.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;
use starling_catalog::{AclCommand, Command};
use starling_model::{AclKey, AclName, AclToken, UnixSeconds};

use super::draw;
use super::token::{secret_of, written};
use crate::acl::{now, secret_hash};
use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::login;
use crate::router::{Api, Outcome};

/// What such tokens are called; behind it, what the caller says of itself.
const DESCRIPTION: &str = "token created via login";

/// Bytes of what a caller may say of itself.
const META_BYTES_MAX: usize = 4 * 1024;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

fn denied(text: impl std::fmt::Display) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, format!("Permission denied: {text}"))
}

pub(super) async fn login(api: Arc<Api>, call: Call) -> Outcome {
    let facts = api.catalog.authority();
    if facts.acl_default.is_none() {
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, "ACL support disabled"));
    }
    let (name, bearer, meta) = {
        let context = Call::context(&facts);
        let mut fields = call.fields(&context)?;
        let name = fields.required_text("AuthMethod")?;
        let bearer = fields.required_text("BearerToken")?;
        let meta = fields.text_map("Meta")?;
        fields.tenancy()?;
        fields.finish()?;
        (name, bearer, meta)
    };
    let meta = if meta.is_empty() { String::new() } else { format!(": {}", json!(meta)) };
    if meta.len() > META_BYTES_MAX {
        return Err(ApiError::bad_request(format!("Meta: has more than {META_BYTES_MAX} bytes")));
    }
    let (snapshot, now) = (api.catalog.snapshot(), now());
    let unknown = || denied(format!("there is no auth method {name:?}"));
    let named = AclName::new(&name).ok();
    let method = named.and_then(|name| snapshot.acl_auth_method(&name)).ok_or_else(unknown)?;
    let settings = login::settings_of(&method.value, &Call::context(&facts)).map_err(denied)?;
    let (known, seen) = ((&*snapshot, &facts.datacenter), (&api.login_keys, now));
    let grants = login::login(&method.value, &settings, &bearer, known, seen).await.map_err(denied)?;
    let secret = secret_of(None, "SecretID")?;
    let ttl_s = method.value.max_token_ttl_ns.div_ceil(NANOS_PER_SECOND);
    let expires_at: Option<UnixSeconds> = (ttl_s > 0).then(|| now.plus(ttl_s));
    let token = AclToken {
        accessor: draw()?,
        secret_hash: secret_hash(secret.reveal()),
        secret,
        description: format!("{DESCRIPTION}{meta}"),
        grants,
        local: method.value.token_locality != "global",
        created_at: now,
        expires_at,
        ttl_s: None,
        auth_method: Some(method.value.name.clone()),
    };
    let (accessor, token, method_at) = (token.accessor, Box::new(token), method.modified);
    // The right to it is what somebody else has signed.
    let revision = api.catalog.commit(Command::Acl(AclCommand::Login { token, method_at })).await?;
    tracing::info!(%accessor, method = name, "somebody has logged in");
    written(&api, accessor, revision)
}

pub(super) async fn logout(api: Arc<Api>, call: Call) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let token = call.bearer().accessor().and_then(|accessor| snapshot.acl_token(accessor));
    let token = token
        .filter(|token| token.value.auth_method.is_some())
        .ok_or_else(|| denied("the token did not come of a login; remove it with DELETE /v1/acl/token/ACCESSOR"))?;
    // Whoever has it may end it.
    let key = AclKey::Token(token.value.accessor);
    let revision = api.catalog.commit(Command::Acl(AclCommand::Delete(key))).await?;
    Ok(Answer::json(json!(true)).written_at(revision))
}
