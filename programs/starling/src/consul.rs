//! The name `consul`: started through a link of that name, the binary takes the command line of Consul, and its agent's configuration.
//!
//! `consul agent` is a server with an agent of its own, as `starling dev` is, or, where it is no server, an agent of those it joins, as
//! `starling agent` is; with Consul's defaults and in Consul's shape: a server's own node has the check `serfHealth` and the service
//! `consul`. Settings that are documented and have no part in Starling are told, and passed over. The other commands are those of `starling`.

mod agent;
mod configuration;
mod passed_over;
mod refused;
mod seal;
mod settings;
mod tokens;
mod validate;
mod words;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Command as CommandLine, CommandFactory, FromArgMatches};
use serde_json::json;
use starling_catalog::Command;
use starling_http_api::CONSUL_VERSION;
use starling_identity::ClusterId;
use starling_model::{
    CONSUL_SERVICE, Check, CheckStatus, InstanceKey, InstanceKind, LIVENESS_CHECK, Node, Port, ServiceInstance, Uuid,
    Weights,
};
use starling_server::Server;

use crate::arguments::Arguments;
use crate::outcome::{EXIT_CODES, usage};
use crate::role::definitions::Rival;
use crate::{argv, print};
use agent::AgentArgs;
pub(crate) use agent::{Agent, Program};
pub(crate) use seal::seal_key;
pub(crate) use tokens::GivenTokens;
use validate::ValidateArgs;
use words::Speaker;
pub(crate) use words::{is_speaking, worded};

/// The name.
const NAME: &str = "consul";

/// Commands of Starling's that Consul has not: they are there, and not shown.
const OWN_COMMANDS: [&str; 17] = [
    "dev",
    "server",
    "relay",
    "proxy",
    "token",
    "store",
    "ca",
    "nodes",
    "servers",
    "can",
    "apply",
    "status",
    "changes",
    "redirect",
    "fake-service",
    "bench",
    "load",
];

/// What is said below the list of commands.
const MORE: &str = "Commands of Consul's that are not in the list say what to do in their place. Those of Starling's own, such as `can`, \
     `changes` and `token`, are there, too: `starling help`.";

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
    /// Whether answers say that addresses are translated.
    pub(crate) translates_addresses: bool,
    /// Tokens that are given.
    pub(crate) tokens: GivenTokens,
    /// What answers over DNS are like.
    pub(crate) dns: starling_dns::Settings,
    /// Whether an agent grants no token anything while it reaches no server: `acl.down_policy = "deny"`.
    pub(crate) denies_in_outage: bool,
    /// Ports for sidecars that name none, if they are said.
    sidecar_ports: Option<RangeInclusive<u16>>,
}

impl Guise {
    /// What becomes of config entries of files that the mesh has already.
    pub(crate) fn rival(&self) -> Rival {
        if self.is_consul { Rival::Stays } else { Rival::Replaced }
    }

    /// Ports for sidecars that name none.
    pub(crate) fn sidecar_ports(&self) -> RangeInclusive<u16> {
        self.sidecar_ports.clone().unwrap_or(starling_agent::DEFAULT_SIDECAR_PORTS)
    }
}

/// Print the version of Consul whose API this is, and Starling's own
#[derive(Debug, clap::Args)]
struct VersionArgs {
    /// `pretty` or `json`
    #[arg(long, default_value = "pretty", value_parser = ["pretty", "json"])]
    format: String,
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
    /// A command of Starling's.
    Starling(Box<Arguments>),
}

/// The command line.
fn command_line() -> CommandLine {
    let mut line = Arguments::command().name(NAME).bin_name(NAME).disable_version_flag(true);
    line = line.about("Starling under the name of Consul").after_help(format!("{MORE}\n\n{EXIT_CODES}"));
    line = line.mut_subcommand("agent", |_| AgentArgs::augment_args(CommandLine::new("agent")));
    line = line.mut_subcommand("version", |_| VersionArgs::augment_args(CommandLine::new("version")));
    line = line.subcommand(ValidateArgs::augment_args(CommandLine::new("validate")));
    for own in OWN_COMMANDS {
        line = line.mut_subcommand(own, |command| command.hide(true));
    }
    // In the order of their names.
    line.mut_subcommands(|command| usage_of(command).display_order(0))
}

/// The command; where it says itself how it is used, under this name.
fn usage_of(mut command: CommandLine) -> CommandLine {
    let usage = command.render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    if usage.starts_with("starling ") {
        let under_this_name = usage.replace("starling ", "consul ");
        command = command.override_usage(under_this_name);
    }
    command.mut_subcommands(usage_of)
}

/// Reads the command line.
///
/// # Errors
/// When a file cannot be read, or says what cannot be.
pub(crate) fn called(arguments: Vec<OsString>) -> anyhow::Result<Called> {
    let words = arguments.get(1..).unwrap_or_default();
    let is_agents = words.first().is_some_and(|word| word == "agent" || word == "validate");
    words::begin(if is_agents { Speaker::Agent } else { Speaker::Command });
    if words.first().is_some_and(|word| ["-v", "-version", "--version"].iter().any(|flag| word == flag)) {
        return version("pretty");
    }
    if let Some((name, reason)) = refused::reason(words) {
        return Err(usage(format!("there is no `consul {name}`: {reason}")));
    }
    let mut line = command_line();
    line.build();
    let matches = line.clone().get_matches_from(argv::normalise(&line, arguments));
    match matches.subcommand() {
        Some(("agent", of)) => Ok(Called::Agent(Box::new(read::<AgentArgs>(of).agent()?))),
        Some(("version", of)) => version(&read::<VersionArgs>(of).format),
        Some(("validate", of)) => validate::run(read(of)).map(Called::Done),
        _ => Ok(Called::Starling(Box::new(read(&matches)))),
    }
}

fn read<T: FromArgMatches>(matches: &clap::ArgMatches) -> T {
    T::from_arg_matches(matches).unwrap_or_else(|error| error.exit())
}

fn version(format: &str) -> anyhow::Result<Called> {
    let own = env!("CARGO_PKG_VERSION");
    if format == "json" {
        print::json(&json!({"Version": CONSUL_VERSION, "Revision": own, "Prerelease": "", "Starling": own}))?;
    } else {
        print::line(&format!("Consul v{CONSUL_VERSION}\nStarling {own}, which serves the API of that release"))?;
    }
    Ok(Called::Done(ExitCode::SUCCESS))
}

/// Enters the server on its own node as Consul's do: with a check that says that it is alive, and the service by which clients find servers.
pub(crate) async fn enter(server: &Server, node: &Node, port: Option<u16>) -> anyhow::Result<()> {
    let key = InstanceKey { node: node.name.clone(), id: CONSUL_SERVICE.parse()? };
    let service = ServiceInstance {
        key,
        name: CONSUL_SERVICE.parse()?,
        kind: InstanceKind::Typical,
        address: None,
        port: port.and_then(|port| Port::try_from(i64::from(port)).ok()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_has_a_line_for_each_command_of_consuls() {
        let mut line = command_line();
        line.build();
        line.clone().debug_assert();
        let help = line.render_help().to_string();
        for name in [
            "acl",
            "agent",
            "catalog",
            "config",
            "connect",
            "debug",
            "event",
            "force-leave",
            "info",
            "intention",
            "kv",
            "leave",
            "lock",
            "login",
            "logout",
            "maint",
            "members",
            "monitor",
            "operator",
            "reload",
            "services",
            "snapshot",
            "validate",
            "version",
            "watch",
        ] {
            let described = help.lines().any(|line| {
                line.trim_start()
                    .strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with("  ") && !rest.trim().is_empty())
            });
            assert!(described, "{name} has no line:\n{help}");
        }
        assert!(!help.contains("fake-service") && help.contains("starling help"), "{help}");
    }
}
