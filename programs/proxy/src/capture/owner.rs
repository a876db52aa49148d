//! Whose a captured connection is: the kernel is asked for the user of the socket at its other end.
//!
//! A proxy whose own connections are led back to it would call itself without end, until no descriptor is left. Rules that
//! do so are a mistake of whoever made them, and can be made at any moment; so each connection is looked at.
//! Cost model: one question to the kernel for a connection, answered from its table of sockets without a search.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with};
use rustix::process::geteuid;

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// `NLM_F_REQUEST` of `linux/netlink.h`.
const REQUEST: u16 = 1;

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

/// `struct inet_diag_req_v2` behind it.
const QUESTION_BYTES: usize = HEADER_BYTES + 56;

/// The port of the other end in `struct inet_diag_msg`, which is behind a header: after four bytes and the socket's port.
const OTHER_PORT_AT: usize = HEADER_BYTES + 4 + 2;

/// The user in `struct inet_diag_msg`, which is behind a header: after four bytes, the socket's name of 48, and three
/// numbers of 32 bits.
const USER_AT: usize = HEADER_BYTES + 4 + 48 + 12;

/// `AF_INET`, `AF_INET6` and `IPPROTO_TCP`.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
const TCP: u8 = 6;

/// Knows who is at the other end of connections within this machine.
pub(super) struct Owners {
    /// `None` where the kernel does not answer such questions: nobody is taken for this proxy then.
    netlink: Option<OwnedFd>,
    own: u32,
}

impl Owners {
    pub(super) fn new() -> Self {
        let socket = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG))?;
            // The kernel.
            connect(&socket, &SocketAddrNetlink::new(0, 0))?;
            Ok::<_, rustix::io::Errno>(socket)
        };
        Self { netlink: socket().ok(), own: geteuid().as_raw() }
    }

    /// Whether a connection from `client`, which called `destination`, is one that this proxy has made, or another process
    /// of its user.
    pub(super) fn is_own(&self, client: SocketAddr, destination: SocketAddr) -> bool {
        self.owner(client, destination) == Some(self.own)
    }

    fn owner(&self, client: SocketAddr, destination: SocketAddr) -> Option<u32> {
        let socket = self.netlink.as_ref()?;
        let mut answer = [0; 512];
        // What was left of an answer that came too late.
        while recv(socket, &mut answer, RecvFlags::empty()).is_ok() {}
        send(socket, &question(client, destination), SendFlags::empty()).ok()?;
        // The kernel answers before it returns from the question.
        let (count, _) = recv(socket, &mut answer, RecvFlags::empty()).ok()?;
        user(answer.get(..count)?, destination.port())
    }
}

/// The question for the socket that has these two ends.
fn question(client: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let (family, client_ip, destination_ip) = match (client.ip(), destination.ip()) {
        (IpAddr::V4(client), IpAddr::V4(destination)) => {
            (IPV4, padded(&client.octets()), padded(&destination.octets()))
        }
        (client, destination) => (IPV6, v6(client), v6(destination)),
    };
    let mut question = Vec::with_capacity(QUESTION_BYTES);
    question.extend(u32::try_from(QUESTION_BYTES).unwrap_or_default().to_ne_bytes());
    question.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    question.extend(REQUEST.to_ne_bytes());
    // Number and sender: there is one question at a time.
    question.extend([0; 8]);
    question.extend([family, TCP, 0, 0]);
    // In whatever state it is.
    question.extend(u32::MAX.to_ne_bytes());
    question.extend(client.port().to_be_bytes());
    question.extend(destination.port().to_be_bytes());
    question.extend(client_ip);
    question.extend(destination_ip);
    // On whatever interface, and of whatever cookie.
    question.extend(0_u32.to_ne_bytes());
    question.extend(u64::MAX.to_ne_bytes());
    question
}

fn padded(octets: &[u8; 4]) -> [u8; 16] {
    let mut padded = [0; 16];
    padded[..4].copy_from_slice(octets);
    padded
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The user in an answer; `None` if there is no such socket in this network namespace. The kernel may name one that only
/// listens at the client's port.
fn user(answer: &[u8], other_port: u16) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind != SOCK_DIAG_BY_FAMILY || *answer.get(OTHER_PORT_AT..OTHER_PORT_AT + 2)? != other_port.to_be_bytes() {
        return None;
    }
    Some(u32::from_ne_bytes(answer.get(USER_AT..USER_AT + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_of_this_process_are_its_own() {
        let owners = Owners::new();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (client, server) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            assert_eq!(owners.owner(client, server), Some(geteuid().as_raw()), "{address}");
            assert!(owners.is_own(client, server), "{address}");
            let nobody = SocketAddr::new(client.ip(), listener.local_addr().unwrap().port());
            assert_eq!(owners.owner(nobody, "192.0.2.1:1".parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn what_is_no_answer_names_nobody() {
        assert_eq!(user(&[], 0), None);
        assert_eq!(user(&[0; 15], 0), None);
        let mut answer = [0; USER_AT + 4];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        answer[USER_AT..].copy_from_slice(&7_u32.to_ne_bytes());
        answer[OTHER_PORT_AT + 1] = 80;
        assert_eq!(user(&answer, 80), Some(7));
        assert_eq!(user(&answer, 81), None);
        assert_eq!(user(&answer[..USER_AT + 3], 80), None);
        answer[4] ^= 1;
        assert_eq!(user(&answer, 80), None, "an error, for one");
    }
}
