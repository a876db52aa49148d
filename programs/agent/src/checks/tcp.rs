//! TCP checks: a connection that is accepted passes.

use tokio::net::TcpStream;

use super::{critical, passing};
use crate::registrations::Health;

pub(super) async fn run(address: &str) -> Health {
    match TcpStream::connect(address).await {
        Ok(_) => passing(format!("TCP connect {address}: Success")),
        Err(error) => critical(format!("TCP connect {address}: {error}")),
    }
}
