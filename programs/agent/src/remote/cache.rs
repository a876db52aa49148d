//! What a node has heard, kept on disk: with it the node restarts and serves while every server is gone.
//!
//! The file is the frames that a server would send a node that begins anew, the welcome first, each after its length. It
//! may be behind by what was heard in its last moments; the stream resumes from what is there. A file that cannot be read
//! is no reason not to start: everything in it can be heard again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use starling_attach::message::{ServerSays, Welcome};
use starling_attach::{FromServer, Replica};
use starling_model::Revision;

use crate::remote::mirror::Mirror;

/// Name of the file below the agent's directory.
const FILE: &str = "replica";

/// Least time between two writings, so that a busy mesh does not become a busy disk.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);

/// Pause between two looks whether there is something to keep at all: the node may be gone, or the server, in seconds.
const FIRST_LOOK: Duration = Duration::from_millis(200);

/// What was kept.
pub(crate) struct Kept {
    /// How the mesh presented itself.
    pub welcome: Welcome,
    /// What was heard.
    pub replica: Replica,
}

/// Where a node below `data_dir` keeps what it has heard.
pub(crate) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("agent").join(FILE)
}

/// Reads what was kept; `None` if there is nothing that can be used.
pub(crate) fn read(path: &Path) -> Option<Kept> {
    let bytes = match fs::read(path) {
        Ok(bytes) => Bytes::from(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "what was heard before cannot be read; it is heard again");
            return None;
        }
    };
    let kept = parse(bytes);
    if kept.is_none() {
        tracing::warn!(path = %path.display(), "what was heard before is damaged; it is heard again");
    }
    kept
}

fn parse(mut bytes: Bytes) -> Option<Kept> {
    let mut frames = Vec::new();
    while bytes.has_remaining() {
        let length = usize::try_from(bytes.try_get_u32().ok()?).ok()?;
        if length > bytes.len() {
            return None;
        }
        frames.push(bytes.split_to(length));
    }
    let ServerSays::Welcome(welcome) = FromServer::from_bytes(frames.first()?.clone()).ok()? else { return None };
    let replica = Replica::from_frames(frames).ok()?;
    Some(Kept { welcome, replica })
}

/// Keeps what is heard, until dropped.
pub(crate) async fn keep(path: PathBuf, welcome: Welcome, mirror: Arc<Mirror>) {
    let mut written = None;
    loop {
        let pause = if written.is_some() { WRITE_INTERVAL } else { FIRST_LOOK };
        tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        let replica = mirror.replica();
        let known = (replica.through(), replica.clock());
        if known.0 == Revision(0) || written == Some(known) {
            continue;
        }
        let (target, welcome) = (path.clone(), welcome.clone());
        let writing = tokio::task::spawn_blocking(move || write(&target, welcome, &replica)).await;
        match writing.map_err(io::Error::other).and_then(|done| done) {
            Ok(()) => written = Some(known),
            Err(error) => tracing::warn!(path = %path.display(), %error, "what was heard cannot be kept"),
        }
    }
}

/// Replaces the file as a whole.
fn write(path: &Path, welcome: Welcome, replica: &Replica) -> io::Result<()> {
    // Of the store that the replica is of, whichever it was at the welcome.
    let epoch = replica.reached().map_or(0, |reached| reached.epoch);
    let welcome = FromServer::from(ServerSays::Welcome(Welcome { epoch, ..welcome })).to_bytes();
    let partial = path.with_extension("partial");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    let mut bytes = Vec::new();
    for frame in std::iter::once(welcome).chain(replica.to_frames()) {
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&frame);
    }
    file.write_all(&bytes)?;
    file.sync_data()?;
    fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use starling_attach::Intake;
    use starling_attach::message::{Reached, Through, Whole, encode_subject};
    use starling_catalog::{MeshRead, Subject};

    use super::*;

    #[test]
    fn what_was_kept_is_read_again_and_damage_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(FILE);
        assert!(read(&path).is_none());
        let mut replica = Replica::default();
        replica.want(&Subject::ProxyDefaults);
        let (mut intake, _) = Intake::begin(&mut replica, false);
        let mut hear = |says: ServerSays| {
            if intake.hear(&replica, &says).expect("heard") {
                intake.hand_over(&mut replica);
            }
        };
        hear(ServerSays::Welcome(Welcome { epoch: 5, ..Welcome::default() }));
        let subject = encode_subject(&Subject::ProxyDefaults);
        let whole = Whole { subject, revision: 7, items: Vec::new() };
        hear(ServerSays::Whole(whole));
        hear(ServerSays::Through(Through { revision: 9, ..Through::default() }));
        let welcome = Welcome { trust_domain: "t.consul".to_owned(), ..Welcome::default() };
        write(&path, welcome.clone(), &replica).expect("written");
        let kept = read(&path).expect("readable");
        assert_eq!(kept.welcome, Welcome { epoch: 5, ..welcome });
        assert_eq!(kept.replica.reached(), Some(Reached { epoch: 5, revision: 9 }));
        assert!(kept.replica.knows(&Subject::ProxyDefaults));
        assert_eq!(kept.replica.revision(), Revision(9));
        let bytes = fs::read(&path).expect("there");
        for cut in 0..bytes.len() {
            fs::write(&path, &bytes[..cut]).expect("written");
            let kept = read(&path);
            assert!(kept.is_none_or(|kept| kept.replica.through() < Revision(9)), "cut at {cut}");
        }
    }
}
