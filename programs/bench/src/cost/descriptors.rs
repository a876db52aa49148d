//! Open files: each connection takes one of the generator, and two of a proxy.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors of a process that are for something else than measured connections.
const OTHERS: u64 = 300;

/// Raises what this process, and those that it starts, may have open as far as it can be, and says why so many connections
/// do not fit if they do not.
pub(super) fn too_few_for(connections: u32) -> Option<String> {
    let needed = needed(connections);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        return complaint(connections, needed, hard);
    }
    complaint(connections, needed, soft)
}

fn needed(connections: u32) -> u64 {
    2 * u64::from(connections) + OTHERS
}

fn complaint(connections: u32, needed: u64, limit: u64) -> Option<String> {
    (needed > limit).then(|| {
        format!(
            "{connections} connections take {needed} open files of a proxy, and {limit} are allowed: raise the limit \
             (`ulimit -Hn` tells it) or measure fewer"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_descriptors_are_told_with_how_many_it_takes() {
        assert_eq!(complaint(64, needed(64), 1024), None);
        let text = complaint(1000, needed(1000), 1024).unwrap();
        assert!(text.contains("2300 open files") && text.contains("1024 are allowed"), "{text}");
    }
}
