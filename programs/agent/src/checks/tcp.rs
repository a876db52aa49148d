//! TCP checks: a connection that is accepted passes, and where TLS is wanted one whose handshake comes to an end.

use starling_model::CheckTls;

use super::dial;
use super::failure::Failure;
use super::passing;
use super::tls::{Trust, name_for};
use crate::registrations::Health;

pub(super) async fn run(address: &str, tls: Option<&CheckTls>, trust: &Trust) -> Result<Health, Failure> {
    let what = if tls.is_some() { "TCP+TLS" } else { "TCP" };
    let connected = async {
        let stream = dial::tcp(address).await?;
        if let Some(tls) = tls {
            trust.connect(stream, name_for(address, &tls.server_name), tls.skip_verify, None).await?;
        }
        Ok::<_, Failure>(())
    };
    connected.await.map_err(|failure| failure.of(&format!("{what} connect {address}")))?;
    Ok(passing(format!("{what} connect {address}: Success")))
}
