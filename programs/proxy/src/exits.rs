//! Services outside the mesh, for which a gateway stands: one port for all of them, which callers tell apart by the name that
//! they ask for in the handshake.
//!
//! Behind the handshake each is what the listener of a sidecar is: its own certificate, its own policy, its own count of
//! connections.

pub(crate) mod origin_tls;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rustls::server::Acceptor;
use starling_model::ServiceName;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;

use crate::connections::Connection;
use crate::contain;
use crate::door::Opening;
use crate::inbound::{Behind, InboundSide, Noting};
use crate::keys::Keys;
use crate::listener::{self, Listening, accept_waiting, accepted};
use crate::room::Room;
use crate::served::{Served, Side};
use crate::snapshot::ListenerSnapshot;
use crate::timeouts::Timeouts;
use crate::upstream::Upstream;
use crate::worker::ListenError;
use crate::workload::Workload;
pub(crate) use origin_tls::OriginConfigs;
use origin_tls::OriginTlsConfig;

/// One service, or a subset of one, as a worker serves it.
pub(crate) struct ExitSide {
    /// By what callers ask for it, in lower case.
    name: String,
    side: Rc<Side>,
    keys: Arc<Keys>,
    /// Connections of callers, to all workers.
    connections: Arc<AtomicU32>,
    tls: Option<Arc<OriginTlsConfig>>,
}

impl ExitSide {
    /// Those who are called.
    pub(crate) fn upstream(&self) -> Option<&Rc<Upstream>> {
        match &*self.side {
            Side::Inbound(inbound) => Some(&inbound.app),
            Side::Outbound(_) | Side::Edge(_) => None,
        }
    }
}

/// What a worker serves of the exits of a workload; of `before`, those that are the same stay with their connections. One of which
/// there is no certificate, or not what it is called by, is left out.
pub(crate) fn sides(
    workload: &Workload,
    configs: &OriginConfigs,
    before: Option<&[ExitSide]>,
    noting: &dyn Fn(&ServiceName) -> Noting,
) -> Vec<ExitSide> {
    let side = |(place, exit): (usize, &Arc<starling_plan::Exit>)| {
        let state = workload.exits.get(place)?.as_ref()?;
        let tls = match &exit.tls {
            Some(_) => Some(Arc::clone(configs.get(&exit.target())?)),
            None => None,
        };
        let name = exit.sni.to_ascii_lowercase();
        let old = before.into_iter().flatten().find(|old| old.name == name);
        let kept = old.and_then(|old| {
            let same_tls = match (&old.tls, &tls) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            let app = old.upstream().filter(|_| same_tls)?;
            app.is_of(exit, &state.origins).then(|| Rc::clone(app))
        });
        let noting = noting(&exit.service);
        let app = kept
            .unwrap_or_else(|| Upstream::outside(exit, Arc::clone(&state.origins), tls.clone(), Rc::clone(&noting.0)));
        let behind = Behind { app, origins: Some(Arc::clone(&state.origins)) };
        let decided = (Arc::clone(&state.policies), Arc::clone(&state.bucket));
        let side = InboundSide::new(Arc::new(exit.as_inbound()), behind, decided, noting);
        let (keys, connections) = (Arc::clone(&state.keys), Arc::clone(&state.connections));
        Some(ExitSide { name, side: Rc::new(Side::Inbound(side)), keys, connections, tls })
    };
    workload.plan.exits.iter().enumerate().filter_map(side).collect()
}

/// The port of a gateway, as one worker listens there.
pub(crate) struct Exits {
    address: SocketAddr,
    sockets: Vec<(Rc<TcpListener>, AbortHandle)>,
    state: Rc<State>,
}

/// What came of serving the exits of another plan.
pub(crate) struct Turned {
    /// `None` where there are none.
    pub(crate) exits: Option<Exits>,
    /// That it cannot be listened there.
    pub(crate) error: Option<ListenError>,
    /// Services for which it stands no more; their connections end with the request that they carry.
    pub(crate) left: Vec<Rc<Listening>>,
}

struct State {
    by_name: RefCell<BTreeMap<String, Rc<Listening>>>,
    timeouts: Timeouts,
    /// The places of the worker, and the port's number there.
    room: Rc<Room>,
    number: u32,
}

impl Exits {
    /// Serves the exits of `served` in place of `before`.
    pub(crate) fn turn(
        before: Option<Self>,
        served: &Served,
        opening: &Opening<'_>,
        is_taken: &dyn Fn(&SocketAddr) -> bool,
    ) -> Turned {
        let Some(address) = served.workload.plan.exits.first().map(|exit| exit.bind) else {
            let left = before.map(Self::shut).unwrap_or_default();
            return Turned { exits: None, error: None, left };
        };
        let (before, mut left) = match before {
            Some(before) if before.address == address => (Some(before), Vec::new()),
            other => (None, other.map(Self::shut).unwrap_or_default()),
        };
        let (sockets, state) = match before {
            Some(before) => (before.sockets, before.state),
            None => {
                let (room, timeouts) = (Rc::clone(opening.room), opening.timeouts);
                let number = room.listener();
                let state = Rc::new(State { by_name: RefCell::default(), timeouts, room, number });
                let opened = if is_taken(&address) {
                    Err(io::ErrorKind::AddrInUse.into())
                } else {
                    open(address, &state, opening)
                };
                match opened {
                    Ok(sockets) => (sockets, state),
                    Err(error) => {
                        let error = Some(ListenError::nobody(address, error));
                        return Turned { exits: None, error, left };
                    }
                }
            }
        };
        left.extend(state.turn(&served.exits, opening));
        Turned { exits: Some(Self { address, sockets, state }), error: None, left }
    }

    /// Takes no more connections but those that wait already; those that stand end with the request that they carry.
    pub(crate) fn shut(self) -> Vec<Rc<Listening>> {
        for (listener, task) in self.sockets {
            task.abort();
            accept_waiting(&listener, |tcp, remote| take(&self.state, tcp, remote));
        }
        self.state.drain()
    }

    /// The same where another process takes connections from the same sockets.
    pub(crate) fn leave(self) -> Vec<Rc<Listening>> {
        self.sockets.iter().for_each(|(_, task)| task.abort());
        self.state.drain()
    }

    /// Its sockets once more, for another process.
    pub(crate) fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        self.sockets.iter().map(|(listener, _)| listener.as_fd().try_clone_to_owned()).collect()
    }

    /// Whether it listens there.
    pub(crate) fn listens_at(&self, address: &SocketAddr) -> bool {
        self.address == *address
    }

    /// Each service as a listener.
    pub(crate) fn snapshot(&self) -> Vec<ListenerSnapshot> {
        let shown = |listening: &Rc<Listening>| {
            let service = match &*listening.side() {
                Side::Inbound(inbound) => Some(inbound.part.service.clone()),
                Side::Outbound(_) | Side::Edge(_) => None,
            };
            ListenerSnapshot { upstream: service, ..listening.snapshot(self.address) }
        };
        self.state.by_name.borrow().values().map(shown).collect()
    }
}

fn open(
    address: SocketAddr,
    state: &Rc<State>,
    opening: &Opening<'_>,
) -> io::Result<Vec<(Rc<TcpListener>, AbortHandle)>> {
    let inherited = opening.inherited.share(address, opening.asking);
    let mut listeners = inherited.into_iter().map(TcpListener::from_std).collect::<io::Result<Vec<_>>>()?;
    if listeners.is_empty() {
        listeners.push(listener::bind(address)?);
    }
    let accepting = |listener| {
        let listener = Rc::new(listener);
        let (from, state) = (Rc::clone(&listener), Rc::clone(state));
        let task = tokio::task::spawn_local(async move {
            loop {
                let (tcp, remote) = accepted(&from, &state.room).await;
                take(&state, tcp, remote);
            }
        });
        (listener, task.abort_handle())
    };
    Ok(listeners.into_iter().map(accepting).collect())
}

/// Finds out for which service a connection is, and serves it.
fn take(state: &Rc<State>, tcp: TcpStream, remote: SocketAddr) {
    let Ok(local) = tcp.local_addr() else { return };
    let connection = Rc::new(Connection::new(remote, local));
    let Some(seat) = state.room.enter(state.number, &tcp, &connection) else { return };
    let (state, served) = (Rc::clone(state), Rc::clone(&connection));
    let task = contain::spawn("a connection", async move {
        if listener::prepare(&tcp, remote).is_err() {
            return;
        }
        let hello = timeout(state.timeouts.handshake, LazyConfigAcceptor::new(Acceptor::default(), tcp)).await;
        let Ok(Ok(hello)) = hello else { return };
        let name = hello.client_hello().server_name().map(str::to_ascii_lowercase);
        let listening = name.as_ref().and_then(|name| state.by_name.borrow().get(name).cloned());
        match listening {
            Some(listening) => listener::admit_hello(hello, (served, seat), &listening).await,
            None => tracing::debug!(%remote, name, "nobody stands for what a caller has asked for"),
        }
    });
    connection.runs_as(task);
}

impl State {
    /// Stands for these and for nobody else; those for whom it did so before and does no more.
    fn turn(&self, exits: &[ExitSide], opening: &Opening<'_>) -> Vec<Rc<Listening>> {
        let mut old = std::mem::take(&mut *self.by_name.borrow_mut());
        for exit in exits {
            let kept = old.remove(&exit.name).filter(|kept| kept.is_like(&exit.side));
            let listening = match kept {
                Some(kept) => {
                    kept.replace(Rc::clone(&exit.side), Arc::clone(&exit.keys));
                    kept
                }
                None => {
                    let (room, timeouts) = (opening.room, opening.timeouts);
                    Listening::new(&exit.side, &exit.keys, Arc::clone(&exit.connections), (room, timeouts))
                }
            };
            self.by_name.borrow_mut().insert(exit.name.clone(), listening);
        }
        let left: Vec<_> = old.into_values().collect();
        left.iter().for_each(|listening| listening.drain());
        left
    }

    fn drain(&self) -> Vec<Rc<Listening>> {
        let all: Vec<_> = std::mem::take(&mut *self.by_name.borrow_mut()).into_values().collect();
        all.iter().for_each(|listening| listening.drain());
        all
    }
}
