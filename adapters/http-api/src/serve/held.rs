//! A response body during which its connection counts as busy.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use http_body::{Body as HttpBody, Frame, SizeHint};
use starling_sockets::Busy;

/// A body, and that it is being sent.
pub(super) struct Held {
    body: Body,
    _busy: Busy,
}

impl Held {
    pub(super) fn new(body: Body, busy: Busy) -> Self {
        Self { body, _busy: busy }
    }
}

impl HttpBody for Held {
    type Data = <Body as HttpBody>::Data;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
