//! File descriptors: how many this process may have, and how many connections each door may hold with them.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that are asked for at most. Children inherit the limit, and some of them visit every number below it.
const LIMIT_MAX: u64 = 1 << 20;

/// Raises the limit to what the system lets this process have. The usual one of 1,024 is for programs that use `select`.
pub(crate) fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| match soft.max(hard.min(LIMIT_MAX)) {
        wanted if wanted > soft => setrlimit(Resource::RLIMIT_NOFILE, wanted, hard),
        _ => Ok(()),
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}

/// Connections that each door holds at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    /// The HTTP API.
    pub(crate) http: usize,
    /// xDS, in plaintext and over TLS each.
    pub(crate) grpc: usize,
}

impl Shares {
    /// Within the limit of this process as it is now.
    pub(crate) fn here() -> anyhow::Result<Self> {
        let (files, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
        Ok(Self::of(files))
    }

    /// A quarter of the descriptors for each of three doors; the last quarter is for checks, DNS and files.
    fn of(files: u64) -> Self {
        let quarter = usize::try_from(files / 4).unwrap_or(usize::MAX);
        Self {
            http: quarter.min(starling_http_api::limits::CONNECTIONS_MAX),
            grpc: quarter.min(starling_rpc::CONNECTIONS_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_never_take_every_descriptor() {
        for files in [256, 1_024, 4_096, 65_536, 1 << 20] {
            let Shares { http, grpc } = Shares::of(files);
            assert!((http + 2 * grpc) as u64 <= files / 4 * 3, "{files}: {http} and twice {grpc}");
            assert!(http >= 64 && grpc >= 64, "{files}: {http} and {grpc}");
        }
        assert_eq!(Shares::of(1 << 20), Shares { http: 8_192, grpc: 16_384 });
    }
}
