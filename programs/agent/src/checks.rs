//! Health checks: how each kind is done, when, and what a run of results amounts to.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use starling_model::check::OUTPUT_BYTES_MAX;
use starling_model::{CheckKind, CheckStatus};

use self::failure::Failure;
use self::permission::ScriptChecks;
use crate::registrations::{Health, Source};

pub(crate) mod alias;
pub(crate) mod definition;
mod dial;
mod docker;
mod failure;
mod grpc;
mod h2ping;
mod http;
pub(crate) mod permission;
pub(crate) mod schedule;
mod script;
mod tcp;
pub(crate) mod threshold;
pub(crate) mod timetable;
mod tls;
mod udp;

/// How often it is said that checks learn nothing: every one of them notices.
const SHORTAGE_SAID_EVERY: Duration = Duration::from_secs(60);

/// Does the checks that are done by asking.
#[derive(Debug)]
pub(crate) struct Prober {
    trust: tls::Trust,
    script_checks: ScriptChecks,
    /// When it was last said that file descriptors have run out.
    shortage_said: Mutex<Option<Instant>>,
}

impl Prober {
    pub(crate) fn new(script_checks: ScriptChecks) -> Self {
        Self { trust: tls::Trust::default(), script_checks, shortage_said: Mutex::default() }
    }

    /// Runs one check to its end, never later than `timeout`. What goes wrong is the result, but `None` if it went wrong
    /// in this process, which says nothing of the application. A check whose `source` may not run programs is critical,
    /// whatever an earlier start of the agent permitted.
    pub(crate) async fn run(&self, kind: &CheckKind, source: Source, timeout: Duration) -> Option<Health> {
        let run = std::panic::AssertUnwindSafe(self.dispatch(kind, source, timeout)).catch_unwind();
        match run.await {
            Ok(Ok(health)) => Some(health),
            Ok(Err(Failure::Application(reason))) => Some(critical(reason)),
            Ok(Err(Failure::OutOfFiles(error))) => {
                self.say_shortage(&error);
                None
            }
            Err(_) => Some(critical("the check itself failed; this is a fault of the agent".to_owned())),
        }
    }

    fn say_shortage(&self, error: &std::io::Error) {
        let mut said = self.shortage_said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_none_or(|said| said.elapsed() >= SHORTAGE_SAID_EVERY) {
            *said = Some(Instant::now());
            tracing::warn!(%error, "checks cannot run and keep their last status; raise the limit of open files");
        }
    }

    async fn dispatch(&self, kind: &CheckKind, source: Source, timeout: Duration) -> Result<Health, Failure> {
        match kind {
            CheckKind::Http { .. } => within(timeout, http::run(kind, &self.trust)).await,
            CheckKind::Tcp { address, tls } => within(timeout, tcp::run(address, tls.as_ref(), &self.trust)).await,
            CheckKind::Udp { address } => within(timeout, udp::run(address)).await,
            CheckKind::H2Ping { address, tls } => {
                within(timeout, h2ping::run(address, tls.as_ref(), &self.trust)).await
            }
            CheckKind::Grpc { .. } => within(timeout, grpc::run(kind, &self.trust)).await,
            CheckKind::Script { .. } | CheckKind::Docker { .. }
                if let Err(reason) = self.script_checks.permit(source) =>
            {
                Ok(critical(reason.to_owned()))
            }
            CheckKind::Script { args } => script::run(args, timeout).await,
            CheckKind::Docker { container, shell, args } => {
                let run = docker::run(Path::new(docker::SOCKET), container, docker::command(shell, args));
                within(timeout, run).await
            }
            CheckKind::Ttl { .. } | CheckKind::Alias { .. } | CheckKind::Maintenance => {
                Ok(critical("this kind of check is not run".to_owned()))
            }
        }
    }
}

async fn within(timeout: Duration, run: impl Future<Output = Result<Health, Failure>>) -> Result<Health, Failure> {
    match tokio::time::timeout(timeout, run).await {
        Ok(ended) => ended,
        Err(_) => Ok(critical(format!("no answer within {timeout:?}"))),
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
