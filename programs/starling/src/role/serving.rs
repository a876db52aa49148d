//! The tasks of a program that runs on, and their end.

use std::future::Future;

use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

/// Tasks that serve until they are told to stop.
pub(crate) struct Serving {
    stop: watch::Sender<bool>,
    tasks: Mutex<JoinSet<()>>,
}

impl Serving {
    /// Nothing is served yet.
    pub(crate) fn new() -> Self {
        Self { stop: watch::Sender::new(false), tasks: Mutex::default() }
    }

    /// Turns true when all is to end; so does its closing.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Ends when all is to end.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopping = self.stopping();
        async move {
            // A dropped sender is the end, too.
            let _ = stopping.wait_for(|stop| *stop).await;
        }
    }

    /// Runs something that ends by itself, soon after [`Serving::stopped`].
    pub(crate) async fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().await.spawn(task);
    }

    /// Runs something that has no end of its own.
    pub(crate) async fn spawn_endless(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.stopped();
        let until_stopped = async move {
            tokio::select! {
                () = task => {}
                () = stopped => {}
            }
        };
        self.spawn(until_stopped).await;
    }

    /// Runs a door of the mesh's own ports.
    pub(crate) async fn spawn_door(
        &self,
        door: &'static str,
        serving: impl Future<Output = Result<(), starling_rpc::ServeError>> + Send + 'static,
    ) {
        let logged = async move {
            if let Err(error) = serving.await {
                tracing::error!(error = format!("{:#}", anyhow::Error::from(error)), "{door} is no longer served");
            }
        };
        self.spawn(logged).await;
    }

    /// Tells all tasks to stop, and returns when they have; each bounds its own end.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        let mut tasks = self.tasks.into_inner();
        while tasks.join_next().await.is_some() {}
    }
}
