//! What the programs that run on have in common: `dev`, `server` and `agent` are put together from these.
//!
//! | Module | Owns |
//! |---|---|
//! | [`control`] | a server with everything that it serves |
//! | [`catalog`], [`local_agent`] | server and agent as the HTTP API sees them |
//! | [`definitions`] | the files of `--config-dir` |
//! | [`doors`] | sockets |
//! | [`serving`] | what runs until the end, and the end |

pub(crate) mod arguments;
pub(crate) mod catalog;
pub(crate) mod control;
mod cut_off;
pub(crate) mod definitions;
pub(crate) mod dns_for_agents;
mod dns_reader;
pub(crate) mod doors;
pub(crate) mod http_doors;
mod interrupts;
pub(crate) mod listeners;
pub(crate) mod local_agent;
pub(crate) mod node;
pub(crate) mod own_tokens;
mod peers;
pub(crate) mod proxies_door;
pub(crate) mod reload;
pub(crate) mod script_checks;
mod server_certificate;
pub(crate) mod serving;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

pub(crate) use interrupts::{Interrupt, Interrupts, STOP_WITHIN};
pub(crate) use serving::Serving;
use starling_proxy::Engine;
use starling_server::AuthorityConfig;
use starling_tls::SealKeys;
use starling_vault::{VaultConfig, VaultPki};
use tokio::time::{Instant, sleep};

use crate::outcome::usage;

/// Time for requests to come to their end in a process that does more than to serve them.
const DRAINED_WITHIN: Duration = Duration::from_millis(2500);

/// Between two looks at whether connections are left.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Time for access logs to be written and spans to be sent at the end; [`STOP_WITHIN`] is for more than that.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// A program that runs until it fails or is interrupted.
pub(crate) trait Role {
    /// Whether a start that is interrupted is let finish: it writes where something is removed next.
    const FINISHES_START: bool;

    /// How long the end may take longer for what a request to end entails beyond it.
    const ASKED_WITHIN: Duration = Duration::ZERO;

    /// Serves until something fails.
    async fn serve(&mut self) -> anyhow::Result<()>;

    /// Does what such a request to end entails beyond the end, and takes [`Self::ASKED_WITHIN`] for it at most.
    async fn asked_to_end(&mut self, by: Interrupt) {
        let _ = by;
    }

    /// Ends in order.
    async fn stop(self);
}

/// Ends a data plane: requests under way are finished, as far as they do not take long.
pub(crate) async fn drain(engine: &Engine) {
    engine.drain().await;
    if drained(engine, DRAINED_WITHIN).await > 0 {
        tracing::warn!("requests are cut off that take longer than {DRAINED_WITHIN:?}");
    }
    finish(engine).await;
}

/// Waits until no connection is left, but not for longer than `within`; answers with how many are.
pub(crate) async fn drained(engine: &Engine, within: Duration) -> usize {
    let until = Instant::now() + within;
    loop {
        let standing = engine.standing().await;
        if standing == 0 || Instant::now() > until {
            return standing;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Ends a data plane that serves nobody any more, with what it has still to tell.
pub(crate) async fn finish(engine: &Engine) {
    if !engine.finish(TOLD_WITHIN).await {
        tracing::warn!("lines of the access log or spans are left behind after {TOLD_WITHIN:?}");
    }
}

/// Starts a program, and runs it until it fails or is interrupted.
pub(crate) async fn run<R: Role>(
    interrupts: Interrupts,
    starting: impl Future<Output = anyhow::Result<R>>,
) -> anyhow::Result<()> {
    run_within(interrupts, STOP_WITHIN, starting).await
}

/// The same, with so much time for an orderly end.
pub(crate) async fn run_within<R: Role>(
    mut interrupts: Interrupts,
    stop_within: Duration,
    starting: impl Future<Output = anyhow::Result<R>>,
) -> anyhow::Result<()> {
    let mut starting = pin!(starting);
    let mut running = tokio::select! {
        started = &mut starting => started?,
        _ = interrupts.next() => {
            if R::FINISHES_START {
                interrupts.bound(stop_within, starting).await;
            }
            return Ok(());
        }
    };
    let (outcome, asked) = tokio::select! {
        outcome = running.serve() => (outcome, None),
        by = interrupts.next() => (Ok(()), Some(by)),
    };
    let ending = async {
        if let Some(by) = asked {
            running.asked_to_end(by).await;
        }
        running.stop().await;
    };
    interrupts.bound(stop_within + R::ASKED_WITHIN, ending).await;
    outcome
}

/// How a server comes by the CA, by its flags and settings.
///
/// # Errors
/// If the seal keys, or the CAs of the Vault's certificate, cannot be read.
pub(crate) fn authority(seal: Option<&Path>, vault: Option<VaultConfig>) -> anyhow::Result<AuthorityConfig> {
    let seal = seal.map(SealKeys::read).transpose().map_err(|error| usage(format!("--seal-key-file: {error}")))?;
    let vault = vault.map(VaultPki::new).transpose().context("[ca.vault]")?;
    Ok(AuthorityConfig { seal: seal.map(Arc::new), vault: vault.map(Arc::new) })
}

/// The data directory at `path`, made if it is not there.
pub(crate) fn data_dir(path: &Path) -> anyhow::Result<PathBuf> {
    let prepare = || format!("preparing the data directory {}", path.display());
    if path.exists() && !path.is_dir() {
        return Err(usage(format!("--data-dir: {} is not a directory", path.display())));
    }
    std::fs::create_dir_all(path).with_context(prepare)?;
    path.canonicalize().with_context(prepare)
}
