//! Between agents and their server: a wire that can be cut.

use std::net::Ipv4Addr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Passes connections on while it is whole.
pub(crate) struct Relay {
    pub(crate) address: String,
    is_whole: watch::Sender<bool>,
    _passing: JoinSet<()>,
}

impl Relay {
    pub(crate) async fn start(to: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let is_whole = watch::Sender::new(true);
        let (to, whole) = (to.to_owned(), is_whole.subscribe());
        let mut passing = JoinSet::new();
        passing.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                // Whoever comes while it is cut is turned away.
                if *whole.borrow() {
                    connections.spawn(pass(near, to.clone(), whole.clone()));
                }
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, is_whole, _passing: passing }
    }

    /// Ends every connection, and takes no other.
    pub(crate) fn cut(&self) {
        self.is_whole.send_replace(false);
    }

    /// Takes connections again.
    pub(crate) fn mend(&self) {
        self.is_whole.send_replace(true);
    }
}

async fn pass(mut near: TcpStream, to: String, mut whole: watch::Receiver<bool>) {
    // Without a server the agent sees that nobody is there.
    let Ok(mut far) = TcpStream::connect(to).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _ = whole.wait_for(|whole| !whole) => {}
    }
}
