//! CA certificates, from a file or from a directory of files.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::outcome::usage;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Where CA certificates are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Authorities {
    /// In one file.
    File(PathBuf),
    /// In the files of a directory, of which those without a certificate do not count.
    Directory(PathBuf),
}

impl Authorities {
    /// The ones that are given; a file wins over a directory, as with Consul.
    pub(crate) fn given(file: Option<PathBuf>, directory: Option<PathBuf>) -> Option<Self> {
        file.map(Self::File).or(directory.map(Self::Directory))
    }

    /// Where they are looked for.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Directory(path) => path,
        }
    }

    /// The certificates in PEM, and nothing else that the files may hold.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] if something cannot be read, or there is no certificate.
    pub(crate) fn pem(&self) -> anyhow::Result<String> {
        let pem = match self {
            Self::File(path) => certificates(path)?,
            Self::Directory(path) => {
                let cannot = |error| usage(format!("cannot read {}: {error}", path.display()));
                let entries = std::fs::read_dir(path).map_err(cannot)?;
                let paths: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
                let mut files = paths.map_err(cannot)?;
                files.retain(|path| path.is_file());
                files.sort();
                files.iter().map(|path| certificates(path)).collect::<anyhow::Result<String>>()?
            }
        };
        if pem.is_empty() {
            return Err(usage(format!("{} holds no certificate", self.path().display())));
        }
        Ok(pem)
    }
}

/// The certificates in a file. One that also holds a key must not give it away.
fn certificates(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).map_err(|error| usage(format!("cannot read {}: {error}", path.display())))?;
    let text = String::from_utf8_lossy(&bytes);
    let (mut pem, mut inside) = (String::new(), false);
    for line in text.lines().map(str::trim) {
        inside |= line == BEGIN;
        if inside {
            pem.push_str(line);
            pem.push('\n');
        }
        inside &= line != END;
    }
    for certificate in rustls_pemfile::certs(&mut pem.as_bytes()) {
        certificate.with_context(|| format!("{} is no PEM", path.display()))?;
    }
    Ok(pem)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn certificate(name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn a_directory_gives_every_certificate_and_no_key() {
        let folder = tempfile::tempdir().unwrap();
        let ((one, key), (two, _)) = (certificate("one"), certificate("two"));
        fs::write(folder.path().join("b.pem"), format!("# mine\n{key}{one}")).unwrap();
        fs::write(folder.path().join("a.crt"), &two).unwrap();
        fs::write(folder.path().join("README"), "which is which").unwrap();
        fs::create_dir(folder.path().join("old")).unwrap();
        let pem = Authorities::Directory(folder.path().to_owned()).pem().unwrap();
        assert_eq!(pem, format!("{two}{one}").replace('\r', ""));
    }

    #[test]
    fn where_there_is_none_it_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let error = Authorities::Directory(folder.path().to_owned()).pem().expect_err("empty").to_string();
        assert_eq!(error, format!("{} holds no certificate", folder.path().display()));
        let gone = folder.path().join("gone");
        for authorities in [Authorities::File(gone.clone()), Authorities::Directory(gone)] {
            assert!(authorities.pem().expect_err("gone").to_string().starts_with("cannot read "));
        }
    }

    #[test]
    fn a_file_wins_over_a_directory() {
        let given = |file: Option<&str>, folder: Option<&str>| {
            Authorities::given(file.map(PathBuf::from), folder.map(PathBuf::from))
        };
        assert_eq!(given(Some("f"), Some("d")), Some(Authorities::File("f".into())));
        assert_eq!(given(None, Some("d")), Some(Authorities::Directory("d".into())));
        assert_eq!(given(None, None), None);
    }
}
