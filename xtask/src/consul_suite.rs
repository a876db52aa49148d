//! `cargo xtask consul-suite`: runs the tests of the Go client of Consul against this tree, and writes what came of each.
//!
//! The module is got by the ordinary Go client into `.tools/`, at one version, and is no part of this tree. Its tests start whatever
//! `consul` is in the search path, which is a link to the binary.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, ensure};

/// The version whose tests are run: that of the API that is served.
const VERSION: &str = "v1.34.5";

/// Packages of the module that have tests.
const PACKAGES: [&str; 2] = [".", "./watch"];

/// Servers at once.
const PARALLEL: &str = "4";

/// Time for a package: a test that waits for what never comes ends it, and those beside it.
const TIMEOUT: &str = "12m";

/// Share of the tests that apply which have to pass, in percent.
const BAR: usize = 95;

/// Tests that cannot apply, each by the beginning of its name, and why.
const SKIPPED: &[(&str, &str)] = &[
    ("TestAPI_AgentJoin", "gossip: nodes join by a token"),
    ("TestAPI_AgentForceLeave", "gossip"),
    ("TestAPI_AgentLeave", "gossip"),
    ("TestAPI_OperatorKeyring", "gossip: there is no keyring"),
    ("TestAPI_OperatorRaftRemovePeer", "gossip and raft: servers keep nothing themselves"),
    ("TestAPI_OperatorRaftLeaderTransfer", "raft: servers keep nothing themselves"),
    ("TestAPI_AgentMembersOpts", "several datacentres"),
    ("TestAPI_Namespaces", "enterprise"),
    ("TestAPI_Peering", "peering"),
    ("TestAPI_RawV2ExportedServices", "peering"),
];

/// Arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct ConsulSuiteArgs {
    /// The binary; built before this
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// The page that is written
    #[arg(long, value_name = "FILE", default_value = "docs/reference/consul-compatibility.md")]
    page: PathBuf,
    /// Only tests whose names match, as `go test -run` has it; then no page is written
    #[arg(long, value_name = "REGEX")]
    run: Option<String>,
}

/// What came of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Pass,
    Fail,
    /// Its kind, by the place in [`SKIPPED`].
    Skip(usize),
}

/// Runs them; fails below the bar.
pub(crate) fn run(root: &Path, args: &ConsulSuiteArgs) -> anyhow::Result<ExitCode> {
    let binary = args.binary.canonicalize().with_context(|| format!("no binary at {}", args.binary.display()))?;
    let folder = root.join(".tools/consul-suite");
    let module = module(&folder)?;
    certificates(&folder)?;
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin)?;
    let link = bin.join("consul");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(&binary, &link).with_context(|| format!("linking {}", link.display()))?;
    let mut found = BTreeMap::new();
    for package in PACKAGES {
        tests(&module, &bin, package, args.run.as_deref(), &mut found)?;
    }
    ensure!(!found.is_empty(), "no test was run");
    let page = page(&found);
    println!("{}", summary(&found));
    for (name, _) in found.iter().filter(|(_, found)| **found == Found::Fail) {
        println!("  FAIL {name}");
    }
    if args.run.is_some() {
        return Ok(ExitCode::SUCCESS);
    }
    std::fs::write(root.join(&args.page), page)?;
    let (passed, applied) = counts(&found);
    Ok(if passed * 100 >= applied * BAR { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A copy of the module that can be worked in.
fn module(folder: &Path) -> anyhow::Result<PathBuf> {
    let module = folder.join(format!("api-{VERSION}"));
    if module.join("go.mod").exists() {
        return Ok(module);
    }
    std::fs::create_dir_all(folder)?;
    let what = format!("github.com/hashicorp/consul/api@{VERSION}");
    let output = Command::new("go").args(["mod", "download", "-json", &what]).current_dir(folder).output();
    let output = output.context("go is needed: https://go.dev/dl")?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).context("go mod download -json")?;
    let kept = answer["Dir"].as_str().with_context(|| format!("{what} cannot be had: {answer}"))?;
    let copied = Command::new("cp").args(["-r", kept]).arg(&module).status()?;
    let writable = Command::new("chmod").args(["-R", "u+w"]).arg(&module).status()?;
    ensure!(copied.success() && writable.success(), "copying {kept} failed");
    Ok(module)
}

/// The certificates that tests read from beside the module, in the repository that it is from: made anew, for the same names.
fn certificates(folder: &Path) -> anyhow::Result<()> {
    let source = folder.join("certificates.go");
    std::fs::write(&source, include_str!("consul_suite/certificates.go"))?;
    let made = Command::new("go").arg("run").arg(&source).arg(folder.join("test")).status();
    ensure!(made.context("go is needed: https://go.dev/dl")?.success(), "the certificates of the tests cannot be made");
    Ok(())
}

/// Runs the tests of a package, and adds what came of each.
fn tests(
    module: &Path,
    bin: &Path,
    package: &str,
    only: Option<&str>,
    found: &mut BTreeMap<String, Found>,
) -> anyhow::Result<()> {
    let path = std::env::join_paths(
        std::iter::once(bin.to_owned()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    )?;
    let skipped: Vec<_> = SKIPPED.iter().map(|(name, _)| format!("^{name}")).collect();
    let mut go = Command::new("go");
    go.args(["test", "-json", "-count=1", "-parallel", PARALLEL, "-timeout", TIMEOUT, "-skip", &skipped.join("|")]);
    go.args(only.iter().flat_map(|only| ["-run", only])).arg(package);
    go.current_dir(module).env("PATH", path).env("GOFLAGS", "-mod=mod").stderr(Stdio::inherit());
    let output = go.output().context("go is needed: https://go.dev/dl")?;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(event) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let (Some(name), Some(action)) = (event["Test"].as_str(), event["Action"].as_str()) else { continue };
        if name.contains('/') {
            continue;
        }
        match action {
            "pass" => found.insert(name.to_owned(), Found::Pass),
            // One that never ended was broken off, with whatever ran beside it.
            "fail" | "run" => found.insert(name.to_owned(), Found::Fail),
            _ => None,
        };
    }
    let list = Command::new("go").args(["test", "-list", ".", package]).current_dir(module).output()?;
    for name in String::from_utf8_lossy(&list.stdout).lines().filter(|line| line.starts_with("Test")) {
        if let Some(kind) = SKIPPED.iter().position(|(skipped, _)| name.starts_with(skipped)) {
            found.insert(name.to_owned(), Found::Skip(kind));
        } else if only.is_none() {
            found.entry(name.to_owned()).or_insert(Found::Fail);
        }
    }
    Ok(())
}

/// How many have passed, of how many that apply.
fn counts(found: &BTreeMap<String, Found>) -> (usize, usize) {
    let passed = found.values().filter(|found| **found == Found::Pass).count();
    let failed = found.values().filter(|found| **found == Found::Fail).count();
    (passed, passed + failed)
}

fn summary(found: &BTreeMap<String, Found>) -> String {
    let (passed, applied) = counts(found);
    let skipped = found.len() - applied;
    format!(
        "{passed} of {applied} tests that apply pass ({:.1} %; the bar is {BAR} %); {skipped} are left out",
        percent(passed, applied)
    )
}

#[expect(clippy::cast_precision_loss, reason = "tests are counted in hundreds")]
fn percent(part: usize, of: usize) -> f64 {
    part as f64 * 100.0 / of.max(1) as f64
}

fn page(found: &BTreeMap<String, Found>) -> String {
    let mut text = format!(
        "# Compatibility with Consul\n\nWhat came of each test of the Go client of Consul (`github.com/hashicorp/consul/api` {VERSION}), run against this tree\n\
         by `make consul-suite`, which writes this page. The tests start the program `consul`, which is a link to `starling`.\n\
         Certificates that tests read from the client's repository, and that its module does not bring, are made anew.\n\n\
         **{}.**\n\n| Test | |\n|---|---|\n",
        summary(found)
    );
    for (name, found) in found {
        let what = match found {
            Found::Pass => "pass".to_owned(),
            Found::Fail => "**fail**".to_owned(),
            Found::Skip(kind) => format!("left out: {}", SKIPPED[*kind].1),
        };
        let _ = writeln!(text, "| `{name}` | {what} |");
    }
    text
}
