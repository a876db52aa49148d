//! One thread of the engine: its listeners, its connections, its pools.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use starling_admission::Share;
use starling_model::InstanceId;
use starling_plan::Plan;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::access_log::Sinks;
use crate::capture::{Captured, With};
use crate::door::{Door, Inherited, Opening};
use crate::edge::certificates::EdgeConfigs;
use crate::exits::{Exits, OriginConfigs};
use crate::keys::Keys;
use crate::listener::Listening;
use crate::metrics::WorkerMetrics;
use crate::room::Room;
use crate::served::Served;
use crate::snapshot::{WorkerSnapshot, WorkloadSnapshot};
use crate::timeouts::Timeouts;
use crate::workload::Workload;

/// How often kept connections are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// What the engine asks of a worker.
pub(crate) enum Order {
    /// Serve this, instead of what was served under the name.
    Serve {
        id: InstanceId,
        workload: Arc<Workload>,
        keys: Arc<Keys>,
        /// How its ports for callers from outside are encrypted.
        edges: Arc<EdgeConfigs>,
        /// How services outside are called that want TLS.
        origins: Arc<OriginConfigs>,
        /// Connections of its peers, to all workers.
        connections: Arc<AtomicU32>,
        /// Workers that have not asked for their share of inherited sockets yet, this one included.
        asking: usize,
        done: oneshot::Sender<Vec<ListenError>>,
    },
    /// Serve it no more.
    Remove { id: InstanceId, done: oneshot::Sender<()> },
    /// Tell what is being done.
    Snapshot { reply: oneshot::Sender<WorkerSnapshot> },
    /// Take no more connections; `left_to_another` if another process takes them from the same sockets.
    Drain { left_to_another: bool, done: oneshot::Sender<()> },
    /// End, whatever is being served.
    End,
    /// Give copies of all sockets that are listened on.
    Copy { reply: oneshot::Sender<std::io::Result<Vec<OwnedFd>>> },
}

/// Why a workload is not served where it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// Whether there is served nevertheless what was served before.
    pub listens: bool,
    /// The system's reason, or what is wrong with files.
    pub reason: String,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, listens, reason } = self;
        match listens {
            true => write!(f, "{address} goes on as it was: {reason}"),
            false => write!(f, "cannot listen on {address}: {reason}"),
        }
    }
}

impl ListenError {
    /// Nobody listens there.
    pub(crate) fn nobody(address: SocketAddr, reason: impl ToString) -> Self {
        Self { address, listens: false, reason: reason.to_string() }
    }
}

struct Deployed {
    served: Served,
    doors: BTreeMap<SocketAddr, Door>,
    captured: Option<Captured>,
    exits: Option<Exits>,
}

struct Worker {
    deployed: BTreeMap<InstanceId, Deployed>,
    metrics: WorkerMetrics,
    sinks: Arc<Sinks>,
    timeouts: Timeouts,
    room: Rc<Room>,
    /// Nobody is let in any more.
    draining: bool,
    /// Doors that are shut, as long as somebody is inside.
    leaving: Vec<Rc<Listening>>,
    inherited: Arc<Inherited>,
    /// Captured connections that are passed on as they are.
    passing: Rc<Cell<usize>>,
}

/// Runs a worker until nobody gives it orders any more.
pub(crate) fn run(
    orders: mpsc::UnboundedReceiver<Order>,
    (metrics, sinks): (WorkerMetrics, Arc<Sinks>),
    (timeouts, share, workers): (Timeouts, Share, usize),
    inherited: Arc<Inherited>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let worker = Worker {
        deployed: BTreeMap::new(),
        metrics,
        sinks,
        timeouts,
        room: Room::new(share, workers),
        draining: false,
        leaving: Vec::new(),
        inherited,
        passing: Rc::default(),
    };
    LocalSet::new().block_on(&runtime, worker.work(orders));
    Ok(())
}

impl Worker {
    async fn work(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut sweeps = interval(SWEEP_EVERY);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::End) | None => return,
                    Some(order) => self.obey(order),
                },
                _ = sweeps.tick() => self.sweep(),
            }
        }
    }

    // Whoever asked may have given up waiting for the answer.
    fn obey(&mut self, order: Order) {
        match order {
            Order::Serve { id, workload, keys, edges, origins, connections, asking, done } => {
                let (address, keys) = (first_bind(&workload.plan), (keys, &*edges, &*origins));
                let errors = self.serve(&id, workload, keys, (&connections, asking)).unwrap_or_else(|error| {
                    tracing::warn!(%id, error = %format!("{error:#}"), "a workload cannot be served");
                    // It must not pass for served.
                    address.map(|address| ListenError::nobody(address, format!("{error:#}"))).into_iter().collect()
                });
                let _ = done.send(errors);
            }
            Order::Remove { id, done } => {
                if let Some(deployed) = self.deployed.remove(&id) {
                    self.leaving.extend(deployed.doors.into_values().map(Door::shut));
                    self.leaving.extend(deployed.captured.into_iter().flat_map(Captured::shut));
                    self.leaving.extend(deployed.exits.into_iter().flat_map(Exits::shut));
                }
                let _ = done.send(());
            }
            Order::Snapshot { reply } => {
                let _ = reply.send(self.snapshot());
            }
            Order::Drain { left_to_another, done } => {
                self.draining = true;
                let (close, release, part) = if left_to_another {
                    (Door::leave as fn(Door) -> _, Captured::leave as fn(Captured) -> _, Exits::leave as fn(Exits) -> _)
                } else {
                    (Door::shut as _, Captured::shut as _, Exits::shut as _)
                };
                for deployed in self.deployed.values_mut() {
                    self.leaving.extend(std::mem::take(&mut deployed.doors).into_values().map(close));
                    self.leaving.extend(deployed.captured.take().into_iter().flat_map(release));
                    self.leaving.extend(deployed.exits.take().into_iter().flat_map(part));
                }
                let _ = done.send(());
            }
            Order::End => {}
            Order::Copy { reply } => {
                let doors = self.deployed.values().flat_map(|deployed| deployed.doors.values());
                let captured = self.deployed.values().filter_map(|deployed| deployed.captured.as_ref());
                let exits = self.deployed.values().filter_map(|deployed| deployed.exits.as_ref());
                let copies =
                    doors.map(Door::copies).chain(captured.map(Captured::copies)).chain(exits.map(Exits::copies));
                let copies: std::io::Result<Vec<_>> = copies.collect();
                let _ = reply.send(copies.map(|copies| copies.into_iter().flatten().collect()));
            }
        }
    }

    fn serve(
        &mut self,
        id: &InstanceId,
        workload: Arc<Workload>,
        keys: (Arc<Keys>, &EdgeConfigs, &OriginConfigs),
        (connections, asking): (&Arc<AtomicU32>, usize),
    ) -> anyhow::Result<Vec<ListenError>> {
        let before = self.deployed.remove(id);
        let parts = (&self.metrics, &*self.sinks);
        let served = match Served::new(workload, keys, before.as_ref().map(|before| &before.served), parts) {
            Ok(served) => served,
            Err(error) => {
                // What was served before goes on.
                self.deployed.extend(before.map(|before| (id.clone(), before)));
                return Err(error);
            }
        };
        let (mut old, captured, exits) =
            before.map(|before| (before.doors, before.captured, before.exits)).unwrap_or_default();
        let sides = served.sides.iter().filter(|_| !self.draining);
        let wanted: Vec<_> = sides.map(|side| (side.bind(), Rc::clone(side))).collect();
        let unwanted = old.extract_if(.., |address, door| {
            !wanted.iter().any(|(bind, side)| bind == address && door.listening.is_like(side))
        });
        self.leaving.extend(unwanted.map(|(_, door)| door.shut()));
        let (mut doors, mut errors) = (BTreeMap::new(), Vec::new());
        let inherited = Arc::clone(&self.inherited);
        let (room, timeouts) = (Rc::clone(&self.room), self.timeouts);
        let opening = Opening { keys: &served.keys, connections, timeouts, room: &room, inherited: &inherited, asking };
        for (address, side) in wanted {
            let opened = match old.remove(&address) {
                Some(door) => Ok(door.turn(&side, &served.keys)),
                None if self.is_taken(&address) => Err(std::io::ErrorKind::AddrInUse.into()),
                None => Door::open(address, &side, &opening),
            };
            match opened {
                Ok(door) => {
                    doors.insert(address, door);
                }
                Err(error) => errors.push(ListenError::nobody(address, error)),
            }
        }
        let captured = if self.draining {
            None
        } else {
            let listening = |(address, door): (&SocketAddr, &Door)| (*address, Rc::clone(&door.listening));
            let listening: Vec<_> = doors.iter().map(listening).collect();
            let counts = self.metrics.captured(&served.workload.plan.service);
            let with = With { opening: &opening, counts, passing: &self.passing };
            let taken = |address: &SocketAddr| self.is_taken(address);
            let turned = Captured::turn(captured, &served, &listening, &with, &taken);
            errors.extend(turned.errors);
            self.leaving.extend(turned.left);
            turned.captured
        };
        let exits = if self.draining {
            None
        } else {
            let taken = |address: &SocketAddr| doors.contains_key(address) || self.is_taken(address);
            let turned = Exits::turn(exits, &served, &opening, &taken);
            errors.extend(turned.error);
            self.leaving.extend(turned.left);
            turned.exits
        };
        self.deployed.insert(id.clone(), Deployed { served, doors, captured, exits });
        Ok(errors)
    }

    /// Whether another workload listens there, with which the kernel would share out the connections.
    fn is_taken(&self, address: &SocketAddr) -> bool {
        self.deployed.values().any(|deployed| {
            let (captured, exits) = (deployed.captured.as_ref(), deployed.exits.as_ref());
            deployed.doors.contains_key(address)
                || captured.is_some_and(|captured| captured.listens_at(address))
                || exits.is_some_and(|exits| exits.listens_at(address))
        })
    }

    fn snapshot(&self) -> WorkerSnapshot {
        let workload = |(id, deployed): (&InstanceId, &Deployed)| WorkloadSnapshot {
            id: id.clone(),
            workload: Arc::clone(&deployed.served.workload),
            keys: Arc::clone(&deployed.served.keys),
            listeners: deployed
                .doors
                .iter()
                .map(|(address, door)| door.listening.snapshot(*address))
                .chain(deployed.captured.iter().flat_map(Captured::snapshot))
                .chain(deployed.exits.iter().flat_map(Exits::snapshot))
                .collect(),
            upstreams: deployed.served.upstreams().map(|upstream| upstream.snapshot()).collect(),
        };
        let leaving: usize = self.leaving.iter().map(|listening| listening.standing()).sum();
        let leaving = leaving + if self.draining { self.passing.get() } else { 0 };
        WorkerSnapshot { workloads: self.deployed.iter().map(workload).collect(), leaving, draining: self.draining }
    }

    fn sweep(&mut self) {
        self.leaving.retain(|listening| listening.standing() > 0);
        for deployed in self.deployed.values() {
            deployed.served.upstreams().for_each(|upstream| upstream.sweep());
        }
    }
}

/// One of the addresses at which a plan has something served.
fn first_bind(plan: &Plan) -> Option<SocketAddr> {
    let inbound = plan.inbound.as_ref().map(|inbound| inbound.bind);
    let edge = plan.edges.first().map(|edge| edge.bind);
    let exit = plan.exits.first().map(|exit| exit.bind);
    inbound.or(edge).or(exit).or_else(|| plan.outbounds.first().map(|outbound| outbound.bind))
}
