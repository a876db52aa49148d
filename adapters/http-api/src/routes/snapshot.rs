//! Snapshots of the catalog, in Consul's place; the file is Starling's own.

use std::sync::{Arc, PoisonError};

use futures::StreamExt;
use http::StatusCode;
use serde_json::json;

use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::limits::{BODY_TIMEOUT, BodyLimit};
use crate::ports::{OutgoingSnapshot, RestoreReport, SnapshotFailure};
use crate::router::{Api, Outcome};

/// Seconds after which a restore may be asked for again while another one is at work.
const BUSY_RETRY_AFTER: u32 = 5;

pub(super) async fn save(api: Arc<Api>, _: Call) -> Outcome {
    let OutgoingSnapshot { revision, pieces } = api.catalog.save_snapshot().await?;
    Ok(Answer::stream(axum::body::Body::from_stream(pieces)).read_at(revision))
}

pub(super) async fn restore(api: Arc<Api>, call: Call) -> Outcome {
    let mut incoming = api.catalog.receive_snapshot()?;
    let body = call.stream.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut body = body.into_data_stream();
    let mut length = 0_usize;
    loop {
        // A large file takes its time; one that stands still does not.
        let piece = tokio::time::timeout(BODY_TIMEOUT, body.next()).await.map_err(|_| {
            let text = format!("nothing of the request body arrived for {} s", BODY_TIMEOUT.as_secs());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, text)
        })?;
        let Some(piece) = piece else { break };
        let piece = piece.map_err(|error| {
            ApiError::bad_request(format!("the request body could not be read: {error}; nothing was changed"))
        })?;
        length += piece.len();
        let limit = BodyLimit::SNAPSHOT.bytes();
        if length > limit {
            return Err(ApiError::bad_request(format!("body: is larger than {limit} bytes; nothing was changed")));
        }
        incoming.push(&piece)?;
    }
    let report = incoming.restore().await?;
    let revision = report.revision;
    Ok(Answer::json(form(&report)).written_at(revision))
}

fn form(report: &RestoreReport) -> serde_json::Value {
    json!({
        "revision": report.revision.0,
        "written": report.written,
        "removed": report.removed,
        "younger": {"count": report.younger_count, "keys": report.younger},
        "left": {
            "attached_nodes": report.attached_nodes.iter().map(|node| node.as_str()).collect::<Vec<_>>(),
            "ca_records": report.authority,
            "join_tokens": report.join_tokens,
            "virtual_addresses": report.virtual_addresses,
            "unreadable": report.unreadable,
        },
    })
}

impl From<SnapshotFailure> for ApiError {
    fn from(failure: SnapshotFailure) -> Self {
        let text = failure.to_string();
        match failure {
            SnapshotFailure::NotHere | SnapshotFailure::Wrong(_) => Self::bad_request(text),
            SnapshotFailure::Busy(_) => Self::new(StatusCode::TOO_MANY_REQUESTS, text).retry_after(BUSY_RETRY_AFTER),
            SnapshotFailure::Failed(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, text),
        }
    }
}
