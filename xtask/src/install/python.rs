//! A Python environment of the tree's own: it fetches wheels, and runs grpcio as a proxyless client.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::{Place, answer, execute};

/// Pinned because a client under test must not change by itself.
const GRPCIO: &str = "1.85.1";

/// The protobuf runtime beside it; the test builds its messages from descriptors, so no generator is needed.
const PROTOBUF: &str = "7.36.2";

/// What to type where this tool may not install packages itself.
const ADVICE: &str = "Python 3 with its venv module is needed; on Debian or Ubuntu: \
                      sudo apt-get install -y python3 python3-venv";

/// The environment's interpreter, with a working pip; made if it is not there.
pub(super) fn ensure(place: &Place) -> anyhow::Result<PathBuf> {
    let folder = place.tools.join("venv");
    let python = folder.join("bin/python");
    if has_pip(&python) {
        return Ok(python);
    }
    if !create(&folder) {
        println!("python: no venv module, trying apt-get");
        install_packages(&["python3", "python3-venv"], ADVICE)?;
        if !create(&folder) {
            bail!("python3 -m venv fails even so. {ADVICE}");
        }
    }
    Ok(python)
}

/// Puts grpcio and protobuf into the environment.
pub(super) fn install_grpcio(place: &Place) -> anyhow::Result<()> {
    let python = ensure(place)?;
    if has_grpcio(&python) {
        println!("grpcio {GRPCIO}: there");
        return Ok(());
    }
    println!("grpcio {GRPCIO}: installing from PyPI");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]);
    pip.args([format!("grpcio=={GRPCIO}"), format!("protobuf=={PROTOBUF}")]);
    execute(&mut pip)?;
    if !has_grpcio(&python) {
        bail!("{} cannot import grpc after its installation", python.display());
    }
    println!("grpcio {GRPCIO}: installed for {}", python.display());
    Ok(())
}

fn has_pip(python: &Path) -> bool {
    answer(python, &["-m", "pip", "--version"]).is_some()
}

fn has_grpcio(python: &Path) -> bool {
    let script = "import grpc, google.protobuf as p; print(grpc.__version__, p.__version__)";
    answer(python, &["-c", script]).is_some_and(|versions| versions == format!("{GRPCIO} {PROTOBUF}"))
}

/// Makes the environment; on failure nothing of it stays.
fn create(folder: &Path) -> bool {
    let output = Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder).output();
    let made = output.is_ok_and(|output| output.status.success()) && has_pip(&folder.join("bin/python"));
    if !made && folder.exists() {
        // Debian's python3 without python3-venv leaves half an environment behind; a leftover is overwritten anyway.
        std::fs::remove_dir_all(folder).ok();
    }
    made
}

/// Installs Debian packages as root, or through a sudo that does not ask; `advice` is what to type otherwise.
pub(super) fn install_packages(packages: &[&str], advice: &'static str) -> anyhow::Result<()> {
    let prefix: &[&str] = if answer(Path::new("id"), &["-u"]).as_deref() == Some("0") {
        &["env"]
    } else if answer(Path::new("sudo"), &["-n", "true"]).is_some() {
        &["sudo", "-n", "env"]
    } else {
        bail!("{advice}");
    };
    let apt = |arguments: &[&str]| {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]).args(arguments);
        execute(&mut command)
    };
    let install = [&["install", "-y", "--no-install-recommends"], packages].concat();
    // The package lists of a fresh machine may be empty or old.
    apt(&install).or_else(|_| apt(&["update"]).and_then(|()| apt(&install))).context(advice)
}
