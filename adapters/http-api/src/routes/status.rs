//! Who leads, and metrics.

use std::sync::Arc;

use serde_json::json;

use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::router::{Api, Outcome};

pub(super) async fn leader(api: Arc<Api>, _: Call) -> Outcome {
    Ok(Answer::json(json!(api.catalog.authority().leader_address)))
}

pub(super) async fn peers(api: Arc<Api>, _: Call) -> Outcome {
    Ok(Answer::json(json!(api.catalog.authority().peer_addresses)))
}

pub(super) async fn metrics(api: Arc<Api>, _: Call) -> Outcome {
    Ok(Answer::metrics(api.catalog.metrics_text()))
}

pub(super) async fn agent_metrics(api: Arc<Api>, call: Call) -> Outcome {
    match call.query.text("format") {
        Some("prometheus") => metrics(api, call).await,
        Some(_) | None => Err(ApiError::bad_request("format: must be \"prometheus\" in this release")),
    }
}
