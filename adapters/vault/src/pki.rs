//! What is asked of a Vault's PKI secrets engine, and what of its answers is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde_json::json;
use starling_identity::IssuanceRules;
use starling_model::{CaKeyPlace, CaKeyRecord, CaRootRecord, TrustDomain, UnixSeconds};
use starling_tls::{CertificateRequest, IssuedLeaf, LeafProfile};

use crate::wire::{Address, VaultError, Wire};

/// Time for one request unless configured: an agent waits that long for its leaves, and asks again.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// How much longer than asked for a certificate may last: clocks differ.
const LATE_MAX: Duration = Duration::from_secs(300);

/// How a Vault is reached, and what there signs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaultConfig {
    /// Where it is.
    pub address: Address,
    /// Where the PKI secrets engine is mounted, without slashes at its ends.
    pub mount: String,
    /// The role that signs.
    pub role: String,
    /// The file whose first line is the token; read at each request.
    pub token_file: PathBuf,
    /// The CAs that its certificate is believed of, in PEM; for an https address.
    pub ca_file: Option<PathBuf>,
    /// Roots in PEM, for a mount whose chain does not end at one.
    pub roots_file: Option<PathBuf>,
    /// A namespace of Vault Enterprise.
    pub namespace: Option<String>,
    /// Time for one request.
    pub timeout: Duration,
}

/// A PKI secrets engine that signs for the mesh.
pub struct VaultPki {
    wire: Wire,
    config: VaultConfig,
}

impl fmt::Debug for VaultPki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VaultPki").field("config", &self.config).finish_non_exhaustive()
    }
}

#[derive(Debug, Deserialize)]
struct Signed {
    data: SignedData,
}

#[derive(Debug, Deserialize)]
struct SignedData {
    certificate: String,
    issuing_ca: String,
    #[serde(default)]
    ca_chain: Option<Vec<String>>,
}

impl VaultPki {
    /// A way to a Vault; it is not asked yet.
    ///
    /// # Errors
    /// [`VaultError::File`] if the CAs of its certificate cannot be read.
    pub fn new(config: VaultConfig) -> Result<Self, VaultError> {
        let wire = Wire::new(
            config.address.clone(),
            config.token_file.clone(),
            config.ca_file.as_deref(),
            config.namespace.clone(),
            config.timeout,
        )?;
        Ok(Self { wire, config })
    }

    /// Where the engine is mounted.
    #[must_use]
    pub fn mount(&self) -> &str {
        &self.config.mount
    }

    /// The root under which it signs, as it is to be trusted, and what says that it signs.
    ///
    /// # Errors
    /// [`VaultError`] if it cannot be asked, or what it answers with is no CA of which the root is known.
    pub async fn root(
        &self,
        trust_domain: &TrustDomain,
        now: UnixSeconds,
    ) -> Result<(CaRootRecord, CaKeyRecord), VaultError> {
        let path = format!("/v1/{}/ca_chain", self.config.mount);
        let answer = self.wire.ask(Method::GET, &path, Vec::new()).await?;
        let unusable = |reason: String| VaultError::Answer { path: path.clone(), reason };
        let chain = std::str::from_utf8(&answer).map_err(|error| unusable(error.to_string()))?;
        let roots = self.roots()?;
        let (root, chain_pem) = starling_tls::external_root(chain, roots.as_deref(), trust_domain, now)
            .map_err(|error| unusable(error.to_string()))?;
        let place = CaKeyPlace::Vault { mount: self.config.mount.clone() };
        let key = CaKeyRecord {
            root: root.id.clone(),
            chain_pem,
            bridge_pem: String::new(),
            place,
            trusted: BTreeMap::new(),
        };
        Ok((root, key))
    }

    fn roots(&self) -> Result<Option<String>, VaultError> {
        let Some(path) = &self.config.roots_file else { return Ok(None) };
        let text = std::fs::read_to_string(path);
        text.map(Some).map_err(|error| VaultError::File { path: path.clone(), reason: error.to_string() })
    }

    /// Has a certificate signed that says what `profile` says, for the key in a certificate signing request.
    ///
    /// # Errors
    /// [`VaultError`] if it does not sign, or what comes back is not what was asked for.
    pub async fn issue(
        &self,
        csr_der: &[u8],
        profile: &LeafProfile,
        root: &CaRootRecord,
        rules: &IssuanceRules,
        now: UnixSeconds,
    ) -> Result<IssuedLeaf, VaultError> {
        // Of what the request says only the key is taken; one that says more may be believed by a role.
        let request = CertificateRequest::nameless(csr_der).map_err(starling_tls::IssueError::from)?;
        let path = format!("/v1/{}/sign/{}", self.config.mount, self.config.role);
        let joined = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(",");
        let addresses = profile.addresses.iter().map(ToString::to_string).collect();
        let asked = json!({
            "csr": request.to_pem(),
            "uri_sans": profile.identity.to_uri(),
            "alt_names": joined(&profile.dns_names),
            "ip_sans": joined(&addresses),
            "exclude_cn_from_sans": true,
            "ttl": format!("{}s", rules.leaf_ttl().as_secs()),
            "format": "pem",
        });
        let answer = self.wire.ask(Method::POST, &path, asked.to_string().into_bytes()).await?;
        let unusable = |reason: String| VaultError::Answer { path: path.clone(), reason };
        let signed: Signed = serde_json::from_slice(&answer).map_err(|error| unusable(error.to_string()))?;
        let between = match signed.data.ca_chain {
            Some(chain) if !chain.is_empty() => chain,
            _ => vec![signed.data.issuing_ca],
        };
        let leaf = starling_tls::check_issued(&signed.data.certificate, &between, &request, profile, root, now)
            .map_err(|error| unusable(error.to_string()))?;
        // A root goes when the last leaf under it has ended, so none may last longer than is known here.
        let lasts = leaf.not_after.since(now);
        if lasts > rules.leaf_ttl().as_secs() + LATE_MAX.as_secs() {
            return Err(unusable(format!(
                "the certificate lasts {lasts} s, longer than was asked for: set the role's max_ttl"
            )));
        }
        Ok(leaf)
    }
}
