//! File descriptors: how many this process may have. How they are shared out is decided in `core/admission`.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use starling_admission::shares::{Ceilings, Share, Shares};

/// Descriptors that are asked for at most. Children inherit the limit, and some of them visit every number below it.
const LIMIT_MAX: u64 = 1 << 20;

/// Streams of agents at one relay, where descriptors allow as many: memory is the limit then, some 40 KB each.
const RELAY_CONNECTIONS_MAX: usize = 100_000;

/// Connections of each part where descriptors are plentiful.
const MAX: Ceilings = Ceilings {
    http: starling_http_api::limits::CONNECTIONS_MAX,
    grpc: starling_rpc::CONNECTIONS_MAX,
    relay: RELAY_CONNECTIONS_MAX,
};

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

/// What each part of a process with an agent may use of the descriptors that there are.
pub(crate) fn of_agent() -> anyhow::Result<Shares> {
    Ok(Shares::of_agent(limit()?, MAX))
}

/// What each part of a server without an agent may use.
pub(crate) fn of_server() -> anyhow::Result<Shares> {
    Ok(Shares::of_server(limit()?, MAX))
}

/// What each part of a relay may use.
pub(crate) fn of_relay() -> anyhow::Result<Shares> {
    Ok(Shares::of_relay(limit()?, MAX))
}

/// What the data plane may use in a process of its own.
pub(crate) fn of_proxy() -> anyhow::Result<Share> {
    Ok(Shares::of_proxy(limit()?))
}

fn limit() -> anyhow::Result<u64> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?.0)
}
