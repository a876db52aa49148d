//! Connections that the kernel leads here: where they were going, and what becomes of them.
//!
//! Nothing that they say is waited for: a service is known by the address that was called, what it speaks by its plan, and
//! everything else is passed on from its first byte, whoever speaks first. So no server that speaks first is held up, and
//! no policy is left out for what a client's first bytes look like (`docs/adr/0013-capture-without-sniffing.md`).
//! Cost model: a connection costs a look at the kernel's table of connections and one of addresses; one that was going to
//! neither a virtual address nor a listener, a binary search in the endpoints of each service that is called.

mod origin;
mod owner;
mod pass;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use starling_model::ServiceName;
use starling_plan::{Capture, Endpoints};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::connections::Connection;
use crate::contain;
use crate::door::Opening;
use crate::listener::{self, Listening, accept_waiting, accepted};
use crate::metrics::{CaptureCounts, Direction, Fate};
use crate::room::Room;
use crate::served::{Served, Side};
use crate::snapshot::ListenerSnapshot;
use crate::timeouts::Timeouts;
use crate::worker::ListenError;
use crate::workload::Slot;
use owner::Owners;

/// What is captured for one workload, by one worker.
pub(crate) struct Captured {
    doors: BTreeMap<SocketAddr, Vec<(Rc<TcpListener>, AbortHandle)>>,
    state: Rc<State>,
}

/// What capturing is made with.
pub(crate) struct With<'a> {
    pub(crate) opening: &'a Opening<'a>,
    pub(crate) counts: Arc<CaptureCounts>,
    /// Connections that the worker passes on as they are.
    pub(crate) passing: &'a Rc<Cell<usize>>,
}

/// What came of capturing as another plan says.
pub(crate) struct Turned {
    /// `None` where nothing is captured.
    pub(crate) captured: Option<Captured>,
    /// What cannot be listened at.
    pub(crate) errors: Vec<ListenError>,
    /// Services that are no longer called; their connections end with the request that they carry.
    pub(crate) left: Vec<Rc<Listening>>,
}

/// What captured connections mean at present.
struct State {
    meaning: RefCell<Rc<Meaning>>,
    counts: Arc<CaptureCounts>,
    passing: Rc<Cell<usize>>,
    owners: Owners,
    /// The places of the worker, and the number of what is captured there.
    room: Rc<Room>,
    number: u32,
    timeouts: Timeouts,
}

struct Meaning {
    part: Arc<Capture>,
    /// Services by the addresses that are theirs alone.
    virtuals: BTreeMap<IpAddr, Rc<Listening>>,
    /// Where each service that is called is: its endpoints may be called by their own addresses, too.
    called: Vec<(Arc<Slot<Endpoints>>, Rc<Listening>)>,
    /// The listener for peers, with its port.
    public: Option<(u16, Rc<Listening>)>,
    /// The application's port, whatever its address.
    app_port: Option<u16>,
}

impl Captured {
    /// Captures as the plan of `served` says, in place of `before`; `doors` are the workload's other listeners.
    pub(crate) fn turn(
        before: Option<Self>,
        served: &Served,
        doors: &[(SocketAddr, Rc<Listening>)],
        with: &With<'_>,
        is_taken: &dyn Fn(&SocketAddr) -> bool,
    ) -> Turned {
        let Some(part) = &served.workload.plan.capture else {
            let left = before.map(Self::shut).unwrap_or_default();
            return Turned { captured: None, errors: Vec::new(), left };
        };
        let meaning = Rc::new(Meaning::new(part, served, doors, before.as_ref(), with.opening));
        let mut turned = Turned { captured: None, errors: Vec::new(), left: Vec::new() };
        let (mut old, state) = match before {
            Some(before) => {
                turned.left = before.state.turn(meaning);
                (before.doors, before.state)
            }
            None => (BTreeMap::new(), Rc::new(State::new(meaning, with))),
        };
        let mut doors = BTreeMap::new();
        for (direction, address) in places(part) {
            let opened = match old.remove(&address) {
                Some(kept) => Ok(kept),
                None if is_taken(&address) => Err(io::ErrorKind::AddrInUse.into()),
                None => open((direction, address), &state, with.opening),
            };
            match opened {
                Ok(sockets) => {
                    doors.insert(address, sockets);
                }
                Err(error) => turned.errors.push(ListenError::nobody(address, error)),
            }
        }
        old.values().flatten().for_each(|(_, task)| task.abort());
        turned.captured = Some(Self { doors, state });
        turned
    }

    /// Takes no more connections but those that wait already; those that stand end with the request that they carry.
    pub(crate) fn shut(self) -> Vec<Rc<Listening>> {
        let meaning = Rc::clone(&self.state.meaning.borrow());
        for (address, (listener, task)) in
            self.doors.into_iter().flat_map(|(at, all)| all.into_iter().map(move |it| (at, it)))
        {
            task.abort();
            let direction =
                if address.port() == meaning.part.outbound_port { Direction::Outbound } else { Direction::Inbound };
            accept_waiting(&listener, |tcp, remote| self.state.take(direction, tcp, remote));
        }
        meaning.drain()
    }

    /// The same where another process takes connections from the same sockets.
    pub(crate) fn leave(self) -> Vec<Rc<Listening>> {
        self.doors.values().flatten().for_each(|(_, task)| task.abort());
        self.state.meaning.borrow().drain()
    }

    /// Its sockets once more, for another process.
    pub(crate) fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        let sockets = self.doors.values().flatten();
        sockets.map(|(listener, _)| listener.as_fd().try_clone_to_owned()).collect()
    }

    /// Whether it listens there.
    pub(crate) fn listens_at(&self, address: &SocketAddr) -> bool {
        self.doors.contains_key(address)
    }

    /// The services that are called by addresses of their own.
    pub(crate) fn snapshot(&self) -> Vec<ListenerSnapshot> {
        let meaning = self.state.meaning.borrow();
        // Each by the first of its addresses, which is the one that is shown everywhere.
        meaning.listenings().into_iter().map(|listening| listening.snapshot(listening.side().bind())).collect()
    }
}

/// Where is listened. What applications call arrives at loopback; what they are sent, at any address of this machine.
fn places(part: &Capture) -> [(Direction, SocketAddr); 4] {
    let (out, sent) = (part.outbound_port, part.inbound_port);
    [
        (Direction::Outbound, (Ipv4Addr::LOCALHOST, out).into()),
        (Direction::Outbound, (Ipv6Addr::LOCALHOST, out).into()),
        (Direction::Inbound, (Ipv4Addr::UNSPECIFIED, sent).into()),
        (Direction::Inbound, (Ipv6Addr::UNSPECIFIED, sent).into()),
    ]
}

/// Listens at an address, with the sockets that another process has handed over, or one of its own; without one where this
/// machine has no IPv6.
fn open(
    (direction, address): (Direction, SocketAddr),
    state: &Rc<State>,
    opening: &Opening<'_>,
) -> io::Result<Vec<(Rc<TcpListener>, AbortHandle)>> {
    let inherited = opening.inherited.share(address, opening.asking);
    let mut listeners = inherited.into_iter().map(TcpListener::from_std).collect::<io::Result<Vec<_>>>()?;
    if listeners.is_empty() {
        match origin::listen(address, direction == Direction::Inbound) {
            Ok(listener) => listeners.push(listener),
            Err(error) if address.is_ipv6() && origin::is_without_ipv6(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let take = |listener| {
        let listener = Rc::new(listener);
        let task = tokio::task::spawn_local(accept(Rc::clone(&listener), direction, Rc::clone(state)));
        (listener, task.abort_handle())
    };
    Ok(listeners.into_iter().map(take).collect())
}

async fn accept(listener: Rc<TcpListener>, direction: Direction, state: Rc<State>) {
    loop {
        let (tcp, remote) = accepted(&listener, &state.room).await;
        state.take(direction, tcp, remote);
    }
}

impl State {
    fn new(meaning: Rc<Meaning>, with: &With<'_>) -> Self {
        let (counts, passing) = (Arc::clone(&with.counts), Rc::clone(with.passing));
        let (room, timeouts) = (Rc::clone(with.opening.room), with.opening.timeouts);
        let number = room.listener();
        Self { meaning: RefCell::new(meaning), counts, passing, owners: Owners::new(), room, number, timeouts }
    }

    /// Puts another meaning in force; services that are no longer called are left.
    fn turn(&self, meaning: Rc<Meaning>) -> Vec<Rc<Listening>> {
        let old = self.meaning.replace(Rc::clone(&meaning));
        let mut left = old.listenings();
        let kept: BTreeSet<_> = meaning.virtuals.values().map(Rc::as_ptr).collect();
        left.retain(|listening| !kept.contains(&Rc::as_ptr(listening)));
        left.iter().for_each(|listening| listening.drain());
        left
    }

    /// Decides about a connection by where it was going.
    fn take(&self, direction: Direction, tcp: TcpStream, remote: SocketAddr) {
        let meaning = Rc::clone(&self.meaning.borrow());
        let route = match origin::destination(&tcp) {
            None => Route::Refuse(Fate::Unknown),
            // Nobody was led here: this is the address that was called.
            Some(destination)
                if tcp.local_addr().is_ok_and(|own| own == destination) && meaning.is_own(destination) =>
            {
                Route::Refuse(Fate::Loop)
            }
            Some(destination) if direction == Direction::Outbound && self.owners.is_own(remote, destination) => {
                tracing::warn!(
                    %destination,
                    "the kernel leads this proxy's own connections back to it, which are refused; say `starling redirect \
                     install --proxy-uid` with the user as whom it runs"
                );
                Route::Refuse(Fate::Loop)
            }
            Some(destination) => match direction {
                Direction::Outbound => meaning.outbound(destination),
                Direction::Inbound => meaning.inbound(destination),
            },
        };
        self.follow(direction, route, tcp, remote);
    }

    fn follow(&self, direction: Direction, route: Route, tcp: TcpStream, remote: SocketAddr) {
        match route {
            Route::Serve(listening, local) => {
                self.counts.count(direction, Fate::Mesh);
                listener::admit_to(tcp, (remote, local), &listening);
            }
            Route::PlainToApp(listening, local) => {
                self.counts.count(direction, Fate::Passed);
                listener::admit_plain(tcp, (remote, local), &listening);
            }
            Route::Pass(destination) => {
                let connection = Rc::new(Connection::new(remote, destination));
                let Some(seat) = self.room.enter(self.number, &tcp, &connection) else {
                    return self.counts.count(direction, Fate::Unreachable);
                };
                let (counts, passing) = (Arc::clone(&self.counts), Passing::new(&self.passing));
                let (timeouts, served) = (self.timeouts, Rc::clone(&connection));
                let task = contain::spawn("a connection", async move {
                    let _held = (passing, seat);
                    pass::on((tcp, destination), &served, &timeouts, |fate| counts.count(direction, fate)).await;
                });
                connection.runs_as(task);
            }
            Route::Refuse(fate) => {
                self.counts.count(direction, fate);
                origin::reset(&tcp);
            }
        }
    }
}

/// Counts a connection that is passed on, for as long as it stands.
struct Passing(Rc<Cell<usize>>);

impl Passing {
    fn new(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// What becomes of a connection.
enum Route {
    /// It is one of this listener; it was going there.
    Serve(Rc<Listening>, SocketAddr),
    /// It goes to the application behind this listener, without being looked at.
    PlainToApp(Rc<Listening>, SocketAddr),
    /// It goes where it was going, without being looked at.
    Pass(SocketAddr),
    /// It ends here.
    Refuse(Fate),
}

impl Meaning {
    fn new(
        part: &Arc<Capture>,
        served: &Served,
        doors: &[(SocketAddr, Rc<Listening>)],
        before: Option<&Captured>,
        opening: &Opening<'_>,
    ) -> Self {
        let before = before.map(|before| Rc::clone(&before.state.meaning.borrow()));
        let mut virtuals = BTreeMap::new();
        let mut by_service: BTreeMap<ServiceName, Rc<Listening>> = BTreeMap::new();
        for (_, listening) in doors {
            if let Side::Outbound(outbound) = &*listening.side() {
                by_service.insert(outbound.part.service.clone(), Rc::clone(listening));
            }
        }
        for (addresses, side) in &served.virtuals {
            let kept = addresses.iter().find_map(|address| before.as_ref()?.virtuals.get(address));
            let listening = match kept.filter(|kept| kept.is_like(side)) {
                Some(kept) => {
                    kept.replace(Rc::clone(side), Arc::clone(&served.keys));
                    Rc::clone(kept)
                }
                None => {
                    let (room, timeouts) = (opening.room, opening.timeouts);
                    Listening::new(side, &served.keys, Arc::clone(opening.connections), (room, timeouts))
                }
            };
            if let Side::Outbound(outbound) = &**side {
                by_service.entry(outbound.part.service.clone()).or_insert_with(|| Rc::clone(&listening));
            }
            virtuals.extend(addresses.iter().map(|address| (*address, Rc::clone(&listening))));
        }
        let plan = &served.workload.plan;
        let slots = plan.endpoints.iter().zip(&served.workload.endpoints);
        let called = slots
            .filter_map(|(part, slot)| Some((Arc::clone(slot), Rc::clone(by_service.get(&part.service)?))))
            .collect();
        let inbound = plan.inbound.as_ref();
        let public = inbound.and_then(|inbound| {
            let (_, listening) = doors.iter().find(|(address, _)| *address == inbound.bind)?;
            Some((inbound.bind.port(), Rc::clone(listening)))
        });
        let app = inbound.map(|inbound| &inbound.local_app);
        Self { part: Arc::clone(part), virtuals, called, public, app_port: app.map(|app| app.port) }
    }

    /// Everybody who is called by an address of his own, once.
    fn listenings(&self) -> Vec<Rc<Listening>> {
        let mut seen = BTreeSet::new();
        self.virtuals.values().filter(|listening| seen.insert(Rc::as_ptr(listening))).cloned().collect()
    }

    fn drain(&self) -> Vec<Rc<Listening>> {
        let all = self.listenings();
        all.iter().for_each(|listening| listening.drain());
        all
    }

    /// Whether that is one of the ports of capture itself.
    fn is_own(&self, destination: SocketAddr) -> bool {
        [self.part.outbound_port, self.part.inbound_port].contains(&destination.port())
    }

    /// What the application calls.
    fn outbound(&self, destination: SocketAddr) -> Route {
        if let Some(listening) = self.virtuals.get(&destination.ip()) {
            return Route::Serve(Rc::clone(listening), destination);
        }
        if is_virtual(destination.ip()) {
            // Nobody has such an address: to pass it on would only make the caller wait.
            return Route::Refuse(Fate::NoService);
        }
        let called = self.called.iter().find(|(slot, _)| has(&slot.peek(), destination));
        match called {
            Some((_, listening)) => Route::Serve(Rc::clone(listening), destination),
            None if self.part.mesh_only => Route::Refuse(Fate::NotMesh),
            None => Route::Pass(destination),
        }
    }

    /// What the application is sent.
    fn inbound(&self, destination: SocketAddr) -> Route {
        let is_app = self.app_port == Some(destination.port());
        match &self.public {
            Some((port, public)) if *port == destination.port() => Route::Serve(Rc::clone(public), destination),
            Some((_, public)) if is_app && self.part.permissive => Route::PlainToApp(Rc::clone(public), destination),
            // Mutual TLS or nothing, as at the public port.
            Some((_, public)) if is_app => Route::Serve(Rc::clone(public), destination),
            Some(_) | None if self.part.permissive => Route::Pass(destination),
            Some(_) | None => Route::Refuse(Fate::NotMesh),
        }
    }
}

/// Whether an address is of the range of virtual ones. Of IPv6 addresses it is not known which mesh has which.
fn is_virtual(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.octets()[0] >= 240 && !address.is_broadcast(),
        IpAddr::V6(_) => false,
    }
}

fn has(endpoints: &Endpoints, destination: SocketAddr) -> bool {
    let place = (destination.ip(), destination.port());
    endpoints.endpoints.binary_search_by(|it| (it.address, it.port).cmp(&place)).is_ok()
}
