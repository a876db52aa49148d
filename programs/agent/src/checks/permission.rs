//! Which checks may run programs on this node, by where they were registered.

use crate::registrations::Source;

/// The sources whose script and Docker checks this agent accepts and runs.
///
/// The two are separate because they trust different parties. A file is written by the node's administrator. An API
/// registration needs no more than `service:write`, so permitting scripts there permits remote code execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScriptChecks {
    /// Checks of definition files: Consul's `enable_local_script_checks`.
    pub from_files: bool,
    /// Checks that callers of the API register: Consul's `enable_script_checks`, unless files are excluded explicitly.
    pub from_api: bool,
}

impl ScriptChecks {
    /// No check runs a program.
    pub const NONE: Self = Self { from_files: false, from_api: false };

    /// Checks of both sources run programs.
    pub const ALL: Self = Self { from_files: true, from_api: true };

    /// Whether checks of this source may run programs.
    ///
    /// # Errors
    /// The reason, in Consul's words.
    pub(crate) fn permit(self, source: Source) -> Result<(), &'static str> {
        match source {
            Source::File if self.from_files => Ok(()),
            Source::Caller if self.from_api => Ok(()),
            Source::File => Err(DISABLED),
            Source::Caller => Err(DISABLED_FROM_API),
        }
    }
}

/// Reason given for a script check of a definition file.
/// Source: Consul, `agent/agent.go`, `validateCheck` and `addCheck`.
const DISABLED: &str = "Scripts are disabled on this agent; to enable, configure 'enable_script_checks' or \
                        'enable_local_script_checks' to true";

/// Reason given for a script check that a caller of the API registers.
/// Source: Consul, as for [`DISABLED`].
const DISABLED_FROM_API: &str =
    "Scripts are disabled on this agent from remote calls; to enable, configure 'enable_script_checks' to true";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_needs_its_own_permission() {
        let local = ScriptChecks { from_files: true, from_api: false };
        let remote = ScriptChecks { from_files: false, from_api: true };
        for (permitted, source, allowed) in [
            (ScriptChecks::NONE, Source::File, false),
            (ScriptChecks::NONE, Source::Caller, false),
            (local, Source::File, true),
            (local, Source::Caller, false),
            (remote, Source::File, false),
            (remote, Source::Caller, true),
            (ScriptChecks::ALL, Source::File, true),
            (ScriptChecks::ALL, Source::Caller, true),
        ] {
            assert_eq!(permitted.permit(source).is_ok(), allowed, "{permitted:?} {source:?}");
        }
    }
}
