//! The arguments of `starling agent`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use starling_model::{Datacenter, Locality, NodeName};

use crate::client::address::host_and_port;
use crate::environment::Environment;
use crate::outcome::usage;
use crate::role::Interrupt;
use crate::role::arguments::{DataPlaneArgs, LogArgs};
use crate::role::http_doors::HttpDoorArgs;
use crate::role::listeners::ListenerArgs;
use crate::role::script_checks::ScriptCheckArgs;

/// Where servers meet agents unless somebody says otherwise.
const SERVER_PORT: u16 = 8503;

/// Bytes of a join token's file: one line, and what an editor may add.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;

/// Run the agent of a node: its services, checks and certificates, and xDS for its proxies
///
/// Needs a join token the first time only; from then on the node is known by its certificate, and serves with every server
/// gone. Ready when `GET /v1/agent/self` answers.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// Servers by which this node finds the mesh, at the port for agents (8503 unless given); any of them tells of the others
    #[arg(long, value_name = "ADDR", value_delimiter = ',', required = true)]
    server: Vec<String>,

    /// Keep a second stream, to another server, in reserve: the loss of a server then costs nothing. `--standby=false` turns it off
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(super) standby: bool,

    /// Name of this node; without it, the host's name up to the first dot
    #[arg(long, value_name = "NAME")]
    pub(super) node_name: Option<NodeName>,

    /// What lets this node in the first time, of `starling token create --join`; also in STARLING_JOIN_TOKEN
    #[arg(long, value_name = "TOKEN")]
    join_token: Option<String>,

    /// The file that holds the join token
    #[arg(long, value_name = "FILE", conflicts_with = "join_token")]
    join_token_file: Option<PathBuf>,

    /// Where certificate, registrations and what was heard of the mesh are kept, over restarts
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: PathBuf,

    /// Register the services in the `.hcl` and `.json` files of a directory
    #[arg(long, value_name = "DIR")]
    pub(super) config_dir: Option<PathBuf>,

    /// Address at which other nodes reach this one's services
    #[arg(long, default_value = "127.0.0.1", alias = "advertise", value_name = "IP")]
    pub(super) advertise_addr: IpAddr,

    /// Where the HTTP API listens: one address, or several with commas between them
    #[arg(long, default_value = "127.0.0.1:8500", value_delimiter = ',', value_name = "IP:PORT")]
    pub(super) http_addr: Vec<SocketAddr>,

    /// Where xDS listens, in plaintext: a loopback address
    #[arg(long, default_value = "127.0.0.1:8502", value_name = "IP:PORT")]
    pub(super) grpc_addr: SocketAddr,

    /// Taken so that one set of flags fits every program; an agent has nothing to serve there
    #[arg(long, value_name = "IP:PORT", hide = true)]
    pub(super) grpc_tls_addr: Option<SocketAddr>,

    /// Where DNS listens, over UDP and TCP: one address, or several with commas between them
    #[arg(long, default_value = "127.0.0.1:8600", value_delimiter = ',', value_name = "IP:PORT")]
    pub(super) dns_addr: Vec<SocketAddr>,

    /// Where this node is, and with it the services that do not say; without it, as `locality` in a file of --config-dir
    #[arg(long, value_name = "REGION[/ZONE]")]
    pub(super) locality: Option<Locality>,

    /// Name of the datacentre
    #[arg(long, default_value = "dc1", value_name = "NAME")]
    pub(super) datacenter: Datacenter,

    #[command(flatten)]
    pub(crate) listeners: ListenerArgs,

    #[command(flatten)]
    pub(super) script_checks: ScriptCheckArgs,

    /// On SIGTERM, take this node out of the mesh with everything on it, rather than be waited for; a later start brings it back
    #[arg(long)]
    pub(super) leave_on_terminate: bool,

    /// The same on Ctrl-C
    #[arg(long)]
    pub(super) leave_on_interrupt: bool,

    #[command(flatten)]
    pub(super) http_doors: HttpDoorArgs,

    #[command(flatten)]
    pub(crate) data_plane: DataPlaneArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

impl AgentArgs {
    /// Host and port of each server.
    pub(super) fn servers(&self) -> anyhow::Result<Vec<String>> {
        addresses("--server", &self.server)
    }

    /// Upon what requests to end the node leaves the mesh.
    pub(super) fn leaves_on(&self) -> Vec<Interrupt> {
        let on = [(self.leave_on_terminate, Interrupt::Terminate), (self.leave_on_interrupt, Interrupt::CtrlC)];
        on.into_iter().filter_map(|(leaves, interrupt)| leaves.then_some(interrupt)).collect()
    }

    /// The join token: of the flag, of the file, or of the environment, in this order.
    pub(super) fn join_token(&self, environment: &Environment) -> anyhow::Result<Option<String>> {
        join_token(self.join_token.as_deref(), ("--join-token-file", self.join_token_file.as_deref()), environment)
    }
}

/// Hosts and ports of servers, as a flag names them.
pub(crate) fn addresses(flag: &str, texts: &[String]) -> anyhow::Result<Vec<String>> {
    let parsed = texts.iter().map(|text| {
        let (host, port) = host_and_port(text.trim())
            .ok_or_else(|| usage(format!("{flag}: {text:?} is not of the form HOST:PORT")))?;
        let port = port.unwrap_or(SERVER_PORT);
        Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    });
    parsed.collect()
}

/// A join token: of its flag, of the file of another, or of the environment, in this order.
pub(crate) fn join_token(
    given: Option<&str>,
    (flag, file): (&str, Option<&Path>),
    environment: &Environment,
) -> anyhow::Result<Option<String>> {
    use std::io::Read;
    let Some(path) = file else {
        return Ok(given.map(str::to_owned).or_else(|| environment.join_token.clone()));
    };
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| usage(format!("{flag}: cannot read {}: {error}", path.display())))?;
    match text.trim() {
        "" => Err(usage(format!("{flag}: {} is empty", path.display()))),
        token => Ok(Some(token.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: AgentArgs,
    }

    fn args(flags: &[&str]) -> AgentArgs {
        Line::parse_from(["agent", "--data-dir", "d"].iter().chain(flags)).args
    }

    #[test]
    fn servers_have_the_usual_port_unless_they_say_otherwise() {
        let args = args(&["--server", "10.0.0.1,mesh.example:9503", "--server", "[2001:db8::1]"]);
        assert_eq!(args.servers().unwrap(), ["10.0.0.1:8503", "mesh.example:9503", "[2001:db8::1]:8503"]);
        let wrong = Line::parse_from(["agent", "--data-dir", "d", "--server", "a/b"]).args;
        assert!(wrong.servers().unwrap_err().to_string().contains("\"a/b\" is not of the form"));
    }

    #[test]
    fn a_token_of_the_file_is_without_the_end_of_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "from-file\n").unwrap();
        let path = file.path().to_str().unwrap();
        let environment = Environment { join_token: Some("from-env".to_owned()), ..Environment::default() };
        let token = |flags: &[&str]| args(flags).join_token(&environment).unwrap().unwrap();
        assert_eq!(token(&["--server", "s"]), "from-env");
        assert_eq!(token(&["--server", "s", "--join-token", "from-flag"]), "from-flag");
        assert_eq!(token(&["--server", "s", "--join-token-file", path]), "from-file");
        std::fs::write(file.path(), "\n").unwrap();
        let empty = args(&["--server", "s", "--join-token-file", path]).join_token(&environment).unwrap_err();
        assert!(empty.to_string().contains("is empty"), "{empty}");
    }
}
