//! Who is in the mesh, and for which services: join tokens, evictions, released names.

use std::time::Duration;

use anyhow::Context;
use starling_catalog::{Command, EnrolmentCommand, JoinTokenCommand, changed_holders};
use starling_identity::{JoinSecret, JoinToken};
use starling_model::{
    Change, Holder, JoinTokenDescription, JoinTokenId, JoinTokenRecord, JoinTokenUses, KeyFingerprint, Member,
    Revision, ServicePattern, UnixSeconds,
};

use crate::commit::CommitFailure;
use crate::connections::Connected;
use crate::server::{Server, now};

/// A join token to be made.
#[derive(Debug, Clone, Default)]
pub struct NewJoinToken {
    /// Whether it lets relays in, and no nodes.
    pub for_relays: bool,
    /// Whether it is good for any number of nodes, and not for one only.
    pub reusable: bool,
    /// How long it is good; 24 hours if `None`.
    pub ttl: Option<Duration>,
    /// What it is for.
    pub description: Option<JoinTokenDescription>,
    /// The services that a node which joins by it may register; `None` leaves that to the mesh's default.
    pub services: Option<Vec<ServicePattern>>,
}

impl Server {
    /// Makes a join token. Its text is answered once.
    ///
    /// # Errors
    /// [`JoinTokenTtlError`](starling_identity::JoinTokenTtlError) inside if the lifetime is out of bounds, else
    /// [`CommitFailure`].
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

    /// Puts a member out of the mesh: its connections end at every server, its certificate is neither renewed nor let in,
    /// and a node's records are removed. Returns the revision whose receipt tells that all proxies go without it.
    ///
    /// # Errors
    /// [`CommitFailure`].
    pub async fn evict(&self, member: Member) -> Result<Revision, CommitFailure> {
        self.commit(&Command::Enrolment(EnrolmentCommand::Evict { member, now: now() })).await
    }

    /// Notes a connection under `key`. The answer completes when the key counts for nothing any more.
    pub(crate) fn connected(&self, member: Member, key: KeyFingerprint) -> Connected {
        self.connections().enter(member, key)
    }

    /// Ends what the former holders of names have open here.
    pub(crate) fn enrolments_changed(&self, changes: &[Change]) {
        for enrolment in changed_holders(changes) {
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
