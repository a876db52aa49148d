//! From a connection to a known caller: the TLS handshake, and the limits of what it may cost others.
//!
//! A client that has not sent its whole ClientHello takes nothing but its place, which it can lose. One that has waits for
//! its turn among those of its address, and then among all. So neither silence nor fragments of a handshake delay others,
//! and no address takes every turn.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::server::Acceptor;
use starling_admission::{Address, Counts};
use starling_identity::Identity;
use starling_model::UnixSeconds;
use starling_sockets::{Complaint, Place};
use starling_tls::{Caller, PeerError, valid_until};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use crate::agents::PIECE_BYTES;
use crate::connection::{Held, Origin, Peer, STRANGER_TIMEOUT};
use crate::pulse::{Pulse, Pulsed};
use crate::socket;

/// Time for a client's whole ClientHello, and again for the rest of its handshake: bounds what strangers can hold open.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which a TLS handshake counts as under way; one that takes longer waits for its client, not for this machine.
const TURN_MAX: Duration = Duration::from_millis(250);

/// TLS handshakes under way at once; the others wait their turn, first come first served, so that a fleet that comes back
/// at once is let in one after the other rather than all together and late.
pub const HANDSHAKES_MAX: usize = 64;

/// TLS handshakes of one address under way at once: clients of other addresses always find a turn.
pub const HANDSHAKES_PER_ADDRESS_MAX: usize = 48;

/// Time that a client waits for its turn at most. Agents give up before, and try again.
pub const TURN_WAIT_MAX: Duration = Duration::from_secs(30);

/// Addresses whose turns are remembered before those are forgotten that have none under way.
const ADDRESSES_KEPT: usize = 1_024;

/// Connections of strangers at once, who have no certificate and ask to join; never more than a quarter of all connections,
/// so that members find room whoever else knocks. Beyond it a stranger is turned away, and asks again.
pub const STRANGERS_MAX: usize = 1024;

/// Connections of one identity, at least; else a quarter of all. An agent needs a handful.
const PER_IDENTITY_MIN: usize = 64;

/// Bytes that TLS holds until the socket takes them.
const TLS_BUFFER_BYTES: usize = PIECE_BYTES;

type Secured = TlsStream<Pulsed<TcpStream>>;

/// Why a client did not come through.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdmitError {
    #[error("the connection was lost: {0}")]
    Lost(io::Error),
    #[error("the client did not send its ClientHello in time")]
    Silent,
    #[error("the client left before its turn")]
    Left,
    #[error("the place of the client was given to another one before it had sent its ClientHello")]
    Shed,
    #[error("too many handshakes are under way: the client waited {TURN_WAIT_MAX:?}")]
    Waited,
    #[error("TLS handshake failed: {0}")]
    Handshake(io::Error),
    #[error("TLS handshake took too long")]
    Slow,
    #[error("too many clients without a certificate are connected")]
    Crowded,
    #[error("too many connections of {0}")]
    Identity(Box<Identity>),
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// Where connections become known callers.
pub(crate) struct Handshakes {
    config: Arc<ServerConfig>,
    turns: Semaphore,
    /// Turns of each address that has any under way.
    of_address: Mutex<BTreeMap<Address, Weak<Semaphore>>>,
    /// The places of strangers.
    strangers: Arc<Semaphore>,
    identities: Arc<Mutex<Counts<Arc<Identity>>>>,
    refused: Complaint,
}

/// A known caller.
pub(crate) struct Admitted {
    pub(crate) stream: Secured,
    pub(crate) origin: Origin,
    /// Until when it is let in; its certificate proves nothing after that, and it must come back with a newer one.
    pub(crate) until: Option<Instant>,
    pub(crate) held: Held,
    /// Held by a stranger while it is connected.
    pub(crate) of_stranger: Option<OwnedSemaphorePermit>,
    /// Held by a member while it is connected.
    pub(crate) of_identity: Option<Counted>,
}

/// One connection of an identity.
pub(crate) struct Counted {
    identities: Arc<Mutex<Counts<Arc<Identity>>>>,
    identity: Arc<Identity>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.identity);
    }
}

impl Handshakes {
    /// For as many connections.
    pub(crate) fn new(tls: &ServerConfig, connections: usize) -> Self {
        Self::with_turns(tls, connections, HANDSHAKES_MAX)
    }

    fn with_turns(tls: &ServerConfig, connections: usize, turns: usize) -> Self {
        let mut tls = tls.clone();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let quarter = connections / 4;
        Self {
            config: Arc::new(tls),
            turns: Semaphore::new(turns),
            of_address: Mutex::default(),
            strangers: Arc::new(Semaphore::new(quarter.clamp(1, STRANGERS_MAX))),
            identities: Arc::new(Mutex::new(Counts::new(usize::MAX, quarter.max(PER_IDENTITY_MIN)))),
            refused: Complaint::default(),
        }
    }

    /// Logs that a client was refused.
    pub(crate) fn report(&self, error: &AdmitError, address: SocketAddr) {
        // There may be as many of them as there are agents.
        let is_usual = matches!(error, AdmitError::Left | AdmitError::Shed);
        match (!is_usual).then(|| self.refused.due()).flatten() {
            Some(count) => tracing::info!(%address, %error, count, "client refused"),
            None => tracing::debug!(%address, %error, "client refused"),
        }
    }

    pub(crate) async fn admit(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        place: Place,
    ) -> Result<Admitted, AdmitError> {
        socket::prepare(&stream).map_err(AdmitError::Lost)?;
        let pulse = Pulse::new();
        let hello = LazyConfigAcceptor::new(Acceptor::default(), Pulsed::new(stream, Arc::clone(&pulse)));
        let hello = tokio::select! {
            hello = timeout(HANDSHAKE_TIMEOUT, hello) => hello.map_err(|_| AdmitError::Silent)?,
            () = place.shed() => return Err(AdmitError::Shed),
        };
        let held = Held::of(place);
        let mut stream = self.handshake(hello.map_err(AdmitError::Handshake)?, address.ip()).await?;
        pulse.came_through();
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        let peer = peer(&stream, address)?;
        let (until, of_stranger, of_identity) = match &peer {
            Some(Peer::Member { identity, .. }) => {
                let until = valid_until(stream.get_ref().1.peer_certificates()).and_then(end_of);
                (until, None, Some(self.count(identity)?))
            }
            Some(Peer::Loopback(_)) | None => {
                let place = Arc::clone(&self.strangers).try_acquire_owned().map_err(|_| AdmitError::Crowded)?;
                (Some(Instant::now() + STRANGER_TIMEOUT), Some(place), None)
            }
        };
        Ok(Admitted { stream, origin: Origin { peer, pulse }, until, held, of_stranger, of_identity })
    }

    fn count(&self, identity: &Arc<Identity>) -> Result<Counted, AdmitError> {
        if !self.identities.lock().unwrap_or_else(PoisonError::into_inner).add(identity) {
            return Err(AdmitError::Identity(Box::new(Identity::clone(identity))));
        }
        Ok(Counted { identities: Arc::clone(&self.identities), identity: Arc::clone(identity) })
    }

    /// The turns of one address.
    fn turns_of(&self, address: IpAddr) -> Arc<Semaphore> {
        let mut all = self.of_address.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= ADDRESSES_KEPT {
            all.retain(|_, turns| turns.strong_count() > 0);
        }
        let turns = all.entry(address.into()).or_default();
        turns.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Semaphore::new(HANDSHAKES_PER_ADDRESS_MAX));
            *turns = Arc::downgrade(&new);
            new
        })
    }

    async fn handshake(
        &self,
        hello: StartHandshake<Pulsed<TcpStream>>,
        address: IpAddr,
    ) -> Result<Secured, AdmitError> {
        let of_address = self.turns_of(address);
        let turns = async {
            let of_address = of_address.acquire().await.expect("invariant: the semaphore is never closed");
            (of_address, self.turns.acquire().await.expect("invariant: the semaphore is never closed"))
        };
        let turns = timeout(TURN_WAIT_MAX, turns).await.map_err(|_| AdmitError::Waited)?;
        // A fleet that waits longer than it has patience for would have all of this machine's time go to those who left.
        if hello.io.has_left() {
            return Err(AdmitError::Left);
        }
        // Its own time begins with its turn: who waited behind others is not to blame for them.
        let late = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut handshake = std::pin::pin!(hello.into_stream(Arc::clone(&self.config)));
        if let Ok(done) = timeout(TURN_MAX, &mut handshake).await {
            return done.map_err(AdmitError::Handshake);
        }
        drop(turns);
        let done = timeout_at(late, handshake).await;
        done.map_err(|_| AdmitError::Slow)?.map_err(AdmitError::Handshake)
    }
}

/// When the second ends that is a certificate's last; `None` if that is further away than clocks reach.
fn end_of(last: UnixSeconds) -> Option<Instant> {
    let end = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(last.0.checked_add(1)?))?;
    // A certificate that has just ended is over now.
    Instant::now().checked_add(end.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Who is at the other end; `None` for a stranger.
fn peer(stream: &Secured, address: SocketAddr) -> Result<Option<Peer>, PeerError> {
    let (stream, session) = stream.get_ref();
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    match Caller::of(session.peer_certificates(), UnixSeconds(now))? {
        Caller::Stranger => Ok(None),
        Caller::Member { identity, key } => {
            let is_local = stream.local_addr().is_ok_and(|called| is_local(address.ip(), called.ip()));
            Ok(Some(Peer::Member { identity: Arc::new(identity), key, address, is_local }))
        }
    }
}

/// Whether the caller is on this machine. Calling one of its own addresses, a machine calls from that address, and
/// nobody else gets the answers to what comes from there.
fn is_local(caller: IpAddr, called: IpAddr) -> bool {
    let caller = caller.to_canonical();
    caller.is_loopback() || caller == called.to_canonical()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustls::ClientConfig;
    use starling_admission::Share;
    use starling_identity::{ClusterId, IssuanceRules};
    use starling_sockets::Entrance;
    use starling_tls::{
        CertificateAuthority, CredentialSlot, Credentials, LeafKey, TrustRoots, agent_client_config,
        agent_server_config,
    };
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsConnector;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// A server with so many turns, and what an agent shows to it.
    fn mesh(turns: usize) -> (Arc<Handshakes>, Arc<ClientConfig>) {
        let (folder, now) = (tempfile::tempdir().expect("a folder"), SystemTime::UNIX_EPOCH.elapsed());
        let now = UnixSeconds(now.expect("a clock that is set").as_secs());
        let authority = CertificateAuthority::create(folder.path(), &ClusterId::from_random(7).trust_domain(), now);
        let (authority, dc) = (authority.expect("a CA"), "dc1".parse().expect("a name"));
        let key = || LeafKey::generate().expect("a key");
        let (own, agent) = (key(), key());
        let request = |key: &LeafKey| key.csr_der().expect("a request");
        let rules = IssuanceRules::default();
        let shown = authority.issue_server(&request(&own), &dc, &[], &rules, now).expect("a certificate");
        let node = "n1".parse().expect("a name");
        let of_agent = authority.issue_agent(&request(&agent), &dc, &node, &rules, now).expect("a certificate");
        let shown = Credentials::new(&shown.chain_pem, &own).expect("it fits");
        let server = shown.identity().clone();
        let roots = TrustRoots::new([authority.root()]).expect("a root");
        let tls = agent_server_config(CredentialSlot::new(shown), &roots).expect("a configuration");
        let of_agent = Credentials::new(&of_agent.chain_pem, &agent).expect("it fits");
        let client = agent_client_config(of_agent, &roots, server).expect("a configuration");
        (Arc::new(Handshakes::with_turns(&tls, 1_000, turns)), Arc::new(client))
    }

    /// A connection, as both ends see it.
    async fn connected() -> (TcpStream, TcpStream, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("its address")).await.expect("a connection");
        let (served, address) = listener.accept().await.expect("accepted");
        (client, served, address)
    }

    fn place(entrance: &Arc<Entrance>, address: SocketAddr) -> Place {
        entrance.enter(address.ip(), 0).expect("a place")
    }

    async fn agent_comes(handshakes: &Handshakes, tls: Arc<ClientConfig>, entrance: &Arc<Entrance>) {
        let (client, served, address) = connected().await;
        let name = "starling".try_into().expect("a name");
        let client = TlsConnector::from(tls).connect(name, client);
        let (admitted, client) = tokio::join!(handshakes.admit(served, address, place(entrance, address)), client);
        client.expect("the client comes through");
        assert!(admitted.expect("let in").of_identity.is_some());
    }

    #[tokio::test]
    async fn a_part_of_a_hello_takes_no_turn() {
        let (handshakes, tls) = mesh(1);
        let entrance = Entrance::new("test", Share::of(1_000));
        let mut begun = Vec::new();
        for _ in 0..20 {
            let (mut client, served, address) = connected().await;
            client.write_all(b"\x16\x03\x01\x02\x00").await.expect("sent");
            served.readable().await.expect("it has come");
            let (handshakes, place) = (Arc::clone(&handshakes), place(&entrance, address));
            begun.push((client, tokio::spawn(async move { handshakes.admit(served, address, place).await.map(drop) })));
        }
        let comes = agent_comes(&handshakes, tls, &entrance);
        timeout(DEADLINE, comes).await.expect("an agent comes through though others have begun before it");
        assert!(begun.iter().all(|(_, task)| !task.is_finished()), "they are still let be");
    }

    #[tokio::test]
    async fn the_oldest_part_of_a_hello_makes_room_for_an_agent() {
        let (handshakes, tls) = mesh(1);
        let entrance = Entrance::new("test", Share::of(8));
        let mut begun = Vec::new();
        for _ in 0..20 {
            let (mut client, served, address) = connected().await;
            client.write_all(b"\x16\x03\x01\x02\x00").await.expect("sent");
            let (handshakes, place) = (Arc::clone(&handshakes), place(&entrance, address));
            begun.push((client, tokio::spawn(async move { handshakes.admit(served, address, place).await.map(drop) })));
        }
        timeout(DEADLINE, agent_comes(&handshakes, tls, &entrance)).await.expect("an agent comes through");
        let (_client, task) = begun.remove(0);
        let refused = timeout(DEADLINE, task).await.expect("it ends").expect("no panic");
        assert!(matches!(refused, Err(AdmitError::Shed)), "{refused:?}");
    }

    #[tokio::test]
    async fn a_turn_that_does_not_come_is_waited_for_until_a_deadline() {
        let (handshakes, tls) = mesh(0);
        let entrance = Entrance::new("test", Share::of(8));
        let (client, served, address) = connected().await;
        let name = "starling".try_into().expect("a name");
        let client = tokio::spawn(TlsConnector::from(tls).connect(name, client));
        served.readable().await.expect("it has spoken");
        tokio::time::pause();
        let begun = Instant::now();
        let refused = handshakes.admit(served, address, place(&entrance, address)).await.map(drop);
        assert!(matches!(refused, Err(AdmitError::Waited)), "{refused:?}");
        assert!(begun.elapsed() >= TURN_WAIT_MAX, "its own time does not pass while it waits for others");
        drop(client);
    }

    #[test]
    fn one_address_never_has_every_turn() {
        const { assert!(HANDSHAKES_PER_ADDRESS_MAX < HANDSHAKES_MAX) };
        let (handshakes, _) = mesh(HANDSHAKES_MAX);
        let turns = handshakes.turns_of([10, 0, 0, 1].into());
        assert!(Arc::ptr_eq(&turns, &handshakes.turns_of([10, 0, 0, 1].into())));
        assert!(!Arc::ptr_eq(&turns, &handshakes.turns_of([10, 0, 0, 2].into())));
    }

    #[test]
    fn only_this_machine_calls_from_the_address_that_it_calls() {
        for (caller, called, local) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("::1", "::1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("10.0.0.2", "10.0.0.1", false),
            ("2001:db8::2", "2001:db8::1", false),
        ] {
            let address = |text: &str| text.parse().expect("an address");
            assert_eq!(is_local(address(caller), address(called)), local, "{caller} to {called}");
        }
    }
}
