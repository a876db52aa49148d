//! The agent's own certificate, and the roots by which it knows servers, while the node runs.
//!
//! Other roots are trusted at once, on disk too: a server may show a certificate under a new one a moment later, and an
//! agent that restarts then knows it. When another root signs, the certificate is renewed soon, at a moment of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use starling_catalog::MeshRead;
use starling_identity::renew_at;
use starling_model::UnixSeconds;
use starling_tls::{AgentIdentity, LeafKey};
use tokio::sync::watch;

use crate::agent::WallClock;
use crate::remote::mirror::Mirror;
use crate::remote::node::tls_of;
use crate::remote::uplink::Uplink;
use crate::roots::spread;

/// After a renewal that failed; there is a third of the certificate's lifetime for further attempts.
const RENEWAL_RETRY: Duration = Duration::from_secs(30);

/// How often the clock and the roots are looked at, so that a clock that was set is noticed, too.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Renews the agent's own certificate while the node runs.
pub(super) struct Renewal {
    pub(super) uplink: Arc<Uplink>,
    pub(super) mirror: Arc<Mirror>,
    pub(super) data_dir: PathBuf,
    pub(super) clock: WallClock,
    pub(super) tls: watch::Sender<Arc<rustls::ClientConfig>>,
}

impl Renewal {
    pub(super) async fn run(self, identity: AgentIdentity) {
        let (mut trusted, mut signed_by) = (None, None);
        let mut due = due(&identity);
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.follow_roots(&mut trusted).await;
            if let Some(within) = self.other_signs(&mut signed_by) {
                let soon = within.mul_f64(fastrand::f64());
                due = due.min((self.clock)().plus(soon.as_secs()));
            }
            if (self.clock)() < due {
                continue;
            }
            match self.renew().await {
                Ok(renewed) => due = self::due(&renewed),
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "the agent's certificate could not be renewed");
                    tokio::time::sleep(RENEWAL_RETRY).await;
                }
            }
        }
    }

    /// Trusts what the mesh trusts.
    async fn follow_roots(&self, trusted: &mut Option<String>) {
        let roots = self.mirror.replica().roots_pem().concat();
        // Of an agent that has heard nothing yet, what it keeps is all it knows.
        if roots.is_empty() || trusted.as_ref() == Some(&roots) {
            return;
        }
        let (dir, pem) = (self.data_dir.clone(), roots.clone());
        let kept = tokio::task::spawn_blocking(move || -> anyhow::Result<_> {
            let identity = AgentIdentity::trust(&dir, &pem)?;
            Ok(Arc::new(tls_of(&identity)?))
        });
        match kept.await.unwrap_or_else(|panic| Err(panic.into())) {
            Ok(tls) => {
                self.tls.send_replace(tls);
                *trusted = Some(roots);
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the roots of the mesh could not be kept");
            }
        }
    }

    /// The time over which certificates are renewed, if another root signs than before.
    fn other_signs(&self, signed_by: &mut Option<String>) -> Option<Duration> {
        let replica = self.mirror.replica();
        let root = replica.signing_root()?;
        if signed_by.as_ref() == Some(&root.id) {
            return None;
        }
        let before = signed_by.replace(root.id.clone());
        before.map(|_| spread(root.renew_within_s))
    }

    async fn renew(&self) -> anyhow::Result<AgentIdentity> {
        let key = LeafKey::generate()?;
        let leaf = self.uplink.renew(key.csr_der()?).await?;
        let roots = self.mirror.replica().roots_pem().concat();
        let identity = AgentIdentity::save(&self.data_dir, &leaf.chain_pem, &key, &roots)?;
        self.tls.send_replace(Arc::new(tls_of(&identity)?));
        Ok(identity)
    }
}

/// When a certificate is renewed: at some moment of the middle third of its lifetime.
fn due(identity: &AgentIdentity) -> UnixSeconds {
    let validity = identity.credentials.validity();
    let spread = fastrand::u64(..);
    renew_at(validity.not_before(), validity.not_after(), spread).unwrap_or(validity.not_after())
}
