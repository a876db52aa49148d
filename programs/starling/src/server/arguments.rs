//! The arguments of `starling server`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use starling_model::{Datacenter, NodeName};

use super::etcd::{self, EtcdAddress, EtcdArgs};
use super::leave;
use crate::role::arguments::{AclDefault, IntentionPolicy, LogArgs};
use crate::role::http_doors::HttpDoorArgs;

/// Run a server: the catalog, the CA, the API and DNS, for agents of other nodes to join
///
/// Ready when `GET /v1/status/leader` answers with an address. Nodes join with a token of `starling token create --join`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ServerArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ServerCommand>,

    /// Where the store and the CA are kept, over restarts
    #[arg(long, value_name = "DIR", required = true)]
    data_dir: Option<PathBuf>,

    /// Where the catalog is kept: embedded, in the data directory, or etcd://HOST:PORT,HOST:PORT/PREFIX
    ///
    /// On etcd everything is under /starling/, or under the prefix that is given. Versions 3.5.33, 3.6.14 and later will do.
    #[arg(long, default_value = "embedded", value_name = "STORE")]
    pub(crate) store: Store,

    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,

    /// The operator's keys, by which the key of the CA is sealed in the store; every server has the same. On etcd it is
    /// needed; elsewhere the CA is in the data directory without it, and moves to the store with it
    ///
    /// Made by `starling ca new-seal-key`; readable by its owner alone.
    #[arg(long, value_name = "FILE")]
    pub(crate) seal_key_file: Option<PathBuf>,

    /// Settings in TOML; flags win over them
    ///
    /// http_addr, grpc_tls_addr, dns_addr, datacenter, default_intention_policy and acl_default_policy are those of
    /// the flags.
    /// node_grace ("10s"): how long a node may be away before its services are gone everywhere.
    /// csr_max_per_second (0: no limit): certificates that are begun to be signed in a second.
    /// csr_max_concurrent (1, with a Vault 32; 0: no limit): certificates that are signed at the same time.
    /// [ca.vault]: a Vault whose PKI secrets engine signs, by address, mount ("pki"), role, token_file, ca_file,
    /// roots_file, namespace and timeout ("10s").
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    pub(crate) config: Option<PathBuf>,

    /// What holds for a call that no intention covers [default: allow]
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) default_intention_policy: Option<IntentionPolicy>,

    /// Have access controlled, by tokens and their policies, with what holds where no rule does; without it, anybody may do anything
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) acl_default_policy: Option<AclDefault>,

    /// Where the HTTP API listens [default: 127.0.0.1:8500]
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) http_addr: Option<SocketAddr>,

    /// Taken so that one set of flags fits every program; a server has no xDS in plaintext
    #[arg(long, value_name = "IP:PORT", hide = true)]
    pub(crate) grpc_addr: Option<SocketAddr>,

    /// Where agents are served, over mutual TLS [default: 127.0.0.1:8503]
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) grpc_tls_addr: Option<SocketAddr>,

    /// Address at which agents and other servers reach this one [default: where it listens]
    #[arg(long, alias = "advertise", value_name = "IP")]
    pub(crate) advertise_addr: Option<IpAddr>,

    /// Where DNS listens, over UDP and TCP [default: 127.0.0.1:8600]
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) dns_addr: Option<SocketAddr>,

    /// Name of this server; without it, the host's name up to the first dot
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<NodeName>,

    /// Name of the datacentre [default: dc1]
    #[arg(long, value_name = "NAME")]
    pub(crate) datacenter: Option<Datacenter>,

    #[command(flatten)]
    pub(crate) http_doors: HttpDoorArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

impl ServerArgs {
    /// `--data-dir`.
    pub(crate) fn data_dir(&self) -> &Path {
        self.data_dir.as_deref().expect("invariant: required unless there is a command")
    }
}

/// What is asked of a server that runs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ServerCommand {
    Leave(leave::LeaveArgs),
}

/// Where the catalog is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Store {
    /// In the data directory.
    Embedded,
    /// On etcd.
    Etcd(EtcdAddress),
}

impl std::str::FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "embedded" => Ok(Self::Embedded),
            etcd if etcd.starts_with(etcd::SCHEME) => etcd.parse().map(Self::Etcd),
            _ => Err("it is embedded, or etcd://HOST:PORT[,HOST:PORT…][/PREFIX]".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_embedded_or_on_etcd() {
        assert_eq!("embedded".parse(), Ok(Store::Embedded));
        assert!(matches!("etcd://10.0.0.1:2379,10.0.0.2:2379".parse(), Ok(Store::Etcd(_))));
        assert!("redb".parse::<Store>().is_err());
    }
}
