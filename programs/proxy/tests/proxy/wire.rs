//! Bytes by hand: what is sent is what the test says, and what comes back is read with a deadline.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Far more than anything here takes; a loaded machine is not a failed test.
const DEADLINE: Duration = Duration::from_secs(20);

/// Waits, but not for ever.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what).await.expect("an end within the deadline")
}

/// Waits until something is so.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "not within the deadline: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// One end of a connection.
pub struct Wire<S> {
    pub stream: S,
    read: Vec<u8>,
}

/// A message with its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// First line and fields, with their line ends.
    pub head: String,
    pub body: Vec<u8>,
}

impl Message {
    /// Of a response.
    pub fn status(&self) -> u16 {
        self.head
            .get(9..12)
            .and_then(|digits| digits.parse().ok())
            .unwrap_or_else(|| panic!("no status: {}", self.head))
    }

    /// The values of a field.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        fields.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, read: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.stream.write_all(bytes.as_ref())).await.expect("to be able to send");
        within(self.stream.flush()).await.expect("to be able to send");
    }

    /// Sends what may be refused to be taken.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        within(self.stream.write_all(bytes.as_ref())).await?;
        within(self.stream.flush()).await
    }

    /// Reads more; whether there is more.
    async fn more(&mut self) -> bool {
        let mut buffer = vec![0; 64 * 1024];
        let count = within(self.stream.read(&mut buffer)).await.unwrap_or(0);
        self.read.extend_from_slice(&buffer[..count]);
        count > 0
    }

    /// The head of a message; `None` if the other end has closed.
    pub async fn try_head(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.read.windows(4).position(|end| end == b"\r\n\r\n") {
                let head = self.read.drain(..at + 4).collect();
                return Some(String::from_utf8(head).unwrap());
            }
            if !self.more().await {
                assert!(self.read.is_empty(), "half a head: {}", String::from_utf8_lossy(&self.read));
                return None;
            }
        }
    }

    pub async fn head(&mut self) -> String {
        self.try_head().await.expect("a head")
    }

    pub async fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.read.len() < count {
            assert!(self.more().await, "only {} of {count} bytes", self.read.len());
        }
        self.read.drain(..count).collect()
    }

    /// Everything until the other end closes.
    pub async fn rest(&mut self) -> Vec<u8> {
        while self.more().await {}
        std::mem::take(&mut self.read)
    }

    /// Whether the other end closes, saying nothing more.
    pub async fn ends(&mut self) -> bool {
        self.rest().await.is_empty()
    }

    /// A message with the body that its head says it has.
    pub async fn message(&mut self) -> Message {
        let head = self.head().await;
        self.body_of(head, false).await
    }

    /// A response to HEAD.
    pub async fn bodiless(&mut self) -> Message {
        let head = self.head().await;
        self.body_of(head, true).await
    }

    /// The message of that head, with its body.
    pub async fn body_of(&mut self, head: String, bodiless: bool) -> Message {
        let mut message = Message { head, body: Vec::new() };
        let response = message.head.starts_with("HTTP/");
        let status = if response { message.status() } else { 0 };
        if bodiless || matches!(status, 100..=199 | 204 | 304) {
            return message;
        }
        if message.values("transfer-encoding") == ["chunked"] {
            message.body = self.chunks().await;
        } else if let [length] = message.values("content-length")[..] {
            message.body = self.exactly(length.parse().unwrap()).await;
        } else if response {
            message.body = self.rest().await;
        }
        message
    }

    async fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await;
            let size = usize::from_str_radix(line.split(';').next().unwrap(), 16).expect("the size of a chunk");
            body.extend(self.exactly(size).await);
            assert_eq!(self.line().await, "", "a chunk ends with its line");
            if size == 0 {
                return body;
            }
        }
    }

    async fn line(&mut self) -> String {
        loop {
            if let Some(at) = self.read.windows(2).position(|end| end == b"\r\n") {
                let line: Vec<u8> = self.read.drain(..at + 2).collect();
                return String::from_utf8(line[..at].to_vec()).unwrap();
            }
            assert!(self.more().await, "half a line");
        }
    }
}
