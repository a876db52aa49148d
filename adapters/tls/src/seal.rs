//! Sealing: a private key of the CA at rest under a key that the operator gives.
//!
//! AES-256-GCM with a random nonce. What is bound to the ciphertext, so that it opens in no other place, is what kind of
//! record it is, of which form, of which root, and which key sealed it.
//!
//! A file of seal keys is text: one key to a line, 32 random bytes in base64. The first seals, and each of them opens; so a
//! seal key is replaced by putting another in front of it, having everything sealed anew, and taking it out.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use starling_model::SealedKey;
use zeroize::Zeroizing;

use crate::disk::{self, FILE_BYTES_MAX, PRIVATE_MODE, ReadError};
use crate::key::{KeyError, random_secret};

/// Bytes of a seal key.
const KEY_BYTES: usize = 32;

/// Seal keys in one file: the one that seals, and those that it replaces.
const KEYS_MAX: usize = 8;

/// Bytes of a hash that name a seal key: enough to tell apart the few that one operator has.
const ID_BYTES: usize = 8;

/// The form of what is sealed here.
const VERSION: u32 = 1;

/// What begins the data that is bound to every ciphertext.
const BOUND: &str = "starling ca-key";

/// What is hashed before a key to name it, so that the name is no hash that anybody else has of the key.
const NAMED: &[u8] = b"starling seal key id\0";

/// Why there are no seal keys.
#[derive(Debug, thiserror::Error)]
pub enum SealKeyError {
    /// The file cannot be read.
    #[error("cannot read the seal keys in {}; make a file of them with `starling ca new-seal-key`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is open to others than its owner.
    #[error("{} has mode {mode:04o}: others than its owner may read the seal key; set it to 0600", path.display())]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file holds something else.
    #[error("{}: line {line} is not a seal key, {KEY_BYTES} bytes in base64 as `starling ca new-seal-key` writes them", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The file holds no key, or far too many.
    #[error("{} holds {count} seal keys; it has 1 to {KEYS_MAX}, one to a line", path.display())]
    Count {
        /// The file.
        path: PathBuf,
        /// How many there are.
        count: usize,
    },
    /// A new key cannot be drawn.
    #[error(transparent)]
    Generate(#[from] KeyError),
    /// The file cannot be written, or is there.
    #[error("cannot write {}; a file of seal keys is never overwritten", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why what is sealed stays so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnsealError {
    /// It was sealed with another key.
    #[error("it is sealed with the seal key {wanted}, and this server has {}; start it with that one (--seal-key-file)", given.join(", "))]
    OtherKey {
        /// The one that sealed it.
        wanted: String,
        /// Those that are here.
        given: Vec<String>,
    },
    /// The form is of a later release.
    #[error("it is sealed in form {0}, which this release does not know")]
    Version(u32),
    /// The right key does not open it: it was changed, or was sealed for another root.
    #[error(
        "it is damaged, or was sealed for another root: the seal key is the right one and does not open it; restore the store from a backup"
    )]
    Damaged,
}

/// The keys by which the CA's own are sealed. Nothing shows them.
pub struct SealKeys(Vec<SealKey>);

struct SealKey {
    id: String,
    key: RandomizedNonceKey,
}

impl SealKey {
    fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        let mut named = digest::Context::new(&digest::SHA256);
        named.update(NAMED);
        named.update(bytes);
        let id = named.finish().as_ref()[..ID_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        let key = RandomizedNonceKey::new(&AES_256_GCM, bytes).expect("invariant: the length is that of the algorithm");
        Self { id, key }
    }
}

impl SealKeys {
    /// Reads a file of seal keys.
    ///
    /// # Errors
    /// [`SealKeyError`] if it cannot be read, is open to others, or holds anything else.
    pub fn read(path: &Path) -> Result<Self, SealKeyError> {
        let path_of = || path.to_owned();
        let bytes = disk::read_private(path).map_err(|error| match error {
            ReadError::Io(source) => SealKeyError::Read { path: path_of(), source },
            ReadError::Permissions(mode) => SealKeyError::Permissions { path: path_of(), mode },
            ReadError::TooLong => {
                SealKeyError::Count { path: path_of(), count: usize::try_from(FILE_BYTES_MAX).unwrap_or(usize::MAX) }
            }
        })?;
        let mut keys = Vec::new();
        for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let malformed = || SealKeyError::Malformed { path: path_of(), line: index + 1 };
            let key = Zeroizing::new(BASE64.decode(line).map_err(|_| malformed())?);
            keys.push(SealKey::new(key.as_slice().try_into().map_err(|_| malformed())?));
        }
        if keys.is_empty() || keys.len() > KEYS_MAX {
            return Err(SealKeyError::Count { path: path_of(), count: keys.len() });
        }
        Ok(Self(keys))
    }

    /// Writes a new file with a new key in it, for its owner alone; behind it, what is in another file, which it replaces.
    ///
    /// # Errors
    /// [`SealKeyError`] if there is a file of this name, the other cannot be read, or there is no randomness.
    pub fn create(path: &Path, replaces: Option<&Path>) -> Result<Self, SealKeyError> {
        let key = random_secret::<KEY_BYTES>()?;
        let mut text = Zeroizing::new(BASE64.encode(*key));
        text.push('\n');
        if let Some(other) = replaces {
            let kept = Self::read(other)?.0.len();
            if kept >= KEYS_MAX {
                return Err(SealKeyError::Count { path: other.to_owned(), count: kept + 1 });
            }
            let bytes = disk::read_private(other).ok();
            text.push_str(bytes.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default());
        }
        let at = |source| SealKeyError::Write { path: path.to_owned(), source };
        disk::write_new(path, PRIVATE_MODE, &text).map_err(at)?;
        Self::read(path)
    }

    /// The identifier of the one that seals. It says nothing of the key.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0[0].id
    }

    /// Seals the private key of a root.
    ///
    /// # Errors
    /// [`KeyError::Encode`] if the crypto library refuses.
    pub(crate) fn seal(&self, root: &str, secret: &[u8]) -> Result<SealedKey, KeyError> {
        let SealKey { id, key } = &self.0[0];
        // Room for the tag, so that no copy of the secret is left behind by growth.
        let mut text = Vec::with_capacity(secret.len() + AES_256_GCM.tag_len());
        text.extend_from_slice(secret);
        let bound = bound(root, id);
        let nonce = key.seal_in_place_append_tag(Aad::from(bound), &mut text).map_err(|_| KeyError::Encode)?;
        Ok(SealedKey {
            version: VERSION,
            seal_key: id.clone(),
            nonce: BASE64.encode(nonce.as_ref()),
            sealed: BASE64.encode(text),
        })
    }

    /// Opens what was sealed for a root.
    ///
    /// # Errors
    /// [`UnsealError`].
    pub(crate) fn unseal(&self, root: &str, sealed: &SealedKey) -> Result<Zeroizing<Vec<u8>>, UnsealError> {
        if sealed.version != VERSION {
            return Err(UnsealError::Version(sealed.version));
        }
        let key = self.0.iter().find(|key| key.id == sealed.seal_key).ok_or_else(|| UnsealError::OtherKey {
            wanted: sealed.seal_key.clone(),
            given: self.0.iter().map(|key| key.id.clone()).collect(),
        })?;
        let nonce: [u8; NONCE_LEN] =
            BASE64.decode(&sealed.nonce).ok().and_then(|nonce| nonce.try_into().ok()).ok_or(UnsealError::Damaged)?;
        let mut text = Zeroizing::new(BASE64.decode(&sealed.sealed).map_err(|_| UnsealError::Damaged)?);
        let bound = bound(root, &key.id);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = key.key.open_in_place(nonce, Aad::from(bound), &mut text).map_err(|_| UnsealError::Damaged)?.len();
        text.truncate(opened);
        Ok(text)
    }
}

/// What a ciphertext is bound to.
fn bound(root: &str, seal_key: &str) -> Vec<u8> {
    format!("{BOUND}\0{VERSION}\0{root}\0{seal_key}").into_bytes()
}

impl fmt::Debug for SealKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.id)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn keys(directory: &Path, name: &str) -> SealKeys {
        SealKeys::create(&directory.join(name), None).unwrap()
    }

    /// One bit of the text that base64 stands for is another.
    fn tampered(text: &str, at: usize) -> String {
        let mut bytes = BASE64.decode(text).unwrap();
        bytes[at] ^= 1;
        BASE64.encode(bytes)
    }

    #[test]
    fn what_is_sealed_opens_again_in_its_place_and_in_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let keys = keys(directory.path(), "seal");
        let sealed = keys.seal("aa", b"the secret").unwrap();
        assert_eq!(keys.unseal("aa", &sealed).unwrap().as_slice(), b"the secret");
        assert_eq!(keys.unseal("bb", &sealed), Err(UnsealError::Damaged), "sealed for another root");
        let bytes = BASE64.decode(&sealed.sealed).unwrap().len();
        assert_eq!(bytes, b"the secret".len() + 16);
        for at in 0..bytes {
            let other = SealedKey { sealed: tampered(&sealed.sealed, at), ..sealed.clone() };
            assert_eq!(keys.unseal("aa", &other), Err(UnsealError::Damaged), "byte {at}");
        }
        for at in 0..NONCE_LEN {
            let other = SealedKey { nonce: tampered(&sealed.nonce, at), ..sealed.clone() };
            assert_eq!(keys.unseal("aa", &other), Err(UnsealError::Damaged), "byte {at} of the nonce");
        }
        for (nonce, text) in
            [("", sealed.sealed.as_str()), ("AAAA", &sealed.sealed), (&sealed.nonce, ""), (&sealed.nonce, "!")]
        {
            let other = SealedKey { nonce: nonce.to_owned(), sealed: text.to_owned(), ..sealed.clone() };
            assert_eq!(keys.unseal("aa", &other), Err(UnsealError::Damaged));
        }
        let later = SealedKey { version: 2, ..sealed.clone() };
        assert_eq!(keys.unseal("aa", &later), Err(UnsealError::Version(2)));
        assert_ne!(keys.seal("aa", b"the secret").unwrap().nonce, sealed.nonce);
    }

    #[test]
    fn another_key_is_named_and_is_not_taken_for_damage() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (keys(directory.path(), "one"), keys(directory.path(), "other"));
        let sealed = one.seal("aa", b"the secret").unwrap();
        let refused = other.unseal("aa", &sealed).unwrap_err();
        let (wanted, given) = (one.id().to_owned(), vec![other.id().to_owned()]);
        assert_eq!(refused, UnsealError::OtherKey { wanted, given });
        // Even if the record says that it is this one's.
        let posing = SealedKey { seal_key: other.id().to_owned(), ..sealed };
        assert_eq!(other.unseal("aa", &posing), Err(UnsealError::Damaged));
    }

    #[test]
    fn a_file_that_replaces_another_seals_with_its_own_and_opens_both() {
        let directory = tempfile::tempdir().unwrap();
        let old = keys(directory.path(), "old");
        let sealed = old.seal("aa", b"the secret").unwrap();
        let new = directory.path().join("new");
        let both = SealKeys::create(&new, Some(&directory.path().join("old"))).unwrap();
        assert_ne!(both.id(), old.id());
        assert_eq!(both.unseal("aa", &sealed).unwrap().as_slice(), b"the secret");
        assert!(old.unseal("aa", &both.seal("aa", b"the secret").unwrap()).is_err());
        assert_eq!(std::fs::metadata(&new).unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&new).unwrap();
        assert!(matches!(SealKeys::create(&new, None), Err(SealKeyError::Write { .. })), "never overwritten");
        assert_eq!(std::fs::read_to_string(&new).unwrap(), text);
        assert!(!format!("{both:?}").contains(text.lines().next().unwrap()));
    }

    #[test]
    fn a_file_that_others_may_read_or_that_holds_something_else_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("seal");
        let _ = keys(directory.path(), "seal");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(SealKeys::read(&path), Err(SealKeyError::Permissions { mode: 0o640, .. })));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        for (text, line) in [("AAAA\n", 1), ("\n\nno base64\n", 3), (&"A".repeat(64), 1)] {
            std::fs::write(&path, text).unwrap();
            let refused = SealKeys::read(&path).unwrap_err();
            assert!(
                matches!(refused, SealKeyError::Malformed { line: found, .. } if found == line),
                "{text:?}: {refused}"
            );
        }
        std::fs::write(&path, "\n").unwrap();
        assert!(matches!(SealKeys::read(&path), Err(SealKeyError::Count { count: 0, .. })));
        assert!(matches!(SealKeys::read(&directory.path().join("none")), Err(SealKeyError::Read { .. })));
    }
}
