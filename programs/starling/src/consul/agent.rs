//! `consul agent`: what files and flags come to, judged before anything begins.

use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use starling_http_api::parse::{Definitions, FileFormat};
use starling_model::{NodeName, Uuid};

use super::configuration::{Begun, Configuration, Judged};
use super::settings::Settings;
use super::{Guise, passed_over};
use crate::arguments::{Arguments, Command};
use crate::environment::Environment;
use crate::print;
use crate::role::reload::{Files, Sources};
use crate::{agent, dev};

/// Run an agent, until interrupted: that of a server of its own, or one of the servers that it joins
#[derive(Debug, Clone, clap::Args)]
pub(super) struct AgentArgs {
    /// A file of settings and definitions, in JSON or HCL; of two that say the same, the later one counts
    #[arg(long, value_name = "FILE")]
    config_file: Vec<PathBuf>,

    /// A directory of such files, read in the order of their names
    #[arg(long, value_name = "DIR")]
    config_dir: Vec<PathBuf>,

    /// Settings and definitions in HCL, which count more than files
    #[arg(long, value_name = "FRAGMENT")]
    hcl: Vec<String>,

    /// The form of the files, whatever they are called
    #[arg(long, value_enum, value_name = "FORMAT")]
    config_format: Option<ConfigFormat>,

    /// Keep nothing
    #[arg(long)]
    dev: bool,

    /// Where the state is kept
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Name of this node
    #[arg(long, value_name = "NAME")]
    node: Option<NodeName>,

    /// Identifier of this node, a UUID
    #[arg(long, value_name = "UUID")]
    node_id: Option<Uuid>,

    /// Metadata of this node
    #[arg(long, value_name = "KEY:VALUE", value_parser = pair)]
    node_meta: Vec<(String, String)>,

    /// Name of the datacentre
    #[arg(long, value_name = "NAME")]
    datacenter: Option<String>,

    /// Where the HTTP API and DNS listen: addresses, and templates such as {{ GetPrivateIP }}, with blanks between them
    #[arg(long, value_name = "IPS")]
    client: Option<String>,

    /// Where other nodes reach this one
    #[arg(long, value_name = "IP")]
    bind: Option<String>,

    /// Address by which other nodes reach this one's services
    #[arg(long, value_name = "IP")]
    advertise: Option<String>,

    /// Port of the HTTP API
    #[arg(long, value_name = "PORT", value_parser = passed_over::port, allow_negative_numbers = true)]
    http_port: Option<i64>,

    /// Port of the HTTP API over TLS, with the certificate that the configuration names
    #[arg(long, value_name = "PORT", value_parser = passed_over::port, allow_negative_numbers = true)]
    https_port: Option<i64>,

    /// Port of DNS
    #[arg(long, value_name = "PORT", value_parser = passed_over::port, allow_negative_numbers = true)]
    dns_port: Option<i64>,

    /// Port of xDS in plaintext
    #[arg(long, value_name = "PORT", value_parser = passed_over::port, allow_negative_numbers = true)]
    grpc_port: Option<i64>,

    /// Port of the agents of other nodes, and of xDS over TLS
    #[arg(long, value_name = "PORT", value_parser = passed_over::port, allow_negative_numbers = true)]
    grpc_tls_port: Option<i64>,

    /// trace, debug, info, warn or error
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// Log lines as JSON
    #[arg(long)]
    log_json: bool,

    /// Permit script checks, also from API registrations: whoever has `service:write` then runs programs as this user
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_script_checks: Option<bool>,

    /// Permit script checks of definition files only [default: as --enable-script-checks]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_local_script_checks: Option<bool>,

    /// Who serves sidecars: the agent itself (`native`), or none but an Envoy or a proxy that attaches (`envoy`); Starling's own
    #[arg(long, value_name = "PLANE", value_parser = ["native", "envoy"])]
    data_plane: Option<String>,

    /// Be a server with a mesh of its own, and not an agent of the servers of --retry-join
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    server: Option<bool>,

    /// Be the one server of a mesh: there is no election
    #[arg(long)]
    bootstrap: bool,

    /// The same with 1; servers do not find each other by it
    #[arg(long, value_name = "N")]
    bootstrap_expect: Option<i64>,

    /// For an agent that is no server: a server of its mesh, at the port for agents (8503 unless given)
    #[arg(long, value_name = "HOST", alias = "join")]
    retry_join: Vec<String>,

    /// The file of the token that lets it in the first time, of `starling token create --join`; also in STARLING_JOIN_TOKEN
    #[arg(long, value_name = "FILE")]
    join_token_file: Option<String>,

    /// For an agent that is no server: whether SIGTERM has its node leave the mesh [default: true]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    leave_on_terminate: Option<bool>,

    #[command(flatten)]
    passed_over: passed_over::Flags,
}

/// A form of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ConfigFormat {
    Hcl,
    Json,
}

impl From<ConfigFormat> for FileFormat {
    fn from(format: ConfigFormat) -> Self {
        match format {
            ConfigFormat::Hcl => Self::Hcl,
            ConfigFormat::Json => Self::Json,
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once(':').map(|(key, value)| (key.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "must be of the form KEY:VALUE".to_owned())
}

/// An agent that is to run.
pub(crate) struct Agent {
    /// What `starling dev` or `starling agent` would be told.
    arguments: Arguments,
    program: Program,
}

/// What an agent is beyond its arguments.
pub(crate) struct Program {
    definitions: Vec<Definitions>,
    guise: Guise,
    files: Arc<dyn Files>,
}

impl AgentArgs {
    /// The agent that they ask for.
    ///
    /// # Errors
    /// When a file cannot be read, or says what cannot be.
    pub(super) fn agent(self) -> anyhow::Result<Agent> {
        let configuration = Configuration { sources: self.sources(), flags: Some(Box::new(self)) };
        let Judged { arguments, definitions, guise, said, written, .. } = configuration.judged()?;
        said.iter().for_each(|said| print::note(said));
        let files = Arc::new(Begun { configuration, written });
        Ok(Agent { arguments, program: Program { definitions, guise, files } })
    }

    /// Whether nothing is to be kept.
    pub(super) fn is_dev(&self) -> bool {
        self.dev
    }

    fn sources(&self) -> Sources {
        Sources {
            files: self.config_file.clone(),
            directories: self.config_dir.clone(),
            fragments: self.hcl.clone(),
            format: self.config_format.map(Into::into),
            has_settings: true,
        }
    }

    /// Flags count more than files.
    pub(super) fn over(self, settings: &mut Settings) {
        fn set<T>(setting: &mut Option<T>, flag: Option<T>) {
            if flag.is_some() {
                *setting = flag;
            }
        }
        set(&mut settings.data_dir, self.data_dir);
        set(&mut settings.node_name, self.node);
        set(&mut settings.node_id, self.node_id);
        settings.node_meta.extend(self.node_meta);
        set(&mut settings.datacenter, self.datacenter);
        set(&mut settings.client_addr, self.client);
        set(&mut settings.bind_addr, self.bind);
        set(&mut settings.advertise_addr, self.advertise);
        set(&mut settings.ports.http, self.http_port);
        set(&mut settings.ports.https, self.https_port);
        set(&mut settings.ports.dns, self.dns_port);
        set(&mut settings.ports.grpc, self.grpc_port);
        set(&mut settings.ports.grpc_tls, self.grpc_tls_port);
        set(&mut settings.log_level, self.log_level);
        settings.log_json |= self.log_json;
        set(&mut settings.enable_script_checks, self.enable_script_checks);
        set(&mut settings.enable_local_script_checks, self.enable_local_script_checks);
        set(&mut settings.data_plane, self.data_plane);
        set(&mut settings.joining.server, self.server);
        settings.joining.bootstrap |= self.bootstrap;
        set(&mut settings.joining.bootstrap_expect, self.bootstrap_expect);
        settings.joining.members.extend(self.retry_join);
        set(&mut settings.joining.token_file, self.join_token_file);
        set(&mut settings.joining.leave_on_terminate, self.leave_on_terminate);
        settings.ignored.extend(self.passed_over.names.into_iter().map(str::to_owned));
    }
}

impl Agent {
    /// Both parts of it.
    pub(crate) fn parts(self) -> (Arguments, Program) {
        (self.arguments, self.program)
    }
}

impl Program {
    /// Runs it until interrupted.
    ///
    /// # Errors
    /// As `starling dev` and `starling agent`.
    pub(crate) async fn run(self, command: Command, environment: &Environment) -> anyhow::Result<()> {
        let Self { definitions, guise, files } = self;
        if let Command::Agent(args) = command {
            return agent::run_judged(*args, environment, definitions, guise, Some(files)).await;
        }
        let Command::Dev(args) = command else { anyhow::bail!("invariant: an agent is a server's, or joins one") };
        dev::run_judged(*args, definitions, guise, files).await
    }
}
