//! `starling connect envoy`: Envoy as the sidecar of a registered service.
//!
//! Looks the sidecar up at the local agent, writes Envoy's bootstrap, and becomes Envoy. Everything else Envoy learns
//! over xDS.

mod binary;
mod bootstrap;
mod sidecar;

use std::ffi::OsString;
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::arguments::Surroundings;
use crate::client::address::host_and_port;
use crate::client::{Address, ApiArgs, Client};
use crate::environment::Environment;
use crate::outcome::{Outcome, usage};
use crate::print;
use bootstrap::{Bootstrap, Endpoint};
use sidecar::{Agent, Wanted};

/// Run a data plane for a registered service
#[derive(Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    #[command(subcommand)]
    command: ConnectCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConnectCommand {
    Envoy(Box<EnvoyArgs>),
}

/// Run Envoy as the sidecar of a service that is registered with the local agent
///
/// The process becomes Envoy; signals and exit code are Envoy's.
#[derive(Debug, clap::Args)]
pub(crate) struct EnvoyArgs {
    /// ID of the service whose sidecar it shall be
    #[arg(long, value_name = "ID", required_unless_present = "proxy_id", conflicts_with = "proxy_id")]
    sidecar_for: Option<String>,

    /// ID of the sidecar itself, where a service has several
    #[arg(long, value_name = "ID")]
    proxy_id: Option<String>,

    /// Where Envoy's admin interface listens; Prometheus finds its metrics there, under /stats/prometheus
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:19000")]
    admin_bind: String,

    /// File for the admin interface's access log
    #[arg(long, value_name = "FILE", default_value = "/dev/null")]
    admin_access_log_path: PathBuf,

    /// Print the bootstrap as JSON instead of running Envoy
    #[arg(long)]
    bootstrap: bool,

    /// Where xDS is served, IP:PORT or unix://PATH [default: STARLING_GRPC_ADDR, CONSUL_GRPC_ADDR, or what the agent
    /// says]
    #[arg(long, value_name = "ADDR")]
    grpc_addr: Option<String>,

    /// The Envoy binary [default: STARLING_ENVOY, envoy on PATH, or .tools/bin/envoy]
    #[arg(long, value_name = "FILE")]
    envoy_binary: Option<PathBuf>,

    /// Arguments for Envoy
    #[arg(last = true, value_name = "ENVOY ARGS")]
    envoy_args: Vec<OsString>,

    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: ConnectArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let ConnectCommand::Envoy(args) = args.command;
    let client = surroundings.client(&args.api)?;
    let bootstrap = compose(&args, &client, &surroundings.environment).await?;
    if args.bootstrap {
        print::json(&bootstrap)?;
        return Ok(Outcome::Done);
    }
    let folder = std::env::current_dir().ok();
    let binary = binary::find(args.envoy_binary.as_deref(), &surroundings.environment, folder.as_deref())?;
    Err(become_envoy(&binary, &bootstrap, &args.envoy_args))
}

async fn compose(args: &EnvoyArgs, client: &Client, environment: &Environment) -> anyhow::Result<serde_json::Value> {
    let admin = admin_address(&args.admin_bind)?;
    let wanted = match (&args.proxy_id, &args.sidecar_for) {
        (Some(id), _) => Wanted::Proxy(id),
        (None, Some(id)) => Wanted::SidecarFor(id),
        (None, None) => return Err(usage("one of --sidecar-for and --proxy-id must be given")),
    };
    let agent = sidecar::agent(client).await?;
    let sidecar = sidecar::find(client, wanted).await?;
    let xds = xds_address(args, client, environment, &agent)?;
    let admin_access_log = args.admin_access_log_path.to_string_lossy();
    Ok(Bootstrap {
        sidecar: &sidecar,
        agent: &agent,
        admin: &admin,
        admin_access_log: &admin_access_log,
        xds: &xds,
        token: client.token(),
    }
    .render())
}

fn admin_address(text: &str) -> anyhow::Result<Endpoint> {
    // Envoy resolves no names here.
    match host_and_port(text) {
        Some((host, Some(port))) => {
            let host = if host == "localhost" { "127.0.0.1".to_owned() } else { host };
            if host.parse::<std::net::IpAddr>().is_err() {
                return Err(usage(format!("--admin-bind {text:?}: {host:?} is no IP address")));
            }
            Ok(Endpoint::Tcp { host, port })
        }
        Some((_, None)) | None => Err(usage(format!("--admin-bind {text:?} is not of the form IP:PORT"))),
    }
}

/// Where Envoy finds xDS: as given, else where the API is, at the port that the agent tells.
fn xds_address(
    args: &EnvoyArgs,
    client: &Client,
    environment: &Environment,
    agent: &Agent,
) -> anyhow::Result<Endpoint> {
    if let Some(text) = args.grpc_addr.as_ref().or(environment.grpc_addr.as_ref()) {
        if let Some(path) = text.strip_prefix("unix://") {
            return Ok(Endpoint::Unix { path: path.to_owned() });
        }
        if text.starts_with("https://") {
            return Err(usage(format!("--grpc-addr {text:?}: Envoy speaks to the agent in plaintext, on loopback")));
        }
        let text = text.strip_prefix("http://").unwrap_or(text);
        let (host, port) =
            host_and_port(text).ok_or_else(|| usage(format!("--grpc-addr {text:?} is not of the form IP:PORT")))?;
        return Ok(Endpoint::Tcp { host, port: port.unwrap_or(bootstrap::XDS_PORT) });
    }
    let host = match client.address() {
        Address::Tcp { host, .. } => host.clone(),
        Address::Unix(_) => "127.0.0.1".to_owned(),
    };
    Ok(Endpoint::Tcp { host, port: agent.xds_port.unwrap_or(bootstrap::XDS_PORT) })
}

/// Replaces this process; returns only if that fails.
fn become_envoy(binary: &std::path::Path, bootstrap: &serde_json::Value, args: &[OsString]) -> anyhow::Error {
    // It may hold a token, so it is neither on the command line nor in a file that others could read.
    let file = match unnamed_file(bootstrap.to_string().as_bytes()) {
        Ok(file) => file,
        Err(error) => return error.context("cannot hand the bootstrap to Envoy"),
    };
    let mut command = Command::new(binary);
    command.arg("--config-path").arg(format!("/dev/fd/{}", file.as_raw_fd()));
    // Sidecars of one machine must not meet in each other's shared memory.
    command.arg("--disable-hot-restart").args(args);
    let error = command.exec();
    anyhow::Error::new(error).context(format!("cannot run {}", binary.display()))
}

/// A file without a name that Envoy inherits.
fn unnamed_file(content: &[u8]) -> anyhow::Result<std::fs::File> {
    let mut file = tempfile::tempfile().context("cannot make a temporary file")?;
    file.write_all(content)?;
    file.rewind()?;
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).context("cannot let it be inherited")?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_interface_needs_an_ip_and_a_port() {
        let tcp = |host: &str, port| Endpoint::Tcp { host: host.to_owned(), port };
        assert_eq!(admin_address("127.0.0.1:19000").unwrap(), tcp("127.0.0.1", 19000));
        assert_eq!(admin_address("localhost:19001").unwrap(), tcp("127.0.0.1", 19001));
        assert_eq!(admin_address("[::1]:19001").unwrap(), tcp("::1", 19001));
        for bad in ["19000", "127.0.0.1", "example.com:19000", "127.0.0.1:0", "127.0.0.1:70000"] {
            let error = admin_address(bad).expect_err(bad).to_string();
            assert!(error.contains(bad), "{error}");
        }
    }
}
