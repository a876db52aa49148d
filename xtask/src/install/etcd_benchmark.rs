//! etcd's own benchmark, beside which our writes are held; built by Go, which must be there.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::etcd::VERSION;
use super::{Place, answer, execute};

/// A module that holds the benchmark's main; its `go.sum` pins every byte that is built.
const WRAPPER: &str = "xtask/etcd-benchmark";

/// Where the benchmark comes from, as a binary that is built of it tells.
const MODULE: &str = "go.etcd.io/etcd/v3";

pub(super) fn install(place: &Place) -> anyhow::Result<()> {
    let binary = place.binary("etcd-benchmark");
    let built_of = answer(Path::new("go"), &["version", "-m", &binary.display().to_string()]);
    if built_of.is_some_and(|text| text.contains(&format!("{MODULE}\tv{VERSION}"))) {
        println!("etcd-benchmark {VERSION}: there");
        return Ok(());
    }
    println!("etcd-benchmark {VERSION}: building from source");
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-mod=readonly", "-o"]).arg(&binary).arg(".");
    go.env("CGO_ENABLED", "0").current_dir(place.root.join(WRAPPER));
    execute(&mut go).context("etcd's benchmark is built by Go, https://go.dev/dl")?;
    println!("etcd-benchmark {VERSION}: installed as {}", binary.display());
    Ok(())
}
