//! The node that this process is.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use starling_identity::Uuid;
use starling_model::{Node, NodeName};

use crate::dev_args::DevArgs;

/// The node as it is registered.
pub(super) fn local(args: &DevArgs, data_dir: &Path) -> anyhow::Result<Node> {
    Ok(Node {
        name: name(args)?,
        id: id(data_dir)?.to_string(),
        address: args.advertise_addr.to_string(),
        tagged_addresses: ["lan", "wan"].map(|tag| (tag.to_owned(), args.advertise_addr.to_string())).into(),
        meta: BTreeMap::new(),
    })
}

/// Its name: as given, else the host's.
pub(super) fn name(args: &DevArgs) -> anyhow::Result<NodeName> {
    if let Some(name) = &args.node_name {
        return Ok(name.clone());
    }
    let host = nix::unistd::gethostname().context("reading the host's name")?;
    let host = host.to_string_lossy();
    let host = host.split('.').next().unwrap_or_default().to_owned();
    host.parse().with_context(|| format!("the host name {host:?} is no node name; give one with --node-name"))
}

/// Its UUID: made once, kept in the data directory.
fn id(data_dir: &Path) -> anyhow::Result<Uuid> {
    let path = data_dir.join("node-id");
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().with_context(|| format!("{} holds no UUID", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let id = Uuid::from_random(fastrand::u128(..));
            write_whole(&path, data_dir, &id.to_string()).with_context(|| format!("writing {}", path.display()))?;
            Ok(id)
        }
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// Writes a file that is there as a whole or not at all, also after a power cut.
fn write_whole(path: &Path, directory: &Path, text: &str) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    std::fs::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_made_once_and_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = id(directory.path()).expect("made");
        assert_eq!(id(directory.path()).expect("read"), first);
        let files = std::fs::read_dir(directory.path()).expect("the directory").count();
        assert_eq!(files, 1, "something is left beside it");
        std::fs::write(directory.path().join("node-id"), "").expect("spoiled");
        let error = format!("{:#}", id(directory.path()).expect_err("no UUID"));
        assert!(error.contains("node-id holds no UUID"), "{error}");
    }
}
