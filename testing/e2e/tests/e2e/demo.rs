//! The demo, the page that it prints, and the tour in the README: every command works.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use starling_e2e::{Process, cli, eventually, eventually_within, http, mesh, tools};
use tempfile::TempDir;

/// The demo's ports are its own, so only one can run; this is how long another one is given to end.
const START_TIME_MAX: Duration = Duration::from_secs(90);

/// Exit code of `starling can` where the answer is no.
const REFUSED: &[&str] = &["starling can api db", "starling can web api --path / --method POST"];

/// The commands of a console block with what they read: `$ ` is taken off, everything else is kept.
fn commands_of_the_tour() -> String {
    let readme = std::fs::read_to_string(tools::workspace().join("README.md")).expect("README.md");
    let (_, tour) = readme.split_once("## Five minutes").expect("a tour of five minutes");
    let (tour, _) = tour.split_once("\n## ").expect("a next section");
    let blocks = tour.split("```console\n").skip(1).map(|block| block.split("```").next().unwrap_or_default());
    let lines = blocks.flat_map(str::lines).map(|line| line.strip_prefix("$ ").unwrap_or(line));
    // Where the binary is differs here.
    lines.filter(|line| !line.starts_with("export PATH=")).collect::<Vec<_>>().join("\n")
}

/// What is meant for a shell on the demo's page: the lines that stand furthest in, as they are.
fn commands_of_the_page(page: &str) -> String {
    let starling = tools::starling().display().to_string();
    let lines = page.lines().filter_map(|line| line.strip_prefix("      "));
    lines.map(|line| line.replace(&starling, "starling")).collect::<Vec<_>>().join("\n")
}

/// Runs commands in one shell, which goes on after a failure; returns what it wrote, and the commands that failed.
async fn run(commands: &str) -> (String, Vec<String>) {
    let binary = tools::starling();
    let mut shell = Command::new("bash");
    shell.args(["-m", "-c", &format!("trap 'echo \"FAILED $BASH_COMMAND\" >&2' ERR\n{commands}\n")]);
    mesh::bare(&mut shell);
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}:{path}", binary.parent().expect("a folder").display()));
    shell.current_dir(tools::workspace());
    let output = cli::run(shell).await;
    let failed = output.stderr.lines().filter_map(|line| line.strip_prefix("FAILED ")).map(str::to_owned).collect();
    (format!("{}{}", output.stdout, output.stderr), failed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_of_the_demo_and_the_readme_works() {
    let data = TempDir::with_prefix("starling-e2e-demo-").expect("a temporary directory");
    let mut command = Command::new(tools::starling());
    mesh::bare(&mut command);
    command.args(["dev", "--demo", "--data-dir"]).arg(data.path());
    let mut demo = Process::spawn("demo", command);
    let page = eventually_within(START_TIME_MAX, "the demo prints its page", async || {
        demo.expect_running()?;
        let log = demo.log();
        anyhow::ensure!(log.contains("Ctrl-C ends everything"), "{log}");
        Ok(log)
    })
    .await;
    let answer = http::get("127.0.0.1:9090", "/").await.expect("web").success().text();
    for tier in ["web", "api", "db", "hey"] {
        assert!(answer.contains(&format!("\"name\": \"{tier}\"")), "{tier} is not in {answer}");
    }

    let commands = commands_of_the_page(&page);
    assert!(commands.lines().count() >= 8, "the page has hardly a command: {page}");
    let (output, failed) = run(&commands).await;
    assert!(failed.iter().all(|command| REFUSED.contains(&command.as_str())), "{failed:?} failed:\n{output}");
    assert!(output.contains("\n500\n"), "cutting api off from db is not seen:\n{output}");
    assert!(!output.contains("command not found"), "a line of the page is no command:\n{output}");
    let denied = output.lines().filter(|line| line.starts_with("starling_proxy_denials"));
    let denied = denied.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    assert!(denied.sum::<u64>() > 0, "the sidecar of db has counted nothing:\n{output}");

    eventually("web answers again", async || {
        let answer = http::get("127.0.0.1:9090", "/").await?;
        anyhow::ensure!(answer.status == 200, "{}", answer.status);
        Ok(())
    })
    .await;
    let commands = commands_of_the_tour();
    assert!(commands.lines().count() >= 20, "the tour has hardly a command: {commands}");
    let (output, failed) = run(&commands).await;
    assert!(failed.iter().all(|command| REFUSED.contains(&command.as_str())), "{failed:?} failed:\n{output}");
    assert!(output.contains("500"), "cutting api off from db is not seen:\n{output}");

    let status = demo.end_with(Signal::SIGINT, Duration::from_secs(20));
    assert!(status.success(), "Ctrl-C ends it with {status}");
    for port in [9090, 9091, 9092, 9093, 9191, 9193, 19000] {
        let left = http::get(&format!("127.0.0.1:{port}"), "/").await;
        assert!(left.is_err(), "something still listens on {port} after Ctrl-C");
    }
}
