//! `starling connect envoy`: Envoy as the sidecar of a registered service, or as a gateway. And `connect ca`, which has a file of its own.
//!
//! Looks it up at the local agent, writes Envoy's bootstrap, and becomes Envoy. Everything else Envoy learns
//! over xDS.

pub(crate) mod arguments;
mod authority;
mod binary;
pub(crate) mod bootstrap;
mod exposure;
pub(crate) mod gateway;
pub(crate) mod sidecar;
pub(crate) mod xds;

use std::ffi::OsString;
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use serde_json::Map;

use crate::arguments::Surroundings;
use crate::client::Client;
use crate::client::address::host_and_port;
use crate::environment::Environment;
use crate::outcome::{Outcome, usage};
use crate::print;
use crate::proxy::{self, ProxyArgs};
use arguments::EnvoyArgs;
use bootstrap::{Bootstrap, Endpoint};
use exposure::Exposure;
use sidecar::{Sidecar, Wanted};
use xds::Xds;

/// Run a data plane for a registered service, and look after the CA as Consul has it
#[derive(Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    #[command(subcommand)]
    command: ConnectCommand,
}

impl ConnectArgs {
    /// The arguments of the native data plane, if it is that which is to run.
    ///
    /// # Errors
    /// Itself, if it is not.
    pub(crate) fn into_proxy(self) -> Result<Box<ProxyArgs>, Self> {
        match self.command {
            ConnectCommand::Proxy(args) => Ok(args),
            command @ (ConnectCommand::Envoy(_) | ConnectCommand::Ca(_)) => Err(Self { command }),
        }
    }
}

#[derive(Debug, clap::Subcommand)]
enum ConnectCommand {
    Envoy(Box<EnvoyArgs>),
    Proxy(Box<ProxyArgs>),
    Ca(Box<authority::CaArgs>),
}

pub(crate) async fn run(args: ConnectArgs, surroundings: &Surroundings) -> anyhow::Result<Outcome> {
    let args = match args.command {
        ConnectCommand::Envoy(args) => args,
        ConnectCommand::Ca(args) => return authority::run(*args, surroundings).await,
        ConnectCommand::Proxy(args) => return proxy::run(*args, surroundings).await.map(|()| Outcome::Done),
    };
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
    let wanted = wanted(args, environment)?;
    // Once it is registered, whoever may read it may ask where it is.
    let here = if args.node_name.is_none() { Some(find(args, client, wanted).await?) } else { None };
    let agent = sidecar::agent(client).await?;
    let elsewhere = args.node_name.as_deref().filter(|node| *node != agent.node);
    let sidecar = match (here, elsewhere) {
        (Some(sidecar), _) => sidecar,
        (None, None) => find(args, client, wanted).await?,
        (None, Some(node)) if args.xds.grpc_addr.is_some() || environment.grpc_addr.is_some() => {
            sidecar::find_on(client, node, wanted).await?
        }
        (None, Some(node)) => {
            return Err(usage(format!(
                "proxies of {node} get their configuration from its own agent: give --grpc-addr"
            )));
        }
    };
    let settings = if args.no_central_config { Map::new() } else { sidecar::settings(client, &sidecar).await? };
    Ok(Bootstrap {
        sidecar: &sidecar,
        node: elsewhere.unwrap_or(&agent.node),
        datacenter: &agent.datacenter,
        admin: &admin,
        admin_access_log: &args.admin_access_log_path.to_string_lossy(),
        xds: &Xds::find(&args.xds, client, environment, &agent)?,
        exposure: &Exposure::new(&args.exposure, &settings)?,
        token: client.token(),
    }
    .render())
}

/// Finds it at the agent.
async fn find(args: &EnvoyArgs, client: &Client, wanted: Wanted<'_>) -> anyhow::Result<Sidecar> {
    match wanted {
        Wanted::Gateway(name, kind) => gateway::find(client, (name, kind), &args.registering).await,
        Wanted::SidecarFor(_) | Wanted::Proxy(_) => sidecar::find(client, wanted).await,
    }
}

fn wanted<'a>(args: &'a EnvoyArgs, environment: &'a Environment) -> anyhow::Result<Wanted<'a>> {
    let wanted = match args.gateway()? {
        Some((name, kind)) => Wanted::Gateway(name, kind),
        None => Wanted::of(&args.sidecar, environment)?,
    };
    match (wanted, &args.node_name) {
        (Wanted::SidecarFor(_), Some(_)) => Err(usage("--node-name needs --proxy-id")),
        (Wanted::SidecarFor(_), None) | (Wanted::Proxy(_) | Wanted::Gateway(..), _) => Ok(wanted),
    }
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
