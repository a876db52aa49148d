//! The engine: workers, each on its own thread with its own listeners, and what all of them serve.
//!
//! Workers share nothing on the way of a request. The kernel spreads connections over their sockets (`SO_REUSEPORT`); what
//! is to be served reaches each of them as an order, and is in force when all have answered.

use std::io;
use std::sync::Arc;
use std::thread;

use starling_model::InstanceId;
use tokio::sync::{mpsc, oneshot};

use crate::keys::Keys;
use crate::worker::{ListenError, Order, SideCounts, run};
use crate::workload::Workload;

/// A running engine. Its workers end when it is dropped.
#[derive(Debug)]
pub struct Engine {
    workers: Vec<mpsc::UnboundedSender<Order>>,
}

impl Engine {
    /// Starts so many workers, at least one.
    ///
    /// # Errors
    /// When a thread cannot be had.
    pub fn start(workers: usize) -> io::Result<Self> {
        let start = |number: usize| {
            let (orders, received) = mpsc::unbounded_channel();
            let work = move || {
                if let Err(error) = run(received) {
                    tracing::error!(%error, "a worker of the proxy cannot run");
                }
            };
            thread::Builder::new().name(format!("proxy-{number}")).spawn(work)?;
            Ok(orders)
        };
        Ok(Self { workers: (0..workers.max(1)).map(start).collect::<io::Result<_>>()? })
    }

    /// Serves a workload, in place of what was served under its name; returns when the next request of every connection is
    /// served by it. Answers with the listeners that could not be had, each once.
    pub async fn serve(&self, id: &InstanceId, workload: &Arc<Workload>, keys: &Arc<Keys>) -> Vec<ListenError> {
        let order =
            |done| Order::Serve { id: id.clone(), workload: Arc::clone(workload), keys: Arc::clone(keys), done };
        let mut errors = self.ask(order).await.concat();
        errors.sort_by_key(|error| error.address);
        errors.dedup();
        errors
    }

    /// Serves a workload no more. Its connections end with the request that they carry.
    pub async fn remove(&self, id: &InstanceId) {
        self.ask(|done| Order::Remove { id: id.clone(), done }).await;
    }

    /// What was counted, by worker and direction of each workload.
    pub async fn counts(&self) -> Vec<SideCounts> {
        self.ask(|reply| Order::Counts { reply }).await.concat()
    }

    /// Gives every worker an order and waits for all answers.
    async fn ask<T>(&self, order: impl Fn(oneshot::Sender<T>) -> Order) -> Vec<T> {
        let asked: Vec<_> = self
            .workers
            .iter()
            .map(|worker| {
                let (reply, answer) = oneshot::channel();
                // One that has ended answers nothing.
                let _ = worker.send(order(reply));
                answer
            })
            .collect();
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            answers.extend(answer.await);
        }
        answers
    }
}
