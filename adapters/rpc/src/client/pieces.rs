//! Request bodies in small pieces.
//!
//! HTTP/2 keeps a buffer for each connection that is as large as the largest frame that ever came over it, and a server has
//! ten thousand connections: what an agent says goes in frames that fit the buffer which is there anyway.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

/// Bytes in a frame at most: two of them, with what goes around them, fit into the 8 KiB that are set aside for reading.
const FRAME_BYTES_MAX: usize = 4_000;

/// A body whose frames are small.
pub(super) struct Pieces {
    body: Body,
    /// Of a frame that is not small.
    rest: Bytes,
}

impl Pieces {
    pub(super) fn of(body: Body) -> Self {
        Self { body, rest: Bytes::new() }
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => self.rest = data,
                Some(Err(other)) => return Poll::Ready(Some(Ok(other))),
                None => return Poll::Ready(None),
            }
        }
        let piece = self.rest.len().min(FRAME_BYTES_MAX);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    #[tokio::test]
    async fn nothing_is_lost_and_no_frame_is_large() {
        for bytes in [0, 1, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 10 * FRAME_BYTES_MAX] {
            let whole: Vec<u8> = (0..bytes).map(|byte| u8::try_from(byte % 251).expect("below 251")).collect();
            let mut pieces = Pieces::of(Body::new(Full::new(Bytes::from(whole.clone()))));
            let mut came = Vec::new();
            assert_eq!(pieces.size_hint().exact(), Some(bytes as u64));
            while let Some(frame) = pieces.frame().await {
                let data = frame.expect("no error").into_data().expect("data");
                assert!(data.len() <= FRAME_BYTES_MAX);
                came.extend_from_slice(&data);
            }
            assert!(came == whole, "{bytes} bytes");
        }
    }
}
