//! The arguments of `starling dev`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use starling_model::{Datacenter, Locality, NodeName};

use crate::role::arguments::{AclDefault, DataPlaneArgs, IntentionPolicy, LogArgs};
use crate::role::http_doors::HttpDoorArgs;
use crate::role::listeners::ListenerArgs;
use crate::role::script_checks::ScriptCheckArgs;

/// Run a whole mesh's control plane in one process: server, agent, API, xDS and DNS
///
/// Ready when `GET /v1/status/leader` answers with an address.
#[derive(Debug, clap::Args)]
pub(crate) struct DevArgs {
    /// Where the state is kept, over restarts; without it, in a temporary directory that goes with the process
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// The operator's keys, by which the key of the CA is sealed in the store; without it, it is in the data directory
    #[arg(long, value_name = "FILE", requires = "data_dir")]
    pub(crate) seal_key_file: Option<PathBuf>,

    /// Register the services and config entries in the `.hcl` and `.json` files of a directory
    #[arg(long, value_name = "DIR")]
    pub(crate) config_dir: Option<PathBuf>,

    /// Bring up four services with sidecars and a little load, and say what to try
    #[arg(long)]
    pub(crate) demo: bool,

    /// Allow or deny calls that no intention covers [default: as --acl-default-policy, else allow]
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) default_intention_policy: Option<IntentionPolicy>,

    /// Have access controlled, by tokens and their policies, with what holds where no rule does; without it, anybody may do anything
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(crate) acl_default_policy: Option<AclDefault>,

    /// Where the HTTP API listens: one address, or several with commas between them
    #[arg(long, default_value = "127.0.0.1:8500", value_delimiter = ',', value_name = "IP:PORT")]
    pub(crate) http_addr: Vec<SocketAddr>,

    /// Where xDS listens, in plaintext: a loopback address
    #[arg(long, default_value = "127.0.0.1:8502", value_name = "IP:PORT")]
    pub(crate) grpc_addr: SocketAddr,

    /// Where agents of other nodes, and xDS, are served over mutual TLS
    #[arg(long, default_value = "127.0.0.1:8503", value_name = "IP:PORT")]
    pub(crate) grpc_tls_addr: SocketAddr,

    /// Where DNS listens, over UDP and TCP: one address, or several with commas between them
    #[arg(long, default_value = "127.0.0.1:8600", value_delimiter = ',', value_name = "IP:PORT")]
    pub(crate) dns_addr: Vec<SocketAddr>,

    /// Name of this node; without it, the host's name up to the first dot
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<NodeName>,

    /// Where this node is, and with it the services that do not say; without it, as `locality` in a file of --config-dir
    #[arg(long, value_name = "REGION[/ZONE]")]
    pub(crate) locality: Option<Locality>,

    /// Name of the datacentre
    #[arg(long, default_value = "dc1", value_name = "NAME")]
    pub(crate) datacenter: Datacenter,

    /// Address at which other nodes reach this one's services
    #[arg(long, default_value = "127.0.0.1", alias = "advertise", value_name = "IP")]
    pub(crate) advertise_addr: IpAddr,

    #[command(flatten)]
    pub(crate) listeners: ListenerArgs,

    #[command(flatten)]
    pub(crate) script_checks: ScriptCheckArgs,

    #[command(flatten)]
    pub(crate) http_doors: HttpDoorArgs,

    #[command(flatten)]
    pub(crate) data_plane: DataPlaneArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

impl DevArgs {
    /// The policy of calls that no intention covers.
    pub(crate) fn intention_policy(&self) -> IntentionPolicy {
        IntentionPolicy::or_as_acl(self.default_intention_policy, self.acl_default_policy)
    }
}
