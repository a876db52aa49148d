//! `starling`: the mesh in one binary.
//!
//! Owns the command line: what is asked for, where the answer comes from, how it is shown, and the exit code. What the
//! mesh does is in the crates of the programs that it starts.

// A macro that prints panics when nobody reads any more; `print` ends quietly.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod acl;
mod agent;
mod apply;
mod arguments;
mod argv;
mod audit;
mod ca;
mod can;
mod catalog;
mod changes;
mod child;
mod client;
mod completion;
mod config;
mod connect;
mod consul;
mod debug;
mod definition;
mod descriptors;
mod dev;
mod dev_args;
mod environment;
mod figures;
mod intention;
mod kv;
mod lifeline;
mod lock;
mod login;
mod members;
mod memory;
mod node;
mod nodes;
mod offline;
mod operate;
mod operator;
mod outcome;
mod print;
mod proxy;
mod receipt;
mod redirect;
#[cfg(test)]
mod reference;
mod relay;
mod role;
mod server;
mod servers;
mod services;
mod snapshot;
mod status;
mod store;
mod token;
mod version;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use starling_telemetry::{LogError, LogFormat, start_log};

use crate::arguments::{Arguments, Command, Surroundings};
use crate::client::ApiArgs;
use crate::consul::Called;
use crate::environment::Environment;
use crate::outcome::{report, usage};

/// What programs that run on log unless told otherwise.
const LOG_OF_PROGRAMS: &str = "info";

/// What commands log unless told otherwise: their output is their answer.
const LOG_OF_COMMANDS: &str = "warn";

/// Why flags of a client do not go before a program that runs on.
const API_FLAGS_IN_FRONT: &str =
    "flags in front of `dev`, `server`, `relay` and `agent` are a client's; write `dev --http-addr …`";

/// Time for writes to files that are under way at the end; whoever asked for them was answered, or is gone.
const LAST_WRITES: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let outcome = if consul::is_called(arguments.first()) { as_consul(arguments) } else { run(read(arguments), None) };
    outcome.unwrap_or_else(|error| report(&error))
}

fn as_consul(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    match consul::called(arguments)? {
        Called::Agent(agent) => {
            let (arguments, program) = agent.parts();
            run(arguments, Some(program))
        }
        Called::Starling(arguments) => run(*arguments, None),
        Called::Done(code) => Ok(code),
    }
}

fn read(arguments: Vec<OsString>) -> Arguments {
    let mut command = Arguments::command();
    command.build();
    let matches = command.clone().get_matches_from(argv::normalise(&command, arguments));
    Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn run(arguments: Arguments, agent: Option<consul::Program>) -> anyhow::Result<ExitCode> {
    let Arguments { command, api } = arguments;
    // Consul's name for it.
    let command = if let Command::Connect(args) = command {
        args.into_proxy().map_or_else(Command::Connect, Command::Proxy)
    } else {
        command
    };
    let surroundings = Surroundings { environment: Environment::read(|name| std::env::var_os(name)), api };
    if let Some(parent) = surroundings.environment.ends_with {
        lifeline::end_with(parent)?;
    }
    log_as(&command, surroundings.environment.log.as_deref())?;
    descriptors::raise_limit();
    if matches!(
        command,
        Command::Dev(_) | Command::Server(_) | Command::Relay(_) | Command::Agent(_) | Command::Proxy(_)
    ) {
        memory::give_back_when_idle();
    }
    let mut runtime = if matches!(command, Command::Proxy(_)) {
        // Beside its workers it has one stream to follow; more threads would be more memory for every workload.
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.on_thread_start(memory::share_the_first_arena);
        runtime
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    let runtime = runtime.enable_all().build()?;
    let outcome = match (command, agent) {
        (command, Some(agent)) => {
            runtime.block_on(agent.run(command, &surroundings.environment)).map(|()| ExitCode::SUCCESS)
        }
        (command, None) => runtime.block_on(dispatch(command, &surroundings)),
    };
    runtime.shutdown_timeout(LAST_WRITES);
    outcome
}

/// Starts the log as the command has it.
fn log_as(command: &Command, log: Option<&str>) -> anyhow::Result<()> {
    match command {
        Command::Dev(args) => args.log.start(),
        Command::Server(args) if args.command.is_none() => args.log.start(),
        Command::Agent(args) => args.log.start(),
        Command::Relay(args) => args.log.start(),
        Command::Proxy(args) => args.log.start(),
        Command::FakeService | Command::Bench(_) | Command::Load(_) => {
            start_log(log.unwrap_or(LOG_OF_PROGRAMS), LogFormat::Text)
        }
        Command::Server(_)
        | Command::Services(_)
        | Command::Nodes(_)
        | Command::Node(_)
        | Command::Audit(_)
        | Command::Members(_)
        | Command::Catalog(_)
        | Command::Kv(_)
        | Command::Lock(_)
        | Command::Watch(_)
        | Command::Acl(_)
        | Command::Login(_)
        | Command::Logout(_)
        | Command::Maint(_)
        | Command::Event(_)
        | Command::Monitor(_)
        | Command::Reload(_)
        | Command::Leave(_)
        | Command::ForceLeave(_)
        | Command::Debug(_)
        | Command::Info(_)
        | Command::Servers(_)
        | Command::Operator(_)
        | Command::Intention(_)
        | Command::Can(_)
        | Command::Apply(_)
        | Command::Config(_)
        | Command::Status(_)
        | Command::Changes(_)
        | Command::Connect(_)
        | Command::Redirect(_)
        | Command::Token(_)
        | Command::Snapshot(_)
        | Command::Store(_)
        | Command::Ca(_)
        | Command::Completion(_)
        | Command::Version(_) => start_log(log.unwrap_or(LOG_OF_COMMANDS), LogFormat::Text),
    }
    .map_err(|error| match error {
        LogError::Filter { .. } => usage(error.to_string()),
        LogError::Running => error.into(),
    })
}

async fn dispatch(command: Command, surroundings: &Surroundings) -> anyhow::Result<ExitCode> {
    let outcome = match command {
        Command::Dev(_) | Command::Agent(_) | Command::Relay(_) if surroundings.api != ApiArgs::default() => {
            return Err(usage(API_FLAGS_IN_FRONT));
        }
        Command::Server(args) if args.command.is_none() && surroundings.api != ApiArgs::default() => {
            return Err(usage(API_FLAGS_IN_FRONT));
        }
        Command::Dev(args) => return dev::run(*args).await.map(|()| ExitCode::SUCCESS),
        Command::Server(args) => return server::run(*args, surroundings).await,
        Command::Agent(args) => {
            return agent::run(*args, &surroundings.environment).await.map(|()| ExitCode::SUCCESS);
        }
        Command::Relay(args) => {
            return relay::run(*args, &surroundings.environment).await.map(|()| ExitCode::SUCCESS);
        }
        Command::Proxy(args) => return proxy::run(*args, surroundings).await.map(|()| ExitCode::SUCCESS),
        Command::FakeService => return fake_service().await,
        Command::Bench(args) => return starling_bench::run(args).await,
        Command::Load(args) => return starling_bench::run_load(*args).await,
        Command::Services(args) => services::run(args, surroundings).await?,
        Command::Nodes(args) => nodes::run(args, surroundings).await?,
        Command::Audit(args) => audit::run(args)?,
        Command::Node(args) => node::run(*args, surroundings).await?,
        Command::Members(args) => members::run(args, surroundings).await?,
        Command::Catalog(args) => catalog::run(args, surroundings).await?,
        Command::Kv(args) => kv::run(args, surroundings).await?,
        Command::Lock(args) => return lock::run(*args, surroundings).await,
        Command::Info(args) => figures::run(args, surroundings).await?,
        Command::Acl(args) => acl::run(*args, surroundings).await?,
        Command::Login(args) => login::login(*args, surroundings).await?,
        Command::Logout(args) => login::logout(*args, surroundings).await?,
        Command::Maint(args) => operate::maint(*args, surroundings).await?,
        Command::Event(args) => operate::event(*args, surroundings).await?,
        Command::Monitor(args) => operate::monitor(*args, surroundings).await?,
        Command::Reload(args) => operate::reload(*args, surroundings).await?,
        Command::Leave(args) => operate::leave(*args, surroundings).await?,
        Command::ForceLeave(args) => operate::force_leave(*args, surroundings).await?,
        Command::Debug(args) => debug::run(*args, surroundings).await?,
        Command::Watch(args) => watch::run(*args, surroundings).await?,
        Command::Servers(args) => servers::list(args, surroundings).await?,
        Command::Operator(args) => operator::run(args, surroundings).await?,
        Command::Intention(args) => intention::run(args, surroundings).await?,
        Command::Can(args) => can::run(args, surroundings).await?,
        Command::Apply(args) => apply::run(args, surroundings).await?,
        Command::Config(args) => config::run(args, surroundings).await?,
        Command::Status(args) => status::run(args, surroundings).await?,
        Command::Changes(args) => changes::run(args, surroundings).await?,
        Command::Connect(args) => connect::run(args, surroundings).await?,
        Command::Redirect(args) => redirect::run(args)?,
        Command::Token(args) => token::run(args, surroundings).await?,
        Command::Snapshot(args) => snapshot::run(args, surroundings).await?,
        Command::Store(args) => store::run(args, surroundings).await?,
        Command::Ca(args) => ca::run(args, surroundings).await?,
        Command::Completion(args) => completion::run(args)?,
        Command::Version(args) => version::run(args)?,
    };
    Ok(outcome.into())
}

async fn fake_service() -> anyhow::Result<ExitCode> {
    match starling_fake_service::run_from_env().await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.is::<starling_fake_service::ConfigError>() => Err(usage(format!("{error:#}"))),
        Err(error) => Err(error),
    }
}
