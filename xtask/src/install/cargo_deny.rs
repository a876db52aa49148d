//! cargo-deny, built from its source: no package index carries a binary that reads this workspace.

use std::process::Command;

use super::{Place, answer, execute};

/// Pinned, because a newer one may judge differently.
const VERSION: &str = "0.20.2";

/// A light release build: 75 s on 2 cores instead of 125 s, and a check of this workspace takes about a second either way.
const LIGHT_BUILD: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
];

pub(super) fn install(place: &Place) -> anyhow::Result<()> {
    let binary = place.binary("cargo-deny");
    if answer(&binary, &["--version"]).is_some_and(|text| text == format!("cargo-deny {VERSION}")) {
        println!("cargo-deny {VERSION}: there");
        return Ok(());
    }
    println!("cargo-deny {VERSION}: building from source (about 75 s on 2 cores)");
    let mut cargo = Command::new("cargo");
    cargo.args(["install", "cargo-deny", "--locked", "--force", "--version", VERSION]);
    cargo.arg("--root").arg(&place.tools).envs(LIGHT_BUILD.iter().copied());
    // Its own folder, so that neither build throws the other's work away; removed, because it is used once.
    let target = place.tools.join("build");
    execute(cargo.env("CARGO_TARGET_DIR", &target))?;
    std::fs::remove_dir_all(&target)?;
    println!("cargo-deny {VERSION}: installed as {}", binary.display());
    Ok(())
}
