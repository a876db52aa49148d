//! Connections of this process to the server that are reset, as a network does it that has forgotten them.
//!
//! The operating system itself gives a connection up: the server is sent a RST, and the agent's next read or write fails
//! with it, too. Neither end is asked, and nothing is closed politely. The sockets are found from outside the agents, which
//! know nothing of it.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rustix::io::Errno;
use rustix::net::connect_unspec;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tokio::time::Instant;

/// Where the descriptors of this process are listed.
const OWN_DESCRIPTORS: &str = "/proc/self/fd";

/// Connections that are about to be reset.
#[derive(Debug, Default)]
pub(super) struct Aimed(Vec<TcpStream>);

impl Aimed {
    /// Chooses so many of the connections to `server` at random; all, if there are fewer.
    ///
    /// # Errors
    /// When the operating system does not show them.
    pub(super) fn at_random(server: SocketAddr, count: u32) -> anyhow::Result<Self> {
        let mut numbers = sockets(Path::new(OWN_DESCRIPTORS))?;
        fastrand::shuffle(&mut numbers);
        let connections = connections(numbers, server, usize::try_from(count)?)?;
        Ok(Self(connections))
    }

    /// How many they are.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Resets each at a random moment of the time from now on; returns when all are.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub(super) async fn reset(self, during: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut moments: Vec<_> = self.0.into_iter().map(|it| (begun + during.mul_f64(fastrand::f64()), it)).collect();
        moments.sort_unstable_by_key(|(moment, _)| *moment);
        for (moment, connection) in moments {
            tokio::time::sleep_until(moment).await;
            // To connect a socket to nowhere is to abort the connection that it had.
            connect_unspec(&connection).context("a connection cannot be reset")?;
        }
        Ok(())
    }
}

/// The numbers of this process's sockets.
fn sockets(descriptors: &Path) -> anyhow::Result<Vec<i32>> {
    let listed = std::fs::read_dir(descriptors).with_context(|| format!("cannot list {}", descriptors.display()))?;
    let mut found = Vec::new();
    for entry in listed {
        let entry = entry.with_context(|| format!("cannot list {}", descriptors.display()))?;
        let is_socket = std::fs::read_link(entry.path()).is_ok_and(|it| it.to_string_lossy().starts_with("socket:"));
        found.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()).filter(|_| is_socket));
    }
    Ok(found)
}

/// Own handles of the first `count` connections to `server`. Only those are held: a process of thousands of nodes has few
/// descriptors to spare.
fn connections(numbers: Vec<i32>, server: SocketAddr, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).context("the process cannot look at itself (pidfd_open)")?;
    let mut found = Vec::new();
    for number in numbers {
        if found.len() == count {
            break;
        }
        match pidfd_getfd(&own, number, PidfdGetfdFlags::empty()) {
            Ok(socket) => {
                let socket = TcpStream::from(socket);
                // Somebody else may hold a second handle of the same one just now.
                let is_new = |own| !found.iter().any(|it: &TcpStream| it.local_addr().is_ok_and(|it| it == own));
                if socket.peer_addr().is_ok_and(|peer| peer == server) && socket.local_addr().is_ok_and(is_new) {
                    found.push(socket);
                }
            }
            // Closed meanwhile.
            Err(Errno::BADF) => {}
            Err(error) => return Err(error).context("the process may not look at its own sockets (pidfd_getfd)"),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_reset_looks_like_one_at_both_ends_and_hits_nobody_else() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (server, other) = (listener.local_addr().unwrap(), elsewhere.local_addr().unwrap());
        let mut pairs = Vec::new();
        for _ in 0..10 {
            let near = tokio::net::TcpStream::connect(server).await.unwrap();
            pairs.push((near, listener.accept().await.unwrap().0));
        }
        let mut bystander = tokio::net::TcpStream::connect(other).await.unwrap();
        let mut far = elsewhere.accept().await.unwrap().0;

        let aimed = Aimed::at_random(server, 4).unwrap();
        assert_eq!(aimed.count(), 4);
        aimed.reset(Duration::from_millis(20)).await.unwrap();
        let mut reset = 0;
        for (near, far) in &mut pairs {
            if near.peer_addr().is_ok() {
                far.write_all(b"x").await.unwrap();
                near.read_exact(&mut [0]).await.unwrap();
            } else {
                for end in [near, far] {
                    let error = end.read(&mut [0]).await.unwrap_err();
                    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                }
                reset += 1;
            }
        }
        assert_eq!(reset, 4);
        far.write_all(b"x").await.unwrap();
        bystander.read_exact(&mut [0]).await.unwrap();
    }

    #[test]
    fn nobody_is_aimed_at_where_nobody_is() {
        assert_eq!(Aimed::at_random("127.0.0.1:1".parse().unwrap(), 9).unwrap().count(), 0);
    }
}
