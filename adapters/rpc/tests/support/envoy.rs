//! A real Envoy as a child process.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use starling_xds::Flavour;

use crate::http::Http;
use crate::mesh::DEADLINE;

/// Killed when dropped.
pub struct Envoy {
    child: Child,
    folder: tempfile::TempDir,
    pub admin: SocketAddr,
}

impl Envoy {
    pub async fn start(id: &str, flavour: Flavour, server: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (config, admin) = (folder.path().join("bootstrap.json"), folder.path().join("admin"));
        std::fs::write(&config, bootstrap(id, flavour, server)).unwrap();
        let output = || Stdio::from(std::fs::File::create(folder.path().join("stdout")).unwrap());
        let errors = std::fs::File::create(folder.path().join("log")).unwrap();
        let child = Command::new(binary())
            .args(["--concurrency", "1", "--use-dynamic-base-id", "--disable-hot-restart", "--log-level", "warning"])
            .arg("--config-path")
            .arg(&config)
            .arg("--admin-address-path")
            .arg(&admin)
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(errors)
            .spawn()
            .unwrap();
        let mut envoy = Self { child, folder, admin: server };
        envoy.admin = envoy.admin_address(&admin).await;
        envoy
    }

    async fn admin_address(&mut self, path: &Path) -> SocketAddr {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(address) = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()) {
                return address;
            }
            let exited = self.child.try_wait().unwrap();
            assert!(exited.is_none() && Instant::now() < end, "Envoy does not start: {}", self.log());
            tokio::task::yield_now().await;
        }
    }

    pub fn log(&self) -> String {
        self.read("log")
    }

    pub fn access_log(&self) -> String {
        self.read("stdout")
    }

    fn read(&self, name: &str) -> String {
        let mut text = String::new();
        std::fs::File::open(self.folder.path().join(name)).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// A counter or gauge; 0 if Envoy has not made it yet.
    pub async fn stat(&self, name: &str) -> u64 {
        let filter = name.replace('.', "\\.");
        let text = Http::connect(self.admin).await.get(&format!("/stats?filter=^{filter}$")).await.body;
        text.trim().rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Waits until a statistic is as wanted.
    pub async fn await_stat(&self, name: &str, wanted: impl Fn(u64) -> bool) {
        let end = Instant::now() + DEADLINE;
        loop {
            let value = self.stat(name).await;
            if wanted(value) {
                return;
            }
            assert!(Instant::now() < end, "{name} stays {value}: {}", self.log());
        }
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("Envoy's log:\n{}", self.log());
        }
    }
}

fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("STARLING_ENVOY") {
        return path.into();
    }
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin/envoy");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("envoy"));
    std::iter::once(installed).chain(on_path).find(|path| path.is_file()).expect("run `cargo xtask install envoy`")
}

fn bootstrap(id: &str, flavour: Flavour, server: SocketAddr) -> String {
    let api_type = match flavour {
        Flavour::Delta => "DELTA_GRPC",
        Flavour::Sotw => "GRPC",
    };
    let (ip, port) = (server.ip(), server.port());
    let ads = r#"{"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}"#;
    format!(
        r#"{{
  "node": {{"id": "{id}", "cluster": "{id}", "metadata": {{"namespace": "default"}}}},
  "admin": {{"address": {{"socket_address": {{"address": "127.0.0.1", "port_value": 0}}}}}},
  "static_resources": {{"clusters": [{{
    "name": "starling", "type": "STATIC", "connect_timeout": "1s",
    "typed_extension_protocol_options": {{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {{
      "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
      "explicit_http_config": {{"http2_protocol_options": {{}}}}}}}},
    "load_assignment": {{"cluster_name": "starling", "endpoints": [{{"lb_endpoints": [{{"endpoint":
      {{"address": {{"socket_address": {{"address": "{ip}", "port_value": {port}}}}}}}}}]}}]}}}}]}},
  "dynamic_resources": {{
    "ads_config": {{"api_type": "{api_type}", "transport_api_version": "V3", "set_node_on_first_message_only": true,
      "grpc_services": [{{"envoy_grpc": {{"cluster_name": "starling",
        "retry_policy": {{"retry_back_off": {{"base_interval": "0.05s", "max_interval": "0.5s"}}}}}}}}]}},
    "cds_config": {ads}, "lds_config": {ads}}}
}}"#
    )
}
