//! File descriptors: how many this process may have, and how many connections each door may hold with them.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that are asked for at most. Children inherit the limit, and some of them visit every number below it.
const LIMIT_MAX: u64 = 1 << 20;

/// Descriptors of a relay that are for something else than streams of agents.
const RELAY_DESCRIPTORS: usize = 512;

/// Streams of agents at one relay, where descriptors allow as many: memory is the limit then, some 40 KB each.
const RELAY_CONNECTIONS_MAX: usize = 100_000;

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
    /// xDS in plaintext.
    pub(crate) grpc: usize,
    /// Agents, and xDS over TLS.
    pub(crate) grpc_tls: usize,
}

impl Shares {
    /// Within the limit of this process as it is now, where every door is as likely to be used as the next.
    pub(crate) fn here() -> anyhow::Result<Self> {
        Ok(Self::of(limit()?))
    }

    /// The same for a server without an agent: most are for agents, which are many.
    pub(crate) fn of_server_here() -> anyhow::Result<Self> {
        Ok(Self::of_server(limit()?))
    }

    /// The same for a relay, which does little but to hold streams.
    pub(crate) fn of_relay_here() -> anyhow::Result<Self> {
        Ok(Self::of_relay(limit()?))
    }

    /// All but what its own streams, its files and a few callers of its pages take.
    fn of_relay(files: u64) -> Self {
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let others = RELAY_DESCRIPTORS.min(files / 4);
        Self { http: others / 2, grpc: 0, grpc_tls: (files - others).min(RELAY_CONNECTIONS_MAX) }
    }

    /// A quarter of the descriptors for each of three doors; the last quarter is for checks, DNS and files.
    fn of(files: u64) -> Self {
        let quarter = usize::try_from(files / 4).unwrap_or(usize::MAX);
        let grpc = quarter.min(starling_rpc::CONNECTIONS_MAX);
        Self { http: quarter.min(starling_http_api::limits::CONNECTIONS_MAX), grpc, grpc_tls: grpc }
    }

    /// Three quarters of the descriptors for agents, and an eighth for the API.
    fn of_server(files: u64) -> Self {
        let eighth = usize::try_from(files / 8).unwrap_or(usize::MAX);
        Self {
            http: eighth.min(starling_http_api::limits::CONNECTIONS_MAX),
            grpc: 0,
            grpc_tls: eighth.saturating_mul(6).min(starling_rpc::CONNECTIONS_MAX),
        }
    }
}

fn limit() -> anyhow::Result<u64> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_never_take_every_descriptor() {
        for files in [256, 1_024, 4_096, 65_536, 1 << 20] {
            let Shares { http, grpc, grpc_tls } = Shares::of(files);
            assert!((http + grpc + grpc_tls) as u64 <= files / 4 * 3, "{files}: {http}, {grpc} and {grpc_tls}");
            assert!(http >= 64 && grpc >= 64 && grpc_tls >= 64, "{files}: {http}, {grpc} and {grpc_tls}");
            let server = Shares::of_server(files);
            assert!((server.http + server.grpc_tls) as u64 <= files / 8 * 7, "{files}: {server:?}");
            let relay = Shares::of_relay(files);
            assert!(((relay.http + relay.grpc_tls) as u64) < files, "{files}: {relay:?}");
        }
        assert_eq!(Shares::of(1 << 20), Shares { http: 8_192, grpc: 16_384, grpc_tls: 16_384 });
        assert_eq!(Shares::of_relay(20_000), Shares { http: 256, grpc: 0, grpc_tls: 19_488 });
        assert_eq!(Shares::of_server(20_000), Shares { http: 2_500, grpc: 0, grpc_tls: 15_000 });
    }
}
