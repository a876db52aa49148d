//! The allocator, and what it says about this process's memory.

use starling_telemetry::Registry;
use tikv_jemalloc_ctl::{epoch, stats};

/// Gives memory back after a burst, which the system's allocator rarely does.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Adds the metric of this process's memory. It tells what is held; of what is resident some is free, and of what is held
/// some was never written to.
pub(crate) fn register(registry: &Registry) {
    // The figures are as of the last advance.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float, exact up to 8 PiB")]
    let allocated = || epoch::advance().and_then(|_| stats::allocated::read()).map_or(0.0, |bytes| bytes as f64);
    registry.register_asked("memory_allocated_bytes", "Memory that the process has asked for and not freed", allocated);
}

/// Lets go of the program's code in memory: what runs is read again, from the system's cache, and what only ran at the start
/// is not. Answers with the bytes that were let go of, at most.
///
/// Of a program of 40 MB a proxy that rests needs a few hundred kilobytes, and each workload may have one.
pub(crate) fn let_go_of_code() -> std::io::Result<usize> {
    let program = std::env::current_exe()?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut released = 0;
    for line in maps.lines().filter(|line| line.ends_with(&*program.to_string_lossy())) {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some("r-xp")) = (words.next(), words.next()) else { continue };
        let bounds = range.split_once('-').map(|(start, end)| [start, end].map(|text| usize::from_str_radix(text, 16)));
        let Some([Ok(start), Ok(end)]) = bounds else { continue };
        let code = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the range is one whole mapping of the program's file that is executable and not writable, so it holds the
        // file's bytes and nothing else; read again, they are the same. A program that was replaced on disk keeps its file.
        unsafe { rustix::mm::madvise(code, end - start, rustix::mm::Advice::LinuxDontNeed) }?;
        released += end - start;
    }
    Ok(released)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_was_let_go_of_still_runs() {
        assert!(let_go_of_code().expect("/proc/self/maps") > 1 << 20);
        let numbers: Vec<_> = (0..100).rev().collect();
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().rev().eq(&numbers));
    }

    #[test]
    fn what_is_allocated_is_counted() {
        let registry = Registry::default();
        register(&registry);
        let allocated = || -> f64 {
            let text = registry.encode();
            let line = text.lines().find_map(|line| line.strip_prefix("starling_memory_allocated_bytes "));
            line.expect("the metric").parse().expect("a number")
        };
        let before = allocated();
        let block = vec![1_u8; 64 << 20];
        assert!(allocated() - before > 60e6, "{before} and then {}", allocated());
        drop(block);
        assert!(allocated() - before < 30e6, "{before} and then {}", allocated());
    }
}
