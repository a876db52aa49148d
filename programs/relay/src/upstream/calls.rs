//! The connections over which a relay asks a server what its agents ask.
//!
//! A server answers a limited number of requests at once on one connection, and whoever follows something has one under way for
//! as long as it lives. So there are several connections, with those who follow on others than those who wait for an answer. Each
//! is made when it is needed, and made anew when it is gone: nobody's stream hangs on it. When all are full that is said, and
//! nobody waits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use starling_model::NodeName;
use starling_rpc::{CallError, ServerClient};
use starling_telemetry::{Counter, Gauge, Registry};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::CONNECT_TIMEOUT;

/// Requests under way on one connection. A server takes 256, and some that are over here may not be over there yet.
const REQUESTS_PER_CONNECTION: usize = 200;

/// Connections for what is answered once: 1,600 at a time, more than a server signs or writes meanwhile.
const CALL_CONNECTIONS: usize = 8;

/// Connections for what is followed: 6,400 alias checks of other nodes.
const FOLLOW_CONNECTIONS: usize = 32;

/// After this whoever was refused may ask again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How much is asked, by all connections to whichever server.
#[derive(Clone)]
pub(crate) struct Metrics {
    calls: Gauge,
    follows: Gauge,
    refused: Counter,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let gauge = |name, help| registry.register(name, help, Gauge::default());
        Self {
            calls: gauge("relay_calls", "Calls of agents that are under way to a server"),
            follows: gauge("relay_follows", "Checks of other nodes that agents follow by way of this relay"),
            refused: registry.register(
                "relay_calls_refused",
                "Calls of agents that were refused since as many as may be were under way",
                Counter::default(),
            ),
        }
    }
}

/// The connections to one server.
pub(crate) struct Calls {
    address: String,
    /// Of the moment: a connection that is made later shows the certificate of then.
    tls: watch::Receiver<Arc<rustls::ClientConfig>>,
    calls: Pool,
    follows: Pool,
    refused: Counter,
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Calls {
    /// To the server at `address`; nothing is opened yet.
    pub(super) fn to(address: String, tls: watch::Receiver<Arc<rustls::ClientConfig>>, metrics: &Metrics) -> Self {
        let Metrics { calls, follows, refused } = metrics.clone();
        let calls = Pool::new("calls", CALL_CONNECTIONS, calls);
        let follows = Pool::new("checks of other nodes that are followed", FOLLOW_CONNECTIONS, follows);
        Self { address, tls, calls, follows, refused }
    }

    /// A place for something that is answered once.
    ///
    /// # Errors
    /// [`CallError::Overloaded`] if all are taken, [`CallError::Unavailable`] if the server is not reached.
    pub(crate) async fn call(&self) -> Result<Asking, CallError> {
        self.ask(&self.calls).await
    }

    /// A place for something that is followed.
    ///
    /// # Errors
    /// As [`Calls::call`].
    pub(crate) async fn follow(&self) -> Result<Asking, CallError> {
        self.ask(&self.follows).await
    }

    async fn ask(&self, pool: &Pool) -> Result<Asking, CallError> {
        let Some((connection, place)) = pool.place() else {
            self.refused.inc();
            let max = pool.connections.len() * REQUESTS_PER_CONNECTION;
            let reason = format!("this relay has {max} {} under way, which is as many as it may", pool.what);
            return Err(CallError::Overloaded { reason, retry_after: AGAIN_AFTER });
        };
        let client = connection.client(&self.address, &self.tls).await?;
        Ok(Asking { client, _place: place })
    }
}

/// Connections for one purpose. One is used when those before it are full.
struct Pool {
    what: &'static str,
    connections: Vec<Connection>,
    under_way: Gauge,
}

impl Pool {
    fn new(what: &'static str, count: usize, under_way: Gauge) -> Self {
        Self { what, connections: (0..count).map(|_| Connection::new()).collect(), under_way }
    }

    fn place(&self) -> Option<(&Connection, Place)> {
        self.connections.iter().find_map(|connection| {
            let permit = Arc::clone(&connection.places).try_acquire_owned().ok()?;
            self.under_way.inc();
            Some((connection, Place { under_way: self.under_way.clone(), _permit: permit }))
        })
    }
}

/// One connection, be it there or not.
struct Connection {
    places: Arc<Semaphore>,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    client: Option<ServerClient>,
    /// Ends the connection when nothing is heard on it.
    _vigil: JoinSet<()>,
    /// When it could not be made the last time, and why.
    failed: Option<(Instant, CallError)>,
}

impl Connection {
    fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(REQUESTS_PER_CONNECTION)), slot: Mutex::default() }
    }

    /// The connection of the moment, or another if it is no more. Those who come meanwhile wait for the same one, and for no other
    /// if that fails.
    async fn client(
        &self,
        address: &str,
        tls: &watch::Receiver<Arc<rustls::ClientConfig>>,
    ) -> Result<ServerClient, CallError> {
        let came = Instant::now();
        let mut slot = self.slot.lock().await;
        if let Some(client) = slot.client.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        if let Some((_, error)) = slot.failed.as_ref().filter(|(at, _)| *at >= came) {
            return Err(error.clone());
        }
        let tls = Arc::clone(&tls.borrow());
        match ServerClient::connect(address, tls, CONNECT_TIMEOUT).await {
            Ok(client) => {
                let mut vigil = JoinSet::new();
                vigil.spawn(client.vigil());
                *slot = Slot { client: Some(client.clone()), _vigil: vigil, failed: None };
                Ok(client)
            }
            Err(error) => {
                let error = CallError::from(error);
                slot.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }
}

/// One request under way.
struct Place {
    under_way: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.under_way.dec();
    }
}

/// A connection over which something may be asked; to be dropped when it is answered.
pub(crate) struct Asking {
    pub(crate) client: ServerClient,
    _place: Place,
}

impl Asking {
    /// The same, in the name of a node.
    ///
    /// # Errors
    /// [`CallError::Refused`] if the name cannot be said.
    pub(crate) fn for_node(self, node: &NodeName) -> Result<Self, CallError> {
        Ok(Self { client: self.client.for_node(node)?, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_is_full_is_not_waited_for_and_a_place_is_given_back() {
        let pool = Pool::new("calls", 2, Gauge::default());
        let mut places: Vec<_> =
            (0..2 * REQUESTS_PER_CONNECTION).map_while(|_| pool.place()).map(|(_, place)| place).collect();
        assert_eq!(places.len(), 2 * REQUESTS_PER_CONNECTION);
        assert!(pool.place().is_none());
        places.pop();
        assert!(pool.place().is_some());
        drop(places);
        assert_eq!(pool.under_way.get(), 0);
    }
}
