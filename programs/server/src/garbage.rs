//! What nobody needs any more goes: join tokens that expired a while ago. It is the leader's to remove them, under the
//! condition that it still leads.

use std::sync::Weak;
use std::time::Duration;

use starling_catalog::{Command, JoinTokenCommand};
use starling_model::UnixSeconds;

use crate::commit::CommitFailure;
use crate::server::{Server, now};

/// Between two looks, about.
const EVERY: Duration = Duration::from_secs(60);

/// Removes what is due for as long as the server lives.
pub(crate) async fn run(server: Weak<Server>) {
    loop {
        tokio::time::sleep(EVERY.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        let Some(server) = server.upgrade() else { return };
        if server.is_leader()
            && let Err(error) = server.sweep_join_tokens(now()).await
        {
            tracing::warn!(%error, "expired join tokens could not be removed yet");
        }
    }
}

impl Server {
    /// Forgets join tokens that expired long enough before `now`, if this server leads.
    async fn sweep_join_tokens(&self, now: UnixSeconds) -> Result<(), CommitFailure> {
        let before = self.snapshot().join_tokens().count();
        self.commit(&Command::JoinToken(JoinTokenCommand::Sweep { by: self.id(), now })).await?;
        let gone = before.saturating_sub(self.snapshot().join_tokens().count());
        if gone > 0 {
            tracing::info!(gone, "expired join tokens are removed");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use starling_telemetry::Registry;

    use super::*;
    use crate::server::ServerConfig;

    #[tokio::test]
    async fn join_tokens_go_a_while_after_they_have_expired() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().expect("a name"));
        let server = Server::start(config, &Registry::default()).await.expect("the server starts");
        let (_, expires_at) = server.create_join_token(false, None, None).await.expect("a token");
        let count = || server.snapshot().join_tokens().count();
        server.sweep_join_tokens(expires_at).await.expect("done");
        assert_eq!(count(), 1, "who comes late is told that it has expired");
        server.sweep_join_tokens(expires_at.plus(24 * 60 * 60)).await.expect("done");
        assert_eq!(count(), 0);
    }
}
