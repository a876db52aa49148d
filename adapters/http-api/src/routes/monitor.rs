//! The log of the process, line by line, for as long as somebody listens.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream;
use http::StatusCode;
use tracing::Level;

use crate::answer::Answer;
use crate::call::Call;
use crate::error::ApiError;
use crate::router::{Api, Outcome};

/// How long a caller who lost the right goes on hearing the log at most, while there are lines: judging each would cost more than it.
const JUDGED_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn monitor(api: Arc<Api>, call: Call) -> Outcome {
    let level = match call.query.text("loglevel").map(str::to_ascii_lowercase).as_deref() {
        None | Some("info") => Level::INFO,
        Some("trace") => Level::TRACE,
        Some("debug") => Level::DEBUG,
        Some("warn") => Level::WARN,
        Some("err" | "error") => Level::ERROR,
        Some(other) => {
            let text =
                format!("Unknown log level: loglevel is one of trace, debug, info, warn and error, not {other:?}");
            return Err(ApiError::bad_request(text));
        }
    };
    let lines = api.catalog.log_lines(level, call.query.switch("logjson")?).ok_or_else(|| {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "as many follow the log as may; end another `monitor`")
    })?;
    // The first line that is heard: a log may be silent for long.
    tracing::info!("somebody follows the log");
    let begun = (lines, api, call, Instant::now());
    let lines = stream::unfold(begun, |(mut lines, api, mut call, mut judged)| async move {
        let line = call.stopping().cuts_short(lines.recv()).await.flatten()?;
        // It ends for a caller who has lost the right.
        if judged.elapsed() >= JUDGED_EVERY {
            call.judge_again(&api).await.ok()?;
            judged = Instant::now();
        }
        Some((Ok::<_, Infallible>(Bytes::from(line + "\n")), (lines, api, call, judged)))
    });
    Ok(Answer::stream(axum::body::Body::from_stream(lines)))
}
