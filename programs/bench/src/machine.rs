//! The machine a report was measured on: without it, a figure says nothing.

use serde::{Deserialize, Serialize};

/// Processor, memory, kernel and time of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Instruction set, such as `x86_64`.
    pub cpu: String,
    /// The processor's own name.
    pub model: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Memory of the machine, in bytes.
    pub memory: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// When this was read: UTC, RFC 3339, whole seconds.
    pub date: String,
}

impl Machine {
    /// Reads what this machine says of itself; what it does not say is `unknown` or 0.
    pub fn read() -> Self {
        let file = |path| std::fs::read_to_string(path).unwrap_or_default();
        let now = jiff::Timestamp::now();
        Self {
            cpu: std::env::consts::ARCH.to_owned(),
            model: cpu_model(&file("/proc/cpuinfo")).unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory: memory_total(&file("/proc/meminfo")).unwrap_or(0),
            kernel: kernel(&file("/proc/sys/kernel/osrelease")),
            date: now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let Self { cpu, model, cores, memory, kernel, date } = self;
        let gib = *memory >> 30;
        format!("{model} ({cpu}), {cores} cores, {gib} GiB, kernel {kernel}, {date}")
    }
}

/// The first processor's name in the text of `/proc/cpuinfo`; arm64 kernels do not give one.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    field(cpuinfo, "model name").or_else(|| field(cpuinfo, "Model")).map(str::to_owned)
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn memory_total(meminfo: &str) -> Option<u64> {
    let kibibytes: u64 = field(meminfo, "MemTotal")?.strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn kernel(osrelease: &str) -> String {
    let release = osrelease.trim();
    if release.is_empty() { "unknown".to_owned() } else { release.to_owned() }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim()).filter(|value| !value.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processor_names_the_model() {
        let cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC 7B13\n\nprocessor\t: 1\nmodel name\t: other\n";
        assert_eq!(cpu_model(cpuinfo).as_deref(), Some("AMD EPYC 7B13"));
        assert_eq!(cpu_model("processor\t: 0\nBogoMIPS\t: 50.00\n"), None);
    }

    #[test]
    fn memory_is_in_bytes() {
        let meminfo = "MemTotal:       24684648 kB\nMemFree:        20900412 kB\n";
        assert_eq!(memory_total(meminfo), Some(24_684_648 * 1024));
        assert_eq!(memory_total("MemTotal: lots\n"), None);
    }

    #[test]
    fn a_machine_without_proc_is_unknown() {
        assert_eq!(kernel(""), "unknown");
        assert_eq!(kernel("6.1.0-18-amd64\n"), "6.1.0-18-amd64");
    }

    #[test]
    fn the_date_is_rfc_3339() {
        let date = Machine::read().date;
        assert!(date.parse::<jiff::Timestamp>().is_ok(), "{date}");
    }
}
