//! Where the programs under test are; a missing one fails the test with the command that gets it.

use std::path::{Path, PathBuf};

/// The binary under test: `STARLING_BIN`, else `starling` beside the folder of the test executable.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn starling() -> PathBuf {
    let beside = || {
        let executable = std::env::current_exe().expect("a running test has a path");
        // target/debug/deps/e2e-HASH
        executable.ancestors().nth(2).expect("a test executable lies in target/PROFILE/deps").join("starling")
    };
    found("STARLING_BIN", beside, "cargo build --bin starling")
}

/// The binary of the release before, which is upgraded from: `STARLING_PREVIOUS`, else the one under test.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn previous() -> PathBuf {
    found("STARLING_PREVIOUS", starling, "make upgrade")
}

/// Envoy: `STARLING_ENVOY`, else `.tools/bin/envoy`.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn envoy() -> PathBuf {
    found("STARLING_ENVOY", || workspace().join(".tools/bin/envoy"), "cargo xtask install envoy")
}

/// etcd: `STARLING_ETCD`, else `.tools/bin/etcd`.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn etcd() -> PathBuf {
    found("STARLING_ETCD", || workspace().join(".tools/bin/etcd"), "cargo xtask install etcd")
}

/// A Python with grpcio: `STARLING_PYTHON`, else `.tools/venv/bin/python`.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn python() -> PathBuf {
    found("STARLING_PYTHON", || workspace().join(".tools/venv/bin/python"), "cargo xtask install grpcio")
}

/// h2spec: `STARLING_H2SPEC`, else `.tools/bin/h2spec`.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn h2spec() -> PathBuf {
    found("STARLING_H2SPEC", || workspace().join(".tools/bin/h2spec"), "cargo xtask install h2spec")
}

/// The workspace's folder.
///
/// # Panics
/// Never: this crate is two folders below.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("invariant: this crate is two folders below the workspace").to_owned()
}

fn found(variable: &str, default: impl FnOnce() -> PathBuf, remedy: &str) -> PathBuf {
    let path = std::env::var_os(variable).filter(|value| !value.is_empty()).map_or_else(default, PathBuf::from);
    assert!(path.exists(), "{} is not there; `{remedy}` gets it, or set {variable}", path.display());
    path
}
