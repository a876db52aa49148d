//! Arguments that several programs have.

use clap::ValueEnum;
use serde::Deserialize;
use starling_model::Action;
use starling_telemetry::{LogError, LogFormat, start_log};

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
    /// Begins to log.
    ///
    /// # Errors
    /// As [`start_log`].
    pub(crate) fn start(&self) -> Result<(), LogError> {
        start_log(&self.log_level, self.log_format.into())
    }
}

/// What holds where no intention does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IntentionPolicy {
    /// Every call may pass.
    #[default]
    Allow,
    /// No call may pass.
    Deny,
}

impl From<IntentionPolicy> for Action {
    fn from(policy: IntentionPolicy) -> Self {
        match policy {
            IntentionPolicy::Allow => Self::Allow,
            IntentionPolicy::Deny => Self::Deny,
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
