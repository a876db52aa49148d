//! The servers' API, for what is asked of this agent and only they can answer.

use std::sync::Arc;

use async_trait::async_trait;
use http::{Request, Response};
use hyper::body::Bytes;
use starling_agent::remote::Passage;
use starling_http_api::{Body, ServersPort, Unreached};

/// The way to them.
pub(super) struct Servers(pub(super) Arc<Passage>);

#[async_trait]
impl ServersPort for Servers {
    async fn ask(&self, request: Request<Bytes>) -> Result<Response<Body>, Unreached> {
        let answer = self.0.ask(request).await;
        Ok(answer.map_err(|error| Unreached(error.to_string()))?.map(Body::new))
    }
}
