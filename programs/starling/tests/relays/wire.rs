//! Between a relay and its server: a wire of which single connections can be cut.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Passes connections on.
pub(crate) struct Wire {
    pub(crate) address: String,
    passing: Arc<Mutex<Vec<AbortHandle>>>,
    _accepting: JoinSet<()>,
}

impl Wire {
    pub(crate) async fn to(target: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let passing = Arc::new(Mutex::new(Vec::new()));
        let (mut accepting, known) = (JoinSet::new(), Arc::clone(&passing));
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let handle = connections.spawn(pass(near, target.clone()));
                known.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
            }
        });
        Self { address, passing, _accepting: accepting }
    }

    /// The connections that are open, in the order in which they were made.
    fn open(&self) -> Vec<AbortHandle> {
        let passing = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
        passing.iter().filter(|connection| !connection.is_finished()).cloned().collect()
    }

    /// Whether so many connections have ended.
    pub(crate) fn has_ended(&self, count: usize) -> bool {
        let passing = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
        passing.iter().filter(|connection| connection.is_finished()).count() >= count
    }

    /// How many connections are open.
    pub(crate) fn count(&self) -> usize {
        self.open().len()
    }

    /// Ends every connection but the oldest, and answers with how many these were.
    pub(crate) fn cut_all_but_the_oldest(&self) -> usize {
        let younger = self.open().split_off(1);
        younger.iter().for_each(AbortHandle::abort);
        younger.len()
    }
}

async fn pass(mut near: TcpStream, target: String) {
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    // The connections are as good without.
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    // However it ends, it is over.
    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
}
