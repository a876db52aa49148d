//! The node that this process is.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;

use anyhow::Context;
use starling_identity::Uuid;
use starling_model::{Node, NodeName};

/// Where its UUID is kept in the data directory.
const ID_FILE: &str = "node-id";

/// The node as it is registered.
pub(crate) fn local(name: NodeName, address: IpAddr, data_dir: &Path) -> anyhow::Result<Node> {
    let id = id(data_dir)?.to_string();
    Ok(Node { name, id, address: address.to_string(), tagged_addresses: tagged(address), meta: BTreeMap::new() })
}

/// The node as it would be registered, without an identifier: none is made.
pub(crate) fn unregistered(name: NodeName, address: IpAddr) -> Node {
    let tagged_addresses = tagged(address);
    Node { name, id: String::new(), address: address.to_string(), tagged_addresses, meta: BTreeMap::new() }
}

/// One address under each of the tags by which Consul's clients look for it.
fn tagged(address: IpAddr) -> BTreeMap<String, String> {
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let tags = ["lan", "wan"].into_iter().flat_map(|tag| [tag.to_owned(), format!("{tag}_{family}")]);
    tags.map(|tag| (tag, address.to_string())).collect()
}

/// Its name: as given, else the host's.
pub(crate) fn name(given: Option<&NodeName>) -> anyhow::Result<NodeName> {
    if let Some(name) = given {
        return Ok(name.clone());
    }
    let host = nix::unistd::gethostname().context("reading the host's name")?;
    let host = host.to_string_lossy();
    let host = host.split('.').next().unwrap_or_default().to_owned();
    host.parse().with_context(|| format!("the host name {host:?} is no node name; give one with --node-name"))
}

/// Whether it has a UUID already, which is read but not made.
pub(crate) fn has_id(data_dir: &Path) -> anyhow::Result<bool> {
    Ok(kept_id(data_dir)?.is_some())
}

/// Its UUID: made once, kept in the data directory.
fn id(data_dir: &Path) -> anyhow::Result<Uuid> {
    if let Some(id) = kept_id(data_dir)? {
        return Ok(id);
    }
    let (id, path) = (Uuid::from_random(fastrand::u128(..)), data_dir.join(ID_FILE));
    write_whole(&path, data_dir, &id.to_string()).with_context(|| format!("writing {}", path.display()))?;
    Ok(id)
}

fn kept_id(data_dir: &Path) -> anyhow::Result<Option<Uuid>> {
    let path = data_dir.join(ID_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map(Some).with_context(|| format!("{} holds no UUID", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
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
    fn addresses_are_tagged_by_reach_and_family() {
        let tags = |address: &str| tagged(address.parse().expect("an address")).into_keys().collect::<Vec<_>>();
        assert_eq!(tags("10.0.0.1"), ["lan", "lan_ipv4", "wan", "wan_ipv4"]);
        assert_eq!(tags("2001:db8::1"), ["lan", "lan_ipv6", "wan", "wan_ipv6"]);
    }

    #[test]
    fn the_id_is_made_once_and_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(!has_id(directory.path()).expect("looked for"), "looking makes none");
        let first = id(directory.path()).expect("made");
        assert_eq!(id(directory.path()).expect("read"), first);
        let files = std::fs::read_dir(directory.path()).expect("the directory").count();
        assert_eq!(files, 1, "something is left beside it");
        std::fs::write(directory.path().join("node-id"), "").expect("spoiled");
        let error = format!("{:#}", id(directory.path()).expect_err("no UUID"));
        assert!(error.contains("node-id holds no UUID"), "{error}");
    }
}
