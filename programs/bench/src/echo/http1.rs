//! HTTP/1.1 of the application.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use starling_http1::{BodyReader, Limits, Piece, RequestHead};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::BUFFER_BYTES;

/// What a request without a body gets.
pub(super) const GREETING: &[u8] = b"starling";

/// Serves a connection of which something has been read; each request is answered so long after it came.
pub(super) async fn serve<S>(mut stream: S, mut buffer: BytesMut, service_time: Duration) -> anyhow::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut answers = Vec::with_capacity(BUFFER_BYTES / 4);
    loop {
        while let Some(head) = RequestHead::take(&mut buffer, &Limits::default())? {
            let mut body = BodyReader::new(head.body);
            let mut echoed = Vec::new();
            loop {
                match body.next(&buffer)? {
                    Piece::Data(length) => {
                        echoed.extend_from_slice(&buffer[..length]);
                        buffer.advance(length);
                    }
                    Piece::Framing(length) => buffer.advance(length),
                    Piece::End => break,
                    Piece::More if stream.read_buf(&mut buffer).await? == 0 => return Ok(()),
                    Piece::More => {}
                }
            }
            if !service_time.is_zero() {
                tokio::time::sleep(service_time).await;
            }
            let echoed = if echoed.is_empty() { Bytes::from_static(GREETING) } else { Bytes::from(echoed) };
            answer(&mut answers, &echoed, head.keep_alive);
            if !head.keep_alive {
                stream.write_all(&answers).await?;
                return Ok(stream.shutdown().await?);
            }
        }
        if !answers.is_empty() {
            stream.write_all(&answers).await?;
            answers.clear();
        }
        buffer.reserve(BUFFER_BYTES / 4);
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

fn answer(out: &mut Vec<u8>, body: &[u8], keep_alive: bool) {
    let close = if keep_alive { "" } else { "connection: close\r\n" };
    let length = body.len();
    out.extend_from_slice(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{close}\r\n").as_bytes());
    out.extend_from_slice(body);
}
