//! The arguments of `starling relay`.

use std::net::SocketAddr;
use std::path::PathBuf;

use starling_model::NodeName;

use crate::agent::arguments::{addresses, join_token};
use crate::environment::Environment;
use crate::role::arguments::LogArgs;
use crate::role::http_doors::HttpDoorArgs;

/// Run a relay: it takes the stream from servers and serves agents, for fleets past one site or past what a server holds
///
/// Agents name relays by `--server` in the place of servers, and are known to the servers as if they were attached there: receipts,
/// changes and nodes show no difference. A relay writes nothing and has no key of the CA. Needs a join token of `starling token
/// create --join --relay` the first time only. Ready when `GET /starling/v1/health/ready` answers 200.
#[derive(Debug, clap::Args)]
pub(crate) struct RelayArgs {
    /// Servers, or relays above, by which this relay finds the mesh, at the port for agents (8503 unless given)
    #[arg(long, value_name = "ADDR", value_delimiter = ',', required = true)]
    join: Vec<String>,

    /// Name of this relay; without it, the host's name up to the first dot
    #[arg(long, value_name = "NAME")]
    pub(super) node_name: Option<NodeName>,

    /// What lets this relay in the first time; also in STARLING_JOIN_TOKEN
    #[arg(long, value_name = "TOKEN")]
    join_token: Option<String>,

    /// The file that holds the join token
    #[arg(long, value_name = "FILE", conflicts_with = "join_token", alias = "token-file")]
    join_token_file: Option<PathBuf>,

    /// Where its certificate and key are kept, over restarts; nothing else is
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: PathBuf,

    /// Where health and metrics are shown
    #[arg(long, default_value = "127.0.0.1:8500", value_name = "IP:PORT")]
    pub(super) http_addr: SocketAddr,

    /// Where agents and relays below are served, over mutual TLS
    #[arg(long, default_value = "127.0.0.1:8503", value_name = "IP:PORT")]
    pub(super) grpc_tls_addr: SocketAddr,

    #[command(flatten)]
    pub(super) http_doors: HttpDoorArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

impl RelayArgs {
    /// Host and port of each server.
    pub(super) fn servers(&self) -> anyhow::Result<Vec<String>> {
        addresses("--join", &self.join)
    }

    /// The join token: of the flag, of the file, or of the environment, in this order.
    pub(super) fn join_token(&self, environment: &Environment) -> anyhow::Result<Option<String>> {
        join_token(self.join_token.as_deref(), ("--join-token-file", self.join_token_file.as_deref()), environment)
    }
}
