//! `starling completion`.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::arguments::Arguments;
use crate::outcome::Outcome;
use crate::print;

/// Print the completion script of a shell
///
/// For example: `starling completion bash > /etc/bash_completion.d/starling`
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    shell: CompletedShell,
}

/// A shell with completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CompletedShell {
    Bash,
    Zsh,
    Fish,
}

impl From<CompletedShell> for Shell {
    fn from(shell: CompletedShell) -> Self {
        match shell {
            CompletedShell::Bash => Self::Bash,
            CompletedShell::Zsh => Self::Zsh,
            CompletedShell::Fish => Self::Fish,
        }
    }
}

pub(crate) fn run(args: CompletionArgs) -> anyhow::Result<Outcome> {
    print::line(script(args.shell).trim_end())?;
    Ok(Outcome::Done)
}

fn script(shell: CompletedShell) -> String {
    let mut script = Vec::new();
    generate(Shell::from(shell), &mut Arguments::command(), "starling", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_learns_commands_and_flags() {
        for shell in [CompletedShell::Bash, CompletedShell::Zsh, CompletedShell::Fish] {
            let script = script(shell);
            for word in [
                "intention",
                "fake-service",
                "sidecar-for",
                "default-intention-policy",
                "prometheus-scrape-path",
                "tagged-address",
                "ca-path",
                "filename",
            ] {
                assert!(script.contains(word), "{shell:?} does not know {word}");
            }
        }
    }
}
