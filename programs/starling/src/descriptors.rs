//! File descriptors: how many this process may have, and how many connections each door may hold with them.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use starling_http_api::Places;

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
    /// The HTTP API, whose callers may be few or, waiting for changes, very many.
    pub(crate) http: Places,
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
        Self { http: Places::of(others / 2), grpc: 0, grpc_tls: (files - others).min(RELAY_CONNECTIONS_MAX) }
    }

    /// A quarter of the descriptors for each of two doors, and of what they leave over more for the API; the last quarter is for checks,
    /// DNS and files.
    fn of(files: u64) -> Self {
        let quarter = usize::try_from(files / 4).unwrap_or(usize::MAX);
        let grpc = quarter.min(starling_rpc::CONNECTIONS_MAX);
        Self { http: api(files), grpc, grpc_tls: grpc }
    }

    /// Three quarters of the descriptors for agents, and what they leave over for the API.
    fn of_server(files: u64) -> Self {
        let eighth = usize::try_from(files / 8).unwrap_or(usize::MAX);
        Self { http: api(files), grpc: 0, grpc_tls: eighth.saturating_mul(6).min(starling_rpc::CONNECTIONS_MAX) }
    }
}

/// Nine sixteenths of the descriptors, as long as another eighth is free: so many may wait for changes where agents are few, and the
/// doors of agents and proxies never find none.
fn api(files: u64) -> Places {
    let connections = usize::try_from(files / 16 * 9).unwrap_or(usize::MAX);
    let descriptors = i32::try_from(files / 8 * 7).unwrap_or(i32::MAX);
    Places { connections: connections.min(starling_http_api::limits::CONNECTIONS_MAX), descriptors }
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
            assert!((grpc + grpc_tls) as u64 <= files / 2, "{files}: {grpc} and {grpc_tls}");
            assert!(http.connections >= 64 && grpc >= 64 && grpc_tls >= 64, "{files}: {http:?}, {grpc} and {grpc_tls}");
            assert!(u64::from(http.descriptors.unsigned_abs()) <= files / 8 * 7, "{files}: {http:?}");
            let server = Shares::of_server(files);
            assert!(server.grpc_tls as u64 <= files / 4 * 3 && server.http == http, "{files}: {server:?}");
            let relay = Shares::of_relay(files);
            assert!(((relay.http.connections + relay.grpc_tls) as u64) < files, "{files}: {relay:?}");
        }
        let http = Places { connections: 16_384, descriptors: 7 << 17 };
        assert_eq!(Shares::of(1 << 20), Shares { http, grpc: 16_384, grpc_tls: 16_384 });
        assert_eq!(Shares::of_relay(20_000), Shares { http: Places::of(256), grpc: 0, grpc_tls: 19_488 });
        let http = Places { connections: 11_250, descriptors: 17_500 };
        assert_eq!(Shares::of_server(20_000), Shares { http, grpc: 0, grpc_tls: 15_000 });
    }
}
