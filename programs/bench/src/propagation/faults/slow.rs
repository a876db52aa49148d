//! Changes beside nodes that read slowly, in turn with changes while the same nodes read as fast as they can.
//!
//! Before each change the service that those nodes watch besides has moved a few times, whether they are slow or not: so
//! they are behind when they are slow, and nothing else differs. They do not count among those whom a change is to reach;
//! at the end they have time to read, as slowly, what is newest.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::super::changes::Change;
use super::super::{Called, Run, Subject};
use super::restless::{Moved, Restless};
use super::together;
use crate::fleet::Among;
use crate::fleet_report::{FleetChange, SlowReaders};

/// Moves of the restless service before each change, spread over the pause.
const MOVES: u32 = 4;

/// Time that nodes have to read everything while they are fast.
const FAST_DEADLINE: Duration = Duration::from_secs(60);

/// Bytes that may be on their way to a slow reader, in sockets, buffers and pending sets, which all have limits. Within
/// the time that it takes to read as many it has the newest state.
const UNDER_WAY_BYTES_MAX: u32 = 256 * 1024;

/// What the change is called that slow readers are to have in the end.
const AT_LAST: &str = "newest state at slow readers";

/// Every TCP connection of this machine over IPv4, and the state of one that is open there.
const CONNECTIONS: &str = "/proc/net/tcp";
const ESTABLISHED: &str = "01";

/// Who reads slowly, and how slowly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Readers {
    pub(super) nodes: u32,
    /// Bytes a second, of each.
    pub(super) rate: NonZeroU32,
}

/// Makes so many changes without and as many with slow readers, in pairs in turn.
///
/// # Errors
/// When a call is refused, the fleet breaks, or nodes that are not slow are not current in time.
pub(super) async fn measure(
    run: &mut Run,
    readers: Readers,
    restless: Restless,
    changes: u32,
) -> anyhow::Result<(SlowReaders, Vec<FleetChange>)> {
    let mut phase = run.progress.phase("changes without and with slow readers", u64::from(changes) * 2);
    let mut trial = Trial { run, readers, restless, seen: None };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    while with.len() < usize::try_from(changes)? {
        for (rate, measured) in [(None, &mut without), (Some(readers.rate), &mut with)] {
            trial.set(rate).await?;
            for change in Change::there_and_back(Subject::Endpoints) {
                measured.push(if rate.is_none() { trial.fast(change).await? } else { trial.slow(change).await? });
                phase.step();
            }
        }
    }
    drop(phase);
    let (late, at_last) = trial.catch_up().await?;
    let seen = trial.end().await?;
    let [p99_ms_without, p99_ms_with] = [&without, &with].map(|changes| together(changes).map(|it| it.p99));
    let found = SlowReaders {
        nodes: readers.nodes,
        bytes_per_second: readers.rate.get(),
        p99_ms_without,
        p99_ms_with,
        p99_ratio: p99_ms_with.zip(p99_ms_without).map(|(with, without)| with / without),
        server_rss_bytes_before: seen.rss_before,
        server_rss_bytes_peak: seen.rss_peak,
        behind_min: seen.behind_min,
        unsent_bytes_max: seen.unsent_max,
        connections_lost: seen.ended,
        caught_up: readers.nodes.saturating_sub(late),
        caught_up_seconds: at_last.latency_ms.filter(|_| late == 0).map(|it| it.max / 1e3),
    };
    Ok((found, without.into_iter().chain(with).chain([at_last]).collect()))
}

struct Trial<'a> {
    run: &'a mut Run,
    readers: Readers,
    restless: Restless,
    /// Once somebody has read slowly.
    seen: Option<Seen>,
}

/// What was seen of the slow readers, and of the server beside them.
#[derive(Debug, Clone, Copy)]
struct Seen {
    rss_before: u64,
    rss_peak: u64,
    behind_min: u32,
    unsent_max: u64,
    /// Connections that had ended before, and in the end those that have since.
    ended: u32,
}

impl Trial<'_> {
    async fn set(&mut self, rate: Option<NonZeroU32>) -> anyhow::Result<()> {
        if rate.is_some() && self.seen.is_none() {
            let rss_before = self.run.servers.resident()?;
            let ended = self.run.crew.look_at_slow(0).await?.ended;
            let (rss_peak, behind_min, unsent_max) = (rss_before, self.readers.nodes, 0);
            self.seen = Some(Seen { rss_before, rss_peak, behind_min, unsent_max, ended });
        }
        self.run.crew.slow(rate).await
    }

    /// A change while nobody is slow.
    async fn fast(&mut self, change: Change) -> anyhow::Result<FleetChange> {
        let moved = self.stir().await?;
        let current = self.run.crew.catch_up(moved.revision, vec![self.restless.expected()], FAST_DEADLINE).await?;
        ensure!(
            current.amiss == 0,
            "{} nodes do not have revision {} within {FAST_DEADLINE:?}, though they read as fast as they can: {}",
            current.amiss,
            moved.revision,
            current.examples.join("; ")
        );
        self.change(change, change.name()).await
    }

    /// A change beside slow readers.
    async fn slow(&mut self, change: Change) -> anyhow::Result<FleetChange> {
        let moved = self.stir().await?;
        self.look(moved.revision).await?;
        let changed = self.change(change, &format!("{} beside slow readers", change.name())).await?;
        self.look(moved.revision).await?;
        Ok(changed)
    }

    /// Gives those nodes that can be slow something to read, and everybody the pause.
    async fn stir(&mut self) -> anyhow::Result<Moved> {
        let mut moved = self.restless.shift(&mut self.run.api).await?;
        for _ in 1..MOVES {
            tokio::time::sleep(self.run.pause() / MOVES).await;
            moved = self.restless.shift(&mut self.run.api).await?;
        }
        tokio::time::sleep(self.run.pause() / MOVES).await;
        Ok(moved)
    }

    async fn change(&mut self, change: Change, kind: &str) -> anyhow::Result<FleetChange> {
        let run = &mut *self.run;
        run.crew.watch().await?;
        let cpu_before = run.servers.cpu_time()?;
        let called = Called::now(&mut run.api, change, &run.upstream).await?;
        let measured = run.outcome(called, kind, Among::Prompt).await?;
        let server_cpu = run.servers.cpu_time()?.saturating_sub(cpu_before);
        Ok(FleetChange { server_cpu_ms: server_cpu.as_secs_f64() * 1e3, ..measured })
    }

    /// Sees how far the slow readers are behind a revision, and what they cost the server.
    async fn look(&mut self, revision: u64) -> anyhow::Result<()> {
        let behind = self.run.crew.look_at_slow(revision).await?.behind;
        let unsent = unsent_bytes(&std::fs::read_to_string(CONNECTIONS)?, self.run.servers.first().agents().port());
        let rss = self.run.servers.resident()?;
        if let Some(seen) = &mut self.seen {
            seen.behind_min = seen.behind_min.min(behind);
            seen.unsent_max = seen.unsent_max.max(unsent);
            seen.rss_peak = seen.rss_peak.max(rss);
        }
        Ok(())
    }

    /// Waits until the slow readers have the newest state, at their own pace; how many have not, and when the others did.
    async fn catch_up(&mut self) -> anyhow::Result<(u32, FleetChange)> {
        let moved = self.restless.shift(&mut self.run.api).await?;
        self.run.progress.say("waiting until the slow readers have the newest state");
        let [_, back] = Change::there_and_back(Subject::Endpoints);
        let expected = vec![self.restless.expected(), back.expected(&self.run.upstream)];
        let within = Duration::from_secs(u64::from(UNDER_WAY_BYTES_MAX / self.readers.rate) + 1);
        let current = self.run.crew.catch_up(moved.revision, expected, within).await?;
        if current.amiss > 0 {
            let examples = current.examples.join("; ");
            self.run
                .progress
                .say(&format!("{} slow readers are still behind {}: {examples}", current.amiss, moved.revision));
        }
        let at_last = FleetChange::new(moved.revision, AT_LAST, current.workloads, &current.latencies_us(moved.since));
        Ok((current.amiss, at_last))
    }

    /// Nobody is slow any more.
    async fn end(self) -> anyhow::Result<Seen> {
        let ended = self.run.crew.look_at_slow(0).await?.ended;
        self.run.crew.slow(None).await?;
        let seen = self.seen.context("nobody has read slowly")?;
        Ok(Seen { ended: ended.saturating_sub(seen.ended), ..seen })
    }
}

/// What the server's sockets at a port hold that is not yet taken by the other end, from the table of proc(5).
fn unsent_bytes(connections: &str, port: u16) -> u64 {
    let of_line = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, _, state, queues) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let (_, local_port) = local.split_once(':')?;
        let (unsent, _) = queues.split_once(':')?;
        let counts = state == ESTABLISHED && u16::from_str_radix(local_port, 16) == Ok(port);
        counts.then(|| u64::from_str_radix(unsent, 16).ok())?
    };
    connections.lines().filter_map(of_line).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_in_the_servers_sockets_is_added_up() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:2137 0100007F:C001 01 00001000:00000000 00:00000000 00000000     0        0 77 1\n   \
                     1: 0100007F:2137 0100007F:C002 01 00000010:00000000 01:00000000 00000000     0        0 78 1\n   \
                     2: 0100007F:2137 00000000:0000 0A 00000400:00000000 00:00000000 00000000     0        0 79 1\n   \
                     3: 0100007F:C001 0100007F:2137 01 00000001:00000000 00:00000000 00000000     0        0 80 1\n";
        assert_eq!(unsent_bytes(table, 0x2137), 0x1010);
        assert_eq!(unsent_bytes(table, 1), 0);
    }
}
