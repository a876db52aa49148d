//! One process of a proxy hands its listening sockets to the next: connections that wait in them are lost by neither, and
//! every moment somebody accepts.
//!
//! Both meet at a Unix socket in a folder of the user's alone. The next one says that it takes over, the old one stops
//! following the agent and sends its sockets; both accept until the next one says that it serves, and then the old one lets
//! what it has under way finish. If the next one fails before that, the old one goes on as if nothing had happened.
//! As the old one does not follow any more, the next one reports nothing as applied before the old one has taken its last
//! call, which it says by closing the connection: until then calls may be judged as they were before.
//!
//! Whoever starts holds a lock beside the socket until it waits there itself, so that no two start at once.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use sha2::{Digest, Sha256};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep};

/// For the user alone.
const FOLDER_MODE: u32 = 0o700;

/// What whoever takes over says first. Whoever says nothing only looked whether somebody is there.
const TAKES_OVER: u8 = b't';

/// What comes with sockets.
const SOCKETS: u8 = b's';

/// What whoever took over says when it serves.
const SERVES: u8 = b'y';

/// Sockets in one message; Linux takes 253.
const SOCKETS_PER_MESSAGE: usize = 64;

/// Sockets in all: a proxy listens on one for each upstream and worker.
const SOCKETS_MAX: u32 = 65_536;

/// Time for each message but the last.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Time from the sockets to the first state in force: the agent may have to be waited for.
const SERVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two tries to be the one that starts.
const LOCK_EVERY: Duration = Duration::from_millis(20);

/// Time for a process that has ended to let go of the place where processes meet.
const GONE_WITHIN: Duration = Duration::from_secs(2);

/// Why a process does not start beside another one.
const SERVED: &str = "another process serves it already; --take-over takes its place";

/// Where processes of one proxy meet.
#[derive(Debug, Clone)]
pub(super) struct Meeting(PathBuf);

/// The one process that starts or takes over, until this is dropped.
#[derive(Debug)]
pub(super) struct Starting {
    _lock: Flock<File>,
}

impl Meeting {
    /// The place for the proxy `id` of the agent that is known as `agent`, in `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// If others could reach it.
    pub(super) fn at(folder: &Path, agent: &str, id: &str) -> anyhow::Result<Self> {
        match fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder) {
            Ok(()) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot make {}", folder.display())),
        }
        let found = fs::symlink_metadata(folder)?;
        let own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        ensure!(own && found.mode() & 0o077 == 0, "{} is not this user's alone", folder.display());
        // Names are longer than the path of a socket may be.
        let digest = Sha256::digest(format!("{agent} {id}"));
        let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(folder.join(format!("proxy-{name}.sock"))))
    }

    /// Begins to start, with nobody else; waits for another one that starts, if `is_patient`.
    ///
    /// # Errors
    /// If another one starts.
    pub(super) async fn begin(&self, is_patient: bool) -> anyhow::Result<Starting> {
        let path = self.0.with_extension("lock");
        let cannot = || format!("cannot lock {}", path.display());
        let mut file = File::options().create(true).append(true).open(&path).with_context(cannot)?;
        let (until, mut is_told) = (Instant::now() + SERVE_TIMEOUT, false);
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Starting { _lock: lock }),
                Err((_, Errno::EWOULDBLOCK)) if !is_patient => bail!(SERVED),
                Err((_, Errno::EWOULDBLOCK)) if Instant::now() > until => {
                    bail!("another process has been about to serve it for {SERVE_TIMEOUT:?}")
                }
                Err((unlocked, Errno::EWOULDBLOCK)) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::info!(
                            "another process is about to serve it; waiting for that, for {SERVE_TIMEOUT:?} at most"
                        );
                    }
                    file = unlocked;
                }
                Err((_, error)) => return Err(error).with_context(cannot),
            }
            sleep(LOCK_EVERY).await;
        }
    }

    /// Waits here for whoever takes over. What a process that is gone has left here is replaced.
    ///
    /// # Errors
    /// If a proxy is waiting here already.
    pub(super) async fn wait(&self) -> anyhow::Result<Incumbent> {
        match UnixStream::connect(&self.0).await {
            Ok(_) => bail!(SERVED),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(&self.0)?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(&self.0).with_context(|| format!("cannot listen on {}", self.0.display()))?;
        Ok(Incumbent { listener, path: self.0.clone() })
    }

    /// Waits here in the place of one that seems to have just ended; `None` if it is still there.
    pub(super) async fn succeed(&self) -> Option<Incumbent> {
        let until = Instant::now() + GONE_WITHIN;
        loop {
            match self.wait().await {
                Ok(incumbent) => {
                    tracing::info!("the process that served has ended; this one serves in its place");
                    return Some(incumbent);
                }
                Err(_) if Instant::now() < until => sleep(LOCK_EVERY).await,
                Err(_) => return None,
            }
        }
    }

    /// Takes over from whoever waits here; `None` if nobody does.
    ///
    /// # Errors
    /// If what comes are no sockets.
    pub(super) async fn take_over(&self) -> anyhow::Result<Option<(Vec<OwnedFd>, Successor)>> {
        let path = self.0.clone();
        tokio::task::spawn_blocking(move || {
            let Ok(mut stream) = StdStream::connect(&path) else { return Ok(None) };
            stream.set_read_timeout(Some(STEP_TIMEOUT))?;
            stream.set_write_timeout(Some(STEP_TIMEOUT))?;
            stream.write_all(&[TAKES_OVER])?;
            let sockets = receive(&mut stream).context("the proxy that serves does not hand its sockets over")?;
            stream.set_nonblocking(true)?;
            anyhow::Ok(Some((sockets, stream)))
        })
        .await??
        .map(|(sockets, stream)| Ok((sockets, Successor(UnixStream::from_std(stream)?))))
        .transpose()
    }
}

/// A proxy that waits for whoever takes over.
pub(super) struct Incumbent {
    listener: UnixListener,
    path: PathBuf,
}

/// Somebody who takes over.
pub(super) struct Visitor(UnixStream);

/// The next one serves, and waits until this is dropped before it says so to anybody else: to be kept until no call is taken
/// here any more.
#[derive(Debug)]
pub(super) struct Parting {
    _stream: StdStream,
}

impl Visitor {
    /// Hands these sockets over; returns when the next one serves. `place` is left to it as soon as it does, and not before:
    /// all that time somebody is there.
    ///
    /// # Errors
    /// If it does not come to that.
    pub(super) async fn hand_over(
        self,
        sockets: Vec<OwnedFd>,
        place: &mut Option<Incumbent>,
    ) -> anyhow::Result<Parting> {
        let mut stream = self.0.into_std()?;
        let incumbent = place.take();
        // To its end, also if nobody waits for that any more: the next one must not be left with half a promise.
        let handing = tokio::task::spawn_blocking(move || {
            let given = stream.set_nonblocking(false).map_err(Into::into).and_then(|()| give(&mut stream, &sockets));
            if let Err(error) = given {
                return (incumbent, Err(error));
            }
            drop(incumbent);
            let told = stream.write_all(&[SERVES]).context("whoever took over is gone as soon as it served");
            (None, told.map(|()| Parting { _stream: stream }))
        });
        let handed;
        (*place, handed) = handing.await?;
        handed
    }
}

impl Incumbent {
    /// Waits for somebody who takes over. Safe to drop.
    pub(super) async fn visited(&self) -> Visitor {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                sleep(STEP_TIMEOUT).await;
                continue;
            };
            let is_own = stream.peer_cred().is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw());
            if is_own && asks(&stream).await {
                return Visitor(stream);
            }
        }
    }
}

impl Drop for Incumbent {
    fn drop(&mut self) {
        // Whoever has taken it away already has done what is to be done.
        let _ = fs::remove_file(&self.path);
    }
}

/// A proxy that has taken over, and has not said yet that it serves.
pub(super) struct Successor(UnixStream);

impl Successor {
    /// Says that the one before may go; returns when it has heard so.
    ///
    /// # Errors
    /// If it does not wait any more. Then it goes on serving, and this one must not.
    pub(super) async fn serves(self) -> anyhow::Result<Predecessor> {
        let stream = self.0.into_std()?;
        let said = tokio::task::spawn_blocking(move || {
            stream.set_nonblocking(false)?;
            let mut stream = stream;
            stream.write_all(&[SERVES])?;
            stream.read_exact(&mut [0])?;
            io::Result::Ok(Predecessor(stream))
        });
        said.await?.context(ABANDONED)
    }

    /// Ends when the one before does not wait any more. Safe to drop.
    pub(super) async fn abandoned(&self) -> anyhow::Error {
        loop {
            let read = match self.0.readable().await {
                Ok(()) => self.0.try_read(&mut [0]),
                Err(error) => Err(error),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(_) | Err(_) => return anyhow::anyhow!(ABANDONED),
            }
        }
    }
}

/// A proxy that is about to take no calls any more.
#[derive(Debug)]
pub(super) struct Predecessor(StdStream);

impl Predecessor {
    /// Returns when it takes none any more, or after [`STEP_TIMEOUT`] when it does not say so.
    pub(super) async fn has_left(self) {
        let Self(mut stream) = self;
        // It says nothing more. The end comes when it has left, or ended; and if it hangs nobody waits for it.
        let _ = tokio::task::spawn_blocking(move || stream.read(&mut [0])).await;
    }
}

/// Why a proxy does not take over.
const ABANDONED: &str = "the process that served waited no longer for this one, and goes on serving";

/// Whether a visitor takes over, and does not just look.
async fn asks(stream: &UnixStream) -> bool {
    let said = async {
        loop {
            stream.readable().await.ok()?;
            let mut byte = [0];
            match stream.try_read(&mut byte) {
                Ok(count) => return (count == 1).then_some(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, said).await.ok().flatten() == Some(TAKES_OVER)
}

/// Gives sockets away; returns when whoever has them serves, and waits to hear that this was heard.
fn give(stream: &mut StdStream, sockets: &[OwnedFd]) -> anyhow::Result<()> {
    stream.set_write_timeout(Some(STEP_TIMEOUT))?;
    stream.set_read_timeout(Some(SERVE_TIMEOUT))?;
    let count = u32::try_from(sockets.len()).ok().filter(|count| *count <= SOCKETS_MAX).context("too many sockets")?;
    stream.write_all(&count.to_be_bytes())?;
    for chunk in sockets.chunks(SOCKETS_PER_MESSAGE) {
        let borrowed: Vec<_> = chunk.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_PER_MESSAGE))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ensure!(ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)), "no room for sockets in a message");
        sendmsg(&*stream, &[IoSlice::new(&[SOCKETS])], &mut ancillary, SendFlags::NOSIGNAL)?;
    }
    let mut said = [0];
    stream.read_exact(&mut said).context("whoever took over is gone before it served")?;
    ensure!(said == [SERVES], "whoever took over says what is not understood");
    Ok(())
}

fn receive(stream: &mut StdStream) -> anyhow::Result<Vec<OwnedFd>> {
    let mut count = [0; 4];
    stream.read_exact(&mut count)?;
    let count = u32::from_be_bytes(count);
    ensure!(count <= SOCKETS_MAX, "{count} sockets are more than {SOCKETS_MAX}");
    let count = usize::try_from(count)?;
    let mut sockets = Vec::with_capacity(count);
    while sockets.len() < count {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_PER_MESSAGE))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(&*stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        ensure!(got.bytes == 1, "only {} of {count} sockets came", sockets.len());
        let before = sockets.len();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                sockets.extend(received);
            }
        }
        ensure!(sockets.len() > before, "a message without sockets");
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn meeting() -> (tempfile::TempDir, Meeting) {
        let folder = tempfile::tempdir().unwrap();
        let meeting = Meeting::at(&folder.path().join("proxies"), "agent", "web-sidecar-proxy").unwrap();
        (folder, meeting)
    }

    #[tokio::test]
    async fn one_at_a_time_starts() {
        let (_folder, meeting) = meeting();
        let first = meeting.begin(false).await.unwrap();
        assert!(meeting.begin(false).await.is_err_and(|error| error.to_string().contains("--take-over")));
        let patient = meeting.clone();
        let patient = tokio::spawn(async move { patient.begin(true).await.unwrap() });
        drop(first);
        let second = patient.await.unwrap();
        assert!(meeting.begin(false).await.is_err());
        drop(second);
        meeting.begin(false).await.unwrap();
    }

    #[tokio::test]
    async fn sockets_change_hands_and_still_listen() {
        let (_folder, meeting) = meeting();
        assert!(meeting.take_over().await.unwrap().is_none(), "nobody is there");
        let incumbent = meeting.wait().await.unwrap();
        let listeners: Vec<_> = (0..150).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let address = listeners[149].local_addr().unwrap();
        let taking = tokio::spawn(async move { meeting.take_over().await.unwrap().unwrap() });
        let visitor = incumbent.visited().await;
        let place = incumbent.path.clone();
        let handing = tokio::spawn(async move {
            let sockets = listeners.into_iter().map(OwnedFd::from).collect();
            visitor.hand_over(sockets, &mut Some(incumbent)).await
        });
        let (sockets, successor) = taking.await.unwrap();
        assert_eq!(sockets.len(), 150);
        assert!(StdStream::connect(&place).is_ok(), "somebody is there until the next one serves");
        let predecessor = successor.serves().await.unwrap();
        assert!(StdStream::connect(&place).is_err(), "the place is free when the next one has heard so");
        let parting = handing.await.unwrap().unwrap();
        let mut leaving = tokio::spawn(predecessor.has_left());
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut leaving).await.is_err(), "it accepts still");
        drop(parting);
        leaving.await.unwrap();
        let last = TcpListener::from(sockets.into_iter().last().unwrap());
        let client = TcpStream::connect(address).unwrap();
        assert_eq!(last.accept().unwrap().1, client.local_addr().unwrap());
    }

    #[tokio::test]
    async fn one_that_fails_changes_nothing_and_one_that_looks_is_no_visitor() {
        let (_folder, meeting) = meeting();
        let incumbent = meeting.wait().await.unwrap();
        // This looks, and is refused.
        assert!(meeting.wait().await.is_err_and(|error| error.to_string().contains("--take-over")));
        let second = meeting.clone();
        let taking = tokio::spawn(async move { second.take_over().await.unwrap().unwrap() });
        let visitor = incumbent.visited().await;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut place = Some(incumbent);
        let (handed, taken) =
            tokio::join!(visitor.hand_over(vec![listener.into()], &mut place), async { drop(taking.await.unwrap()) });
        let () = taken;
        assert!(handed.is_err_and(|error| error.to_string().contains("before it served")));
        assert!(place.is_some(), "it still waits");
        drop(place);
        assert!(meeting.take_over().await.unwrap().is_none(), "it has gone with its place");
    }

    #[tokio::test]
    async fn one_that_came_too_late_hears_so() {
        let (_folder, meeting) = meeting();
        let incumbent = meeting.wait().await.unwrap();
        let second = meeting.clone();
        let taking = tokio::spawn(async move { second.take_over().await.unwrap().unwrap() });
        let visitor = incumbent.visited().await;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let handing = tokio::spawn(async move { visitor.hand_over(vec![listener.into()], &mut None).await });
        let (_, successor) = taking.await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), successor.abandoned()).await.is_err(), "it waits");
        handing.abort();
        drop(incumbent);
        // The one before has given up; here its side of the connection is closed by hand.
        let (mine, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let late = Successor(mine);
        assert!(late.abandoned().await.to_string().contains("goes on serving"));
        assert!(late.serves().await.is_err());
        successor.serves().await.unwrap();
    }

    #[test]
    fn a_folder_that_others_can_reach_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Meeting::at(folder.path(), "a", "b").is_err());
    }
}
