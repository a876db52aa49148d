//! The catalog as DNS sees it: with the rights of whoever asks this process over DNS.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use starling_catalog::Snapshot;
use starling_dns::{CatalogReader, Sight};
use starling_http_api::AgentPort;
use starling_http_api::acl::{BearerFailure, bearer_in, secret_hash};
use starling_model::{ANONYMOUS_TOKEN, AclSecret, Datacenter, NodeName, TrustDomain};

use super::catalog::Catalog;

/// Whose rights count for questions.
pub(crate) enum Asker {
    /// The anonymous token's.
    Anybody,
    /// Those of the agent's token for them, else of its default one, else the anonymous token's.
    Agent(Arc<dyn AgentPort>),
    /// Those of the token that another agent has for them.
    Token(AclSecret),
    /// No rights: what another agent has for them is nobody's token.
    Nobody,
}

/// A catalog, and whose rights count for questions.
pub(crate) struct DnsReader {
    catalog: Arc<Catalog>,
    asker: Asker,
    /// Whether it was said that nobody has the token.
    said: AtomicBool,
    /// The second, since 1970, at which the token ends by which it was last decided what is seen; the last there is for none.
    until_s: AtomicU64,
}

impl DnsReader {
    pub(crate) fn new(catalog: Arc<Catalog>, asker: Asker) -> Self {
        Self { catalog, asker, said: AtomicBool::new(false), until_s: AtomicU64::new(u64::MAX) }
    }

    fn refused(&self) -> Sight {
        if !self.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "questions over DNS are refused: no token has the secret that was given for them; \
                 make the token, or change acl.tokens.dns or acl.tokens.default of the agent that is asked"
            );
        }
        Sight::Nothing
    }
}

impl CatalogReader for DnsReader {
    fn snapshot(&self) -> Arc<Snapshot> {
        self.catalog.server.snapshot()
    }

    /// What the token for DNS lets read, else the agent's default one, else the anonymous one. Nothing, if one is given that nobody has.
    fn sight(&self, snapshot: &Snapshot) -> Sight {
        let Some(default) = self.catalog.facts.acl_default else { return Sight::Everything };
        let given = match &self.asker {
            Asker::Anybody => None,
            Asker::Agent(agent) => agent.dns_token().or_else(|| agent.default_token()),
            Asker::Token(shown) => Some(shown.clone()),
            Asker::Nobody => return self.refused(),
        };
        let Some(secret) = given else {
            let grants =
                snapshot.acl_token(ANONYMOUS_TOKEN).map(|token| token.value.grants.clone()).unwrap_or_default();
            return Sight::Only(snapshot.acl_rights(&grants, self.catalog.server.datacenter(), default));
        };
        match bearer_in(snapshot, &self.catalog.facts, Some(secret.reveal())) {
            Ok(bearer) => {
                self.said.store(false, Ordering::Relaxed);
                let token = snapshot.acl_token_by_secret(&secret_hash(secret.reveal()));
                let end = token.and_then(|token| token.value.expires_at);
                self.until_s.store(end.map_or(u64::MAX, |end| end.0), Ordering::Relaxed);
                Sight::Only(bearer.rights().clone())
            }
            Err(BearerFailure::Unknown | BearerFailure::NotBootstrapped | BearerFailure::Unavailable(_)) => {
                self.refused()
            }
        }
    }

    fn sight_version(&self) -> u64 {
        let version = if let Asker::Agent(agent) = &self.asker { agent.tokens_version() } else { 0 };
        // A token that ends takes its rights along, whether or not anything else changes.
        let until_s = self.until_s.load(Ordering::Relaxed);
        let has_ended =
            until_s != u64::MAX && SystemTime::UNIX_EPOCH.elapsed().is_ok_and(|now| now.as_secs() >= until_s);
        2 * version + u64::from(has_ended)
    }

    fn node(&self) -> Option<&NodeName> {
        matches!(self.asker, Asker::Agent(_)).then_some(&self.catalog.facts.node_name)
    }

    fn datacenter(&self) -> &Datacenter {
        self.catalog.server.datacenter()
    }

    fn trust_domain(&self) -> &TrustDomain {
        self.catalog.server.trust_domain()
    }
}
