//! The tokens by which an agent has those ask who show none. What the API gives it may outlive it, in a file that is its own to read.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use starling_model::AclSecret;

use crate::consul::GivenTokens;

/// The tokens of an agent.
#[derive(Default)]
pub(crate) struct OwnTokens {
    /// Those that its configuration gives it.
    given: Tokens,
    /// Those that the API has given it.
    told: Mutex<Tokens>,
    /// Where the latter are kept, if they are.
    kept_in: Option<PathBuf>,
    /// Rises when one of them changes.
    version: AtomicU64,
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct Tokens {
    /// `None` where nothing was said, and within it where none is to count.
    #[serde(default, with = "said")]
    default: Option<Option<AclSecret>>,
    #[serde(default, with = "said")]
    dns: Option<Option<AclSecret>>,
}

/// The empty text is for none.
mod said {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use starling_model::AclSecret;

    pub(super) fn serialize<S: Serializer>(said: &Option<Option<AclSecret>>, to: S) -> Result<S::Ok, S::Error> {
        said.as_ref().map(|token| token.as_ref().map_or("", AclSecret::reveal)).serialize(to)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Option<Option<AclSecret>>, D::Error> {
        Ok(Option::<String>::deserialize(from)?.map(|text| AclSecret::new(&text)))
    }
}

impl OwnTokens {
    /// Those of the configuration, and those that were kept.
    ///
    /// # Errors
    /// When the file cannot be read, or is none of these.
    pub(crate) fn new(given: GivenTokens) -> anyhow::Result<Self> {
        let GivenTokens { default, dns, kept_in, .. } = given;
        let told = kept_in.as_deref().map(read).transpose()?.unwrap_or_default();
        let given = Tokens { default: Some(default), dns: Some(dns) };
        Ok(Self { given, told: Mutex::new(told), kept_in, version: AtomicU64::new(0) })
    }

    pub(crate) fn default(&self) -> Option<AclSecret> {
        self.told().default.clone().or_else(|| self.given.default.clone()).flatten()
    }

    pub(crate) fn dns(&self) -> Option<AclSecret> {
        self.told().dns.clone().or_else(|| self.given.dns.clone()).flatten()
    }

    pub(crate) fn set_default(&self, token: Option<AclSecret>) {
        self.tell(|told| told.default = Some(token));
    }

    pub(crate) fn set_dns(&self, token: Option<AclSecret>) {
        self.tell(|told| told.dns = Some(token));
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn told(&self) -> MutexGuard<'_, Tokens> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: impl FnOnce(&mut Tokens)) {
        let mut told = self.told();
        change(&mut told);
        if let Some(path) = &self.kept_in
            && let Err(error) = write(path, &told)
        {
            tracing::error!(path = %path.display(), %error, "the tokens of this agent cannot be kept; they count until it ends");
        }
        drop(told);
        self.version.fetch_add(1, Ordering::Release);
    }
}

fn read(path: &Path) -> anyhow::Result<Tokens> {
    let what = || format!("the tokens that this agent was given, {}", path.display());
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).with_context(what),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Tokens::default()),
        Err(error) => Err(error).with_context(what),
    }
}

fn write(path: &Path, told: &Tokens) -> std::io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&serde_json::to_vec(told)?)?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_the_api_gives_wins_and_outlives_the_agent_where_it_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (secret, path) = (|text: &str| AclSecret::new(text), folder.path().join("acl-tokens.json"));
        let given = || GivenTokens { default: secret("a"), kept_in: Some(path.clone()), ..GivenTokens::default() };
        let tokens = OwnTokens::new(given()).expect("nothing is kept yet");
        assert_eq!((tokens.default(), tokens.dns()), (secret("a"), None));
        tokens.set_dns(secret("b"));
        let again = OwnTokens::new(given()).expect("it is kept");
        assert_eq!((again.default(), again.dns()), (secret("a"), secret("b")));
        again.set_default(None);
        assert_eq!(OwnTokens::new(given()).expect("it is kept").default(), None);
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        let elsewhere = OwnTokens::new(GivenTokens { kept_in: None, ..given() }).expect("tokens");
        assert_eq!(elsewhere.dns(), None);
        fs::write(&path, "{").expect("written");
        assert!(OwnTokens::new(given()).is_err());
    }
}
