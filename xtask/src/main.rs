//! Chores of the source tree: `cargo xtask tidy` holds the rules of the house, `cargo xtask install` fetches the
//! tools that tests and checks need into `.tools/`, `cargo xtask agreement` holds `starling load` beside other generators,
//! `cargo xtask consul-suite` runs the tests of Consul's Go client, `cargo xtask previous` builds the release before this one.
//!
//! Owns no build logic (that is cargo's and the `Makefile`'s) and nothing that ships to users.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

use crate::install::Tool;

mod agreement;
mod consul_suite;
mod finding;
mod install;
mod previous;
mod source;
mod tidy;
mod tokens;

/// Chores of the Starling source tree.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check the dependency arrows, the source rules and the advisory floors; exits 1 and lists everything it found.
    Tidy,
    /// Put tools into `.tools/`, each at its pinned version; does nothing for those already there.
    Install {
        /// Which tools to install.
        #[arg(required = true, value_enum)]
        tools: Vec<Tool>,
    },
    /// Hold `starling load` beside Fortio and wrk on one echo server; exits 1 when their medians differ by more than 5 %.
    Agreement(agreement::AgreementArgs),
    /// Run the tests of Consul's Go client against a binary, and write the page of what came of each; exits 1 below the bar.
    ConsulSuite(consul_suite::ConsulSuiteArgs),
    /// Build the release before this one, to upgrade from, and print where it is.
    Previous(previous::PreviousArgs),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let root = workspace_root()?;
    match arguments.chore {
        Chore::Tidy => tidy::run(&root),
        Chore::Install { tools } => {
            install::run(&root, &tools)?;
            Ok(ExitCode::SUCCESS)
        }
        Chore::Agreement(arguments) => agreement::run(&arguments),
        Chore::ConsulSuite(arguments) => consul_suite::run(&root, &arguments),
        Chore::Previous(arguments) => {
            previous::run(&root, &arguments)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The folder of the root `Cargo.toml`.
///
/// Cargo tells it at run time; the path compiled in would be wrong when two clones share one target folder.
fn workspace_root() -> anyhow::Result<PathBuf> {
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR").context("run this as `cargo xtask …`")?;
    let parent = Path::new(&manifest_dir).parent().context("xtask lies directly below the workspace root")?;
    Ok(parent.to_owned())
}
