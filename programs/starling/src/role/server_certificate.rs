//! The server's own certificate, for its TLS listeners: issued at start, renewed while it runs.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use starling_identity::renew_at;
use starling_model::UnixSeconds;
use starling_server::Server;
use starling_tls::{CredentialSlot, Credentials, LeafKey, TrustRoots, agent_server_config};

/// After a renewal that failed; there is a third of the certificate's lifetime for further attempts.
const RETRY: Duration = Duration::from_secs(60);

/// The configuration of the TLS listeners, and the renewal of what it presents, which runs until dropped.
pub(super) fn listener(
    server: &Arc<Server>,
    address: IpAddr,
) -> anyhow::Result<(Arc<rustls::ServerConfig>, impl Future<Output = ()> + Send + 'static)> {
    let (credentials, mut renewal) = issue(server, address).context("issuing the server's certificate")?;
    let slot = CredentialSlot::new(credentials);
    let roots = TrustRoots::new([server.root()])?;
    // Strangers come without a certificate, to join.
    let config = agent_server_config(Arc::clone(&slot), &roots)?;
    let server = Arc::clone(server);
    let renewing = async move {
        loop {
            tokio::time::sleep(Duration::from_secs(renewal.since((starling_agent::system_clock())()))).await;
            match issue(&server, address) {
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
    };
    Ok((Arc::new(config), renewing))
}

fn issue(server: &Server, address: IpAddr) -> anyhow::Result<(Credentials, UnixSeconds)> {
    let key = LeafKey::generate()?;
    let leaf = server.issue_server(&key.csr_der()?, &[address])?;
    let renewal = renew_at(leaf.not_before, leaf.not_after, fastrand::u64(..))?;
    Ok((Credentials::new(&leaf.chain_pem, &key)?, renewal))
}
