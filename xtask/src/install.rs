//! `cargo xtask install`: tools that tests and checks need, each at its pinned version, in `.tools/` of the tree.
//!
//! Nothing outside the tree changes, except that a missing `python3-venv` or `nftables` is installed with apt where that
//! is possible without asking. A tool already there at the right version costs one call of it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::ValueEnum;

mod cargo_deny;
mod cargo_fuzz;
mod envoy;
mod etcd;
mod etcd_benchmark;
mod fortio;
mod h2spec;
mod nftables;
mod python;

/// A tool that can be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tool {
    /// Envoy, the proxy the tests and the demo run: `.tools/bin/envoy`.
    Envoy,
    /// A Python with grpcio, a proxyless xDS client: `.tools/venv/bin/python`.
    Grpcio,
    /// cargo-deny, which checks licences, sources and bans: `.tools/bin/cargo-deny`.
    CargoDeny,
    /// cargo-fuzz, which drives the fuzz targets: `.tools/bin/cargo-fuzz`.
    CargoFuzz,
    /// etcd, on which several servers keep their catalog: `.tools/bin/etcd`.
    Etcd,
    /// etcd's own benchmark, beside which our writes are held: `.tools/bin/etcd-benchmark`.
    EtcdBenchmark,
    /// Fortio, which sends load too: `.tools/bin/fortio`.
    Fortio,
    /// h2spec, which asks servers about HTTP/2: `.tools/bin/h2spec`.
    H2spec,
    /// The system's nft, by which packets are lost.
    Nftables,
}

/// Where tools live.
struct Place {
    root: PathBuf,
    tools: PathBuf,
}

impl Place {
    fn binary(&self, name: &str) -> PathBuf {
        self.tools.join("bin").join(name)
    }
}

/// Installs those of `tools` that are not there yet.
pub(crate) fn run(root: &Path, tools: &[Tool]) -> anyhow::Result<()> {
    let place = Place { root: root.to_owned(), tools: root.join(".tools") };
    std::fs::create_dir_all(place.tools.join("bin")).context("create .tools/bin")?;
    // Two `make` at once would write the same files.
    let lock = File::create(place.tools.join("lock")).context("create .tools/lock")?;
    lock.lock().context("lock .tools/lock")?;
    for tool in tools {
        match tool {
            Tool::Envoy => envoy::install(&place).context("install Envoy")?,
            Tool::Grpcio => python::install_grpcio(&place).context("install grpcio")?,
            Tool::CargoDeny => cargo_deny::install(&place).context("install cargo-deny")?,
            Tool::CargoFuzz => cargo_fuzz::install(&place).context("install cargo-fuzz")?,
            Tool::Etcd => etcd::install(&place).context("install etcd")?,
            Tool::EtcdBenchmark => etcd_benchmark::install(&place).context("install etcd-benchmark")?,
            Tool::Fortio => fortio::install(&place).context("install Fortio")?,
            Tool::H2spec => h2spec::install(&place).context("install h2spec")?,
            Tool::Nftables => nftables::install(),
        }
    }
    Ok(())
}

/// What `program` prints on standard output; nothing when it is missing or fails.
fn answer(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a command to its end, with its output on the terminal.
pub(crate) fn execute(command: &mut Command) -> anyhow::Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}
