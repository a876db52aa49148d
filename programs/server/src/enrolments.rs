//! Who is in the mesh, and for which services: join tokens, evictions, released names.

use anyhow::Context;
use starling_catalog::{Command, JoinTokenCommand, NewJoinToken, written_enrolments};
use starling_identity::{JoinSecret, JoinToken};
use starling_model::{Change, Holder, JoinTokenId, JoinTokenRecord, JoinTokenUses, Member, UnixSeconds};

use crate::server::{Server, now};

impl Server {
    /// Makes a join token. Its text is answered once.
    ///
    /// # Errors
    /// [`JoinTokenTtlError`](starling_identity::JoinTokenTtlError) inside if the lifetime is out of bounds, else
    /// [`CommitFailure`](crate::CommitFailure).
    pub async fn create_join_token(&self, wanted: NewJoinToken) -> anyhow::Result<(JoinToken, UnixSeconds)> {
        let NewJoinToken { for_relays, reusable, ttl, description, services } = wanted;
        let created_at = now();
        let expires_at = starling_identity::join_token_expiry(created_at, ttl)?;
        let secret = JoinSecret::from_random(starling_tls::random_secret()?);
        let id = JoinTokenId::from_random(fastrand::u64(..));
        let root = self.signer().root_fingerprint().context("the root certificate is damaged")?;
        let token = JoinToken::new(id, secret, root);
        let uses = if reusable { JoinTokenUses::Reusable } else { JoinTokenUses::OneTime { used: None } };
        let secret_hash = token.secret_hash();
        let record =
            JoinTokenRecord { id, secret_hash, description, for_relays, services, uses, created_at, expires_at };
        self.commit(&Command::JoinToken(JoinTokenCommand::Create(record))).await?;
        Ok((token, expires_at))
    }

    /// Ends what the former holders of names have open here.
    pub(crate) fn enrolments_changed(&self, changes: &[Change]) {
        for enrolment in written_enrolments(changes) {
            let ended = self.connections().judge(enrolment);
            if let (Member::Node(node), Holder::Evicted | Holder::Released) = (&enrolment.member, &enrolment.holder) {
                // Also of a node behind a relay, which has no connection here.
                self.agents().has_left(node);
            }
            if ended > 0 {
                tracing::info!(member = %enrolment.member, connections = ended, "closed connections under a former key");
            }
        }
    }
}
