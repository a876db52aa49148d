//! `cargo xtask tidy`: the rules of the house that neither rustc, clippy nor cargo-deny can hold.
//!
//! Who owns what, so that nothing is checked twice:
//!
//! | Rule | Owner |
//! |---|---|
//! | which crate may use which, what the core may use | [`dependencies`] |
//! | file length, names, unfinished work, attributes, crate headers | [`style`] |
//! | no clock, file, socket, environment or hash order in the core | [`purity`] |
//! | versions below which a known hole is open, forbidden crates in `Cargo.lock` | [`floors`] |
//! | every crate switches the workspace lints on, and they are all there | [`lints`] |
//! | functions over 70 lines, `unwrap`, `todo!`, `dbg!`, missing docs | clippy, through those lints |
//! | licences, sources, wildcards, forbidden crates in the graph | cargo-deny, `deny.toml` |

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;

use crate::source::Source;

mod dependencies;
mod floors;
mod lints;
mod purity;
mod style;

/// Folders never looked into when there is no git to tell what belongs to the tree.
const FOREIGN_FOLDERS: &[&str] = &["target", ".git", ".tools", ".demo", "node_modules"];

/// Checks the tree below `root` and prints every finding.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let crates = dependencies::read_crates(root)?;
    let mut findings = dependencies::check(&crates);
    findings.extend(lints::check(&read(root, "Cargo.toml")?, &read(root, "clippy.toml")?, &crates)?);
    findings.extend(floors::check(&read(root, "Cargo.lock")?, &read(root, "deny.toml")?)?);
    let files = rust_files(root)?;
    for path in &files {
        let source = Source::parse(path, &read(root, path)?);
        findings.extend(style::check(&source));
        findings.extend(purity::check(&source));
    }
    findings.sort();
    for finding in &findings {
        eprintln!("{finding}\n");
    }
    println!("tidy: {} crates, {} files, {} findings", crates.len(), files.len(), findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(root: &Path, path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"))
}

/// The Rust files of the tree: what git tracks or would track; without git, all of them.
fn rust_files(root: &Path) -> anyhow::Result<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "--", "*.rs"])
        .current_dir(root)
        .output();
    let mut files = match listed {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout)
            .context("git ls-files: file names in UTF-8")?
            .lines()
            // A file deleted but not yet committed is still listed.
            .filter(|path| root.join(path).is_file())
            .map(str::to_owned)
            .collect(),
        Ok(_) | Err(_) => {
            let mut found = Vec::new();
            walk(root, "", &mut found)?;
            found
        }
    };
    files.sort();
    files.dedup();
    Ok(files)
}

fn walk(root: &Path, folder: &str, found: &mut Vec<String>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(root.join(folder)).with_context(|| format!("list {folder}"))? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() && !FOREIGN_FOLDERS.contains(&name.as_str()) {
            walk(root, &path, found)?;
        } else if kind.is_file() && name.ends_with(".rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// The line (from 1) of the first line of `text` for which `matches` holds, else 1.
fn line_of(text: &str, matches: impl Fn(&str) -> bool) -> usize {
    text.lines().position(matches).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_the_walk_skips_foreign_folders() {
        let folder = std::env::temp_dir().join(format!("starling-tidy-{}", std::process::id()));
        for path in ["core/a/src", "target/debug", ".tools/venv"] {
            std::fs::create_dir_all(folder.join(path)).expect("a folder");
            std::fs::write(folder.join(path).join("lib.rs"), "").expect("a file");
        }
        let mut found = Vec::new();
        let walked = walk(&folder, "", &mut found);
        std::fs::remove_dir_all(&folder).expect("the folder is ours");
        walked.expect("the folder can be listed");
        assert_eq!(found, ["core/a/src/lib.rs"]);
    }
}
