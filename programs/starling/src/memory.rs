//! The allocator, and what it says about this process's memory.

use starling_telemetry::Registry;
use tikv_jemalloc_ctl::{background_thread, epoch, stats};

/// Gives memory back after a burst, which the system's allocator rarely does. The program's C libraries use it too, by the name
/// of `malloc`: the cryptographic one holds a few KB for every TLS connection.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Adds the metrics of this process's memory. Of what is resident some is free, and of what is allocated some was never
/// written to.
pub(crate) fn register(registry: &Registry) {
    let allocated = || read(stats::allocated::read);
    registry.register_asked("memory_allocated_bytes", "Memory that the process has asked for and not freed", allocated);
    let resident = || read(stats::resident::read);
    registry.register_asked("memory_resident_bytes", "Memory of the allocator that is resident, free or not", resident);
    let metadata = || read(stats::metadata::read);
    registry.register_asked("memory_metadata_bytes", "Memory by which the allocator knows what is whose", metadata);
}

/// A figure of the allocator; those are as of the last advance.
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float, exact up to 8 PiB")]
fn read(figure: fn() -> tikv_jemalloc_ctl::Result<usize>) -> f64 {
    epoch::advance().and_then(|_| figure()).map_or(0.0, |bytes| bytes as f64)
}

/// Has memory that is not used any more given back to the system after a while also by a program that does nothing: without
/// this, the allocator looks after it only when something is allocated.
pub(crate) fn give_back_when_idle() {
    if let Err(error) = background_thread::write(true) {
        tracing::debug!(%error, "unused memory is given back only while the program works");
    }
}

/// Has this thread allocate from the part of memory that the first thread allocates from. Each part costs half a megabyte and
/// more, and is there to keep threads that work from waiting for each other: one that hardly works needs none.
pub(crate) fn share_the_first_arena() {
    // SAFETY: the name is one of the allocator's that ends with a zero, and what is written is of its type, `unsigned`.
    if let Err(error) = unsafe { tikv_jemalloc_ctl::raw::write(b"thread.arena\0", 0_u32) } {
        tracing::debug!(%error, "a thread allocates from a part of memory of its own");
    }
}

/// Where the program's and its libraries' code and constants are in memory, by address and length: whole mappings of files
/// that cannot be written to.
pub(crate) struct Code(Vec<(usize, usize)>);

impl Code {
    /// Looks for it.
    ///
    /// # Errors
    /// If the system does not say.
    pub(crate) fn find() -> std::io::Result<Self> {
        let (mut found, mut mapping) = (Vec::new(), None);
        for line in std::fs::read_to_string("/proc/self/smaps")?.lines() {
            match line.split_once(':') {
                // What was written to is in memory as nobody else has it, or swapped out.
                Some(("Anonymous", size)) if size.trim() != "0 kB" => mapping = None,
                Some(("Swap", size)) => found.extend(mapping.take().filter(|_| size.trim() == "0 kB")),
                Some(_) | None => mapping = code_mapping(line).or(mapping),
            }
        }
        Ok(Self(found))
    }

    /// Lets go of it: what runs is read again, from the system's cache, and what only ran at the start, or in a burst, is not.
    /// Answers with the bytes that were let go of, at most.
    ///
    /// Of a program of 40 MB a proxy that rests needs a few, and each workload may have one.
    pub(crate) fn let_go_of(&self) -> std::io::Result<usize> {
        let mut released = 0;
        for (start, len) in &self.0 {
            let code = std::ptr::with_exposed_provenance_mut(*start);
            // SAFETY: the range is one whole mapping of a file that cannot be written to, and none of its pages had been written
            // to before that could be said of it: it holds the file's bytes, and read again they are the same.
            unsafe { rustix::mm::madvise(code, *len, rustix::mm::Advice::LinuxDontNeed) }?;
            released += len;
        }
        Ok(released)
    }
}

/// Start and length of a mapping of a file that cannot be written to, if the line is the head of one.
fn code_mapping(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights) = (words.next()?, words.next()?);
    let is_code = matches!(rights, "r-xp" | "r--p") && words.nth(3)?.starts_with('/');
    let (start, end) = range.split_once('-').filter(|_| is_code)?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    Some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_was_let_go_of_still_runs() {
        let code = Code::find().expect("/proc/self/smaps");
        for _ in 0..2 {
            assert!(code.let_go_of().expect("it is mapped") > 1 << 20);
        }
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
