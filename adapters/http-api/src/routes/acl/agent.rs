//! What an agent has to know of tokens: what they may.

use std::sync::Arc;

use serde_json::json;

use crate::answer::Answer;
use crate::call::Call;
use crate::router::{Api, Outcome};

pub(super) async fn rights(api: Arc<Api>, call: Call) -> Outcome {
    let default = api.catalog.authority().acl_default;
    Ok(Answer::json(json!({
        "accessor": call.bearer().accessor().map(|accessor| accessor.to_string()),
        "default": default.map(|default| default.as_str()),
        "rules": call.bearer().rights().rules(),
    })))
}
