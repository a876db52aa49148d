//! HTTP/2 checks: a connection that answers a PING frame passes (RFC 9113, section 6.7).

use h2::{Ping, client};
use starling_model::CheckTls;
use tokio::io::{AsyncRead, AsyncWrite};

use super::dial;
use super::failure::Failure;
use super::tls::{Trust, name_for};
use super::{chain, passing};
use crate::registrations::Health;

pub(super) async fn run(address: &str, tls: Option<&CheckTls>, trust: &Trust) -> Result<Health, Failure> {
    let pinged = async {
        let stream = dial::tcp(address).await?;
        match tls {
            None => ping(stream).await,
            Some(tls) => {
                let name = name_for(address, &tls.server_name);
                ping(trust.connect(stream, name, tls.skip_verify, Some(b"h2")).await?).await
            }
        }
    };
    pinged.await.map_err(|failure| failure.of(&format!("HTTP2 ping {address}")))?;
    Ok(passing(format!("HTTP2 ping {address}: success")))
}

async fn ping(stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<(), Failure> {
    let said = |error: h2::Error| Failure::Application(chain(&error));
    let (_requests, mut connection) = client::handshake(stream).await.map_err(said)?;
    let mut pings = connection.ping_pong().ok_or_else(|| "the connection cannot be pinged".to_owned())?;
    tokio::select! {
        // The frames go and come while the connection is looked after.
        ended = &mut connection => match ended {
            Ok(()) => Err("the connection was closed".to_owned().into()),
            Err(error) => Err(said(error)),
        },
        pong = pings.ping(Ping::opaque()) => pong.map(drop).map_err(said),
    }
}
