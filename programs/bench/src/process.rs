//! What a process has used: CPU time and memory, from `/proc`.

use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

/// Ticks per second in `/proc/PID/stat`: Linux's `USER_HZ`, which is 100 on every architecture that Rust's standard
/// library supports there.
const TICKS_PER_SECOND: u64 = 100;

/// Memory of a process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    /// Resident, with pages that other processes have, too.
    pub(crate) resident: u64,
    /// Resident, with shared pages divided by the number of their users.
    pub(crate) proportional: u64,
}

/// CPU time a process has used, user and system, all threads. It moves in steps of 10 ms.
///
/// # Errors
/// When the process is gone or not ours to look at.
pub(crate) fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse_stat(&text).with_context(|| format!("{path} is not as proc(5) describes it"))
}

/// CPU time that the threads of a process have used, to the nanosecond; of threads that have ended it knows nothing. Falls
/// back to [`cpu_time`] where the kernel does not count so finely.
///
/// # Errors
/// As for [`cpu_time`].
pub(crate) fn cpu_time_of_threads(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/task");
    let threads = std::fs::read_dir(&path).with_context(|| format!("cannot read {path}"))?;
    let of = |thread: std::fs::DirEntry| {
        // One that has just ended has no file any more.
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        parse_schedstat(&text)
    };
    let used: Duration = threads.flatten().filter_map(of).sum();
    if used.is_zero() { cpu_time(pid) } else { Ok(used) }
}

/// The first field, in nanoseconds.
fn parse_schedstat(text: &str) -> Option<Duration> {
    text.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Memory of a process now.
///
/// # Errors
/// When the process is gone or not ours to look at.
pub(crate) fn memory(pid: u32) -> anyhow::Result<Memory> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse_smaps_rollup(&text).with_context(|| format!("{path} is not as proc(5) describes it"))
}

/// Resident memory of a process now, in bytes. Costs the process nothing, unlike [`memory`], which holds it up while its
/// pages are counted.
///
/// # Errors
/// When the process is gone or not ours to look at.
pub(crate) fn resident(pid: u32) -> anyhow::Result<u64> {
    status_bytes(pid, "VmRSS")
}

/// The most resident memory that a process ever had, in bytes.
///
/// # Errors
/// As for [`resident`].
pub(crate) fn resident_peak(pid: u32) -> anyhow::Result<u64> {
    status_bytes(pid, "VmHWM")
}

/// CPU time that all processes of the machine have used, in steps of 10 ms; time that a hypervisor gave to others is none.
///
/// # Errors
/// When the kernel does not tell.
pub(crate) fn machine_cpu_time() -> anyhow::Result<Duration> {
    let path = "/proc/stat";
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    parse_machine_stat(&text).with_context(|| format!("{path} is not as proc(5) describes it"))
}

/// `user`, `nice`, `system`, then `irq` and `softirq` behind `idle` and `iowait`.
fn parse_machine_stat(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let ticks: u64 = [0, 1, 2, 5, 6].into_iter().map(|place| fields.get(place)).sum::<Option<u64>>()?;
    Some(Duration::from_millis(ticks.checked_mul(1000 / TICKS_PER_SECOND)?))
}

/// When a process was started, in ticks since the machine was; `None` if there is none of this number. Together with the
/// number it names a process for good.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    fields_after_name(&text)?.nth(19)?.parse().ok()
}

fn status_bytes(pid: u32, field: &str) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    field_bytes(&text, field).with_context(|| format!("{path} is not as proc(5) describes it"))
}

/// The fields from the third on. The second is the program's name, which may hold spaces and brackets.
fn fields_after_name(text: &str) -> Option<impl Iterator<Item = &str>> {
    Some(text.rsplit_once(')')?.1.split_ascii_whitespace())
}

/// Fields 14 and 15, `utime` and `stime`.
fn parse_stat(text: &str) -> Option<Duration> {
    let mut fields = fields_after_name(text)?.skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let ticks = user.checked_add(system)?;
    Some(Duration::from_millis(ticks.checked_mul(1000 / TICKS_PER_SECOND)?))
}

fn parse_smaps_rollup(text: &str) -> Option<Memory> {
    Some(Memory { resident: field_bytes(text, "Rss")?, proportional: field_bytes(text, "Pss")? })
}

/// A figure in kB.
fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_user_and_system_also_behind_an_odd_name() {
        let stat = "4242 (tokio) (worker 1) S 1 4242 4242 0 -1 4194560 5021 0 3 0 731 269 0 0 20 0 9 0 1234 0 0";
        assert_eq!(parse_stat(stat), Some(Duration::from_secs(10)));
    }

    #[test]
    fn a_cut_off_stat_is_refused() {
        assert_eq!(parse_stat("4242 (starling) S 1 4242"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn the_machine_is_busy_with_all_but_waiting() {
        let stat = "cpu  100 20 30 4000 500 6 7 80 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(parse_machine_stat(stat), Some(Duration::from_millis(1630)));
        assert_eq!(parse_machine_stat("cpu  1 2 3\n"), None);
        assert!(machine_cpu_time().is_ok_and(|used| !used.is_zero()));
    }

    #[test]
    fn memory_is_resident_and_proportional() {
        let rollup = "55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss:               10240 kB\nPss:                5120 kB\n\
                      Pss_Dirty:          2048 kB\n";
        assert_eq!(parse_smaps_rollup(rollup), Some(Memory { resident: 10 << 20, proportional: 5 << 20 }));
        assert_eq!(parse_smaps_rollup("Rss: 12 kB\n"), None);
    }

    #[test]
    fn threads_are_counted_finely() {
        assert_eq!(parse_schedstat("1234567890 4 5\n"), Some(Duration::from_nanos(1_234_567_890)));
        assert_eq!(parse_schedstat(""), None);
        let begun = cpu_time_of_threads(std::process::id()).unwrap();
        let mut sum = 0_u64;
        while cpu_time_of_threads(std::process::id()).unwrap() == begun {
            sum = std::hint::black_box(sum + 1);
        }
    }

    #[test]
    fn this_process_has_memory() {
        let own = memory(std::process::id()).unwrap();
        assert!(own.resident > 0 && own.proportional <= own.resident, "{own:?}");
        assert!(cpu_time(std::process::id()).is_ok());
        let (now, peak) = (resident(std::process::id()).unwrap(), resident_peak(std::process::id()).unwrap());
        assert!(now > 0 && peak > 0);
        let (own, first) = (started(std::process::id()).unwrap(), started(1).unwrap());
        assert!(own > first, "{own} is not after {first}");
        assert_eq!(started(u32::MAX), None);
    }
}
