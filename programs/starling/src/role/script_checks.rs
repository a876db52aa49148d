//! Flags that permit checks which run programs.

use starling_agent::ScriptChecks;

/// Which checks may run programs on this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct ScriptCheckArgs {
    /// Permit script checks, also from API registrations: whoever has `service:write` then runs programs as this user
    #[arg(long)]
    pub(crate) enable_script_checks: bool,

    /// Permit script checks of definition files only [default: as --enable-script-checks]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) enable_local_script_checks: Option<bool>,
}

impl ScriptCheckArgs {
    /// The sources whose checks may run programs.
    ///
    /// Source: Consul, `agent/config/builder.go`: the local setting defaults to the remote one.
    pub(crate) fn permitted(self) -> ScriptChecks {
        let from_api = self.enable_script_checks;
        ScriptChecks { from_files: self.enable_local_script_checks.unwrap_or(from_api), from_api }
    }
}
