//! Leaves on disk: a file per service, readable by the agent's user alone, so that a restart needs no server and sends no
//! proxy a new certificate.
//!
//! A file that is damaged, expired or another's is passed over: a new leaf takes its place. So nothing here is worth an
//! fsync, and nothing here can fail a request.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use starling_identity::Identity;
use starling_model::{ServiceName, UnixSeconds};
use starling_tls::{Credentials, LeafKey};

use super::Leaf;

/// Name of the folder below the agent's.
const FOLDER: &str = "leaves";

/// Stands before the serial number, in the first line of a file.
const SERIAL: &str = "serial ";

/// Where the key begins, after the chain.
const KEY_BEGINS: &str = "-----BEGIN PRIVATE KEY-----";

/// The folder of leaves.
#[derive(Debug)]
pub(super) struct Kept(PathBuf);

impl Kept {
    /// The leaves below the agent's folder.
    pub(super) fn below(agent_dir: &Path) -> Self {
        Self(agent_dir.join(FOLDER))
    }

    /// Whether there is none, good or not. Where that cannot be told there may be one.
    pub(super) fn is_empty(&self) -> bool {
        match fs::read_dir(&self.0) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    fn path(&self, service: &ServiceName) -> PathBuf {
        // A service name has no slash, and begins with a letter or digit.
        self.0.join(format!("{service}.pem"))
    }

    /// The leaf that was kept, if it is good at `now`.
    pub(super) fn read(&self, service: &ServiceName, now: UnixSeconds) -> Option<Leaf> {
        let text = fs::read_to_string(self.path(service)).ok()?;
        let (first, rest) = text.split_once('\n')?;
        let serial = first.strip_prefix(SERIAL)?;
        let (chain, key) = rest.split_at(rest.find(KEY_BEGINS)?);
        let key = LeafKey::from_pem(key).ok()?;
        let credentials = Credentials::new(chain, &key).ok()?;
        let validity = credentials.validity();
        let own = matches!(credentials.identity(), Identity::Workload(workload) if workload.service == *service);
        (own && validity.not_after() > now).then_some(())?;
        Some(Leaf {
            service: service.clone(),
            certificate_chain_pem: chain.to_owned(),
            private_key_pem: key.private_key_pem().ok()?,
            serial: serial.to_owned(),
            not_before: validity.not_before(),
            not_after: validity.not_after(),
            generation: 1,
        })
    }

    /// Keeps a leaf in place of the one before.
    pub(super) fn write(&self, leaf: &Leaf) {
        if let Err(error) = self.try_write(leaf) {
            tracing::warn!(service = %leaf.service, %error, "a leaf cannot be kept; a restart asks for another");
        }
    }

    fn try_write(&self, leaf: &Leaf) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let path = self.path(&leaf.service);
        let partial = path.with_extension("partial");
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        writeln!(file, "{SERIAL}{}", leaf.serial)?;
        file.write_all(leaf.certificate_chain_pem.as_bytes())?;
        file.write_all(leaf.private_key_pem.expose().as_bytes())?;
        fs::rename(&partial, &path)
    }

    /// Forgets the leaf of a service.
    pub(super) fn remove(&self, service: &ServiceName) {
        // What is left behind is passed over once it has expired.
        let _ = fs::remove_file(self.path(service));
    }
}
