//! Packets that are lost between nodes and a server: a table of nftables of this run's own, which drops some at random as
//! they arrive, in both directions. It is removed when the run ends, however it does; if that was by SIGKILL, by the next.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, bail};

use crate::process;

/// Begins the name of every table of ours; the process that made it, and when that was started, are its end.
const PREFIX: &str = "starling_bench_";

/// Where nft is, also for users whose search path is without the administrators' programs.
const PROGRAMS: [&str; 2] = ["nft", "/usr/sbin/nft"];

/// A percent is a hundred of these.
const PARTS: u32 = 10_000;

/// The right to have packets lost: nft is there, and does as it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nft {
    program: &'static str,
}

/// Packets are lost until this is dropped.
#[derive(Debug)]
pub(super) struct PacketLoss {
    nft: Nft,
    table: String,
}

impl Nft {
    /// Looks for nft and for the right to use it, and removes what runs have left that are no more.
    ///
    /// # Errors
    /// When one of them is missing; the text says which, and how to get it.
    pub(super) fn find() -> anyhow::Result<Self> {
        let there = |program: &&str| Command::new(program).arg("--version").output().is_ok();
        let Some(program) = PROGRAMS.into_iter().find(there) else {
            bail!(
                "packet loss needs the program nft, which is not installed (Debian and Ubuntu: apt-get install \
                 nftables); --loss 0 does without"
            );
        };
        let nft = Self { program };
        let tables = nft.run("list tables\n").context(
            "packet loss needs the right to filter packets (root, or the capability CAP_NET_ADMIN); --loss 0 does \
             without",
        )?;
        for table in tables.split_ascii_whitespace().filter(|word| is_left_over(word, process::started)) {
            // Somebody else may have been faster.
            let _ = nft.run(&format!("delete table inet {table}\n"));
        }
        Ok(nft)
    }

    /// From now on so many percent of the packets from and to a port of this machine are lost, if they come over loopback.
    ///
    /// # Errors
    /// When nft refuses.
    pub(super) fn lose(self, percent: f64, port: u16) -> anyhow::Result<PacketLoss> {
        let own = std::process::id();
        let started = process::started(own).context("this process is not in /proc")?;
        let table = format!("{PREFIX}{own}_{started}");
        let loss = PacketLoss { nft: self, table };
        self.run(&script(&loss.table, percent, port)).context("nft does not lose packets")?;
        Ok(loss)
    }

    /// Runs a script; answers what nft printed.
    fn run(self, script: &str) -> anyhow::Result<String> {
        let Output { status, stdout, stderr } =
            self.output(script).with_context(|| format!("cannot run {}", self.program))?;
        if !status.success() {
            bail!("nft said: {}", String::from_utf8_lossy(&stderr).trim());
        }
        Ok(String::from_utf8_lossy(&stdout).into_owned())
    }

    fn output(self, script: &str) -> std::io::Result<Output> {
        let mut command = Command::new(self.program);
        command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(script.as_bytes())?;
        }
        child.wait_with_output()
    }
}

impl PacketLoss {
    /// How many packets were lost so far.
    ///
    /// # Errors
    /// When the table is gone.
    pub(super) fn lost(&self) -> anyhow::Result<u64> {
        let text = self.nft.run(&format!("list table inet {}\n", self.table)).context("packets are no longer lost")?;
        Ok(packets(&text))
    }
}

impl Drop for PacketLoss {
    fn drop(&mut self) {
        if let Err(error) = self.nft.run(&format!("delete table inet {}\n", self.table)) {
            crate::said::note(&format!("the table {} of nftables could not be removed: {error:#}", self.table));
        }
    }
}

/// What nft is told. Packets are dropped as they arrive: one that is not even sent, its sender notices.
fn script(table: &str, percent: f64, port: u16) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage is between 0 and 100")]
    let parts = (percent * f64::from(PARTS / 100)).round() as u32;
    let rule = |direction: &str| {
        format!("iifname \"lo\" tcp {direction} {port} numgen random mod {PARTS} < {parts} counter drop\n")
    };
    format!(
        "table inet {table} {{\nchain arriving {{\ntype filter hook input priority 0; policy accept;\n{}{}}}\n}}\n",
        rule("dport"),
        rule("sport")
    )
}

/// The sum of all counters in a listing.
fn packets(listing: &str) -> u64 {
    let counts = listing.split("counter packets ").skip(1);
    counts.filter_map(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()).sum()
}

/// Whether a table is one of ours whose process is no more; `started` tells when a process that is there was started.
fn is_left_over(table: &str, started: impl Fn(u32) -> Option<u64>) -> bool {
    let owner = table.strip_prefix(PREFIX).and_then(|owner| owner.split_once('_'));
    let owner = owner.and_then(|(id, at)| Some((id.parse().ok()?, at.parse().ok()?)));
    owner.is_some_and(|(id, at): (u32, u64)| started(id) != Some(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_a_share_of_what_arrives_at_and_from_the_port() {
        let text = script("t", 1.0, 8503);
        for rule in ["tcp dport 8503", "tcp sport 8503"] {
            assert!(
                text.contains(&format!("iifname \"lo\" {rule} numgen random mod 10000 < 100 counter drop")),
                "{text}"
            );
        }
        assert!(text.contains("hook input"), "{text}");
        assert!(script("t", 0.25, 1).contains("< 25 "));
    }

    #[test]
    fn counters_are_added_up() {
        let listing = "table inet t {\n chain arriving {\n  tcp dport 1 counter packets 12 bytes 800 drop\n  tcp sport 1 \
                       counter packets 30 bytes 9 drop\n }\n}\n";
        assert_eq!(packets(listing), 42);
        assert_eq!(packets("table inet t {\n}\n"), 0);
    }

    #[test]
    fn only_tables_of_processes_that_are_no_more_are_left_over() {
        let started = |id: u32| (id == 7).then_some(100);
        assert!(is_left_over("starling_bench_8_100", started));
        assert!(is_left_over("starling_bench_7_99", started), "another process has its number now");
        for kept in ["starling_bench_7_100", "starling_bench_x_1", "starling_bench_", "filter", "inet"] {
            assert!(!is_left_over(kept, started), "{kept}");
        }
    }
}
