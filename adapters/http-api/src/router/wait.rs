//! Whether a request may wait for a change, where the number of those who wait is limited.

use std::sync::Arc;

use axum::body::Body;
use http::{Request, StatusCode};

use super::{Permission, Route};
use crate::call::Query;
use crate::error::ApiError;
use crate::serve::{CameFrom, Waiting, Waits};

/// Seconds after which a client may ask to wait again that was refused for the number of those who wait.
const RETRY_AFTER_S: u32 = 5;

/// Counts a request that may wait, for as long as it is answered.
///
/// # Errors
/// If as many wait as may.
pub(super) fn begin(routes: &[Route], request: &Request<Body>, query: &Query) -> Result<Option<Waiting>, ApiError> {
    let extensions = request.extensions();
    let Some(waits) = extensions.get::<Arc<Waits>>().filter(|_| query.text("index").is_some()) else {
        return Ok(None);
    };
    let route = routes.iter().find(|route| route.method == request.method().as_str());
    let is_public = route.is_none_or(|route| route.permission == Permission::Public);
    let from = extensions.get::<CameFrom>().map(|CameFrom(from)| *from);
    let waiting = waits.begin(from, is_public).ok_or_else(|| {
        let text = "too many requests wait for changes; ask without ?index, or try again later";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, text).retry_after(RETRY_AFTER_S)
    })?;
    Ok(Some(waiting))
}
