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

#[cfg(test)]
mod tests {
    use super::*;

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
