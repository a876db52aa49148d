//! Requests to the HTTP API of a server, over the same kind of connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::codegen::StdError;

use super::{Line, ServerClient};
use crate::call::CallError;

impl ServerClient {
    /// Whether the connection has ended, as far as is known here.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.http2.is_closed()
    }

    /// Ends the connection once nothing was heard on it for [`SILENCE_MAX`](crate::SILENCE_MAX), and returns then. Where there is
    /// a stream whoever reads it sees to that; one for calls alone would otherwise be given up after minutes.
    pub fn vigil(&self) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.line.pulse).watch()
    }

    /// Asks the server's HTTP API. The address of `request` is to name scheme and authority; which is of no account.
    ///
    /// Who reads answers slowly holds up others on the same connection, the agent's stream among them: give the API a
    /// connection of its own.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] if no answer begins; the server may or may not have done what was asked.
    pub async fn ask_api<B>(&self, request: Request<B>) -> Result<Response<ApiBody>, CallError>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<StdError>,
    {
        let mut http2 = self.http2.clone();
        http2.ready().await.map_err(CallError::unavailable)?;
        let answer = http2.send_request(request.map(Body::new)).await.map_err(CallError::unavailable)?;
        Ok(answer.map(|body| ApiBody { body, _line: Arc::clone(&self.line) }))
    }
}

/// The body of an answer of the API. It holds the connection open.
#[derive(Debug)]
pub struct ApiBody {
    body: Incoming,
    _line: Arc<Line>,
}

impl HttpBody for ApiBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
