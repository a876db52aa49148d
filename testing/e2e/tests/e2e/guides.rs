//! The guides of `docs/operate`, their commands run as they are written, in the order in which they stand.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use starling_e2e::namespace::in_namespace;
use starling_e2e::tools;

/// Longer than any of them takes on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(240);

/// Runs a guide on a network of its own, where the usual ports are free. A command that fails ends it.
fn follow(guide: &'static str) {
    in_namespace(async move || {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this crate is in testing/e2e");
        let page = std::fs::read_to_string(root.join("docs/operate").join(guide)).expect("a guide");
        let directory = tempfile::Builder::new().prefix("starling-e2e-guide-").tempdir().expect("a directory");
        let (script, log) = (directory.path().join("script"), directory.path().join("log"));
        std::fs::write(&script, commands(&page)).expect("written");
        let told = std::fs::File::create(&log).expect("a file");
        // Among processes of its own, too: guides look for theirs by name. All are gone with the first of them.
        let mut bash = Command::new("unshare");
        bash.args(["--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-x", "-e", "-o", "pipefail"]);
        bash.arg(&script).current_dir(directory.path());
        bash.env("PATH", path()).env("TMPDIR", directory.path()).env("HOME", directory.path()).process_group(0);
        bash.stdin(Stdio::null()).stdout(told.try_clone().expect("a descriptor")).stderr(told);
        let mut running = tokio::process::Command::from(bash).spawn().expect("bash");
        let group = Pid::from_raw(running.id().expect("it runs").try_into().expect("a process"));
        let ended = tokio::time::timeout(LIMIT, running.wait()).await;
        // There is none any more, unless it took too long.
        let _ = killpg(group, Signal::SIGKILL);
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let status = ended.unwrap_or_else(|_| panic!("{guide} has not come to its end:\n{log}")).expect("its end");
        assert!(status.success(), "{guide}: {status}\n{log}");
    });
}

/// What a reader is asked to type.
fn commands(page: &str) -> String {
    let (mut script, mut is_console) = (String::new(), false);
    for line in page.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if is_console {
            script += line.strip_prefix("$ ").unwrap_or(line);
            script.push('\n');
        }
    }
    assert!(!script.is_empty(), "there is nothing to be typed");
    script
}

/// Where the programs under test are, before all others.
fn path() -> String {
    let folder = |program: &Path| program.parent().expect("a folder").to_string_lossy().into_owned();
    let before = [tools::starling(), tools::etcd(), tools::envoy()].map(|program| folder(&program)).join(":");
    format!("{before}:{}", std::env::var("PATH").unwrap_or_default())
}

#[test]
fn several_servers() {
    follow("several-servers.md");
}

#[test]
fn backup() {
    follow("backup.md");
}

#[test]
fn relays() {
    follow("relays.md");
}

#[test]
fn servers_and_agents() {
    follow("servers-and-agents.md");
}

#[test]
fn access_control() {
    follow("access-control.md");
}

#[test]
fn from_consul() {
    follow("from-consul.md");
}

#[test]
fn ingress() {
    follow("ingress.md");
}

#[test]
fn terminating() {
    follow("terminating.md");
}
