//! The command line: every command and its arguments.

use clap::{Parser, Subcommand};

use crate::agent::AgentArgs;
use crate::client::{ApiArgs, Client};
use crate::dev_args::DevArgs;
use crate::environment::Environment;
use crate::outcome::EXIT_CODES;
use crate::server::ServerArgs;
use crate::{
    acl, apply, audit, ca, can, catalog, changes, completion, config, connect, debug, figures, intention, kv, lock,
    login, members, node, nodes, operate, operator, proxy, redirect, relay, servers, services, snapshot, status, store,
    token, version, watch,
};

/// A service mesh that turns as one
#[derive(Debug, Parser)]
#[command(name = "starling", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,

    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Dev(Box<DevArgs>),
    Server(Box<ServerArgs>),
    Agent(Box<AgentArgs>),
    Relay(Box<relay::RelayArgs>),
    Proxy(Box<proxy::ProxyArgs>),
    Token(token::TokenArgs),
    Snapshot(snapshot::SnapshotArgs),
    Store(store::StoreArgs),
    Ca(ca::CaArgs),
    Services(services::ServicesArgs),
    Nodes(nodes::NodesArgs),
    Node(Box<node::NodeArgs>),
    Audit(audit::AuditArgs),
    Members(members::MembersArgs),
    Catalog(catalog::CatalogArgs),
    Kv(kv::KvArgs),
    Lock(Box<lock::LockArgs>),
    Watch(Box<watch::WatchArgs>),
    Acl(Box<acl::AclArgs>),
    Login(Box<login::LoginArgs>),
    Logout(Box<login::LogoutArgs>),
    Maint(Box<operate::MaintArgs>),
    Event(Box<operate::EventArgs>),
    Monitor(Box<operate::MonitorArgs>),
    Reload(Box<operate::ReloadArgs>),
    Leave(Box<operate::LeaveArgs>),
    ForceLeave(Box<operate::ForceLeaveArgs>),
    Debug(Box<debug::DebugArgs>),
    Info(figures::InfoArgs),
    Servers(servers::ServersArgs),
    Operator(operator::OperatorArgs),
    Intention(intention::IntentionArgs),
    Can(can::CanArgs),
    Apply(apply::ApplyArgs),
    Config(config::ConfigArgs),
    Status(status::StatusArgs),
    Changes(changes::ChangesArgs),
    Connect(connect::ConnectArgs),
    Redirect(redirect::RedirectArgs),
    /// Be an application of any number of tiers, for trying and testing; driven by environment variables
    ///
    /// LISTEN_ADDR, NAME, MESSAGE, UPSTREAM_URIS, UPSTREAM_WORKERS, ERROR_RATE, ERROR_CODE, TIMING_50_PERCENTILE,
    /// TIMING_90_PERCENTILE, TIMING_99_PERCENTILE, HTTP_CLIENT_KEEP_ALIVES and others of the same form.
    FakeService,
    Bench(starling_bench::BenchArgs),
    Load(Box<starling_bench::LoadArgs>),
    Completion(completion::CompletionArgs),
    Version(version::VersionArgs),
}

/// What every command that speaks to the API has from outside its own arguments.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// The environment.
    pub(crate) environment: Environment,
    /// API flags in front of the command.
    pub(crate) api: ApiArgs,
}

impl Surroundings {
    /// The API that is meant; flags behind the command win over those in front of it.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub(crate) fn client(&self, args: &ApiArgs) -> anyhow::Result<Client> {
        Client::new(&args.over(&self.api), &self.environment)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn flags_behind_the_command_win() {
        let surroundings = Surroundings {
            environment: Environment { http_addr: Some("env:1".to_owned()), ..Environment::default() },
            api: ApiArgs { http_addr: Some("front:1".to_owned()), ..ApiArgs::default() },
        };
        let behind = ApiArgs { http_addr: Some("behind:1".to_owned()), ..ApiArgs::default() };
        assert_eq!(surroundings.client(&behind).unwrap().address().to_string(), "http://behind:1");
        assert_eq!(surroundings.client(&ApiArgs::default()).unwrap().address().to_string(), "http://front:1");
    }
}
