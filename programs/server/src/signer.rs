//! What signs leaves: the CA whose key this server has, or one elsewhere that it asks. Opened from the catalog, and anew
//! whenever that says otherwise, before anybody is told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use starling_catalog::Snapshot;
use starling_identity::{IssuanceRules, RootFingerprint};
use starling_model::{CaKeyPlace, CaRootRecord, Revision, TrustDomain, UnixSeconds};
use starling_tls::{
    CertificateAuthority, IssueError, IssuedLeaf, LeafProfile, SealKeys, UnsealAuthorityError, UnsealReason,
};
use starling_vault::{VaultError, VaultPki};
use tokio::sync::watch;

use crate::rotation::CUT_OFF_MAX;

/// How a server comes by the CA.
#[derive(Debug, Clone, Default)]
pub struct AuthorityConfig {
    /// The operator's keys; with them the CA's own is in the store, sealed. Without, it is in the data directory.
    pub seal: Option<Arc<SealKeys>>,
    /// A Vault whose PKI secrets engine signs, if the catalog says that it does.
    pub vault: Option<Arc<VaultPki>>,
}

/// Why no certificate is issued.
#[derive(Debug, thiserror::Error)]
pub enum SignFailure {
    /// The request is refused, and will be.
    #[error(transparent)]
    Refused(#[from] IssueError),
    /// What signs cannot be asked now.
    #[error(transparent)]
    Vault(#[from] VaultError),
    /// This server has no key that signs.
    #[error("this server cannot sign: {0}")]
    Unable(Arc<str>),
    /// Another root may sign by now.
    #[error(
        "this server has had no contact with its store for {} s, and does not know any more which root signs; ask another, or \
         once it is back",
        without_contact.as_secs()
    )]
    Forgotten {
        /// For how long.
        without_contact: Duration,
    },
}

impl SignFailure {
    /// Whether it helps to ask again.
    #[must_use]
    pub fn passes(&self) -> bool {
        match self {
            Self::Refused(_) => false,
            Self::Vault(error) => error.passes(),
            Self::Unable(_) | Self::Forgotten { .. } => true,
        }
    }
}

/// What signs.
#[derive(Debug, Clone)]
pub(crate) enum Signer {
    /// The CA whose key is here.
    Own(Arc<CertificateAuthority>),
    /// A Vault.
    Vault { pki: Arc<VaultPki>, root: Arc<CaRootRecord> },
    /// Nothing: the catalog says something that this server cannot follow.
    Unable { root: Arc<CaRootRecord>, reason: Arc<str> },
}

impl Signer {
    pub(crate) fn own(authority: CertificateAuthority) -> Self {
        Self::Own(Arc::new(authority))
    }

    /// What signs under the active root of a catalog that has its key.
    ///
    /// # Errors
    /// If the key is sealed with another seal key, is damaged, or is in a Vault that this server does not know.
    pub(crate) fn of(config: &AuthorityConfig, catalog: &Snapshot) -> Result<Self, UnsealAuthorityError> {
        let root = catalog.active_root().map(|root| root.value.clone());
        let id = root.as_ref().map(|root| root.id.clone()).unwrap_or_default();
        let elsewhere = || UnsealAuthorityError { root: id.clone(), reason: UnsealReason::Elsewhere };
        let root = root.ok_or_else(elsewhere)?;
        let key = catalog.ca_key(&root.id).ok_or_else(elsewhere)?;
        match (&key.value.place, &config.seal, &config.vault) {
            (CaKeyPlace::Sealed(_), Some(seal), _) => {
                Ok(Self::own(CertificateAuthority::unseal(&root, &key.value, seal)?))
            }
            (CaKeyPlace::Vault { .. }, _, Some(pki)) => Ok(Self::Vault { pki: Arc::clone(pki), root: Arc::new(root) }),
            (CaKeyPlace::Sealed(_) | CaKeyPlace::Vault { .. }, _, _) => Err(elsewhere()),
        }
    }

    pub(crate) fn root(&self) -> &CaRootRecord {
        match self {
            Self::Own(authority) => authority.root(),
            Self::Vault { root, .. } | Self::Unable { root, .. } => root,
        }
    }

    /// Signs a leaf. Takes tens of microseconds of a thread that may block, or the time that a Vault takes.
    async fn sign(&self, csr_der: Vec<u8>, profile: LeafProfile, now: UnixSeconds) -> Result<IssuedLeaf, SignFailure> {
        let rules = IssuanceRules::default();
        match self {
            Self::Own(authority) => {
                let authority = Arc::clone(authority);
                let issue = move || authority.issue(&csr_der, &profile, &rules, now, None);
                let issued = tokio::task::spawn_blocking(issue).await;
                Ok(issued.map_err(|panic| SignFailure::Unable(panic.to_string().into()))??)
            }
            Self::Vault { pki, root } => Ok(pki.issue(&csr_der, &profile, root, &rules, now).await?),
            Self::Unable { reason, .. } => Err(SignFailure::Unable(Arc::clone(reason))),
        }
    }
}

/// What a signer was opened from: the active root, and when its key was last written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signs {
    /// The identifier of the root.
    pub root: String,
    key: Option<Revision>,
}

/// What signs at the moment.
pub(crate) struct CurrentSigner {
    config: AuthorityConfig,
    /// For ever that of the cluster.
    trust_domain: TrustDomain,
    signer: ArcSwap<Signer>,
    opened: watch::Sender<Signs>,
}

impl CurrentSigner {
    pub(crate) fn new(config: AuthorityConfig, signer: Signer, catalog: &Snapshot) -> Self {
        let root = signer.root().id.clone();
        let opened = Signs { key: catalog.ca_key(&root).map(|key| key.modified), root };
        let trust_domain = signer.root().trust_domain.clone();
        Self { config, trust_domain, signer: ArcSwap::from_pointee(signer), opened: watch::Sender::new(opened) }
    }

    /// Opens what the catalog says signs, if that is another than before.
    pub(crate) fn follow(&self, catalog: &Snapshot) {
        let Some(root) = catalog.active_root() else { return };
        let key = catalog.ca_key(&root.value.id).map(|key| key.modified);
        let signs = Signs { root: root.value.id.clone(), key };
        if *self.opened.borrow() == signs {
            return;
        }
        let signer = Signer::of(&self.config, catalog).unwrap_or_else(|error| {
            let reason: Arc<str> = chain_of(&error).into();
            tracing::error!(root = root.value.id, %reason, "this server cannot sign under the root that signs now");
            Signer::Unable { root: Arc::new(root.value.clone()), reason }
        });
        tracing::info!(root = root.value.id, "leaves are signed under this root from now on");
        self.signer.store(Arc::new(signer));
        self.opened.send_replace(signs);
    }

    pub(crate) fn current(&self) -> Arc<Signer> {
        self.signer.load_full()
    }

    pub(crate) fn config(&self) -> &AuthorityConfig {
        &self.config
    }

    pub(crate) fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    pub(crate) fn root_fingerprint(&self) -> Option<RootFingerprint> {
        starling_tls::root_fingerprint(self.current().root())
    }

    /// Signs a leaf, as a server that has been without contact to its store for so long.
    pub(crate) async fn sign(
        &self,
        csr_der: Vec<u8>,
        profile: LeafProfile,
        now: UnixSeconds,
        without_contact: Duration,
    ) -> Result<IssuedLeaf, SignFailure> {
        if without_contact > CUT_OFF_MAX {
            return Err(SignFailure::Forgotten { without_contact });
        }
        self.current().sign(csr_der, profile, now).await
    }

    /// The chain that a server shows beside its own certificate: see [`CertificateAuthority::issue_server`].
    pub(crate) fn server_tail(&self) -> String {
        match &*self.current() {
            Signer::Own(authority) => authority.server_tail(),
            Signer::Vault { root, .. } | Signer::Unable { root, .. } => root.certificate_pem.clone(),
        }
    }

    /// Moves when something else signs.
    pub(crate) fn changes(&self) -> watch::Receiver<Signs> {
        self.opened.subscribe()
    }
}

/// An error with what is behind it.
fn chain_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

impl fmt::Debug for CurrentSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentSigner").field("signer", &*self.current()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use starling_model::Datacenter;

    use super::*;

    #[tokio::test]
    async fn a_server_signs_nothing_once_it_may_have_missed_a_rotation() {
        let trust_domain = TrustDomain::new("test.consul").unwrap();
        let now = UnixSeconds(1_700_000_000);
        let authority = CertificateAuthority::generate(&trust_domain, now).unwrap();
        let signer = CurrentSigner::new(AuthorityConfig::default(), Signer::own(authority), &Snapshot::default());
        let csr = starling_tls::LeafKey::generate().unwrap().csr_der().unwrap();
        let profile = || LeafProfile::server(&trust_domain, &Datacenter::new("dc1").unwrap(), &[]);
        signer.sign(csr.clone(), profile(), now, CUT_OFF_MAX).await.unwrap();
        let refused = signer.sign(csr, profile(), now, CUT_OFF_MAX + Duration::from_secs(1)).await.unwrap_err();
        assert!(matches!(refused, SignFailure::Forgotten { .. }) && refused.passes(), "{refused}");
    }
}
