//! Who leads, and metrics.

use std::sync::Arc;

use serde_json::json;

use crate::answer::Answer;
use crate::call::Call;
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
