//! etcd's own benchmark, `go.etcd.io/etcd/v3/tools/benchmark`.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::{Load, Writer};
use crate::etcd::program;

/// Longest run of it; hundreds of writes a second are what slow disks do.
const RUN_TIME_MAX: Duration = Duration::from_secs(1800);

/// Where it is.
pub(crate) struct Tool(PathBuf);

/// What it says of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Told {
    pub(crate) per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Tool {
    /// Finds it.
    ///
    /// # Errors
    /// If it is not there: how to get it.
    pub(crate) fn find() -> anyhow::Result<Self> {
        program("STARLING_ETCD_BENCHMARK", "etcd-benchmark", "cargo xtask install etcd-benchmark").map(Self)
    }

    /// Has it write once through.
    ///
    /// # Errors
    /// When it fails, or says what cannot be read.
    pub(crate) async fn run(
        &self,
        writer: Writer,
        members: &[String],
        load: Load,
        key_bytes: usize,
    ) -> anyhow::Result<Told> {
        let one = &members[..1.min(members.len())];
        let (what, endpoints) = match writer {
            Writer::PutOneConnection => ("put", one),
            Writer::TxnEachMember => ("txn-put", members),
            Writer::PutEachMember | Writer::Commits | Writer::Api => ("put", members),
        };
        let Load { writes, callers, value_bytes } = load;
        let mut command = tokio::process::Command::new(&self.0);
        command.args(["--endpoints", &endpoints.join(","), "--conns", &endpoints.len().to_string()]);
        command.args(["--clients", &callers.to_string(), "--precise", what, "--total", &writes.to_string()]);
        command.args(["--key-size", &key_bytes.to_string(), "--val-size", &value_bytes.to_string()]);
        command.args(["--key-space-size", &writes.to_string()]);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output =
            tokio::time::timeout(RUN_TIME_MAX, command.output()).await.context("etcd's benchmark takes too long")?;
        let output = output.with_context(|| format!("cannot run {}", self.0.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "etcd's benchmark failed: {}", errors.trim());
        told(&text).with_context(|| format!("etcd's benchmark does not say how fast it was: {text}{errors}"))
    }
}

/// Reads what it prints.
fn told(text: &str) -> Option<Told> {
    // Errors are counted under a heading of their own.
    if text.contains("Error distribution") {
        return None;
    }
    let after = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
        line.trim_start_matches(':').split_ascii_whitespace().next()?.parse::<f64>().ok()
    };
    let milliseconds = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
        Some(line.trim().strip_prefix("in ")?.split_ascii_whitespace().next()?.parse::<f64>().ok()? * 1000.0)
    };
    Some(Told { per_second: after("Requests/sec")?, p50_ms: milliseconds("50%")?, p99_ms: milliseconds("99%")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\nSummary:\n  Total:\t13.8111 secs.\n  Slowest:\t0.4 secs.\n  Fastest:\t0.0 secs.\n  Average:\t0.1730 secs.\n  \
                        Stddev:\t0.05 secs.\n  Requests/sec:\t1448.1149\n\nResponse time histogram:\n  0.0146 [1]\t|\n\n\
                        Latency distribution:\n  10% in 0.1197 secs.\n  50% in 0.1661 secs.\n  99% in 0.3413 secs.\n  \
                        99.9% in 0.39 secs.\n";

    #[test]
    fn what_it_prints_is_read() {
        let told = told(TEXT).unwrap();
        assert_eq!(told, Told { per_second: 1448.1149, p50_ms: 166.1, p99_ms: 341.3 });
    }

    #[test]
    fn a_run_with_errors_says_nothing() {
        assert_eq!(told(&format!("{TEXT}\nError distribution:\n  [3]\tetcdserver: too many requests\n")), None);
        assert_eq!(told(""), None);
    }
}
