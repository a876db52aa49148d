//! The arguments of `starling proxy`.

use std::path::PathBuf;
use std::time::Duration;

use starling_http_api::parse::parse_duration;
use starling_proxy::admin::AdminAddress;

use crate::client::ApiArgs;
use crate::connect::arguments::{SidecarArgs, XdsArgs};
use crate::connect::gateway::{GatewayKind, RegisterArgs};
use crate::role::arguments::LogArgs;

/// The longest time for connections to finish: whoever waits longer for an end has forgotten it.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(3_600);

/// Serve one workload of this node with the native data plane, in a process of its own, or be a gateway
///
/// A service is registered with the local agent and has a sidecar (`connect { sidecar_service {} }`). From the time that
/// this process has attached, the agent leaves the sidecar to it. A gateway is registered with the kind ingress-gateway or
/// terminating-gateway, and does what the config entry of its name says. SIGTERM and Ctrl-C let requests that are under way finish.
#[derive(Debug, clap::Args)]
pub(crate) struct ProxyArgs {
    #[command(flatten)]
    pub(super) sidecar: SidecarArgs,

    /// Be this gateway, by its ID or the name of its service
    #[arg(long, value_name = "NAME", conflicts_with_all = ["sidecar_for", "proxy_id"], help_heading = "Gateways")]
    pub(super) gateway: Option<String>,

    /// The kind of the gateway
    #[arg(long, value_name = "KIND", requires = "gateway", value_enum, default_value_t, help_heading = "Gateways")]
    pub(super) gateway_kind: GatewayKind,

    #[command(flatten)]
    pub(super) registering: RegisterArgs,

    /// Where it shows what it does and is drained: a loopback address, or unix:PATH
    #[arg(long, value_name = "ADDR")]
    pub(super) admin_bind: Option<AdminAddress>,

    /// Threads; without it, one for each CPU of this process
    #[arg(long, value_name = "N", env = "STARLING_PROXY_WORKERS", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(super) workers: Option<u16>,

    /// Take the place of the process that serves this sidecar now: its listening sockets change hands, so that no
    /// connection is refused, and it ends when what it has under way has finished
    #[arg(long)]
    pub(super) take_over: bool,

    /// Time that connections have to finish what they carry at the end: 20s, 500ms, 2m; a mere number is of seconds
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = drain_time)]
    pub(super) drain_time: Duration,

    /// Folder in which processes of one proxy find each other; this user's alone [default: starling below
    /// XDG_RUNTIME_DIR, /run for root, or else starling-UID below the folder for temporary files]
    #[arg(long, value_name = "DIR", env = "STARLING_RUNTIME_DIR")]
    runtime_dir: Option<PathBuf>,

    #[command(flatten)]
    pub(super) xds: XdsArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

impl ProxyArgs {
    pub(super) fn runtime_dir(&self) -> anyhow::Result<PathBuf> {
        if let Some(folder) = &self.runtime_dir {
            return Ok(folder.clone());
        }
        let user = rustix::process::geteuid();
        Ok(match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("starling"),
            _ if user.is_root() => PathBuf::from("/run/starling"),
            _ => std::env::temp_dir().join(format!("starling-{}", user.as_raw())),
        })
    }
}

fn drain_time(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let time = seconds.or_else(|| parse_duration(text)).filter(|time| *time <= DRAIN_TIME_MAX);
    time.ok_or_else(|| "must be a number with a unit, such as 20s, 500ms or 2m, and at most 1h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drain_time_has_a_unit_or_is_of_seconds() {
        for (text, millis) in
            [("20", 20_000), ("20s", 20_000), ("500ms", 500), ("2m", 120_000), ("0", 0), ("1h", 3_600_000)]
        {
            assert_eq!(drain_time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "-1", "soon", "3601", "61m", "20 s"] {
            assert!(drain_time(text).is_err_and(|error| error.contains("20s, 500ms or 2m")), "{text}");
        }
    }
}
