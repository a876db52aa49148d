//! A server under whose root a Vault signs, and one that goes over to it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "its own tests use all of it")]
#[path = "../../../adapters/vault/tests/support/double.rs"]
mod double;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use starling_server::{AuthorityConfig, Inconsistent, Server, ServerConfig, SignFailure};
use starling_telemetry::Registry;
use starling_tls::{Credentials, IssuedLeaf, LeafKey, SealKeys};
use starling_vault::{VaultConfig, VaultPki};

use double::{Double, Mood, TOKEN, now};

const DEADLINE: Duration = Duration::from_secs(30);

fn vault(address: &str, folder: &Path) -> Arc<VaultPki> {
    let token_file = folder.join("token");
    std::fs::write(&token_file, TOKEN).unwrap();
    let config = VaultConfig {
        address: address.parse().unwrap(),
        mount: "pki_mesh".to_owned(),
        role: "mesh".to_owned(),
        token_file,
        ca_file: None,
        roots_file: None,
        namespace: None,
        timeout: Duration::from_millis(500),
    };
    Arc::new(VaultPki::new(config).unwrap())
}

async fn start(directory: &Path, authority: AuthorityConfig) -> anyhow::Result<Arc<Server>> {
    let config = ServerConfig { authority, ..ServerConfig::new(directory.to_owned(), "dc1".parse().unwrap()) };
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        match Server::start(config.clone(), &Registry::default()).await {
            Err(error) if format!("{error:#}").contains("in use") && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            started => return started,
        }
    }
}

async fn leaf(server: &Server) -> Result<IssuedLeaf, SignFailure> {
    let key = LeafKey::generate().unwrap();
    let leaf = server.issue_leaf(&"web".parse().unwrap(), key.csr_der().unwrap()).await?;
    assert!(Credentials::new(&leaf.chain_pem, &key).is_ok());
    Ok(leaf)
}

#[tokio::test]
async fn a_first_start_with_a_vault_needs_no_key_here_and_an_outage_of_it_passes() {
    let (directory, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (double, address) = Double::listen().await;
    let authority = AuthorityConfig { seal: None, vault: Some(vault(&address, folder.path())) };
    let server = start(directory.path(), authority.clone()).await.unwrap();
    assert!(!directory.path().join("ca").exists());
    let issued = leaf(&server).await.unwrap();
    assert_eq!(issued.chain_pem.matches("BEGIN CERTIFICATE").count(), 2);
    let own = LeafKey::generate().unwrap();
    let own_leaf = server.issue_server(own.csr_der().unwrap(), &["127.0.0.1".parse().unwrap()]).await.unwrap();
    assert!(own_leaf.chain_pem.ends_with(&server.root().certificate_pem), "agents that join find the root there");
    double.behave(Mood::Sealed);
    let failed = leaf(&server).await.unwrap_err();
    assert!(failed.passes() && failed.to_string().contains("sealed"), "{failed}");
    double.behave(Mood::Signs);
    leaf(&server).await.unwrap();
    drop(server);
    // The root is known by the catalog: a start needs no Vault that works.
    double.behave(Mood::Sealed);
    let server = start(directory.path(), authority).await.unwrap();
    assert!(leaf(&server).await.unwrap_err().passes());
    drop(server);
    let deadline = tokio::time::Instant::now() + DEADLINE;
    let refused = start(directory.path(), AuthorityConfig::default()).await.err().unwrap();
    assert!(tokio::time::Instant::now() < deadline);
    assert!(matches!(refused.downcast_ref(), Some(Inconsistent::InVault { .. })), "{refused:#}");
}

#[tokio::test]
async fn a_mesh_goes_over_to_a_vault_and_back() {
    let (directory, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_double, address) = Double::listen().await;
    let seal = Arc::new(SealKeys::create(&folder.path().join("seal"), None).unwrap());
    let authority = AuthorityConfig { seal: Some(seal), vault: Some(vault(&address, folder.path())) };
    // With both, a first start is the Vault's; this one begins without.
    let own = AuthorityConfig { vault: None, ..authority.clone() };
    let server = start(directory.path(), own).await.unwrap();
    let trust_domain = server.trust_domain().clone();
    assert_eq!(leaf(&server).await.unwrap().chain_pem.matches("BEGIN CERTIFICATE").count(), 1);
    drop(server);
    let server = start(directory.path(), authority).await.unwrap();
    for to_vault in [true, false] {
        let (root, _) = server.rotate_authority(1, to_vault).await.unwrap();
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while server.root().id != root.id {
            assert!(tokio::time::Instant::now() < deadline, "it does not sign: {:?}", server.root());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let certificates = leaf(&server).await.unwrap().chain_pem.matches("BEGIN CERTIFICATE").count();
        assert_eq!(certificates, if to_vault { 2 } else { 1 });
        assert_eq!(server.trust_domain(), &trust_domain);
    }
    assert!(now().0 > 0 && server.snapshot().roots().len() == 3, "the ones before are trusted still");
}
