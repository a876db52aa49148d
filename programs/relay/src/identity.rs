//! By what a relay is known: its certificate, which is the only thing that it keeps on disk, and the roots that it goes by.
//!
//! Other roots are trusted at once, in both directions. The certificate is renewed in good time, and soon when another root signs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use starling_agent::WallClock;
use starling_agent::remote::join::{Newcomer, PATIENCE, join};
use starling_attach::projection::{Item, decode_item};
use starling_catalog::Subject;
use starling_identity::{Identity, renew_at};
use starling_model::{CaRootRecord, NodeName, UnixSeconds};
use starling_tls::{
    AgentIdentity, AgentIdentityError, CredentialSlot, Credentials, LeafKey, TrustSlot, agent_client_config,
    rotating_server_config,
};
use tokio::sync::watch;

use crate::streams::Streams;
use crate::upstream::Contact;

/// After a renewal that failed; there is a third of the certificate's lifetime for further attempts.
const RENEWAL_RETRY: Duration = Duration::from_secs(30);

/// How often the clock and the roots are looked at, so that a clock that was set is noticed, too.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Relays are few: another root's certificate is asked for within this.
const OTHER_ROOT_WITHIN_S: u64 = 10;

/// The identity on disk, or else that of a relay that joins.
pub(crate) async fn load(
    data_dir: &Path,
    name: &NodeName,
    servers: &[String],
    join_token: Option<&str>,
    now: UnixSeconds,
) -> anyhow::Result<AgentIdentity> {
    let newcomer = Newcomer { name: name.clone(), node_id: String::new(), relay: true };
    let identity = match AgentIdentity::load(data_dir) {
        Err(AgentIdentityError::Absent { .. }) => join(servers, join_token, &newcomer, data_dir, PATIENCE).await?,
        loaded => {
            let known = loaded?;
            if known.credentials.validity().not_after() < now {
                let again = join(servers, join_token, &newcomer, data_dir, PATIENCE).await;
                again.context("the certificate of this relay has expired; give it a new join token")?
            } else {
                known
            }
        }
    };
    let known_as = identity.credentials.identity();
    match known_as {
        Identity::Relay { relay, .. } if relay == name => Ok(identity),
        Identity::Agent { .. } => {
            bail!(
                "{} holds the identity of {known_as}: the server knows no relays, or this is an agent's",
                data_dir.display()
            )
        }
        Identity::Relay { .. } | Identity::Workload(_) | Identity::Server { .. } | Identity::Authority(_) => {
            bail!("{} holds the identity of {known_as}, and this is relay {name}", data_dir.display())
        }
    }
}

/// What is shown to servers, and whom the relay trusts there.
pub(crate) fn client(identity: &AgentIdentity) -> anyhow::Result<Arc<rustls::ClientConfig>> {
    let Identity::Relay { trust_domain, datacenter, .. } = identity.credentials.identity().clone() else {
        bail!("the identity on disk is not a relay's");
    };
    let server = Identity::Server { trust_domain, datacenter };
    Ok(Arc::new(agent_client_config(identity.credentials.clone(), &identity.roots, server)?))
}

/// What is shown to agents, and whom the relay trusts there.
pub(crate) struct Shown {
    pub(crate) config: Arc<rustls::ServerConfig>,
    slot: Arc<CredentialSlot>,
    trust: Arc<TrustSlot>,
}

impl Shown {
    pub(crate) fn new(identity: &AgentIdentity) -> anyhow::Result<Self> {
        let slot = CredentialSlot::new(identity.credentials.clone());
        // Strangers come without a certificate, to join.
        let (config, trust) = rotating_server_config(Arc::clone(&slot), &identity.roots)?;
        Ok(Self { config: Arc::new(config), slot, trust })
    }
}

/// Renews the relay's certificate while it runs.
pub(crate) struct Renewal {
    pub(crate) data_dir: PathBuf,
    pub(crate) streams: Arc<Streams>,
    pub(crate) contact: watch::Receiver<Contact>,
    pub(crate) tls: watch::Sender<Arc<rustls::ClientConfig>>,
    pub(crate) shown: Shown,
    pub(crate) clock: WallClock,
}

impl Renewal {
    pub(crate) async fn run(self, identity: AgentIdentity) {
        let known_as = identity.credentials.identity().clone();
        let (mut trusted, mut signed_by) = (None, None);
        let mut due = due(&identity);
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let roots = self.roots();
            self.follow(&roots, &mut trusted).await;
            let signs = roots.iter().find(|root| root.active).map(|root| root.id.clone());
            if signs.is_some() && signs != signed_by {
                let before = std::mem::replace(&mut signed_by, signs);
                if before.is_some() {
                    due = due.min((self.clock)().plus(fastrand::u64(0..OTHER_ROOT_WITHIN_S)));
                }
            }
            if (self.clock)() < due {
                continue;
            }
            due = match self.renew(&known_as, &roots).await {
                Ok(identity) => self::due(&identity),
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "the certificate of this relay could not be renewed");
                    (self.clock)().plus(RENEWAL_RETRY.as_secs())
                }
            };
        }
    }

    /// The roots of the mesh, as far as they are known here, the active one first.
    fn roots(&self) -> Vec<CaRootRecord> {
        let items = self.streams.items(&Subject::Roots);
        let root = |item| match decode_item(&Subject::Roots, item) {
            Ok((_, Some(Item::Root(root)))) => Some(root),
            _ => None,
        };
        let mut roots: Vec<_> = items.iter().filter_map(root).collect();
        roots.sort_by_key(|root| !root.active);
        roots
    }

    /// Trusts what the mesh trusts.
    async fn follow(&self, roots: &[CaRootRecord], trusted: &mut Option<String>) {
        let pem = bundle(roots);
        if pem.is_empty() || trusted.as_ref() == Some(&pem) {
            return;
        }
        let (dir, kept) = (self.data_dir.clone(), pem.clone());
        let kept = tokio::task::spawn_blocking(move || AgentIdentity::trust(&dir, &kept)).await;
        let used = kept.map_err(anyhow::Error::from).and_then(|kept| {
            let identity = kept?;
            self.shown.trust.replace(&identity.roots)?;
            self.tls.send_replace(client(&identity)?);
            Ok(())
        });
        match used {
            Ok(()) => {
                self.streams.trusts(roots.iter().map(|root| root.id.clone()).collect());
                *trusted = Some(pem);
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the roots of the mesh could not be kept");
            }
        }
    }

    async fn renew(&self, known_as: &Identity, roots: &[CaRootRecord]) -> anyhow::Result<AgentIdentity> {
        let calls = self.contact.borrow().calls.clone().context("no server is reached")?;
        let asking = calls.call().await?;
        let key = LeafKey::generate()?;
        let leaf = asking.client.renew(key.csr_der()?).await?;
        // It may have come by way of relays above, of which each has a name of its own.
        let found = Credentials::new(&leaf.chain_pem, &key)?.identity().clone();
        ensure!(found == *known_as, "the certificate that came is that of {found}, and this is {known_as}");
        let identity = AgentIdentity::save(&self.data_dir, &leaf.chain_pem, &key, &bundle(roots))?;
        self.shown.slot.replace(identity.credentials.clone());
        self.tls.send_replace(client(&identity)?);
        Ok(identity)
    }
}

fn bundle(roots: &[CaRootRecord]) -> String {
    roots.iter().map(|root| root.certificate_pem.as_str()).collect()
}

/// When a certificate is renewed: at some moment of the middle third of its lifetime.
fn due(identity: &AgentIdentity) -> UnixSeconds {
    let validity = identity.credentials.validity();
    renew_at(validity.not_before(), validity.not_after(), fastrand::u64(..)).unwrap_or(validity.not_after())
}
