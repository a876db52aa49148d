//! What an operator must know of the CA's private key: it is in the store only where servers seal it.

use starling_backup::Summary;

use crate::offline::{Content, Place};

/// The kind of the records of root certificates.
const ROOT_KIND: &str = "ca-root";

/// In a data directory: the CA's files.
const AUTHORITY: &str = "ca";

/// Said of a snapshot without the key.
pub(crate) const KEY_NOT_HERE: &str = "the private key of the CA is not in it: keep a copy of DATA_DIR/ca of the server, without which no agent trusts a mesh \
     that was restored";

/// Whether there is a CA whose key is elsewhere.
pub(crate) fn lacks_key(summary: &Summary) -> bool {
    summary.kinds.contains_key(ROOT_KIND) && !summary.has_sealed_key()
}

/// Of a store that was filled for a place.
pub(crate) fn of_filled(content: &Content, target: &Place) -> Vec<String> {
    if !lacks_key(&content.summary()) {
        return Vec::new();
    }
    let note = match target {
        Place::Embedded(directory) if directory.join(AUTHORITY).exists() => return Vec::new(),
        Place::Embedded(directory) => format!(
            "the private key of the CA is not in the store: put the server's folder ca into {} before a server starts there",
            directory.display()
        ),
        Place::Etcd(_) => {
            "the private key of the CA is not in the store: the first server to start on it needs the folder \
                           ca in its data directory"
                .to_owned()
        }
    };
    vec![note]
}

/// Of a store that was copied.
pub(crate) fn of_copy(content: &Content, source: &Place, target: &Place) -> Vec<String> {
    match (source, target) {
        (Place::Embedded(directory), Place::Etcd(_)) if lacks_key(&content.summary()) => vec![format!(
            "the private key of the CA stays in {}: start the first server on the etcd with this data directory",
            directory.join(AUTHORITY).display()
        )],
        (Place::Embedded(_) | Place::Etcd(_), _) => of_filled(content, target),
    }
}
