//! Bodies that are too large to be held: read and written piece by piece.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use futures::stream;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Bytes, Frame};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::{ApiError, Call, Client};

/// Silence of a server after which it is given up: before its answer it reads its whole store.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Time for a body to be taken, acted upon and answered.
const UPLOAD_WITHIN: Duration = Duration::from_secs(30 * 60);

/// Bytes of a piece.
const PIECE_BYTES: usize = 64 * 1024;

impl Client {
    /// Hands the body of the answer to `take`, piece by piece; an answer without success is an error.
    ///
    /// # Errors
    /// [`ApiError`], or whatever `take` says.
    pub(crate) async fn download(
        &self,
        call: Call,
        mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let silent = || ApiError::Silent { address: self.address().to_string(), seconds: SILENCE_MAX.as_secs() };
        let request = self.request(self.scoped(call));
        let mut response = timeout(SILENCE_MAX, self.respond(request)).await.map_err(|_| silent())??;
        if !response.status().is_success() {
            return Err(self.outcome(response).await.map(|_| ()).expect_err("invariant: no success").into());
        }
        while let Some(frame) = timeout(SILENCE_MAX, response.frame()).await.map_err(|_| silent())? {
            let frame = frame.map_err(|error| self.broken(&error))?;
            if let Some(piece) = frame.data_ref() {
                take(piece)?;
            }
        }
        Ok(())
    }

    /// The same of an answer that comes as it is made, however long nothing is said.
    ///
    /// # Errors
    /// [`ApiError`], or whatever `take` says.
    pub(crate) async fn follow(
        &self,
        call: Call,
        mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let silent = || ApiError::Silent { address: self.address().to_string(), seconds: SILENCE_MAX.as_secs() };
        let request = self.request(self.scoped(call));
        let mut response = timeout(SILENCE_MAX, self.respond(request)).await.map_err(|_| silent())??;
        if !response.status().is_success() {
            return Err(self.outcome(response).await.map(|_| ()).expect_err("invariant: no success").into());
        }
        while let Some(frame) = response.frame().await {
            if let Some(piece) = frame.map_err(|error| self.broken(&error))?.data_ref() {
                take(piece)?;
            }
        }
        Ok(())
    }

    /// Sends a file as the body of a call, telling `progress` how many bytes are sent.
    ///
    /// # Errors
    /// [`ApiError`], or what the operating system says of the file.
    pub(crate) async fn upload(
        &self,
        call: Call,
        path: &Path,
        progress: impl Fn(u64) + Send + 'static,
    ) -> anyhow::Result<Bytes> {
        let reading = || format!("reading {}", path.display());
        let file = tokio::fs::File::open(path).await.with_context(reading)?;
        let length = file.metadata().await.with_context(reading)?.len();
        let pieces = stream::try_unfold((file, 0_u64), move |(mut file, sent)| {
            progress(sent);
            async move {
                let mut piece = vec![0; PIECE_BYTES];
                let read = file.read(&mut piece).await?;
                piece.truncate(read);
                let piece = Frame::data(Bytes::from(piece));
                Ok::<_, std::io::Error>((read > 0).then_some((piece, (file, sent + read as u64))))
            }
        });
        let (mut head, _) = self.request(self.scoped(call)).into_parts();
        head.headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
        let octets = HeaderValue::from_static("application/octet-stream");
        head.headers.insert(http::header::CONTENT_TYPE, octets);
        let request = Request::from_parts(head, StreamBody::new(Box::pin(pieces)));
        let answered = timeout(UPLOAD_WITHIN, async { self.outcome(self.respond(request).await?).await }).await;
        let silent = |_| ApiError::Silent { address: self.address().to_string(), seconds: UPLOAD_WITHIN.as_secs() };
        Ok(answered.map_err(silent)??)
    }

    /// Sends a request over a connection of its own, and waits for the head of its answer.
    pub(super) async fn respond<B>(
        &self,
        request: Request<B>,
    ) -> Result<http::Response<hyper::body::Incoming>, ApiError>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = self.connect().await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))?;
        // It ends with the exchange; what goes wrong in it is told by the response.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| self.broken(&error))
    }
}
