//! A way between two programs that can be cut, as a network is: what is under way stays under way, and nobody is told.

use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Bytes that are passed on at a time.
const CHUNK: usize = 16 * 1024;

/// Passes connections on to another address for as long as it is whole; ends when dropped.
#[derive(Debug)]
pub struct Cable {
    address: String,
    whole: Arc<watch::Sender<bool>>,
    _accepting: JoinSet<()>,
}

impl Cable {
    /// One to `target`, HOST:PORT.
    ///
    /// # Panics
    /// If there is no port for it.
    pub async fn to(target: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let whole = Arc::new(watch::Sender::new(true));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, target, Arc::clone(&whole)));
        Self { address, whole, _accepting: accepting }
    }

    /// HOST:PORT of its near end.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// From now on nothing passes in either direction.
    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    /// Everything passes again, what was held up first.
    pub fn mend(&self) {
        self.whole.send_replace(true);
    }
}

async fn accept(listener: TcpListener, target: String, whole: Arc<watch::Sender<bool>>) {
    let mut passing = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        let (target, whole) = (target.clone(), whole.subscribe());
        passing.spawn(async move {
            until_whole(&mut whole.clone()).await;
            let Ok(far) = TcpStream::connect(target).await else { return };
            let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
            tokio::select! {
                () = pass(near_read, far_write, whole.clone()) => {}
                () = pass(far_read, near_write, whole) => {}
            }
        });
    }
}

/// Passes on what comes, until either end is closed.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut whole: watch::Receiver<bool>) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(count @ 1..) = from.read(&mut chunk).await {
        until_whole(&mut whole).await;
        if to.write_all(&chunk[..count]).await.is_err() {
            return;
        }
    }
}

async fn until_whole(whole: &mut watch::Receiver<bool>) {
    // Who has cut it for good has gone with it.
    let _ = whole.wait_for(|whole| *whole).await;
}
