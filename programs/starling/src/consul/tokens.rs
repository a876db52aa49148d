//! Tokens that the configuration gives.

use std::path::PathBuf;
use std::time::SystemTime;

use starling_catalog::{AclCommand, Command};
use starling_http_api::acl::{management_token, secret_hash};
use starling_model::{AclRecord, AclSecret, UnixSeconds, Uuid};
use starling_server::Server;

/// Tokens by what they are for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GivenTokens {
    /// One that may do everything; made if it is not there.
    pub(crate) initial_management: Option<AclSecret>,
    /// That of those who ask this agent without one.
    pub(crate) default: Option<AclSecret>,
    /// That of those who ask over DNS; without it, the same.
    pub(crate) dns: Option<AclSecret>,
    /// The file in which those are kept that the API gives the agent later; they win over these.
    pub(crate) kept_in: Option<PathBuf>,
}

impl GivenTokens {
    /// Makes the token that may do everything, if one is given and it is not there.
    pub(crate) async fn keep_initial_management(&self, server: &Server) -> anyhow::Result<()> {
        let Some(secret) = &self.initial_management else { return Ok(()) };
        let snapshot = server.snapshot();
        if snapshot.acl_token_by_secret(&secret_hash(secret.reveal())).is_some() {
            return Ok(());
        }
        let bits = starling_tls::random_secret::<16>()?;
        let accessor = Uuid::from_random(u128::from_be_bytes(*bits));
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = UnixSeconds(since.as_secs());
        let token = Box::new(management_token(accessor, secret.clone(), "Initial Management Token", now));
        let command = if snapshot.acl_bootstrapped().is_none() {
            AclCommand::Bootstrap(token)
        } else {
            AclCommand::Put { record: AclRecord::Token(token), is_new: true }
        };
        server.commit(&Command::Acl(command)).await?;
        Ok(())
    }
}
