//! cargo-fuzz, built from its source, which is small; what it drives needs a nightly compiler beside the pinned one.

use std::process::Command;

use super::{Place, answer, execute};

/// Pinned, as every tool.
const VERSION: &str = "0.13.1";

pub(super) fn install(place: &Place) -> anyhow::Result<()> {
    let binary = place.binary("cargo-fuzz");
    if answer(&binary, &["--version"]).is_some_and(|text| text == format!("cargo-fuzz {VERSION}")) {
        println!("cargo-fuzz {VERSION}: there");
        return Ok(());
    }
    println!("cargo-fuzz {VERSION}: building from source (about 45 s on 2 cores)");
    let target = place.tools.join("build");
    let mut cargo = Command::new("cargo");
    cargo.args(["install", "cargo-fuzz", "--locked", "--force", "--version", VERSION]);
    execute(cargo.arg("--root").arg(&place.tools).env("CARGO_TARGET_DIR", &target))?;
    std::fs::remove_dir_all(&target)?;
    println!("cargo-fuzz {VERSION}: installed as {}", binary.display());
    Ok(())
}
