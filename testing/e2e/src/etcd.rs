//! An etcd of the test's own, of one member.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cable::Cable;
use crate::http::{self, Method};
use crate::ports::free_port;
use crate::process::Process;
use crate::{tools, wait};

/// Time for an orderly end.
const LIMIT: Duration = Duration::from_secs(20);

/// One member, with ports and a data directory of its own; it ends when this is dropped.
#[derive(Debug)]
pub struct Etcd {
    process: Process,
    client: u16,
    peer: u16,
    data: TempDir,
}

impl Etcd {
    /// Starts one, and waits until it takes connections.
    ///
    /// # Panics
    /// If it does not.
    pub async fn start() -> Self {
        let data = TempDir::with_prefix("starling-e2e-etcd-").expect("a temporary directory");
        let (client, peer) = (free_port(), free_port());
        let process = spawn(&data, client, peer);
        wait::listens(&[client]).await;
        Self { process, client, peer, data }
    }

    /// What a server takes as its store.
    #[must_use]
    pub fn store(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.client)
    }

    /// The same by another way to it.
    #[must_use]
    pub fn store_over(&self, cable: &Cable) -> String {
        format!("etcd://{}", cable.address())
    }

    /// A way to it that can be cut.
    pub async fn cable(&self) -> Cable {
        Cable::to(format!("127.0.0.1:{}", self.client)).await
    }

    /// Has it forget everything before what it holds now.
    ///
    /// # Panics
    /// If it does not.
    pub async fn compact(&self) {
        let now = self.gateway("/v3/kv/range", &json!({"key": "AA=="})).await;
        let at = &now["header"]["revision"];
        let _ = self.gateway("/v3/kv/compaction", &json!({"revision": at, "physical": true})).await;
    }

    /// Raises or ends its alarm for want of space.
    ///
    /// # Panics
    /// If it does not take that.
    pub async fn out_of_space(&self, is_out: bool) {
        let action = if is_out { "ACTIVATE" } else { "DEACTIVATE" };
        let _ = self.gateway("/v3/maintenance/alarm", &json!({"action": action, "alarm": "NOSPACE"})).await;
    }

    /// Asks by JSON.
    async fn gateway(&self, target: &str, body: &Value) -> Value {
        let authority = format!("127.0.0.1:{}", self.client);
        let json = [("content-type", "application/json")];
        let asked = http::request(Method::POST, &authority, target, &json, body.to_string()).await;
        asked.expect("etcd answers").success().json()
    }

    /// Kills it with SIGKILL.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Stops it, with SIGTERM's orderly end, and copies what it has.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn stop_and_copy(&mut self) -> TempDir {
        self.process.end_with(Signal::SIGTERM, LIMIT);
        let copy = TempDir::with_prefix("starling-e2e-etcd-").expect("a temporary directory");
        copy_folder(self.data.path(), copy.path());
        copy
    }

    /// Puts what was copied in the place of what it has; it is to be stopped.
    ///
    /// # Panics
    /// If that is not to be had.
    pub fn set_back(&mut self, to: TempDir) {
        self.data = to;
    }

    /// Starts it again, on the same ports and data.
    ///
    /// # Panics
    /// If it does not take connections.
    pub async fn restart(&mut self) {
        self.process = spawn(&self.data, self.client, self.peer);
        wait::listens(&[self.client]).await;
    }
}

fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from.join("data")).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "{} cannot be copied", from.display());
}

fn spawn(data: &TempDir, client: u16, peer: u16) -> Process {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let mut command = Command::new(tools::etcd());
    command.arg("--name").arg("m0").arg("--data-dir").arg(data.path().join("data"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.arg("--initial-cluster").arg(format!("m0={peer}")).env_clear();
    Process::spawn("etcd", command)
}
