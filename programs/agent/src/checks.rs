//! Health checks: how each kind is done, when, and what a run of results amounts to.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use starling_model::check::OUTPUT_BYTES_MAX;
use starling_model::{CheckKind, CheckStatus};
use tokio::sync::Semaphore;

use crate::registrations::Health;

pub(crate) mod alias;
pub(crate) mod definition;
mod grpc;
mod http;
pub(crate) mod schedule;
mod script;
mod tcp;
pub(crate) mod threshold;
pub(crate) mod timetable;
mod tls;

/// Script checks that run at once; each is a process, and the node has other work.
const SCRIPTS_MAX: usize = 16;

/// Does the checks that are done by asking.
#[derive(Debug)]
pub(crate) struct Prober {
    trust: tls::Trust,
    scripts: Option<Arc<Semaphore>>,
}

impl Prober {
    pub(crate) fn new(enable_script_checks: bool) -> Self {
        let scripts = enable_script_checks.then(|| Arc::new(Semaphore::new(SCRIPTS_MAX)));
        Self { trust: tls::Trust::default(), scripts }
    }

    /// Runs one check to its end; never later than `timeout`, never fails: what goes wrong is the result.
    pub(crate) async fn run(&self, kind: &CheckKind, timeout: Duration) -> Health {
        let run = std::panic::AssertUnwindSafe(self.dispatch(kind, timeout)).catch_unwind();
        run.await.unwrap_or_else(|_| critical("the check itself failed; this is a fault of the agent".to_owned()))
    }

    async fn dispatch(&self, kind: &CheckKind, timeout: Duration) -> Health {
        match kind {
            CheckKind::Http { .. } => within(timeout, http::run(kind, &self.trust)).await,
            CheckKind::Tcp { address } => within(timeout, tcp::run(address)).await,
            CheckKind::Grpc { .. } => within(timeout, grpc::run(kind, &self.trust)).await,
            CheckKind::Script { args } => match &self.scripts {
                Some(permits) => script::run(args, timeout, permits).await,
                None => critical(definition::SCRIPTS_DISABLED.to_owned()),
            },
            CheckKind::Ttl { .. } | CheckKind::Alias { .. } => critical("this kind of check is not run".to_owned()),
        }
    }
}

async fn within(timeout: Duration, run: impl Future<Output = Health>) -> Health {
    match tokio::time::timeout(timeout, run).await {
        Ok(health) => health,
        Err(_) => critical(format!("no answer within {timeout:?}")),
    }
}

fn critical(output: String) -> Health {
    Health { status: CheckStatus::Critical, output }
}

fn passing(output: String) -> Health {
    Health { status: CheckStatus::Passing, output }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Several layers of an HTTP stack repeat what they wrap.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// `text`, cut at [`OUTPUT_BYTES_MAX`] on a character's edge.
pub(crate) fn cut(text: &str) -> String {
    let mut end = text.len().min(OUTPUT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_between_characters() {
        let text = format!("{}é", "a".repeat(OUTPUT_BYTES_MAX - 1));
        assert_eq!(cut(&text).len(), OUTPUT_BYTES_MAX - 1);
        assert_eq!(cut("short"), "short");
    }
}
