//! TCP checks: a connection that is accepted passes.

use tokio::net::TcpStream;

use super::failure::Failure;
use super::passing;
use crate::registrations::Health;

pub(super) async fn run(address: &str) -> Result<Health, Failure> {
    match TcpStream::connect(address).await {
        Ok(_) => Ok(passing(format!("TCP connect {address}: Success"))),
        Err(error) => Err(Failure::from(error).of(&format!("TCP connect {address}"))),
    }
}
