//! etcd, on which several servers keep their catalog; built by Go from etcd's own module, else taken from Debian's package.
//!
//! The package is unpacked and not installed: installing it starts an etcd on the machine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use super::{Place, answer, execute};

/// The version that production wants, too: holes and a loss of events are closed in it.
pub(super) const VERSION: &str = "3.6.14";

/// A module that holds etcd's main; its `go.sum` pins every byte that is built.
const WRAPPER: &str = "xtask/etcd";

/// Where the binary lies in Debian's package.
const BINARY_IN_PACKAGE: &str = "usr/bin/etcd";

pub(super) fn install(place: &Place) -> anyhow::Result<()> {
    let binary = place.binary("etcd");
    let there = version(&binary);
    if there.as_deref() == Some(VERSION) {
        println!("etcd {VERSION}: there");
        return Ok(());
    }
    if answer(Path::new("go"), &["version"]).is_some() {
        println!("etcd {VERSION}: building from source");
        return build(place, &binary);
    }
    if let Some(other) = there {
        println!("etcd {other}: there; {VERSION} would be built by Go, https://go.dev/dl");
        return Ok(());
    }
    println!("etcd: there is no Go to build {VERSION} with; fetching Debian's etcd-server");
    let download = place.tools.join("download");
    let outcome = fetch(&download, &binary);
    if download.exists() {
        std::fs::remove_dir_all(&download).context("remove .tools/download")?;
    }
    outcome.context("etcd is built by Go, https://go.dev/dl; or set STARLING_ETCD to the path of one of 3.4 or later")
}

fn build(place: &Place, binary: &Path) -> anyhow::Result<()> {
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-mod=readonly", "-o"]).arg(binary).arg(".");
    go.env("CGO_ENABLED", "0").current_dir(place.root.join(WRAPPER));
    execute(&mut go)?;
    if version(binary).as_deref() != Some(VERSION) {
        bail!(
            "the etcd that was built does not answer `--version` with {VERSION}; does {WRAPPER}/go.mod name another?"
        );
    }
    println!("etcd {VERSION}: installed as {}", binary.display());
    Ok(())
}

fn fetch(download: &Path, binary: &Path) -> anyhow::Result<()> {
    if download.exists() {
        std::fs::remove_dir_all(download).context("remove an old .tools/download")?;
    }
    std::fs::create_dir_all(download).context("create .tools/download")?;
    execute(Command::new("apt-get").args(["download", "etcd-server"]).current_dir(download))?;
    let mut entries = std::fs::read_dir(download).context("list .tools/download")?;
    let package = entries.next().context("apt-get downloaded nothing")?.context("list .tools/download")?.path();
    execute(Command::new("dpkg-deb").arg("--extract").arg(package).arg(download))?;
    let unpacked = download.join(BINARY_IN_PACKAGE);
    let version = version(&unpacked).context("the package's etcd does not run here")?;
    std::fs::rename(&unpacked, binary).with_context(|| format!("move etcd to {}", binary.display()))?;
    println!("etcd {version}: installed as {}", binary.display());
    Ok(())
}

/// etcd answers `etcd Version: <version>` and more.
fn version(binary: &Path) -> Option<String> {
    let text = answer(binary, &["--version"])?;
    text.lines().next()?.strip_prefix("etcd Version: ").map(str::to_owned)
}
