//! Connections of checks, and where they do not go.
//!
//! A registration needs no more than `service:write`, and its checks run from the node's place in the network. So a check
//! must not reach what trusts that place alone: link-local addresses, and where clouds serve credentials. The node itself
//! may be checked, since that is what checks are for.

use std::net::{IpAddr, SocketAddr};

use starling_plan::is_local;
use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};

use super::failure::Failure;

/// Whether a check may go to an address. Everything that a terminating gateway refuses is refused, but the machine itself.
fn is_allowed(ip: IpAddr) -> bool {
    let own = ip.to_canonical();
    own.is_loopback() || own.is_unspecified() || !is_local(ip)
}

/// The addresses of a target to which a check may go.
pub(super) async fn resolve(target: impl ToSocketAddrs) -> Result<Vec<SocketAddr>, Failure> {
    let (allowed, refused): (Vec<_>, Vec<_>) = lookup_host(target).await?.partition(|at| is_allowed(at.ip()));
    match (allowed.is_empty(), refused.first()) {
        (false, _) => Ok(allowed),
        (true, None) => Err("has no address".to_owned().into()),
        (true, Some(at)) => {
            let ip = at.ip();
            Err(format!("{ip} is link-local, or of a cloud's metadata service: checks do not go there").into())
        }
    }
}

/// Connects to a target over TCP.
pub(super) async fn tcp(target: impl ToSocketAddrs) -> Result<TcpStream, Failure> {
    let addresses = resolve(target).await?;
    Ok(TcpStream::connect(addresses.as_slice()).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_reach_the_node_and_its_network_but_no_metadata_service() {
        for (ip, allowed) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("0.0.0.0", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", true),
            ("2001:db8::1", true),
            ("169.254.169.254", false),
            ("::ffff:169.254.169.254", false),
            ("64:ff9b::169.254.169.254", false),
            ("100.100.100.200", false),
            ("fd00:ec2::254", false),
            ("fe80::1", false),
        ] {
            assert_eq!(is_allowed(ip.parse().unwrap()), allowed, "{ip}");
        }
    }
}
