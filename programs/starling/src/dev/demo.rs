//! The demo: four services with real sidecars and a little load, and a page of what to try.
//!
//! It does what a user would do: registers definition files, starts each application as a process, and each sidecar that is
//! an Envoy, and calls the front tier. On the native data plane this process serves the sidecars, and nothing is started. Every child ends with the demo, on Linux also when this process is killed.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::process::{Child, Command};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::say;
use crate::lifeline;

/// The definitions, as a user would write them; also in `deploy/demo`.
pub(super) const DEFINITIONS: [(&str, &str); 5] = [
    ("proxy-defaults.hcl", include_str!("../../../../deploy/demo/proxy-defaults.hcl")),
    ("web.hcl", include_str!("../../../../deploy/demo/web.hcl")),
    ("api.hcl", include_str!("../../../../deploy/demo/api.hcl")),
    ("db.hcl", include_str!("../../../../deploy/demo/db.hcl")),
    ("hey.hcl", include_str!("../../../../deploy/demo/hey.hcl")),
];

/// An application of the demo: ports are those in its definition.
struct Tier {
    name: &'static str,
    port: u16,
    /// Ports of its sidecar's listeners for the services that it calls.
    upstreams: &'static [u16],
    admin_port: u16,
}

const TIERS: [Tier; 4] = [
    Tier { name: "web", port: 9090, upstreams: &[9191, 9192], admin_port: 19001 },
    Tier { name: "api", port: 9091, upstreams: &[9193, 9194], admin_port: 19002 },
    Tier { name: "db", port: 9092, upstreams: &[], admin_port: 19003 },
    Tier { name: "hey", port: 9093, upstreams: &[], admin_port: 19004 },
];

/// Where the native data plane shows what it does, unless somebody says where.
pub(super) const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 19000);

/// Who serves the sidecars.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sidecars {
    /// This process.
    Native,
    /// An Envoy each, which finds its API and xDS here.
    Envoys { http: SocketAddr, grpc: SocketAddr },
}

/// Calls to the front tier per second: enough to see, little enough to run on a laptop.
const LOAD_PER_SECOND: u64 = 5;

/// Until traffic flows through all tiers; health checks need a few seconds.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Until one call of the front tier is answered.
const CALL_WITHIN: Duration = Duration::from_secs(2);

/// Between two looks at whether traffic flows.
const READY_POLL: Duration = Duration::from_millis(100);

/// The demo's processes; they end when this is dropped.
pub(super) struct Demo {
    children: Vec<(String, Child)>,
    logs: PathBuf,
}

impl Demo {
    /// Fails early, and with what to do, if a port of the demo is taken.
    pub(super) fn check_ports(native: bool) -> anyhow::Result<()> {
        let ports = TIERS.iter().flat_map(|tier| {
            let admin = if native { ADMIN.port() } else { tier.admin_port };
            tier.upstreams.iter().copied().chain([tier.port, admin])
        });
        for port in ports.collect::<BTreeSet<_>>() {
            std::net::TcpListener::bind(("127.0.0.1", port))
                .with_context(|| format!("the demo needs port {port}, which is in use; is another demo running?"))?;
        }
        Ok(())
    }

    /// Starts the applications and their sidecars. Their services are registered already.
    pub(super) fn start(logs: &Path, sidecars: Sidecars) -> anyhow::Result<Self> {
        std::fs::create_dir_all(logs).with_context(|| format!("creating {}", logs.display()))?;
        let mut demo = Self { children: Vec::new(), logs: logs.to_owned() };
        for tier in &TIERS {
            let uris: Vec<_> = tier.upstreams.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
            let mut application = demo.command()?;
            application
                .arg("fake-service")
                .env("LISTEN_ADDR", format!("127.0.0.1:{}", tier.port))
                .env("NAME", tier.name)
                .env("MESSAGE", format!("Hello from {}", tier.name))
                .env("UPSTREAM_URIS", uris.join(","))
                .env("UPSTREAM_WORKERS", "2")
                .env("HTTP_CLIENT_KEEP_ALIVES", "true");
            demo.spawn(tier.name.to_owned(), application)?;
            let Sidecars::Envoys { http, grpc } = sidecars else { continue };
            let mut sidecar = demo.command()?;
            sidecar
                .args(["connect", "envoy", "-sidecar-for", &format!("{}-1", tier.name)])
                .args(["-admin-bind", &format!("127.0.0.1:{}", tier.admin_port)])
                .args(["-http-addr", &http.to_string(), "-grpc-addr", &grpc.to_string()])
                .args(["--", "--concurrency", "1", "--log-level", "warning"]);
            demo.spawn(format!("{}-sidecar", tier.name), sidecar)?;
        }
        Ok(demo)
    }

    fn command(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.env(lifeline::VARIABLE, std::process::id().to_string());
        Ok(command)
    }

    fn spawn(&mut self, name: String, mut command: Command) -> anyhow::Result<()> {
        let path = self.logs.join(format!("{name}.log"));
        let log = std::fs::File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        self.children.push((name, child));
        Ok(())
    }

    /// Waits until the front tier answers through every other one.
    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        let client = client();
        let deadline = Instant::now() + READY_WITHIN;
        while Instant::now() < deadline {
            if call(&client).await {
                return Ok(());
            }
            if let Some(ended) = self.take_ended().pop() {
                bail!(ended);
            }
            tokio::time::sleep(READY_POLL).await;
        }
        bail!("no traffic flows after {READY_WITHIN:?}")
    }

    /// Takes out the processes that have ended, and says of each how, and what it said last.
    fn take_ended(&mut self) -> Vec<String> {
        let ended = self.children.extract_if(.., |(_, child)| !matches!(child.try_wait(), Ok(None)));
        let tell = |(name, mut child): (String, Child)| {
            let how = child.try_wait().ok().flatten().map_or_else(String::new, |status| format!(" ({status})"));
            let said = std::fs::read_to_string(self.logs.join(format!("{name}.log"))).unwrap_or_default();
            format!("{name} has ended{how}; it said last:\n{}", last_lines(&said))
        };
        ended.map(tell).collect()
    }

    /// Calls the front tier, and says when the outcome changes and when a process has ended, until all have.
    pub(super) async fn load(&mut self) -> anyhow::Result<()> {
        let client = client();
        let mut ticks = interval(Duration::from_millis(1000 / LOAD_PER_SECOND));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = true;
        while !self.children.is_empty() {
            ticks.tick().await;
            for ended in self.take_ended() {
                say(&mut std::io::stderr(), &ended);
            }
            let ok = call(&client).await;
            if ok != last {
                let now = if ok { "answers again" } else { "fails: a tier behind it is cut off or down" };
                say(&mut std::io::stderr(), &format!("load: web {now}"));
            }
            last = ok;
        }
        bail!("every process of the demo has ended")
    }

    /// What to try next.
    pub(super) fn page(&self, http: SocketAddr, sidecars: Sidecars) -> String {
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(Path::to_str).unwrap_or("starling");
        let api = if http.port() == 8500 { String::new() } else { format!(" --http-addr http://{http}") };
        let (who, counted, view) = match sidecars {
            Sidecars::Native => (
                "this process",
                format!("http://{ADMIN}/stats | grep denials"),
                format!(
                    "The sidecars have their own view, too:\n      curl -s http://{ADMIN}/certificates\n      curl -s http://{ADMIN}/clusters"
                ),
            ),
            Sidecars::Envoys { .. } => (
                "an Envoy each",
                "http://127.0.0.1:19003/stats/prometheus | grep rbac".to_owned(),
                "A sidecar has its own view, too:\n      curl -s http://127.0.0.1:19002/certs".to_owned(),
            ),
        };
        format!(
            "
  A mesh of four services is up; every call from one to another goes through two sidecars and mutual TLS.

    web ──► api ──► db          load: {LOAD_PER_SECOND} requests/s to web; sidecars: {who}
     └──► hey ◄──┘              logs: {logs}

  See it:
      # web, with the answers of all behind it
      curl -s http://127.0.0.1:9090/
      {program} services{api}
      {program} status{api}

  Cut api → db, see the effect, and mend it:
      {program} intention create -deny api db{api}
      {program} changes --wait 10s{api}
      # 500 now: the sidecar of db refuses api, and has counted it
      curl -s -o /dev/null -w '%{{http_code}}\\n' http://127.0.0.1:9090/
      curl -s {counted}
      {program} can api db{api}
      {program} intention delete api db{api}

  {view}

  Ctrl-C ends everything.
",
            logs = self.logs.display(),
        )
    }
}

type HttpClient = Client<hyper_util::client::legacy::connect::HttpConnector, Empty<Bytes>>;

fn client() -> HttpClient {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Whether the front tier answers 200, which it does when everything behind it does.
async fn call(client: &HttpClient) -> bool {
    let called = async {
        let response = client.get(hyper::Uri::from_static("http://127.0.0.1:9090/")).await.ok()?;
        let ok = response.status() == http::StatusCode::OK;
        response.into_body().collect().await.ok()?;
        Some(ok)
    };
    timeout(CALL_WITHIN, called).await.ok().flatten().unwrap_or(false)
}

/// The end of a log, enough to see why a process ended.
fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
