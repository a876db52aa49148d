//! Control groups: how much CPU time and memory a process may have, held to by the kernel.
//!
//! A group has one process, and is made below the group of this program: in version 1 in the hierarchies of the controllers
//! `cpu` and `memory`, in version 2 in the one hierarchy there is, as near as both controllers are to be had. Where a group may
//! be made and what its files hold is here; which process is limited when is the scenario's matter.
//!
//! Source: Linux, Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst, and Documentation/scheduler/sched-bwc.rst.

mod place;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::mesh::is_left_over;
use crate::process;
use place::Place;

/// What a quota of CPU time is of: Kubernetes' period, so that what is throttled waits as long as it would there.
const PERIOD: Duration = Duration::from_millis(100);

/// Begins the name of a group; the process whose it is, when that was started, and its own name follow.
const PREFIX: &str = "starling-bench-";

/// A group goes once the kernel has taken a killed process out of it, which is within this.
const EMPTY_WITHIN: Duration = Duration::from_secs(2);

/// Between two attempts at that.
const PAUSE: Duration = Duration::from_millis(5);

/// What to do where groups cannot be made.
const HOW_TO_GET: &str = "run as root where /sys/fs/cgroup can be written and has the controllers cpu and memory; in a \
                          container that is one with --privileged and --cgroupns=host";

/// What a process may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limits {
    /// CPU time in its time.
    pub(crate) cores: f64,
    /// In 2^20 bytes.
    pub(crate) memory_mib: u32,
}

/// Where groups are made.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    place: Place,
    /// Begins all names.
    prefix: String,
}

/// A group; it goes when it is dropped, for which its process has to have ended.
#[derive(Debug)]
pub(crate) struct Cgroup {
    files: Files,
    limits: Option<Limits>,
}

/// The folders of a group.
#[derive(Debug)]
enum Files {
    One { cpu: PathBuf, memory: PathBuf },
    Two(PathBuf),
}

impl Cgroups {
    /// Finds where this program may make groups, and removes those of runs that were killed.
    ///
    /// # Errors
    /// When there is no such place, with what to do.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let own = std::process::id();
        let started = process::started(own).context("this process is not in /proc")?;
        let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
        let places = place::places(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        let mut refusals = Vec::new();
        for place in places {
            let groups = Self { place, prefix: format!("{PREFIX}{own}-{started}-") };
            groups.remove_left_over();
            match groups.attempt() {
                Ok(()) => return Ok(groups),
                Err(error) => refusals.push(error),
            }
        }
        let best = refusals.into_iter().next();
        let error = best.unwrap_or_else(|| anyhow::anyhow!("no cgroup with the controllers cpu and memory is mounted"));
        Err(error.context(format!("no CPU time and memory can be limited here: {HOW_TO_GET}")))
    }

    /// Whether a group can be made here that does what it should.
    fn attempt(&self) -> anyhow::Result<()> {
        let mut group = self.make("attempt")?;
        group.limit(Some(Limits { cores: 1.0, memory_mib: 1024 }))?;
        group.throttled().map(|_| ())
    }

    /// Makes a group without limits.
    ///
    /// # Errors
    /// When it may not be made, or a controller is not to be had in it.
    pub(crate) fn make(&self, name: &str) -> anyhow::Result<Cgroup> {
        let name = format!("{}{name}", self.prefix);
        let make = |folder: PathBuf| -> anyhow::Result<PathBuf> {
            std::fs::create_dir(&folder).with_context(|| format!("cannot make the cgroup {}", folder.display()))?;
            Ok(folder)
        };
        let files = match &self.place {
            Place::One { cpu, memory } => {
                let cpu = make(cpu.join(&name))?;
                let made = make(memory.join(&name));
                // Half a group is none.
                let memory = made.inspect_err(|_| remove(&cpu))?;
                Files::One { cpu, memory }
            }
            Place::Two(folder) => {
                write(&folder.join("cgroup.subtree_control"), "+cpu +memory")?;
                Files::Two(make(folder.join(&name))?)
            }
        };
        let group = Cgroup { files, limits: None };
        group.forbid_swap();
        Ok(group)
    }

    /// Groups of a process that is no more are empty, and nobody else's to remove.
    fn remove_left_over(&self) {
        let folders = match &self.place {
            Place::One { cpu, memory } => vec![cpu, memory],
            Place::Two(folder) => vec![folder],
        };
        for entry in folders.into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| is_left_over(name, PREFIX, process::started)) {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }
}

impl Cgroup {
    /// Takes a process in, with all its threads. What it had of memory before stays another group's, so it should just have
    /// been started.
    ///
    /// # Errors
    /// When it is gone, or may not be moved.
    pub(crate) fn take(&self, process: u32) -> anyhow::Result<()> {
        let folders = match &self.files {
            Files::One { cpu, memory } => vec![cpu, memory],
            Files::Two(folder) => vec![folder],
        };
        folders.into_iter().try_for_each(|folder| write(&folder.join("cgroup.procs"), &process.to_string()))
    }

    /// Holds its process to limits from now on, or to none.
    ///
    /// # Errors
    /// When it has more memory than it may have.
    pub(crate) fn limit(&mut self, limits: Option<Limits>) -> anyhow::Result<()> {
        if let Some(Limits { memory_mib, .. }) = limits {
            let (held, limit) = (self.memory_that_stays()?, u64::from(memory_mib) << 20);
            if held >= limit {
                let held = held.div_ceil(1 << 20);
                bail!("it cannot be held to {memory_mib} MiB of memory: it has {held} MiB already");
            }
        }
        let memory = limits.map(|limits| u64::from(limits.memory_mib) << 20);
        let quota = limits.map(|limits| PERIOD.mul_f64(limits.cores).as_micros());
        let period = PERIOD.as_micros();
        match &self.files {
            Files::One { cpu, memory: folder } => {
                let memory = memory.map_or_else(|| "-1".to_owned(), |it| it.to_string());
                write(&folder.join("memory.limit_in_bytes"), &memory)?;
                write(&cpu.join("cpu.cfs_period_us"), &period.to_string())?;
                write(&cpu.join("cpu.cfs_quota_us"), &quota.map_or_else(|| "-1".to_owned(), |it| it.to_string()))?;
            }
            Files::Two(folder) => {
                let memory = memory.map_or_else(|| "max".to_owned(), |it| it.to_string());
                write(&folder.join("memory.max"), &memory)?;
                let quota = quota.map_or_else(|| "max".to_owned(), |it| it.to_string());
                write(&folder.join("cpu.max"), &format!("{quota} {period}"))?;
            }
        }
        self.limits = limits;
        Ok(())
    }

    /// For how long it was not let run since it was made, on each core by itself.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub(crate) fn throttled(&self) -> anyhow::Result<Duration> {
        match &self.files {
            Files::One { cpu, .. } => Ok(Duration::from_nanos(field(&cpu.join("cpu.stat"), "throttled_time")?)),
            Files::Two(folder) => Ok(Duration::from_micros(field(&folder.join("cpu.stat"), "throttled_usec")?)),
        }
    }

    /// The limit of memory for which the kernel has killed its process, if it has.
    pub(crate) fn killed_at(&self) -> Option<u32> {
        let kills = match &self.files {
            Files::One { memory, .. } => field(&memory.join("memory.oom_control"), "oom_kill"),
            Files::Two(folder) => field(&folder.join("memory.events"), "oom_kill"),
        };
        self.limits.filter(|_| kills.is_ok_and(|kills| kills > 0)).map(|limits| limits.memory_mib)
    }

    /// Memory that can only be had back from its process, in bytes.
    fn memory_that_stays(&self) -> anyhow::Result<u64> {
        match &self.files {
            Files::One { memory, .. } => field(&memory.join("memory.stat"), "rss"),
            Files::Two(folder) => field(&folder.join("memory.stat"), "anon"),
        }
    }

    /// As in Kubernetes; a kernel without swap has no such files.
    fn forbid_swap(&self) {
        let _ = match &self.files {
            Files::One { memory, .. } => write(&memory.join("memory.swappiness"), "0"),
            Files::Two(folder) => write(&folder.join("memory.swap.max"), "0"),
        };
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        match &self.files {
            Files::One { cpu, memory } => [cpu, memory].into_iter().for_each(|folder| remove(folder)),
            Files::Two(folder) => remove(folder),
        }
    }
}

/// Removes a group; its process was killed, and may not have left it yet.
fn remove(folder: &Path) {
    let deadline = Instant::now() + EMPTY_WITHIN;
    while let Err(error) = std::fs::remove_dir(folder) {
        let is_held = error.kind() == std::io::ErrorKind::ResourceBusy;
        if !is_held || Instant::now() > deadline {
            break;
        }
        std::thread::sleep(PAUSE);
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {text:?} to {}", path.display()))
}

/// A number by its name, in a file of lines with both.
fn field(path: &Path, name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
    value.with_context(|| format!("{} does not tell {name}", path.display()))
}

#[cfg(test)]
mod tests;
