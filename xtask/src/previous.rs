//! `cargo xtask previous`: the program of the release before this one, to upgrade from.
//!
//! That is the last version tag before the present commit, or the commit before it where there is none yet. Its tree is
//! unpacked into the target folder and built there, by its own lock file. It has objects of its own: cargo names those of
//! workspace members by their place in the workspace, so two trees that share a folder would take each other's for theirs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::install::execute;

/// Tags of releases.
const RELEASES: &str = "v[0-9]*";

/// Where it lies in the target folder.
const FOLDER: &str = "previous";

/// Which commit is built.
#[derive(clap::Args)]
pub(crate) struct PreviousArgs {
    /// Another commit or tag than the release before this one.
    #[arg(long)]
    commit: Option<String>,
}

/// Builds the program, and prints where it is.
pub(crate) fn run(root: &Path, arguments: &PreviousArgs) -> anyhow::Result<()> {
    let commit = match &arguments.commit {
        Some(commit) => git(root, &["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")])
            .with_context(|| format!("there is no commit {commit} here"))?,
        None => before(root)?,
    };
    let folder = target_folder(root).join(FOLDER);
    let source = folder.join("source");
    unpack(root, &commit, &source)?;
    let title = git(root, &["log", "--max-count=1", "--format=%h %s", &commit])?;
    eprintln!("building the previous release: {title}");
    execute(
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(&source)
            .args(["build", "--locked", "--bin", "starling"])
            .env("CARGO_TARGET_DIR", &folder)
            .env_remove("CARGO_MANIFEST_DIR"),
    )
    .context("build the previous release")?;
    let binary = folder.join("debug/starling");
    ensure!(binary.is_file(), "the build has left no {}", binary.display());
    println!("{}", binary.display());
    Ok(())
}

/// The release before the present commit: a tag, or its parent.
fn before(root: &Path) -> anyhow::Result<String> {
    let Ok(parent) = git(root, &["rev-parse", "--verify", "--quiet", "HEAD^"]) else {
        let is_cut = git(root, &["rev-parse", "--is-shallow-repository"])? == "true";
        if is_cut {
            bail!("the history of this clone is cut off; get it whole: git fetch --unshallow --tags");
        }
        bail!("there is no commit before this one");
    };
    // No tag is no failure: there is no release yet.
    let tag = git(root, &["describe", "--tags", "--abbrev=0", "--match", RELEASES, &parent]);
    tag.map_or(Ok(parent), |tag| git(root, &["rev-parse", &format!("{tag}^{{commit}}")]))
}

/// Makes the tree of a commit lie in `source`, and nothing else; it stays as it is if it does already.
fn unpack(root: &Path, commit: &str, source: &Path) -> anyhow::Result<()> {
    let stamp = source.with_extension("commit");
    if std::fs::read_to_string(&stamp).is_ok_and(|unpacked| unpacked == commit) && source.is_dir() {
        return Ok(());
    }
    if source.exists() {
        std::fs::remove_dir_all(source).with_context(|| format!("remove {}", source.display()))?;
    }
    std::fs::create_dir_all(source).with_context(|| format!("create {}", source.display()))?;
    let archive = source.with_extension("tar");
    let (archive_path, source_path) = (path_text(&archive)?, path_text(source)?);
    git(root, &["archive", "--format=tar", "--output", archive_path, commit])?;
    // With the time of now: cargo would take what is older than its objects for unchanged.
    execute(Command::new("tar").args(["-xmf", archive_path, "-C", source_path])).context("unpack the archive")?;
    std::fs::remove_file(&archive).with_context(|| format!("remove {archive_path}"))?;
    std::fs::write(&stamp, commit).with_context(|| format!("write {}", stamp.display()))
}

fn path_text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// The folder to which cargo builds.
fn target_folder(root: &Path) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => root.join(folder),
        None => root.join("target"),
    }
}

/// What git answers, without the line's end.
fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output().context("start git")?;
    if !output.status.success() {
        bail!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with a commit for each of `files`.
    fn repository(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        git(root, &["init", "--quiet"]).expect("a repository");
        for (name, value) in [("user.name", "t"), ("user.email", "t@localhost"), ("commit.gpgsign", "false")] {
            git(root, &["config", name, value]).expect("a setting");
        }
        for file in files {
            std::fs::write(root.join(file), file).expect("a file");
            git(root, &["add", file]).expect("added");
            git(root, &["commit", "--quiet", "--message", file]).expect("a commit");
        }
        folder
    }

    fn commit(root: &Path, name: &str) -> String {
        git(root, &["rev-parse", name]).expect("a commit")
    }

    #[test]
    fn it_is_the_last_release_or_the_commit_before() {
        let folder = repository(&["a", "b", "c"]);
        let root = folder.path();
        assert_eq!(before(root).expect("a commit"), commit(root, "HEAD^"));
        git(root, &["tag", "unrelated", "HEAD^"]).expect("a tag");
        git(root, &["tag", "v0.1.0", "HEAD^^"]).expect("a tag");
        assert_eq!(before(root).expect("a commit"), commit(root, "HEAD^^"));
        // Of a release itself it is the one before.
        git(root, &["tag", "v0.2.0"]).expect("a tag");
        assert_eq!(before(root).expect("a commit"), commit(root, "HEAD^^"));
        let single = repository(&["a"]);
        let error = before(single.path()).expect_err("there is none");
        assert_eq!(error.to_string(), "there is no commit before this one");
    }

    #[test]
    fn what_lies_there_is_the_commits_tree_and_nothing_else() {
        let folder = repository(&["a", "b"]);
        let (root, source) = (folder.path(), folder.path().join("to/source"));
        unpack(root, &commit(root, "HEAD"), &source).expect("unpacked");
        assert!(source.join("a").is_file() && source.join("b").is_file());
        unpack(root, &commit(root, "HEAD^"), &source).expect("unpacked");
        assert!(source.join("a").is_file() && !source.join("b").exists());
    }
}
