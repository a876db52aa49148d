//! The native proxy in a process of its own, started by `starling proxy`.

use crate::http::{self, Answer};
use crate::mesh::Mesh;
use crate::ports::free_port;
use crate::process::Process;
use crate::wait;

/// One running proxy.
#[derive(Debug)]
pub struct OwnProxy {
    /// HOST:PORT of its admin interface.
    pub admin: String,
    /// The process.
    pub process: Process,
}

impl OwnProxy {
    /// Starts the sidecar of the instance `id`; it need not be ready when this returns.
    #[must_use]
    pub fn spawn(mesh: &Mesh, id: &str, more: &[&str]) -> Self {
        let admin = format!("127.0.0.1:{}", free_port());
        let proxy = ["proxy", "-sidecar-for", id, "-admin-bind", &admin, "--workers", "1"];
        let command = mesh.command(&[&proxy[..], more].concat());
        Self { process: Process::spawn(&format!("proxy-{id}"), command), admin }
    }

    /// Starts the sidecar of the instance `id`, and waits until it listens on all `ports`.
    ///
    /// # Panics
    /// If it does not.
    pub async fn start(mesh: &Mesh, id: &str, ports: &[u16]) -> Self {
        let mut proxy = Self::spawn(mesh, id, &[]);
        proxy.live(id, ports).await;
        proxy
    }

    /// Waits until it listens on all `ports`.
    ///
    /// # Panics
    /// If it does not in time.
    pub async fn live(&mut self, id: &str, ports: &[u16]) {
        wait::eventually(&format!("the proxy of {id} listens on {ports:?}"), async || {
            self.process.expect_running()?;
            let config = http::get(&self.admin, "/config").await?.text();
            anyhow::ensure!(config.contains(&format!("{id}-sidecar-proxy")), "it serves nobody yet: {config}");
            Ok(())
        })
        .await;
        wait::listens(ports).await;
    }

    /// A GET at the admin interface.
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn get(&self, target: &str) -> Answer {
        http::get(&self.admin, target).await.expect("the proxy's admin interface").success()
    }
}
