//! Where a body ends.

use crate::line;

/// Extensions of a chunk that are read over; nobody uses them but to exhaust readers (RFC 9112 section 7.1.1).
pub const CHUNK_EXTENSION_BYTES_MAX: usize = 256;

/// Bytes of trailer fields, which are read over.
pub const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// Hexadecimal digits of a chunk's size: 2^60 bytes are no chunk.
const CHUNK_DIGITS_MAX: usize = 15;

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLength {
    /// So many bytes.
    Exactly(u64),
    /// Chunks, the last one empty.
    Chunked,
    /// Everything until the sender closes; responses only.
    UntilClose,
}

/// Why a body cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The size of a chunk is no number, or the chunk does not end where it should.
    #[error("malformed chunk")]
    Chunk,
    /// More than [`CHUNK_EXTENSION_BYTES_MAX`].
    #[error("chunk extension too long")]
    Extension,
    /// More than [`TRAILER_BYTES_MAX`], or no fields.
    #[error("malformed trailer")]
    Trailer,
    /// The sender closed before the end.
    #[error("the body ended early")]
    Early,
}

/// What the front of the buffer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// So many bytes of the body.
    Data(usize),
    /// So many bytes of framing, to be dropped.
    Framing(usize),
    /// More has to be read.
    More,
    /// The body is over.
    End,
}

/// Finds a body's end in what is read.
#[derive(Debug, Clone)]
pub struct BodyReader(State);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Exactly(u64),
    UntilClose,
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    /// With the bytes of trailers so far.
    Trailer(usize),
    End,
}

impl BodyReader {
    /// At the first byte of a body.
    #[must_use]
    pub fn new(length: BodyLength) -> Self {
        Self(match length {
            BodyLength::Exactly(0) => State::End,
            BodyLength::Exactly(length) => State::Exactly(length),
            BodyLength::Chunked => State::ChunkSize,
            BodyLength::UntilClose => State::UntilClose,
        })
    }

    /// Whether the end has been seen.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0 == State::End
    }

    /// Says what the front of `buffer` is, and takes it for consumed.
    ///
    /// # Errors
    /// [`BodyError`]; nothing that follows on the connection can be understood then.
    pub fn next(&mut self, buffer: &[u8]) -> Result<Piece, BodyError> {
        let (piece, state) = match self.0 {
            State::End => return Ok(Piece::End),
            State::UntilClose if buffer.is_empty() => return Ok(Piece::More),
            State::UntilClose => return Ok(Piece::Data(buffer.len())),
            State::Exactly(_) | State::ChunkData(_) if buffer.is_empty() => return Ok(Piece::More),
            State::Exactly(left) => counted(buffer, left, State::Exactly, State::End),
            State::ChunkData(left) => counted(buffer, left, State::ChunkData, State::ChunkEnd),
            State::ChunkSize => match chunk_size(buffer)? {
                None => return Ok(Piece::More),
                Some((0, consumed)) => (Piece::Framing(consumed), State::Trailer(0)),
                Some((size, consumed)) => (Piece::Framing(consumed), State::ChunkData(size)),
            },
            State::ChunkEnd => match buffer {
                [b'\r', b'\n', ..] => (Piece::Framing(2), State::ChunkSize),
                [] | [b'\r'] => return Ok(Piece::More),
                _ => return Err(BodyError::Chunk),
            },
            State::Trailer(seen) => match trailer_line(buffer, seen)? {
                None => return Ok(Piece::More),
                Some((consumed, true)) => (Piece::Framing(consumed), State::End),
                Some((consumed, false)) => (Piece::Framing(consumed), State::Trailer(seen + consumed)),
            },
        };
        self.0 = state;
        Ok(piece)
    }

    /// The sender has closed.
    ///
    /// # Errors
    /// [`BodyError::Early`] if that was not the end.
    pub fn close(&mut self) -> Result<(), BodyError> {
        match self.0 {
            State::End | State::UntilClose => {
                self.0 = State::End;
                Ok(())
            }
            State::Exactly(_) | State::ChunkSize | State::ChunkData(_) | State::ChunkEnd | State::Trailer(_) => {
                Err(BodyError::Early)
            }
        }
    }
}

fn counted(buffer: &[u8], left: u64, more: fn(u64) -> State, after: State) -> (Piece, State) {
    let taken = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
    let left = left - taken as u64;
    (Piece::Data(taken), if left == 0 { after } else { more(left) })
}

/// A chunk's size, and the length of its line; `None` if the line is not all there.
fn chunk_size(buffer: &[u8]) -> Result<Option<(u64, usize)>, BodyError> {
    let digits = buffer.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    if digits > CHUNK_DIGITS_MAX {
        return Err(BodyError::Chunk);
    }
    let rest = &buffer[digits..];
    let allowed = matches!(rest, [] | [b'\r' | b';', ..]);
    if !allowed || (digits == 0 && !rest.is_empty()) {
        return Err(BodyError::Chunk);
    }
    match line::first(rest) {
        None if rest.len() > CHUNK_EXTENSION_BYTES_MAX => Err(BodyError::Extension),
        None if rest.len() > 1 && rest[0] == b'\r' => Err(BodyError::Chunk),
        None => Ok(None),
        Some(Err(())) => Err(BodyError::Chunk),
        Some(Ok((extension, _))) if extension.len() > CHUNK_EXTENSION_BYTES_MAX => Err(BodyError::Extension),
        Some(Ok((_, length))) => {
            let digits_text = std::str::from_utf8(&buffer[..digits]).map_err(|_| BodyError::Chunk)?;
            let size = u64::from_str_radix(digits_text, 16).map_err(|_| BodyError::Chunk)?;
            Ok(Some((size, digits + length)))
        }
    }
}

/// The length of a line of trailers, and whether it is the empty one at the end; `None` if it is not all there.
fn trailer_line(buffer: &[u8], seen: usize) -> Result<Option<(usize, bool)>, BodyError> {
    match line::first(buffer) {
        None if seen + buffer.len() > TRAILER_BYTES_MAX => Err(BodyError::Trailer),
        None => Ok(None),
        Some(Ok(([], length))) => Ok(Some((length, true))),
        Some(Ok((line, length))) => {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
            let token = !name.is_empty() && name.len() < line.len() && name.iter().all(u8::is_ascii_graphic);
            if !token || seen + length > TRAILER_BYTES_MAX {
                return Err(BodyError::Trailer);
            }
            Ok(Some((length, false)))
        }
        Some(Err(())) => Err(BodyError::Trailer),
    }
}
