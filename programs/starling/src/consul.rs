//! The name `consul`: started through a link of that name, the binary takes the command line of Consul's agent, and its configuration.
//!
//! `consul agent` is a server with an agent of its own, as `starling dev` is, with Consul's defaults and in Consul's shape: its own node has
//! the check `serfHealth` and the service `consul`. Settings that are documented and have no part in Starling are told, and passed over.
//! What other commands there are, they are those of `starling`.

mod passed_over;
mod seal;
mod settings;
mod tokens;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use serde_json::json;
use starling_catalog::Command;
use starling_http_api::CONSUL_VERSION;
use starling_http_api::parse::Definitions;
use starling_identity::ClusterId;
use starling_model::{
    CONSUL_SERVICE, Check, CheckStatus, InstanceKey, InstanceKind, LIVENESS_CHECK, Node, NodeName, Port,
    ServiceInstance, Uuid, Weights,
};
use starling_server::Server;

use crate::outcome::{EXIT_CODES, usage};
use crate::print;
use crate::role::definitions;
use crate::role::reload::Sources;
use crate::{argv, dev};
pub(crate) use seal::seal_key;
use settings::Settings;
pub(crate) use tokens::GivenTokens;

/// The name.
const NAME: &str = "consul";

/// What its own node shows of itself, beyond what any other does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Guise {
    /// The node's identifier; without it, one that is made and kept.
    pub(crate) node_id: Option<Uuid>,
    /// The node's metadata.
    pub(crate) node_meta: BTreeMap<String, String>,
    /// What the trust domain is made from, if the mesh has none yet.
    pub(crate) cluster: Option<ClusterId>,
    /// Whether the node has Consul's check and service.
    pub(crate) is_consul: bool,
    /// Whether nobody is to be given roots or leaves.
    pub(crate) connect_off: bool,
    /// Where its definitions are written.
    pub(crate) sources: Sources,
    /// Tokens that are given.
    pub(crate) tokens: GivenTokens,
}

/// Starling under the name of Consul
#[derive(Debug, Parser)]
#[command(name = NAME, disable_version_flag = true, after_help = EXIT_CODES, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Agent(Box<AgentArgs>),
    /// Print the version of Consul whose API this is, and Starling's own
    Version {
        /// `pretty` or `json`
        #[arg(long, default_value = "pretty", value_parser = ["pretty", "json"])]
        format: String,
    },
    Validate(ValidateArgs),
    /// Every other command, as in `starling help`
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// Say whether configuration files of an agent are valid; exits with 1 if not
#[derive(Debug, clap::Args)]
struct ValidateArgs {
    /// Files, and directories of files
    #[arg(value_name = "FILE_OR_DIRECTORY", required = true)]
    paths: Vec<PathBuf>,

    /// Say nothing of files that are valid
    #[arg(long)]
    quiet: bool,
}

/// What is said to who seems to want an agent of a mesh that is elsewhere.
const ALONE: &str = "an agent under this name is a server with a mesh of its own, which joins no other: a node of another mesh is run by \
     `starling agent --server HOST --join-token-file FILE`, further servers by `starling server --store etcd://…`";

/// Commands of Consul's that there are not, and what to do in their place.
const REFUSED: [(&str, &str); 9] = [
    ("exec", "nothing is run on other nodes through the mesh; use ssh, or what deploys your programs"),
    ("keyring", "there is no gossip, and so no key of it: agents speak to servers over mutual TLS"),
    ("keygen", "there is no gossip, and so no key of it; join tokens are made by `starling token create --join`"),
    ("join", "nodes join by a token: `starling agent --server HOST --join-token-file FILE`"),
    ("peering", "there is one datacentre, and no peering"),
    ("resource", "there is no second API of resources; config entries are written by `starling config write`"),
    ("tls", "the mesh has a CA of its own, which every node's certificate is of: `starling ca --help`"),
    ("rtt", "round trips between nodes are not estimated: there is no gossip"),
    (
        "troubleshoot",
        "ask `starling can SRC DST` whether a call may pass, and `starling changes` who has applied a change",
    ),
];

/// Run a server with an agent of its own, until interrupted
#[derive(Debug, clap::Args)]
struct AgentArgs {
    /// A file of settings and definitions, in JSON or HCL; of two that say the same, the later one counts
    #[arg(long, value_name = "FILE")]
    config_file: Vec<PathBuf>,

    /// A directory of such files, read in the order of their names
    #[arg(long, value_name = "DIR")]
    config_dir: Vec<PathBuf>,

    /// Keep nothing
    #[arg(long)]
    dev: bool,

    /// Where the state is kept
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Name of this node
    #[arg(long, value_name = "NAME")]
    node: Option<NodeName>,

    /// Name of the datacentre
    #[arg(long, value_name = "NAME")]
    datacenter: Option<String>,

    /// Where the HTTP API and DNS listen
    #[arg(long, value_name = "IP")]
    client: Option<String>,

    /// Where other nodes reach this one
    #[arg(long, value_name = "IP")]
    bind: Option<String>,

    /// Address by which other nodes reach this one's services
    #[arg(long, value_name = "IP")]
    advertise: Option<String>,

    /// Port of the HTTP API
    #[arg(long, value_name = "PORT")]
    http_port: Option<u16>,

    /// Port of the HTTP API over TLS, with the certificate that the configuration names
    #[arg(long, value_name = "PORT")]
    https_port: Option<u16>,

    /// Port of DNS
    #[arg(long, value_name = "PORT")]
    dns_port: Option<u16>,

    /// Port of xDS in plaintext
    #[arg(long, value_name = "PORT")]
    grpc_port: Option<u16>,

    /// Port of the agents of other nodes, and of xDS over TLS
    #[arg(long, value_name = "PORT")]
    grpc_tls_port: Option<u16>,

    /// trace, debug, info, warn or error
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// Log lines as JSON
    #[arg(long)]
    log_json: bool,

    /// Let registrations bring checks that run programs on this node
    #[arg(long)]
    enable_script_checks: bool,

    /// An agent under this name is always a server
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_default_value = true)]
    server: bool,

    /// Taken, and of no effect: there is no election
    #[arg(long)]
    bootstrap: bool,

    /// Taken, and of no effect: there is no election
    #[arg(long, value_name = "N")]
    bootstrap_expect: Option<u32>,

    #[command(flatten)]
    passed_over: passed_over::Flags,
}

/// Whether the process was started under the name.
pub(crate) fn is_called(program: Option<&OsString>) -> bool {
    program.map(Path::new).and_then(Path::file_stem).is_some_and(|name| name == NAME)
}

/// What to do.
pub(crate) enum Called {
    /// Be an agent.
    Agent(Box<Agent>),
    /// Nothing more.
    Done(ExitCode),
    /// A command of Starling's, with these arguments.
    Starling(Vec<OsString>),
}

/// An agent that is to run.
pub(crate) struct Agent {
    /// The arguments of the same as `starling dev`.
    pub(crate) dev: Vec<OsString>,
    definitions: Vec<Definitions>,
    guise: Guise,
}

/// Reads the command line.
///
/// # Errors
/// When a file cannot be read, or says what cannot be.
pub(crate) fn called(arguments: Vec<OsString>) -> anyhow::Result<Called> {
    let mut command = Arguments::command();
    command.build();
    let matches = command.clone().get_matches_from(argv::normalise(&command, arguments));
    match Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command {
        Verb::Agent(args) => Ok(Called::Agent(Box::new(agent(*args)?))),
        Verb::Version { format } => {
            version(&format)?;
            Ok(Called::Done(ExitCode::SUCCESS))
        }
        Verb::Validate(args) => validate(&args).map(Called::Done),
        Verb::Other(others) if refused(&others).is_some() => {
            let reason = refused(&others).map(|(name, reason)| format!("there is no `consul {name}`: {reason}"));
            Err(usage(reason.unwrap_or_default()))
        }
        Verb::Other(others) => Ok(Called::Starling(std::iter::once("starling".into()).chain(others).collect())),
    }
}

fn refused(words: &[OsString]) -> Option<&'static (&'static str, &'static str)> {
    REFUSED.iter().find(|(name, _)| words.first().is_some_and(|word| word == name))
}

fn validate(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let mut paths = Vec::new();
    for path in &args.paths {
        if path.is_dir() { paths.extend(definitions::files_in(path)?) } else { paths.push(path.clone()) }
    }
    let mut settings = Settings::default();
    let read = read(&mut settings, &paths).and_then(|texts| defined(&settings, &texts).map(|_| ()));
    match read {
        Ok(()) if args.quiet => {}
        Ok(()) => {
            settings
                .ignored
                .iter()
                .for_each(|name| eprintln!("{name}: is a setting of Consul's that has no effect here"));
            print::line("Configuration is valid!")?;
        }
        Err(error) => {
            eprintln!("error: the configuration is not valid: {error:#}");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn version(format: &str) -> anyhow::Result<()> {
    let own = env!("CARGO_PKG_VERSION");
    if format == "json" {
        return print::json(&json!({"Version": CONSUL_VERSION, "Revision": own, "Prerelease": "", "Starling": own}));
    }
    print::line(&format!("Consul v{CONSUL_VERSION}\nStarling {own}, which serves the API of that release"))
}

fn agent(args: AgentArgs) -> anyhow::Result<Agent> {
    let mut settings = Settings::default();
    let sources = Sources { files: args.config_file.clone(), directories: args.config_dir.clone(), has_settings: true };
    let texts = read(&mut settings, &files(&args)?)?;
    let keeps_nothing = args.dev;
    args.over(&mut settings);
    let dev = settings.dev_arguments(keeps_nothing)?;
    let definitions = defined(&settings, &texts)?;
    for ignored in &settings.ignored {
        eprintln!("{ignored}: is a setting of Consul's that has no effect here");
    }
    if settings.seeks_others {
        eprintln!("warning: {ALONE}");
    }
    Ok(Agent { dev, definitions, guise: Guise { sources, ..settings.guise() } })
}

/// The settings of these files, and their texts with what to call them.
fn read(settings: &mut Settings, paths: &[PathBuf]) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut texts = Vec::new();
    for path in paths {
        let text = definitions::read_file(path).with_context(|| format!("reading {}", path.display()))?;
        // One that is made before it is filled says nothing yet.
        if text.trim_ascii().is_empty() {
            continue;
        }
        let name = path.display().to_string();
        settings.read(&name, &text)?;
        texts.push((name, text));
    }
    Ok(texts)
}

/// What the same files define.
fn defined(settings: &Settings, texts: &[(String, Vec<u8>)]) -> anyhow::Result<Vec<Definitions>> {
    let node = crate::role::node::name(settings.node_name.as_ref())?;
    let context = definitions::context(node, settings.datacenter()?);
    let mut all = Vec::new();
    for (name, text) in texts {
        let mut read = definitions::read(name, text, &context)?;
        // What is of the agent was read before.
        read.notices.clear();
        all.push(read);
    }
    Ok(all)
}

/// Enters the server on its own node as Consul's do: with a check that says that it is alive, and the service by which clients find servers.
pub(crate) async fn enter(server: &Server, node: &Node, port: u16) -> anyhow::Result<()> {
    let key = InstanceKey { node: node.name.clone(), id: CONSUL_SERVICE.parse()? };
    let service = ServiceInstance {
        key,
        name: CONSUL_SERVICE.parse()?,
        kind: InstanceKind::Typical,
        address: None,
        port: Port::try_from(i64::from(port)).ok(),
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        enable_tag_override: false,
        native: false,
        locality: None,
        kept: starling_model::OpaqueSettings::default(),
    };
    let alive = Check {
        node: node.name.clone(),
        id: LIVENESS_CHECK.parse()?,
        name: "Serf Health Status".to_owned(),
        status: CheckStatus::Passing,
        notes: String::new(),
        output: "Agent alive and reachable".to_owned(),
        service: None,
        kind: String::new(),
        interval: String::new(),
        timeout: String::new(),
        definition: starling_model::OpaqueSettings::default(),
    };
    let name = node.name.clone();
    let command = Command::Register { name, node: Some(node.clone()), instances: vec![service], checks: vec![alive] };
    server.commit(&command).await?;
    Ok(())
}

/// The files of settings, in the order in which they count.
fn files(args: &AgentArgs) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = args.config_file.clone();
    for directory in &args.config_dir {
        files.extend(definitions::files_in(directory)?);
    }
    Ok(files)
}

impl AgentArgs {
    /// Flags count more than files.
    fn over(self, settings: &mut Settings) {
        fn set<T>(setting: &mut Option<T>, flag: Option<T>) {
            if flag.is_some() {
                *setting = flag;
            }
        }
        set(&mut settings.data_dir, self.data_dir);
        set(&mut settings.node_name, self.node);
        set(&mut settings.datacenter, self.datacenter);
        set(&mut settings.client_addr, self.client);
        set(&mut settings.bind_addr, self.bind);
        set(&mut settings.advertise_addr, self.advertise);
        set(&mut settings.ports.http, self.http_port.map(i64::from));
        set(&mut settings.ports.https, self.https_port.map(i64::from));
        set(&mut settings.ports.dns, self.dns_port.map(i64::from));
        set(&mut settings.ports.grpc, self.grpc_port.map(i64::from));
        set(&mut settings.ports.grpc_tls, self.grpc_tls_port.map(i64::from));
        set(&mut settings.log_level, self.log_level);
        settings.log_json |= self.log_json;
        settings.enable_script_checks |= self.enable_script_checks;
        settings.seeks_others |= !self.server || self.bootstrap_expect.is_some_and(|servers| servers > 1);
        settings.seeks_others |= self.passed_over.seek_others();
        settings.ignored.extend(self.passed_over.names());
    }
}

impl Agent {
    /// Runs it until interrupted.
    ///
    /// # Errors
    /// As `starling dev`.
    pub(crate) async fn run(self, args: crate::dev_args::DevArgs) -> anyhow::Result<()> {
        dev::run_as(args, self.definitions, self.guise).await
    }
}
