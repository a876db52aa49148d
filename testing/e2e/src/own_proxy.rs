//! The native proxy in a process of its own, started by `starling proxy`.

use std::path::Path;

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
        Self::spawn_at(mesh, &["-sidecar-for", id], &format!("127.0.0.1:{}", free_port()), more)
    }

    /// The same in a folder where it meets nobody.
    #[must_use]
    pub fn spawn_apart(mesh: &Mesh, id: &str, folder: &Path, more: &[&str]) -> Self {
        Self::spawn_in(mesh, folder, &["-sidecar-for", id], &format!("127.0.0.1:{}", free_port()), more)
    }

    fn spawn_at(mesh: &Mesh, who: &[&str], admin: &str, more: &[&str]) -> Self {
        Self::spawn_in(mesh, &mesh.data_dir().join("proxies"), who, admin, more)
    }

    fn spawn_in(mesh: &Mesh, folder: &Path, who: &[&str], admin: &str, more: &[&str]) -> Self {
        let folder = folder.to_str().expect("a path in UTF-8");
        let proxy = [&["proxy"], who, &["-admin-bind", admin, "--runtime-dir", folder], more].concat();
        let id = who.last().copied().unwrap_or_default();
        Self { process: Process::spawn(&format!("proxy-{id}"), mesh.command(&proxy)), admin: admin.to_owned() }
    }

    /// Starts the gateway `name`, registers it at 127.0.0.1, and waits until it listens on all `ports`.
    ///
    /// # Panics
    /// If it does not.
    pub async fn gateway(mesh: &Mesh, name: &str, ports: &[u16]) -> Self {
        let (admin, more) = (format!("127.0.0.1:{}", free_port()), ["-register", "-address", "127.0.0.1"]);
        let mut proxy = Self::spawn_at(mesh, &["-gateway", name], &admin, &more);
        proxy.serves(name, ports).await;
        proxy
    }

    /// Starts the terminating gateway `name`, registers it at 127.0.0.1:`port`, and waits until it listens there.
    ///
    /// # Panics
    /// If it does not.
    pub async fn terminating(mesh: &Mesh, name: &str, port: u16) -> Self {
        let (admin, address) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{port}"));
        let who = ["-gateway-kind", "terminating", "-gateway", name];
        let mut proxy = Self::spawn_at(mesh, &who, &admin, &["-register", "-address", &address]);
        proxy.serves(name, &[port]).await;
        proxy
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

    /// Has another process take its place; answers with the one before once that has ended.
    ///
    /// # Panics
    /// If the one before does not end in time.
    pub async fn taken_over(&mut self, mesh: &Mesh, id: &str, more: &[&str]) -> std::process::ExitStatus {
        self.taken_over_as(mesh, &["-sidecar-for", id], more).await
    }

    /// The same for the gateway `name`.
    ///
    /// # Panics
    /// If the one before does not end in time.
    pub async fn gateway_taken_over(&mut self, mesh: &Mesh, name: &str) -> std::process::ExitStatus {
        self.taken_over_as(mesh, &["-gateway", name], &[]).await
    }

    /// The same for the terminating gateway `name`.
    ///
    /// # Panics
    /// If the one before does not end in time.
    pub async fn terminating_taken_over(&mut self, mesh: &Mesh, name: &str) -> std::process::ExitStatus {
        self.taken_over_as(mesh, &["-gateway-kind", "terminating", "-gateway", name], &[]).await
    }

    async fn taken_over_as(&mut self, mesh: &Mesh, who: &[&str], more: &[&str]) -> std::process::ExitStatus {
        let next = Self::spawn_at(mesh, who, &self.admin, &[&["--take-over"], more].concat());
        let id = who.last().copied().unwrap_or_default();
        let mut before = std::mem::replace(self, next);
        wait::eventually(&format!("the proxy of {id} has left its place to the next one"), async || {
            self.process.expect_running()?;
            before.process.ended().ok_or_else(|| anyhow::anyhow!("it runs"))
        })
        .await
    }

    /// Waits until it listens on all `ports`.
    ///
    /// # Panics
    /// If it does not in time.
    pub async fn live(&mut self, id: &str, ports: &[u16]) {
        self.serves(&format!("{id}-sidecar-proxy"), ports).await;
    }

    async fn serves(&mut self, id: &str, ports: &[u16]) {
        wait::eventually(&format!("{id} listens on {ports:?}"), async || {
            self.process.expect_running()?;
            let config = http::get(&self.admin, "/config").await?.text();
            anyhow::ensure!(config.contains(&format!("# {id} at revision")), "it serves nobody yet: {config}");
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
