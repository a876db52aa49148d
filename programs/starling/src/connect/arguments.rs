//! The arguments of `starling connect envoy`: Consul's, whether or not there is something for them to do.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::gateway::{GatewayKind, RegisterArgs};
use crate::client::ApiArgs;
use crate::outcome::usage;

/// Run Envoy as the sidecar of a service that is registered with the local agent, or as a gateway
///
/// The process becomes Envoy; signals and exit code are Envoy's.
#[derive(Debug, clap::Args)]
pub(crate) struct EnvoyArgs {
    #[command(flatten)]
    pub(super) sidecar: SidecarArgs,

    /// The node on which the sidecar is registered, if it is not the agent's; needs the sidecar's own ID
    #[arg(long, alias = "nodename", value_name = "NODE", conflicts_with = "sidecar_for")]
    pub(super) node_name: Option<String>,

    /// Where Envoy's admin interface listens; Prometheus finds its metrics there, under /stats/prometheus
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:19000")]
    pub(super) admin_bind: String,

    /// File for the admin interface's access log
    #[arg(long, value_name = "FILE", default_value = "/dev/null")]
    pub(super) admin_access_log_path: PathBuf,

    /// Print the bootstrap as JSON instead of running Envoy
    #[arg(long)]
    pub(super) bootstrap: bool,

    /// Heed nothing of the proxy's settings: neither Proxy.Config of its registration nor proxy-defaults
    #[arg(long)]
    pub(super) no_central_config: bool,

    #[command(flatten)]
    pub(super) xds: XdsArgs,

    /// The Envoy binary [default: STARLING_ENVOY, envoy on PATH, or .tools/bin/envoy]
    #[arg(long, value_name = "FILE")]
    pub(super) envoy_binary: Option<PathBuf>,

    /// Arguments for Envoy
    #[arg(last = true, value_name = "ENVOY ARGS")]
    pub(super) envoy_args: Vec<OsString>,

    #[command(flatten)]
    pub(super) exposure: ExposureArgs,

    #[command(flatten)]
    _without_effect: WithoutEffect,

    /// Be a gateway of this kind instead of a sidecar: `ingress` or `terminating`
    #[arg(long, value_name = "KIND", conflicts_with_all = ["sidecar_for", "proxy_id"], help_heading = "Gateways")]
    gateway: Option<String>,

    /// The gateway, by its ID or the name of its service [default: ingress-gateway or terminating-gateway]
    #[arg(long, value_name = "NAME", requires = "gateway", help_heading = "Gateways")]
    service: Option<String>,

    #[command(flatten)]
    pub(super) registering: RegisterArgs,

    #[command(flatten)]
    other_gateway: GatewayFlag,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// Which sidecar is meant.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct SidecarArgs {
    /// ID of the service whose sidecar it shall be [default: CONNECT_SIDECAR_FOR]
    #[arg(long, value_name = "ID", conflicts_with = "proxy_id")]
    pub(crate) sidecar_for: Option<String>,

    /// ID of the sidecar itself, where a service has several [default: CONNECT_PROXY_ID]
    #[arg(long, value_name = "ID")]
    pub(crate) proxy_id: Option<String>,
}

/// Where the proxy's configuration comes from.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct XdsArgs {
    /// Where xDS is served: IP:PORT, unix://PATH, or https://HOST:PORT for TLS, which is mutual and so needs
    /// --client-cert and --client-key, such as the service's own leaf [default: STARLING_GRPC_ADDR, CONSUL_GRPC_ADDR,
    /// or what the agent says]
    #[arg(long, value_name = "ADDR")]
    pub(crate) grpc_addr: Option<String>,

    /// For xDS over TLS: the CA certificates that the server's must chain to [default: STARLING_GRPC_CACERT or
    /// CONSUL_GRPC_CACERT, else those for the API]
    #[arg(long, value_name = "FILE")]
    pub(crate) grpc_ca_file: Option<PathBuf>,

    /// A directory of such files, if there is no --grpc-ca-file [default: STARLING_GRPC_CAPATH or CONSUL_GRPC_CAPATH]
    #[arg(long, value_name = "DIR")]
    pub(crate) grpc_ca_path: Option<PathBuf>,
}

impl EnvoyArgs {
    /// The gateway that is wanted, if it is one.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] for what only gateways have that are not there yet.
    pub(super) fn gateway(&self) -> anyhow::Result<Option<(&str, GatewayKind)>> {
        if let Some(flag) = self.other_gateway.given {
            return Err(usage(format!(
                "--{flag} is for gateways of other kinds, which are not there yet; this release has --gateway ingress and \
                 --gateway terminating"
            )));
        }
        match self.gateway.as_deref() {
            None => Ok(None),
            Some("ingress") => Ok(Some(self.gateway_of(GatewayKind::Ingress))),
            Some("terminating") => Ok(Some(self.gateway_of(GatewayKind::Terminating))),
            Some(other) => Err(usage(format!("--gateway {other}: this release has the kinds ingress and terminating"))),
        }
    }
}

impl EnvoyArgs {
    fn gateway_of(&self, kind: GatewayKind) -> (&str, GatewayKind) {
        (self.service.as_deref().unwrap_or(kind.as_str()), kind)
    }
}

/// What Envoy shows of itself on listeners of their own.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Metrics and readiness")]
pub(super) struct ExposureArgs {
    /// Path of the metrics on the listener that `envoy_prometheus_bind_addr` asks for in the proxy's settings
    #[arg(long, value_name = "PATH", default_value = "/metrics")]
    pub(super) prometheus_scrape_path: String,

    /// Port on loopback that serves that listener, such as one that adds the application's metrics; without it, Envoy
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) prometheus_backend_port: Option<u16>,

    /// For TLS on that listener: its certificate
    #[arg(long, value_name = "FILE", requires = "prometheus_key_file")]
    pub(super) prometheus_cert_file: Option<PathBuf>,

    /// Its private key
    #[arg(long, value_name = "FILE", requires = "prometheus_cert_file")]
    pub(super) prometheus_key_file: Option<PathBuf>,

    /// The CA certificates that a scraper's certificate must chain to, if it shows one
    #[arg(long, value_name = "FILE", requires = "prometheus_cert_file")]
    pub(super) prometheus_ca_file: Option<PathBuf>,

    /// A directory of such files, if there is no --prometheus-ca-file
    #[arg(long, value_name = "DIR", requires = "prometheus_cert_file")]
    pub(super) prometheus_ca_path: Option<PathBuf>,

    /// Address of a listener that answers /ready with 200 once Envoy has its listeners
    #[arg(long, value_name = "IP", requires = "envoy_ready_bind_port")]
    pub(super) envoy_ready_bind_address: Option<String>,

    /// Its port
    #[arg(long, value_name = "PORT", requires = "envoy_ready_bind_address", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) envoy_ready_bind_port: Option<u16>,
}

/// Flags that change nothing here: name, whether it takes a value, and why there is nothing to change.
const WITHOUT_EFFECT: &[(&str, Option<&str>, &str)] = &[
    ("envoy-version", Some("VERSION"), "The bootstrap is the same for every version of Envoy"),
    ("ignore-envoy-compatibility", None, "No version of Envoy is refused"),
    ("omit-deprecated-tags", None, "Statistics never carry the tags that Consul 1.9 deprecated"),
    ("enable-config-gen-logging", None, "STARLING_LOG=debug says what there is to say"),
];

/// Consul's flags that scripts may give, and that have nothing to do here.
#[derive(Debug)]
struct WithoutEffect;

impl FromArgMatches for WithoutEffect {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, Error> {
        Ok(Self)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), Error> {
        Ok(())
    }
}

impl clap::Args for WithoutEffect {
    fn augment_args(command: Command) -> Command {
        let flag = |(name, value, help): &(&'static str, Option<&'static str>, &'static str)| {
            Arg::new(*name)
                .long(*name)
                .help(*help)
                .help_heading("Accepted as Consul's, without effect")
                .action(if value.is_some() { ArgAction::Set } else { ArgAction::SetTrue })
        };
        WITHOUT_EFFECT.iter().fold(command, |command, each| {
            let arg = flag(each);
            command.arg(match each.1 {
                Some(value) => arg.value_name(value),
                None => arg,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Flags that only gateways of other kinds have, and whether they take a value.
const GATEWAY_FLAGS: &[(&str, bool)] = &[
    ("mesh-gateway", false),
    ("expose-servers", false),
    ("wan-address", true),
    ("bind-address", true),
    ("deregister-after-critical", true),
];

/// One of [`GATEWAY_FLAGS`], if any was given. They are known so that they can be refused with a reason.
#[derive(Debug, Default)]
struct GatewayFlag {
    given: Option<&'static str>,
}

impl FromArgMatches for GatewayFlag {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let by_user = |name: &str| matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine);
        Ok(Self { given: GATEWAY_FLAGS.iter().map(|(name, _)| *name).find(|name| by_user(name)) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for GatewayFlag {
    fn augment_args(command: Command) -> Command {
        GATEWAY_FLAGS.iter().fold(command, |command, (name, takes_value)| {
            let action = if *takes_value { ArgAction::Append } else { ArgAction::SetTrue };
            command.arg(Arg::new(*name).long(*name).action(action).hide(true))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
