//! The server's own certificate, for its TLS listeners, and the roots that it holds clients against: issued at start, renewed
//! while it runs, and anew when another root signs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use starling_catalog::Subject;
use starling_identity::renew_at;
use starling_model::UnixSeconds;
use starling_server::{Server, Signs, Subscription};
use starling_tls::{CredentialSlot, Credentials, LeafKey, TrustRoots, TrustSlot, rotating_server_config};

/// After a renewal that failed; there is a third of the certificate's lifetime for further attempts.
const RETRY: Duration = Duration::from_secs(60);

/// The configuration of the TLS listeners, and the renewal of what it presents, which runs until dropped.
pub(super) async fn listener(
    server: &Arc<Server>,
    address: IpAddr,
) -> anyhow::Result<(Arc<rustls::ServerConfig>, impl Future<Output = ()> + Send + 'static)> {
    // Before anything is read: what changes from here on is noticed.
    let changes =
        Changes { roots: server.subscribe(BTreeSet::from([Subject::Roots])), signer: server.signer_changes() };
    let (credentials, renewal) = issue(server, address).await.context("issuing the server's certificate")?;
    let slot = CredentialSlot::new(credentials);
    // Strangers come without a certificate, to join.
    let (config, trust) = rotating_server_config(Arc::clone(&slot), &roots(server)?)?;
    let renewing = renew(Arc::clone(server), address, (slot, trust), changes, renewal);
    Ok((Arc::new(config), renewing))
}

/// What has the certificate, or the roots, replaced.
struct Changes {
    roots: Subscription,
    signer: tokio::sync::watch::Receiver<Signs>,
}

fn roots(server: &Server) -> anyhow::Result<TrustRoots> {
    let snapshot = server.snapshot();
    Ok(TrustRoots::new(snapshot.roots().into_iter().map(|root| &root.value))?)
}

async fn renew(
    server: Arc<Server>,
    address: IpAddr,
    (slot, trust): (Arc<CredentialSlot>, Arc<TrustSlot>),
    mut changes: Changes,
    mut renewal: UnixSeconds,
) {
    loop {
        let left = Duration::from_secs(renewal.since((starling_agent::system_clock())()));
        tokio::select! {
            () = tokio::time::sleep(left) => {}
            _ = changes.signer.changed() => {}
            () = changes.roots.changed() => {
                let replaced = roots(&server).and_then(|roots| Ok(trust.replace(&roots)?));
                if let Err(error) = replaced {
                    tracing::error!(error = format!("{error:#}"), "clients are held against the roots before");
                }
                continue;
            }
        }
        match issue(&server, address).await {
            Ok((credentials, next)) => {
                slot.replace(credentials);
                renewal = next;
            }
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "the server's certificate could not be renewed");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn issue(server: &Server, address: IpAddr) -> anyhow::Result<(Credentials, UnixSeconds)> {
    let key = LeafKey::generate()?;
    let leaf = server.issue_server(key.csr_der()?, &[address]).await?;
    let renewal = renew_at(leaf.not_before, leaf.not_after, fastrand::u64(..))?;
    Ok((Credentials::new(&leaf.chain_pem, &key)?, renewal))
}
