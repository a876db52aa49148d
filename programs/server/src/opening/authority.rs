//! The CA at the start of a server: where its key is, what speaks against it, and how it comes to be.
//!
//! With a seal key it is in the store, and every server that has the seal key signs under it. Without, it is in the data
//! directory of the one server there is.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use starling_catalog::{AuthorityCommand, Command, Snapshot, decide};
use starling_identity::ClusterId;
use starling_model::{CaKeyPlace, CaRootRecord};
use starling_store::{CommitError, Store};
use starling_tls::{CertificateAuthority, SealKeys};

use super::Inconsistent;
use crate::commit::transactions;
use crate::server::{ServerConfig, StoreKind, now};
use crate::signer::Signer;
use crate::turn;

/// The CA's folder in the data directory.
pub(super) const FOLDER: &str = "ca";

/// How the keys of the CA's records begin.
const CA_KEYS: [&str; 2] = ["ca-root/", "ca-key/"];

/// Times that a first root is proposed because somebody else wrote to the store at the same moment.
const ATTEMPTS_MAX: usize = 16;

/// How it stands with the CA.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    /// There is none; what is in the files, if anything, may become it.
    None,
    /// It is in the files, and stays there.
    InFiles,
    /// It is in the files, and is to be in the store.
    TakenOver,
    /// It is in the store, or signs elsewhere.
    InStore,
}

/// Holds the CA in the files, if there is one, against what the store knows.
fn standing(
    config: &ServerConfig,
    catalog: &Snapshot,
    in_files: Option<&CertificateAuthority>,
) -> Result<Standing, Inconsistent> {
    let path = config.data_dir.join(FOLDER);
    let seal = config.authority.seal.as_deref();
    if seal.is_none() && !matches!(config.store, StoreKind::Embedded) && config.authority.vault.is_none() {
        return Err(Inconsistent::SealKeyRequired);
    }
    let Some(root) = catalog.active_root().map(|root| root.value.id.clone()) else {
        return match catalog.quarantined().find(|(key, _)| CA_KEYS.iter().any(|kind| key.starts_with(kind))) {
            Some((key, record)) => {
                let (key, reason) = (key.to_owned(), record.value.reason.clone());
                Err(Inconsistent::AuthorityUnreadable { key, reason })
            }
            None => Ok(Standing::None),
        };
    };
    let found = in_files.map(|authority| authority.root().id.clone());
    if let Some(found) = &found
        && !catalog.roots().iter().any(|root| root.value.id == *found)
    {
        return Err(Inconsistent::AuthorityForeign { path, found: found.clone(), root });
    }
    match (catalog.ca_key(&root).map(|key| &key.value.place), seal) {
        (Some(CaKeyPlace::Sealed(sealed)), None) => {
            Err(Inconsistent::Sealed { root, seal_key: sealed.seal_key.clone() })
        }
        (Some(CaKeyPlace::Vault { mount }), _) if config.authority.vault.is_none() => {
            Err(Inconsistent::InVault { root, mount: mount.clone() })
        }
        (Some(CaKeyPlace::Sealed(_) | CaKeyPlace::Vault { .. }), _) => Ok(Standing::InStore),
        (None, _) if found.is_some() && found.as_ref() != Some(&root) => {
            Err(Inconsistent::AuthorityForeign { path, found: found.unwrap_or_default(), root })
        }
        (None, Some(_)) if found.is_some() => Ok(Standing::TakenOver),
        (None, None) if found.is_some() => Ok(Standing::InFiles),
        (None, Some(_)) => Err(Inconsistent::KeyMissing { path, root }),
        (None, None) => Err(Inconsistent::AuthorityMissing { path, root }),
    }
}

/// Refuses a CA, or a lack of one, that does not go with the store; nothing is written.
pub(super) fn examine(
    config: &ServerConfig,
    catalog: &Snapshot,
    in_files: Option<&CertificateAuthority>,
) -> anyhow::Result<()> {
    if standing(config, catalog, in_files)? == Standing::InStore {
        open(config, catalog)?;
    }
    Ok(())
}

/// The CA that signs, made if there is none, and the catalog that knows it.
pub(super) async fn establish(
    config: &ServerConfig,
    store: &Arc<dyn Store>,
    mut catalog: Snapshot,
    in_files: Option<CertificateAuthority>,
) -> anyhow::Result<(Snapshot, Signer)> {
    let seal = config.authority.seal.as_deref();
    let mut in_files = in_files;
    if standing(config, &catalog, in_files.as_ref())? == Standing::None {
        catalog = found(config, store, catalog, &mut in_files).await.context("publishing the CA's root")?;
    }
    // Whoever was faster has decided; what is here goes with it or is refused.
    match (standing(config, &catalog, in_files.as_ref())?, in_files, seal) {
        (Standing::InFiles, Some(authority), _) => Ok((catalog, Signer::own(authority))),
        (Standing::TakenOver, Some(authority), Some(seal)) => {
            let command = AuthorityCommand::Keep(authority.sealed(seal)?);
            let catalog = committed(store, catalog, command).await.context("keeping the CA's key in the store")?;
            let signer = open(config, &catalog)?;
            forget_files(config, seal)?;
            Ok((catalog, signer))
        }
        (Standing::InStore, in_files, seal) => {
            let signer = open(config, &catalog)?;
            // A takeover that was interrupted, or another server's: what is in the store was opened just now.
            if let (Some(_), Some(seal)) = (in_files, seal) {
                forget_files(config, seal)?;
            }
            // One that was interrupted later: the key is no CA any more, and unsealed all the same.
            if CertificateAuthority::remove_remains(&config.data_dir)
                .context("removing what is left of a CA in files")?
            {
                tracing::info!("what was left of the CA in files is removed; its key is in the store");
            }
            Ok((catalog, signer))
        }
        _ => anyhow::bail!("the store lost its CA while this server started; start it again"),
    }
}

/// Makes the first root, unless another server does so at the same moment: then that one's is taken.
async fn found(
    config: &ServerConfig,
    store: &Arc<dyn Store>,
    catalog: Snapshot,
    in_files: &mut Option<CertificateAuthority>,
) -> anyhow::Result<Snapshot> {
    let trust_domain = || config.cluster.unwrap_or_else(|| ClusterId::from_random(fastrand::u128(..))).trust_domain();
    if let Some(vault) = &config.authority.vault {
        let (root, key) = vault.root(&trust_domain(), now()).await?;
        let root = CaRootRecord { active: true, ..root };
        return committed(store, catalog, AuthorityCommand::Found { root, key: Some(key) }).await;
    }
    let command =
        |authority: &CertificateAuthority, key| AuthorityCommand::Found { root: authority.root().clone(), key };
    let command = match (config.authority.seal.as_deref(), in_files.take()) {
        (Some(seal), Some(kept)) => {
            let key = kept.sealed(seal)?;
            let command = command(&kept, Some(key));
            *in_files = Some(kept);
            command
        }
        (Some(seal), None) => {
            let authority = CertificateAuthority::generate(&trust_domain(), now())?;
            command(&authority, Some(authority.sealed(seal)?))
        }
        (None, kept) => {
            let authority = match kept {
                Some(kept) => kept,
                None => CertificateAuthority::create(&config.data_dir, &trust_domain(), now())?,
            };
            let command = command(&authority, None);
            *in_files = Some(authority);
            command
        }
    };
    committed(store, catalog, command).await
}

/// Commits a command before there is a server that does: decided anew on what is in the store as often as others were
/// faster. The answer is all that the store holds, what others wrote meanwhile included.
async fn committed(
    store: &Arc<dyn Store>,
    mut catalog: Snapshot,
    command: AuthorityCommand,
) -> anyhow::Result<Snapshot> {
    let command = Command::Authority(command);
    for _ in 0..ATTEMPTS_MAX {
        let decision = decide(&catalog, &command)?;
        if decision.changes.is_empty() {
            return Ok(catalog);
        }
        for transaction in transactions(&decision)? {
            match store.commit(transaction).await {
                Ok(_) | Err(CommitError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        catalog = turn::catalog(&store.load().await?);
    }
    anyhow::bail!("gave up after {ATTEMPTS_MAX} conflicts with other servers; start this one again")
}

/// What signs, by the catalog.
fn open(config: &ServerConfig, catalog: &Snapshot) -> anyhow::Result<Signer> {
    Ok(Signer::of(&config.authority, catalog)?)
}

/// What was in the files is in the store, and was read from there: a key that lies about unsealed would make sealing of
/// no use.
fn forget_files(config: &ServerConfig, seal: &SealKeys) -> anyhow::Result<()> {
    let path: PathBuf = config.data_dir.join(FOLDER);
    CertificateAuthority::remove(&config.data_dir)
        .with_context(|| format!("removing {}, whose key is in the store now", path.display()))?;
    tracing::info!(path = %path.display(), seal_key = seal.id(), "the CA's key is in the store, sealed; its files are removed");
    Ok(())
}
