//! Certificates of a Vault, asked for over a real socket: of one that signs truly, as far as it is asked, and of one that does
//! not.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/double.rs"]
mod double;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use starling_identity::{IssuanceRules, Layout, SpiffeId};
use starling_model::{CaKeyPlace, TrustDomain};
use starling_tls::{LeafKey, LeafProfile};
use starling_vault::{VaultConfig, VaultError, VaultPki};

use double::{Double, Mood, TOKEN, now};

/// A double that listens, and a way to it.
struct World {
    double: Arc<Double>,
    pki: VaultPki,
    token: PathBuf,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let (double, address) = Double::listen().await;
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
        let pki = VaultPki::new(config(&address, &token)).unwrap();
        Self { double, pki, token, _folder: folder }
    }

    async fn issue(&self, profile: &LeafProfile) -> Result<starling_tls::IssuedLeaf, VaultError> {
        self.mood_kept(profile, Mood::Signs).await
    }

    /// Issues under a root that was asked for before the mood was another.
    async fn mood_kept(&self, profile: &LeafProfile, mood: Mood) -> Result<starling_tls::IssuedLeaf, VaultError> {
        self.double.behave(Mood::Signs);
        let (root, _) = self.pki.root(&trust_domain(), now()).await.unwrap();
        self.double.behave(mood);
        let csr = LeafKey::generate().unwrap().csr_der().unwrap();
        self.pki.issue(&csr, profile, &root, &IssuanceRules::default(), now()).await
    }
}

fn config(address: &str, token: &std::path::Path) -> VaultConfig {
    VaultConfig {
        address: address.parse().unwrap(),
        mount: "pki_mesh".to_owned(),
        role: "mesh".to_owned(),
        token_file: token.to_owned(),
        ca_file: None,
        roots_file: None,
        namespace: None,
        timeout: Duration::from_millis(500),
    }
}

fn trust_domain() -> TrustDomain {
    "test.consul".parse().unwrap()
}

fn web(trust_domain: TrustDomain) -> LeafProfile {
    let (namespace, datacenter, service) = ("default".parse().unwrap(), "dc1".parse().unwrap(), "web".parse().unwrap());
    let id = SpiffeId::new(Layout::Consul, trust_domain, namespace, datacenter, service);
    LeafProfile::workload(&id, &BTreeSet::from(["web.example".to_owned()]))
}

#[tokio::test]
async fn a_vault_signs_what_it_is_asked_for_and_its_root_is_trusted() {
    let world = World::start().await;
    let (root, key) = world.pki.root(&trust_domain(), now()).await.unwrap();
    assert!(!root.active && root.trust_domain == trust_domain());
    assert_eq!(key.place, CaKeyPlace::Vault { mount: "pki_mesh".to_owned() });
    let leaf = world.issue(&web(trust_domain())).await.unwrap();
    assert_eq!(leaf.chain_pem.matches("BEGIN CERTIFICATE").count(), 2, "leaf and intermediate: {}", leaf.chain_pem);
    let asked = world.double.asked.lock().unwrap()[0].clone();
    assert_eq!(asked["uri_sans"], "spiffe://test.consul/ns/default/dc/dc1/svc/web");
    assert_eq!((asked["alt_names"].as_str(), asked["ttl"].as_str()), (Some("web.example"), Some("259200s")));
    let server = LeafProfile::server(&trust_domain(), &"dc1".parse().unwrap(), &["127.0.0.1".parse().unwrap()]);
    world.issue(&server).await.unwrap();
}

#[tokio::test]
async fn a_vault_that_fails_is_told_from_one_that_refuses() {
    let world = World::start().await;
    let profile = web(trust_domain());
    let sealed = world.mood_kept(&profile, Mood::Sealed).await.unwrap_err();
    assert!(matches!(sealed, VaultError::Unavailable { .. }) && sealed.passes(), "{sealed}");
    assert!(sealed.to_string().contains("Vault is sealed"), "{sealed}");
    let slow = world.mood_kept(&profile, Mood::Slow).await.unwrap_err();
    assert!(matches!(slow, VaultError::Slow { .. }) && slow.passes(), "{slow}");
    let garbled = world.mood_kept(&profile, Mood::Garbled).await.unwrap_err();
    assert!(matches!(garbled, VaultError::Answer { .. }), "{garbled}");
    let lasts = world.mood_kept(&profile, Mood::LastsLong).await.unwrap_err();
    assert!(lasts.to_string().contains("max_ttl"), "{lasts}");
    let adds = world.mood_kept(&profile, Mood::AddsNames).await.unwrap_err();
    assert!(adds.to_string().contains("everybody.example"), "{adds}");
    let elsewhere: TrustDomain = "elsewhere.consul".parse().unwrap();
    let refused = world.issue(&web(elsewhere)).await.unwrap_err();
    assert!(matches!(refused, VaultError::Refused { status: StatusCode::BAD_REQUEST, .. }) && !refused.passes());

    // The token is read anew each time, so that who renews it need not restart anything.
    std::fs::write(&world.token, "hvs.ended\n").unwrap();
    let forbidden = world.issue(&profile).await.unwrap_err();
    assert!(matches!(forbidden, VaultError::Forbidden { .. }) && forbidden.passes(), "{forbidden}");
    let said = forbidden.to_string();
    assert!(
        said.contains("permission denied") && said.contains("/v1/pki_mesh/sign/mesh") && !said.contains("hvs."),
        "{said}"
    );
    std::fs::write(&world.token, TOKEN).unwrap();
    world.issue(&profile).await.unwrap();
    std::fs::remove_file(&world.token).unwrap();
    let (root, csr) = (world.pki.root(&trust_domain(), now()).await, LeafKey::generate().unwrap().csr_der().unwrap());
    assert!(matches!(root.unwrap_err(), VaultError::File { .. }));
    drop(csr);

    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let nobody = VaultPki::new(config("http://127.0.0.1:1", &token)).unwrap();
    let unreached = nobody.root(&trust_domain(), now()).await.unwrap_err();
    assert!(matches!(unreached, VaultError::Unreached { .. }) && unreached.passes(), "{unreached}");
}
