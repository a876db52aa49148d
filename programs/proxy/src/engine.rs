//! The engine: workers, each on its own thread with its own listeners, and what all of them serve.
//!
//! Workers share nothing on the way of a request. The kernel spreads connections over their sockets (`SO_REUSEPORT`); what
//! is to be served reaches each of them as an order, and is in force when all have answered.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use starling_admission::Share;
use starling_admission::shares::DATA_PLANE_CONNECTIONS_MAX;
use starling_model::InstanceId;
use starling_telemetry::Registry;
use tokio::sync::{mpsc, oneshot, watch};

use crate::access_log::Sinks;
use crate::door::Inherited;
use crate::edge::certificates::{EdgeConfigs, FileCertificates, Prepared, renewals};
use crate::exits::OriginConfigs;
use crate::exits::origin_tls::{self, OriginTlsConfig};
use crate::keys::Keys;
use crate::metrics::{Ledger, WorkerMetrics};
use crate::snapshot::WorkerSnapshot;
use crate::timeouts::Timeouts;
use crate::worker::{ListenError, Order, run};
use crate::workload::Workload;

/// A running engine. Its workers end when it is dropped.
#[derive(Debug)]
pub struct Engine {
    workers: Vec<mpsc::UnboundedSender<Order>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    ledger: Arc<Ledger>,
    sinks: Arc<Sinks>,
    inherited: Arc<Inherited>,
    /// Connections of peers to each workload, counted by all workers together as their limit is one.
    connections: Mutex<BTreeMap<InstanceId, Arc<AtomicU32>>>,
    /// How the ports of each gateway are encrypted.
    edges: Arc<Mutex<BTreeMap<InstanceId, Prepared>>>,
    /// How the services outside are called, for which a gateway stands.
    origins: Arc<Mutex<BTreeMap<InstanceId, OriginConfigs>>>,
    /// Told when files of certificates turn out not to fit, or fit again.
    files: Arc<watch::Sender<()>>,
}

impl Engine {
    /// Starts so many workers, at least one.
    ///
    /// # Errors
    /// When a thread cannot be had.
    pub fn start(workers: usize) -> io::Result<Self> {
        Self::start_with(workers, Timeouts::default())
    }

    /// The same, with other timeouts.
    ///
    /// # Errors
    /// When a thread cannot be had.
    pub fn start_with(workers: usize, timeouts: Timeouts) -> io::Result<Self> {
        Self::succeed(workers, timeouts, Inherited::default())
    }

    /// The same, in the place of another process that hands its sockets over.
    ///
    /// # Errors
    /// When a thread cannot be had.
    pub fn succeed(workers: usize, timeouts: Timeouts, inherited: Inherited) -> io::Result<Self> {
        Self::limited(workers, timeouts, inherited, Share::of(DATA_PLANE_CONNECTIONS_MAX))
    }

    /// Starts the engine with a limit of client connections and descriptors.
    ///
    /// # Errors
    /// When a thread cannot be had.
    pub fn limited(workers: usize, timeouts: Timeouts, inherited: Inherited, share: Share) -> io::Result<Self> {
        let count = workers.max(1);
        let inherited = Arc::new(inherited);
        let (ledger, sinks) = (Arc::<Ledger>::default(), Arc::<Sinks>::default());
        let start = |number: usize| {
            let counting = (WorkerMetrics::new(Arc::clone(&ledger), number), Arc::clone(&sinks));
            let (orders, received) = mpsc::unbounded_channel();
            let inherited = Arc::clone(&inherited);
            let work = move || {
                if let Err(error) = run(received, counting, (timeouts, share, count), inherited) {
                    tracing::error!(%error, "a worker of the proxy cannot run");
                }
            };
            Ok((orders, thread::Builder::new().name(format!("proxy-{number}")).spawn(work)?))
        };
        let started = (0..count).map(start).collect::<io::Result<Vec<_>>>()?;
        let (workers, threads): (_, Vec<_>) = started.into_iter().unzip();
        let (threads, connections) = (Mutex::new(threads), Mutex::default());
        let (edges, origins, files) = (Arc::default(), Arc::default(), Arc::default());
        Ok(Self { workers, threads, ledger, sinks, inherited, connections, edges, origins, files })
    }

    /// Serves a workload, in place of what was served under its name; returns when the next request of every connection is
    /// served by it. Answers with the listeners that could not be had, each once.
    pub async fn serve(&self, id: &InstanceId, workload: &Arc<Workload>, keys: &Arc<Keys>) -> Vec<ListenError> {
        let connections = {
            let mut all = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(id.clone()).or_default())
        };
        let (edges, mut unprepared) = self.prepare(id, workload, keys).await;
        let (origins, unread) = self.prepare_origins(id, workload).await;
        unprepared.extend(unread);
        let order = |number, done| Order::Serve {
            id: id.clone(),
            workload: Arc::clone(workload),
            keys: Arc::clone(keys),
            edges: Arc::clone(&edges),
            origins: Arc::clone(&origins),
            connections: Arc::clone(&connections),
            asking: self.workers.len() - number,
            done,
        };
        let answers = self.ask_each(order).await;
        let ended = self.workers.len() - answers.len();
        let mut errors = answers.concat();
        errors.extend(unprepared);
        if ended > 0 {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            let reason = format!("{ended} of {} workers have ended", self.workers.len());
            errors.push(ListenError::nobody(address, reason));
        }
        errors.sort_by_key(|error| error.address);
        errors.dedup();
        errors
    }

    /// What encrypts the ports of a gateway; reads files, and is told when they change.
    async fn prepare(
        &self,
        id: &InstanceId,
        workload: &Arc<Workload>,
        keys: &Arc<Keys>,
    ) -> (Arc<EdgeConfigs>, Vec<ListenError>) {
        let lock = || self.edges.lock().unwrap_or_else(PoisonError::into_inner);
        if workload.plan.edges.iter().all(|edge| edge.tls.is_none()) {
            lock().remove(id);
            return (Arc::default(), Vec::new());
        }
        // A copy: should nobody wait for the new ones in the end, those before are still known.
        let mut prepared = lock().get(id).cloned().unwrap_or_default();
        let (workload, keys, told) = (Arc::clone(workload), Arc::clone(keys), Arc::clone(&self.files));
        let preparing = tokio::task::spawn_blocking(move || {
            let (configs, errors) = prepared.prepare(&workload.plan.edges, &keys, &told);
            (prepared, configs, errors)
        });
        match preparing.await {
            Ok((prepared, configs, errors)) => {
                prepared.files().for_each(FileCertificates::watch);
                lock().insert(id.clone(), prepared);
                (Arc::new(configs), errors)
            }
            // It has panicked, or the process ends: nothing is served that way.
            Err(error) => {
                let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                (Arc::default(), vec![ListenError::nobody(address, error)])
            }
        }
    }

    /// What services outside are called by that want TLS; reads files, and is told when they change.
    async fn prepare_origins(
        &self,
        id: &InstanceId,
        workload: &Arc<Workload>,
    ) -> (Arc<OriginConfigs>, Vec<ListenError>) {
        let lock = || self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        if workload.plan.exits.iter().all(|exit| exit.tls.is_none()) {
            lock().remove(id);
            return (Arc::default(), Vec::new());
        }
        let before = lock().get(id).cloned().unwrap_or_default();
        let (workload, told) = (Arc::clone(workload), Arc::clone(&self.files));
        let reading = move || origin_tls::prepare(before, &workload.plan.exits, &told);
        match tokio::task::spawn_blocking(reading).await {
            Ok((configs, errors)) => {
                configs.values().for_each(OriginTlsConfig::watch);
                lock().insert(id.clone(), configs.clone());
                (Arc::new(configs), errors)
            }
            // It has panicked, or the process ends: nobody is called in plaintext instead.
            Err(error) => {
                let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                (Arc::default(), vec![ListenError::nobody(address, error)])
            }
        }
    }

    /// Serves a workload no more. Its connections end with the request that they carry.
    pub async fn remove(&self, id: &InstanceId) {
        self.ask(|done| Order::Remove { id: id.clone(), done }).await;
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.edges.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.origins.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// What every worker is doing.
    pub async fn snapshot(&self) -> Vec<WorkerSnapshot> {
        self.ask(|reply| Order::Snapshot { reply }).await
    }

    /// Takes no more connections, for good; those that stand end with the request that they carry.
    pub async fn drain(&self) {
        self.ask(|done| Order::Drain { left_to_another: false, done }).await;
    }

    /// The same once another process takes connections from copies of the same sockets.
    pub async fn leave(&self) {
        self.ask(|done| Order::Drain { left_to_another: true, done }).await;
    }

    /// Ends all workers with whatever they serve, and waits until lines of access logs are written and spans are sent that are
    /// still queued; not for longer than `within`. Whether it was long enough.
    pub async fn finish(&self, within: Duration) -> bool {
        for worker in &self.workers {
            // One that has ended needs no order.
            let _ = worker.send(Order::End);
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let (sinks, (done, finished)) = (Arc::clone(&self.sinks), oneshot::channel());
        let wait = move || {
            // One that has panicked has ended, too.
            threads.into_iter().for_each(|thread| drop(thread.join()));
            sinks.finish();
            let _ = done.send(());
        };
        // A thread that nobody waits for: a collector that takes nothing must not hold up the end of the process.
        let waiting = thread::Builder::new().name("finish".to_owned()).spawn(wait);
        waiting.is_ok() && matches!(tokio::time::timeout(within, finished).await, Ok(Ok(())))
    }

    /// Copies of all sockets that are listened on, for another process.
    ///
    /// # Errors
    /// When there is no room for as many descriptors.
    pub async fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        let copies: io::Result<Vec<_>> = self.ask(|reply| Order::Copy { reply }).await.into_iter().collect();
        Ok(copies?.into_iter().flatten().collect())
    }

    /// Closes inherited sockets that nothing which is served needs.
    pub fn forget_inherited(&self) {
        self.inherited.close();
    }

    /// Connections of clients that stand.
    pub async fn standing(&self) -> usize {
        let standing = |worker: &WorkerSnapshot| {
            let listeners = worker.workloads.iter().flat_map(|workload| &workload.listeners);
            listeners.map(|listener| listener.standing).sum::<usize>() + worker.leaving
        };
        self.snapshot().await.iter().map(standing).sum()
    }

    /// What was counted since the engine was started.
    #[must_use]
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Shows what is counted among the metrics of the process.
    pub fn register(&self, registry: &Registry) {
        let (ledger, sinks, edges) = (Arc::clone(&self.ledger), Arc::clone(&self.sinks), Arc::clone(&self.edges));
        registry.register_measured(move || {
            let mut families = ledger.families(&sinks);
            let edges = edges.lock().unwrap_or_else(PoisonError::into_inner);
            families.push(renewals(edges.values()));
            families
        });
    }

    /// Changes whenever files of certificates that are in force turn out not to fit any more, or fit again: serving the same
    /// again tells which.
    #[must_use]
    pub fn files(&self) -> watch::Receiver<()> {
        self.files.subscribe()
    }

    /// Gives every worker an order and waits for all answers.
    async fn ask<T>(&self, order: impl Fn(oneshot::Sender<T>) -> Order) -> Vec<T> {
        self.ask_each(|_, reply| order(reply)).await
    }

    /// The same, with each worker's number.
    async fn ask_each<T>(&self, order: impl Fn(usize, oneshot::Sender<T>) -> Order) -> Vec<T> {
        let ask = |(number, worker): (usize, &mpsc::UnboundedSender<Order>)| {
            let (reply, answer) = oneshot::channel();
            // One that has ended answers nothing.
            let _ = worker.send(order(number, reply));
            answer
        };
        let asked: Vec<_> = self.workers.iter().enumerate().map(ask).collect();
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            answers.extend(answer.await);
        }
        answers
    }
}
