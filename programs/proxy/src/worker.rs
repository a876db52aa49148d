//! One thread of the engine: its listeners, its connections, its pools.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use starling_model::InstanceId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::{MissedTickBehavior, interval};

use crate::keys::Keys;
use crate::listener::{Listening, accept, bind};
use crate::metrics::{Counts, SideMetrics};
use crate::random::Random;
use crate::served::{Served, Side};
use crate::workload::Workload;

/// How often kept connections are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// What the engine asks of a worker.
pub(crate) enum Order {
    /// Serve this, instead of what was served under the name.
    Serve { id: InstanceId, workload: Arc<Workload>, keys: Arc<Keys>, done: oneshot::Sender<Vec<ListenError>> },
    /// Serve it no more.
    Remove { id: InstanceId, done: oneshot::Sender<()> },
    /// Tell what was counted.
    Counts { reply: oneshot::Sender<Vec<SideCounts>> },
}

/// Why a workload is not served where it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot listen on {address}: {reason}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The system's reason.
    pub reason: String,
}

/// What one worker has counted of one direction of a workload.
#[derive(Debug, Clone)]
pub struct SideCounts {
    /// The workload.
    pub id: InstanceId,
    /// The service called; `None` for calls of the workload itself.
    pub upstream: Option<String>,
    /// The cells, which the worker goes on to write.
    pub counts: Arc<Counts>,
}

/// A listener and the task that takes its connections.
struct Door {
    listening: Rc<Listening>,
    task: AbortHandle,
}

struct Deployed {
    served: Served,
    doors: BTreeMap<SocketAddr, Door>,
}

#[derive(Default)]
struct Worker {
    deployed: BTreeMap<InstanceId, Deployed>,
    random: Option<Rc<Random>>,
}

/// Runs a worker until nobody gives it orders any more.
pub(crate) fn run(orders: mpsc::UnboundedReceiver<Order>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, Worker::default().work(orders));
    Ok(())
}

impl Worker {
    async fn work(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let mut sweeps = interval(SWEEP_EVERY);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.obey(order),
                    None => return,
                },
                _ = sweeps.tick() => self.sweep(),
            }
        }
    }

    // Whoever asked may have given up waiting for the answer.
    fn obey(&mut self, order: Order) {
        match order {
            Order::Serve { id, workload, keys, done } => {
                let errors = self.serve(&id, workload, keys).unwrap_or_else(|error| {
                    tracing::warn!(%id, %error, "a workload cannot be served");
                    Vec::new()
                });
                let _ = done.send(errors);
            }
            Order::Remove { id, done } => {
                if let Some(deployed) = self.deployed.remove(&id) {
                    deployed.doors.values().for_each(Door::shut);
                }
                let _ = done.send(());
            }
            Order::Counts { reply } => {
                let _ = reply.send(self.counts());
            }
        }
    }

    fn serve(&mut self, id: &InstanceId, workload: Arc<Workload>, keys: Arc<Keys>) -> anyhow::Result<Vec<ListenError>> {
        let random = Rc::clone(self.random.get_or_insert_with(|| Rc::new(Random::new())));
        let before = self.deployed.remove(id);
        let served = match Served::new(workload, keys, before.as_ref().map(|before| &before.served), &random) {
            Ok(served) => served,
            Err(error) => {
                // What was served before goes on.
                self.deployed.extend(before.map(|before| (id.clone(), before)));
                return Err(error);
            }
        };
        let mut old = before.map(|before| before.doors).unwrap_or_default();
        let wanted: Vec<_> = served.sides.iter().map(|side| (side.bind(), Rc::clone(side))).collect();
        let is_wanted = |address: &SocketAddr| wanted.iter().any(|(bind, _)| bind == address);
        old.iter().filter(|(address, _)| !is_wanted(address)).for_each(|(_, door)| door.shut());
        let (mut doors, mut errors) = (BTreeMap::new(), Vec::new());
        for (address, side) in wanted {
            let kept = old.remove(&address).filter(|door| door.listening.is_like(&side));
            match kept
                .map_or_else(|| Door::open(address, &side, &served.keys), |door| Ok(door.turn(&side, &served.keys)))
            {
                Ok(door) => {
                    doors.insert(address, door);
                }
                Err(error) => errors.push(ListenError { address, reason: error.to_string() }),
            }
        }
        self.deployed.insert(id.clone(), Deployed { served, doors });
        Ok(errors)
    }

    fn sweep(&self) {
        for deployed in self.deployed.values() {
            deployed.served.sides.iter().for_each(|side| side.upstream().sweep());
        }
    }

    fn counts(&self) -> Vec<SideCounts> {
        let of = |(id, deployed): (&InstanceId, &Deployed)| {
            let of_door = |door: &Door| SideCounts {
                id: id.clone(),
                upstream: match &*door.listening.side() {
                    Side::Inbound(_) => None,
                    Side::Outbound(outbound) => Some(outbound.part.service.to_string()),
                },
                counts: Arc::clone(&door.listening.metrics.0),
            };
            deployed.doors.values().map(of_door).collect::<Vec<_>>()
        };
        self.deployed.iter().flat_map(of).collect()
    }
}

impl Door {
    fn open(address: SocketAddr, side: &Rc<Side>, keys: &Arc<Keys>) -> std::io::Result<Self> {
        let listener = bind(address)?;
        let metrics = Rc::new(SideMetrics(Arc::default()));
        let listening = Listening::new(Rc::clone(side), Arc::clone(keys), metrics);
        let task = tokio::task::spawn_local(accept(listener, Rc::clone(&listening))).abort_handle();
        Ok(Self { listening, task })
    }

    /// The same listener with another meaning.
    fn turn(self, side: &Rc<Side>, keys: &Arc<Keys>) -> Self {
        self.listening.replace(Rc::clone(side), Arc::clone(keys));
        self
    }

    /// Takes no more connections; those that stand end with the request that they carry.
    fn shut(&self) {
        self.task.abort();
        self.listening.drain();
    }
}
