//! Whether this process may open as many files as a run needs, before it begins.

use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::Load;

/// Descriptors of a thread beside its connections: what its runtime waits with, its timer twice, and room for one resolver.
const OF_A_THREAD: u64 = 8;

/// Descriptors that the program opens meanwhile, for reports and while it looks up names.
const SPARE: u64 = 16;

/// How many a run needs, beside those that are open.
fn needed(load: &Load) -> u64 {
    let streams = if load.keep_alive { 1 } else { u64::from(load.streams.max(1)) };
    u64::from(load.connections) * streams + u64::from(load.threads) * OF_A_THREAD + SPARE
}

/// Sees to it that there are enough: the soft limit is raised as far as the hard one lets it.
///
/// # Errors
/// When the hard limit is too low.
pub(super) fn provide(load: &Load) -> anyhow::Result<()> {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let needed = needed(load) + u64::try_from(open).unwrap_or(0);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read the limit of descriptors")?;
    if let Some(raised) = raise(needed, soft, hard)? {
        setrlimit(Resource::RLIMIT_NOFILE, raised, hard).context("cannot raise the limit of descriptors")?;
    }
    Ok(())
}

/// To what the soft limit has to be raised, if it has to be.
fn raise(needed: u64, soft: u64, hard: u64) -> anyhow::Result<Option<u64>> {
    if needed > hard {
        bail!(
            "this run needs {needed} file descriptors, and the limit is {hard}: raise it (ulimit -n {needed}), or use fewer connections"
        );
    }
    Ok((needed > soft).then_some(needed))
}

#[cfg(test)]
mod tests {
    use super::super::{Message, Peer, parse_url};
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_is_raised_or_told_with_both_numbers() {
        assert_eq!(raise(100, 1024, 4096).unwrap(), None);
        assert_eq!(raise(2000, 1024, 4096).unwrap(), Some(2000));
        let refused = raise(5000, 1024, 4096).unwrap_err().to_string();
        assert!(refused.contains("needs 5000") && refused.contains("the limit is 4096"), "{refused}");
        assert!(refused.contains("ulimit -n 5000"), "{refused}");
    }

    #[test]
    fn streams_without_a_connection_to_share_count_each() {
        let (protocol, uri) = parse_url("http://127.0.0.1:1/", true).unwrap();
        let peer = Peer { address: "127.0.0.1:1".parse().unwrap(), tls: None };
        let load = Load::new(peer, protocol, Message::new(protocol, uri, Vec::new(), 0));
        let shared = Load { connections: 100, streams: 10, ..load };
        let each = Load { keep_alive: false, ..shared.clone() };
        assert_eq!(needed(&each) - needed(&shared), 900);
        assert!(needed(&shared) > 100);
    }
}
