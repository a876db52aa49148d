//! Arguments that several programs have.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use serde::Deserialize;
use starling_model::Action;
use starling_proxy::admin::{self, AdminAddress, AdminListener};
use starling_proxy::{Engine, Inherited, Timeouts};
use starling_telemetry::{LogError, LogFormat, Registry, judge_filter, start_log};

use super::serving::Serving;
use crate::descriptors;
use crate::outcome::usage;

/// What is logged, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// What is logged: a level, or TARGET=LEVEL,…
    #[arg(long, default_value = "info", value_name = "FILTER")]
    log_level: String,

    /// Form of the log lines
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log_format: LogFormatArg,
}

impl LogArgs {
    /// Whether it can be logged so; nothing is begun.
    ///
    /// # Errors
    /// As [`start_log`].
    pub(crate) fn judge(&self) -> anyhow::Result<()> {
        judge_filter(&self.log_level).map_err(|error| usage(error.to_string()))
    }

    /// Begins to log.
    ///
    /// # Errors
    /// As [`start_log`].
    pub(crate) fn start(&self) -> Result<(), LogError> {
        start_log(&self.log_level, self.log_format.into())
    }
}

/// Which proxies serve the sidecars of this node.
#[derive(Debug, clap::Args)]
pub(crate) struct DataPlaneArgs {
    /// Who serves the sidecars of this node: this process, but for those that attach a proxy of their own, or Envoys alone
    #[arg(long, value_enum, default_value_t, value_name = "PLANE")]
    data_plane: DataPlane,

    /// Threads of the native data plane; without it, one for each CPU of this process
    #[arg(long, value_name = "N", env = "STARLING_PROXY_WORKERS", value_parser = clap::value_parser!(u16).range(1..=512))]
    proxy_workers: Option<u16>,

    /// Where the native data plane shows what it does and is drained: a loopback address, or unix:PATH
    #[arg(long, value_name = "ADDR")]
    proxy_admin: Option<AdminAddress>,
}

/// The native data plane, and the door for those who operate it.
pub(crate) struct NativePlane {
    pub(crate) engine: Arc<Engine>,
    admin: Option<AdminListener>,
}

impl NativePlane {
    /// Serves operators, if there is a door for them.
    pub(crate) async fn open_admin(&mut self, serving: &Serving) {
        if let Some(listener) = self.admin.take() {
            serving.spawn_endless(admin::serve(listener, Arc::clone(&self.engine), Registry::default())).await;
        }
    }
}

/// A data plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum DataPlane {
    /// In this process; nothing has to be started for a sidecar
    #[default]
    Native,
    /// Envoys, each started by `starling connect envoy`
    Envoy,
}

impl DataPlaneArgs {
    /// Serves operators of the native data plane at `address`, unless somebody has said where.
    pub(crate) fn show_at(&mut self, address: SocketAddr) {
        if self.is_native() {
            self.proxy_admin.get_or_insert(AdminAddress::Loopback(address));
        }
    }

    pub(crate) fn is_native(&self) -> bool {
        self.data_plane == DataPlane::Native
    }

    /// Starts the native data plane, if that is the one; what it counts is among the metrics of the process.
    pub(crate) async fn start(&self, registry: &Registry) -> anyhow::Result<Option<NativePlane>> {
        if !self.is_native() {
            return match &self.proxy_admin {
                None => Ok(None),
                Some(_) => Err(usage("--proxy-admin: an Envoy has an admin interface of its own")),
            };
        }
        let admin = match &self.proxy_admin {
            None => None,
            Some(address) => {
                let bound = AdminListener::bind(address).await;
                Some(bound.with_context(|| format!("--proxy-admin: cannot listen on {address}"))?)
            }
        };
        let workers = proxy_workers(self.proxy_workers);
        let share = descriptors::of_agent()?.data_plane;
        let engine = Engine::limited(workers, Timeouts::default(), Inherited::default(), share);
        let engine = Arc::new(engine.context("starting the native data plane")?);
        engine.register(registry);
        Ok(Some(NativePlane { engine, admin }))
    }
}

/// Threads of a native data plane: as said, else one for each CPU of this process.
pub(crate) fn proxy_workers(said: Option<u16>) -> usize {
    let cpus = || std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    said.map_or_else(cpus, usize::from)
}

/// What holds where no intention does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IntentionPolicy {
    /// Every call may pass.
    Allow,
    /// No call may pass.
    Deny,
}

impl IntentionPolicy {
    /// The policy that was given, else that of access control. Warns where calls are allowed by default and access is not.
    pub(crate) fn or_as_acl(given: Option<Self>, acl: Option<AclDefault>) -> Self {
        match (given, acl) {
            (Some(Self::Allow), Some(AclDefault::Deny)) => {
                tracing::warn!(
                    "calls without an intention are allowed although the ACL default policy is deny; \
                     set --default-intention-policy deny to deny them"
                );
                Self::Allow
            }
            (Some(given), _) => given,
            (None, Some(AclDefault::Deny)) => Self::Deny,
            (None, Some(AclDefault::Allow) | None) => Self::Allow,
        }
    }
}

impl From<IntentionPolicy> for Action {
    fn from(policy: IntentionPolicy) -> Self {
        match policy {
            IntentionPolicy::Allow => Self::Allow,
            IntentionPolicy::Deny => Self::Deny,
        }
    }
}

/// What holds where no rule of access control does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AclDefault {
    /// Everything may be done.
    Allow,
    /// Nothing may be done.
    Deny,
}

impl From<AclDefault> for Action {
    fn from(default: AclDefault) -> Self {
        match default {
            AclDefault::Allow => Self::Allow,
            AclDefault::Deny => Self::Deny,
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum LogFormatArg {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl From<LogFormatArg> for LogFormat {
    fn from(format: LogFormatArg) -> Self {
        match format {
            LogFormatArg::Text => Self::Text,
            LogFormatArg::Json => Self::Json,
        }
    }
}
