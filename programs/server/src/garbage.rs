//! What nobody needs any more goes: tokens that have expired, join tokens that did a while ago, sessions that were not renewed, and lock delays that are
//! over. It is the leader's to remove them, under the condition that it still leads.

use std::sync::Weak;
use std::time::{Duration, SystemTime};

use starling_catalog::{AclCommand, Command, CoordinationCommand, JoinTokenCommand, decide};
use starling_model::UnixSeconds;

use crate::commit::CommitFailure;
use crate::server::{Server, now};

/// Between two looks at join tokens, about.
const EVERY: Duration = Duration::from_secs(60);

/// Between two looks at sessions: a second of Consul's own doubt about when one ends.
const SESSIONS_EVERY: Duration = Duration::from_secs(1);

/// Removes what is due for as long as the server lives.
pub(crate) async fn run(server: Weak<Server>) {
    loop {
        tokio::time::sleep(EVERY.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        let Some(server) = server.upgrade() else { return };
        if !server.is_leader() {
            continue;
        }
        if let Err(error) = server.sweep_join_tokens(now()).await {
            tracing::warn!(%error, "expired join tokens could not be removed yet");
        }
        if let Err(error) = server.sweep_acl_tokens(now()).await {
            tracing::warn!(%error, "expired tokens could not be removed yet");
        }
    }
}

/// Ends sessions that are over, for as long as the server lives.
pub(crate) async fn end_sessions(server: Weak<Server>) {
    loop {
        tokio::time::sleep(SESSIONS_EVERY).await;
        let Some(server) = server.upgrade() else { return };
        if server.is_leader()
            && let Err(error) = server.sweep_sessions(now_ms()).await
        {
            tracing::warn!(%error, "sessions that are over could not be ended yet");
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Server {
    /// Ends sessions that are over at `now_ms`, and forgets lock delays that are, if this server leads.
    pub(crate) async fn sweep_sessions(&self, now_ms: u64) -> Result<(), CommitFailure> {
        let command = Command::Coordination(CoordinationCommand::Sweep { by: self.id(), now_ms });
        // Most of the time nothing is due, and the store need not be asked whether that is still so.
        let is_due = decide(&self.snapshot(), &command).is_ok_and(|decision| !decision.changes.is_empty());
        if is_due {
            self.commit(&command).await?;
        }
        Ok(())
    }

    /// Removes tokens of access control that have expired at `now`, if this server leads.
    pub(crate) async fn sweep_acl_tokens(&self, now: UnixSeconds) -> Result<(), CommitFailure> {
        self.commit(&Command::Acl(AclCommand::Sweep { by: self.id(), now })).await.map(drop)
    }

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
    use std::collections::BTreeMap;

    use starling_catalog::{KvOperation, KvWrite};
    use starling_model::{KvKey, KvValue, Node, NodeName, Session, SessionBehavior, Uuid};
    use starling_telemetry::Registry;

    use super::*;
    use crate::server::ServerConfig;

    #[tokio::test]
    async fn join_tokens_go_a_while_after_they_have_expired() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().expect("a name"));
        let server = Server::start(config, &Registry::default()).await.expect("the server starts");
        let (_, expires_at) =
            server.create_join_token(starling_catalog::NewJoinToken::default()).await.expect("a token");
        let count = || server.snapshot().join_tokens().count();
        server.sweep_join_tokens(expires_at).await.expect("done");
        assert_eq!(count(), 1, "who comes late is told that it has expired");
        server.sweep_join_tokens(expires_at.plus(24 * 60 * 60)).await.expect("done");
        assert_eq!(count(), 0);
    }
    #[tokio::test]
    async fn a_session_that_is_not_renewed_ends_and_what_it_has_locked_is_free() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = ServerConfig::new(directory.path().to_owned(), "dc1".parse().expect("a name"));
        let server = Server::start(config, &Registry::default()).await.expect("the server starts");
        let node: NodeName = "n1".parse().expect("a name");
        let record = Node {
            name: node.clone(),
            id: String::new(),
            address: "10.0.0.1".to_owned(),
            tagged_addresses: BTreeMap::new(),
            meta: BTreeMap::new(),
        };
        let id = Uuid::from_random(1);
        let session = Session {
            id,
            name: String::new(),
            node: node.clone(),
            node_checks: Vec::new(),
            service_checks: Vec::new(),
            lock_delay_ms: 0,
            behavior: SessionBehavior::Release,
            ttl: "10s".to_owned(),
            ttl_ms: Some(10_000),
        };
        let key: KvKey = "lock".parse().expect("a key");
        let write = KvWrite { key: key.clone(), value: KvValue::default(), flags: 0 };
        let lock = KvOperation::Lock { write, session: Some(id), now_ms: 0 };
        for command in [
            Command::Register { name: node, node: Some(record), instances: Vec::new(), checks: Vec::new() },
            Command::Coordination(CoordinationCommand::CreateSession { session, now_ms: 0 }),
            Command::Coordination(CoordinationCommand::Kv(vec![lock])),
            Command::Coordination(CoordinationCommand::RenewSession { id, now_ms: 5_000 }),
        ] {
            server.commit(&command).await.expect("done");
        }
        let holder = || server.snapshot().kv(&key).and_then(|entry| entry.value.session);
        server.sweep_sessions(24_999).await.expect("done");
        assert_eq!(holder(), Some(id));
        server.sweep_sessions(25_000).await.expect("done");
        assert_eq!((holder(), server.snapshot().sessions().len()), (None, 0));
    }
}
