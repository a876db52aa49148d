//! Stored records that this release cannot use.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::ports::DiagnosticRow;
use crate::router::{Api, Outcome};

/// Quarantined records that a list shows; it also states how many there are.
const SHOWN_MAX: usize = 1_000;

pub(super) async fn list(api: Arc<Api>, _: Call) -> Outcome {
    let snapshot = api.catalog.snapshot();
    let form = |(key, record): (&str, &starling_model::Versioned<starling_catalog::Quarantined>)| {
        json!({
            "key": key,
            "reason": record.value.reason,
            "bytes": record.value.bytes,
            "created": record.created.0,
            "modified": record.modified.0,
        })
    };
    let records: Vec<Value> = snapshot.quarantined().take(SHOWN_MAX).map(form).collect();
    let count = snapshot.quarantined().len();
    Ok(Answer::json(json!({"revision": snapshot.revision().0, "count": count, "records": records})))
}

pub(super) async fn delete(api: Arc<Api>, call: Call) -> Outcome {
    let key = call.query.text("key").ok_or_else(|| ApiError::bad_request("key: name the quarantined record"))?;
    match api.catalog.delete_quarantined(key).await? {
        Some(revision) => Ok(Answer::json(json!({"revision": revision.0})).written_at(revision)),
        None => Err(ApiError::new(StatusCode::NOT_FOUND, format!("no quarantined record has the key {key:?}"))),
    }
}

/// One diagnostic for each quarantined record, as far as a list shows them.
pub(super) fn diagnostics(api: &Api) -> Vec<DiagnosticRow> {
    let snapshot = api.catalog.snapshot();
    let row = |(key, record): (&str, &starling_model::Versioned<starling_catalog::Quarantined>)| DiagnosticRow {
        object: key.to_owned(),
        field: String::new(),
        reason: format!("the stored record cannot be used: {}", record.value.reason),
        fix: "write it again, run the release that wrote it, or delete it by DELETE /starling/v1/quarantine?key=KEY"
            .to_owned(),
    };
    snapshot.quarantined().take(SHOWN_MAX).map(row).collect()
}
