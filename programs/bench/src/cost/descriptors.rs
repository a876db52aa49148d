//! Open files: each connection takes one of the generator, and two of a proxy.

use nix::sys::resource::{Resource, getrlimit};

/// Descriptors of a process that are for something else than measured connections.
const OTHERS: u64 = 300;

/// Says why so many connections do not fit into what this process, and those that it starts, may have open, if they do not.
/// That is as much as can be had: the program has raised the limit as it began.
pub(super) fn too_few_for(connections: u32) -> Option<String> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    complaint(connections, needed(connections), limit)
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
