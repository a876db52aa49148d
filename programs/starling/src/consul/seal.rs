//! The seal key of an agent under Consul's name, whose configuration names none.

use std::path::{Path, PathBuf};

use starling_tls::SealKeys;

/// Its file in the data directory.
const FILE: &str = "seal-key";

/// What a data directory has in which a mesh was begun.
const BEGUN: [&str; 3] = ["store", "ca", "agent"];

/// The file of the seal key, made where the mesh begins: the CA's key is in the store from then on, sealed, so that another root can be put
/// in its place by Consul's own API. `None` where a mesh was begun without.
pub(crate) fn seal_key(data_dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    let path = data_dir.join(FILE);
    if path.symlink_metadata().is_ok() {
        return Ok(Some(path));
    }
    // What else is there, such as the lost+found of a volume, is not of a mesh.
    if BEGUN.iter().any(|part| data_dir.join(part).symlink_metadata().is_ok()) {
        return Ok(None);
    }
    let key = SealKeys::create(&path, None)?;
    tracing::info!(path = %path.display(), id = key.id(), "a seal key was made: keep a copy of it in a safe place");
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_that_begins_has_a_seal_key_and_one_that_has_none_gets_none() {
        let new = tempfile::tempdir().expect("a folder");
        let made = seal_key(new.path()).expect("made").expect("a key");
        let id = SealKeys::read(&made).expect("read").id().to_owned();
        std::fs::create_dir(new.path().join("store")).expect("a store");
        assert_eq!(seal_key(new.path()).expect("found"), Some(made.clone()));
        assert_eq!(SealKeys::read(&made).expect("read").id(), id);
        let old = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(old.path().join("store")).expect("a store");
        assert_eq!(seal_key(old.path()).expect("looked"), None);
        let volume = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(volume.path().join("lost+found")).expect("what a volume has");
        assert!(seal_key(volume.path()).expect("made").is_some());
    }
}
