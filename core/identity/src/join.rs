//! Join tokens: what lets the agent of a new node ask for its first certificate.
//!
//! ```text
//! starling-join.1.<id>.<secret>.<root>
//! ```
//!
//! | Part | What |
//! |---|---|
//! | `1` | the version of this form |
//! | id | 64 random bits in hexadecimal; public |
//! | secret | 256 random bits in base64url; shown once, to whoever made the token, and stored as its SHA-256 only |
//! | root | SHA-256 of the DER of the root certificate, in base64url; public |
//!
//! By the secret the server knows the agent, and by the root the agent knows the server, before it has anything else.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use starling_model::{JoinTokenId, SecretHash, UnixSeconds};
use zeroize::Zeroizing;

use crate::base64url;

/// Lifetime of a join token unless one is asked for: long enough to set machines up on the day it was made.
pub const JOIN_TOKEN_TTL_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);

/// Shortest lifetime of a join token: a person needs the time to carry it over.
pub const JOIN_TOKEN_TTL_MIN: Duration = Duration::from_secs(60);

/// Longest lifetime of a join token, for those that are baked into an image of machines to come.
pub const JOIN_TOKEN_TTL_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What every token begins with.
const MARK: &str = "starling-join";

const VERSION: &str = "1";

/// Bytes in a token: mark, version, identifier, secret, root, and the dots between them.
const TEXT_BYTES: usize = MARK.len() + VERSION.len() + 16 + 2 * 43 + 4;

/// A lifetime of a join token is outside the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a join token's lifetime of {} s is outside {} s to {} s",
    ttl.as_secs(), JOIN_TOKEN_TTL_MIN.as_secs(), JOIN_TOKEN_TTL_MAX.as_secs()
)]
pub struct JoinTokenTtlError {
    /// The lifetime asked for.
    pub ttl: Duration,
}

/// From when on a token made now is good for nothing: after `ttl`, or [`JOIN_TOKEN_TTL_DEFAULT`] if none is given.
///
/// # Errors
/// [`JoinTokenTtlError`] if `ttl` is outside [`JOIN_TOKEN_TTL_MIN`] to [`JOIN_TOKEN_TTL_MAX`].
pub fn join_token_expiry(now: UnixSeconds, ttl: Option<Duration>) -> Result<UnixSeconds, JoinTokenTtlError> {
    let ttl = ttl.unwrap_or(JOIN_TOKEN_TTL_DEFAULT);
    if (JOIN_TOKEN_TTL_MIN..=JOIN_TOKEN_TTL_MAX).contains(&ttl) {
        Ok(now.plus(ttl.as_secs()))
    } else {
        Err(JoinTokenTtlError { ttl })
    }
}

/// A root certificate by its content: SHA-256 of its DER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootFingerprint([u8; 32]);

impl RootFingerprint {
    /// The fingerprint of a certificate in DER.
    #[must_use]
    pub fn of(certificate_der: &[u8]) -> Self {
        Self(Sha256::digest(certificate_der).into())
    }
}

/// The secret of a join token. It has no debug form, no serialised form and no comparison, and is cleared when dropped.
pub struct JoinSecret(Zeroizing<[u8; 32]>);

impl JoinSecret {
    /// Makes a secret of 256 random bits, which must come from the system's source.
    #[must_use]
    pub fn from_random(bits: Zeroizing<[u8; 32]>) -> Self {
        Self(bits)
    }
}

/// A join token: id, secret and root in one. Its debug form does not show the secret.
pub struct JoinToken {
    /// Its public name.
    pub id: JoinTokenId,
    /// The root of the mesh that it leads into.
    pub root: RootFingerprint,
    secret: JoinSecret,
}

/// Why a text is no join token. The error never holds any of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinTokenError {
    /// Something else altogether.
    #[error(
        "this is not a join token; one begins with \"starling-join.\" and is made by `starling token create --join`"
    )]
    Mark,
    /// Of a form that is not known here.
    #[error("the join token is of a version that this program does not know; it knows {VERSION}")]
    Version,
    /// A piece is missing, or something was added.
    #[error("the join token is not whole; copy all of it, from \"starling-join\" to the end")]
    Incomplete,
}

impl JoinToken {
    /// Joins the parts of a token.
    #[must_use]
    pub fn new(id: JoinTokenId, secret: JoinSecret, root: RootFingerprint) -> Self {
        Self { id, root, secret }
    }

    /// What is stored of the secret.
    #[must_use]
    pub fn secret_hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.secret.0.as_slice()).into())
    }

    /// The token as text, for the one who made it and for the one who joins by it.
    #[must_use]
    pub fn expose(&self) -> Zeroizing<String> {
        // Allocated once, so that no copy of the secret is left behind by growth.
        let mut text = Zeroizing::new(String::with_capacity(TEXT_BYTES));
        text.extend([MARK, ".", VERSION, "."]);
        text.extend([self.id.to_string().as_str(), "."]);
        base64url::push(&mut text, &self.secret.0);
        text.push('.');
        base64url::push(&mut text, &self.root.0);
        text
    }
}

impl FromStr for JoinToken {
    type Err = JoinTokenError;

    /// Reads what [`JoinToken::expose`] wrote, and nothing else.
    fn from_str(text: &str) -> Result<Self, JoinTokenError> {
        let rest = text.strip_prefix(MARK).and_then(|rest| rest.strip_prefix('.')).ok_or(JoinTokenError::Mark)?;
        let (version, rest) = rest.split_once('.').ok_or(JoinTokenError::Incomplete)?;
        if version != VERSION {
            return Err(JoinTokenError::Version);
        }
        Self::from_parts(rest).ok_or(JoinTokenError::Incomplete)
    }
}

impl JoinToken {
    fn from_parts(text: &str) -> Option<Self> {
        let (id, rest) = text.split_once('.')?;
        let (secret, root) = rest.split_once('.')?;
        let secret = JoinSecret(Zeroizing::new(base64url::parse(secret)?));
        Some(Self { id: id.parse().ok()?, root: RootFingerprint(base64url::parse(root)?), secret })
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("id", &self.id).field("root", &self.root).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "starling-join.1.00000000000000ab.\
                        AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dw.\
                        ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0";

    fn token() -> JoinToken {
        let secret = std::array::from_fn(|index| u8::try_from(index * 7 + 3).unwrap());
        let secret = JoinSecret::from_random(Zeroizing::new(secret));
        JoinToken::new(JoinTokenId::from_random(0xab), secret, RootFingerprint::of(b"abc"))
    }

    #[test]
    fn a_token_has_one_text() {
        let text = token().expose();
        assert_eq!(*text, TEXT);
        assert_eq!(text.len(), TEXT_BYTES);
        assert_eq!(text.capacity(), TEXT_BYTES, "grew");
        let again: JoinToken = text.parse().unwrap();
        assert_eq!(again.expose(), text);
        assert_eq!(again.secret_hash(), token().secret_hash());
        assert_eq!((again.id, again.root), (token().id, token().root));
    }

    #[test]
    fn a_damaged_token_is_refused_and_not_quoted() {
        let parse = |text: &str| text.parse::<JoinToken>().unwrap_err();
        for foreign in ["", "starling", "starling-join", "hvs.CAESIJ", &TEXT[1..]] {
            assert_eq!(parse(foreign), JoinTokenError::Mark, "{foreign:?}");
        }
        assert_eq!(parse(&TEXT.replace(".1.", ".2.")), JoinTokenError::Version);
        for len in "starling-join.".len()..TEXT.len() {
            assert_eq!(parse(&TEXT[..len]), JoinTokenError::Incomplete, "{len} bytes of it");
        }
        for damaged in [format!("{TEXT}\n"), format!("{TEXT}."), TEXT.replace("ab.", "AB."), TEXT.replace("ab.", ".")] {
            assert_eq!(parse(&damaged), JoinTokenError::Incomplete, "{damaged:?}");
        }
    }

    #[test]
    fn the_secret_shows_in_no_debug_form() {
        let token = token();
        assert_eq!(format!("{:?}", token.secret_hash()), "SecretHash(..)");
        let text = format!("{token:?} {token:#?}");
        for form in ["AwoRGB8m", "03, 0a", "[3, 10", "030a11"] {
            assert!(!text.contains(form), "{text}");
        }
    }

    #[test]
    fn the_hash_is_sha_256() {
        // The test vector of FIPS 180, "abc".
        assert_eq!(RootFingerprint::of(b"abc").0[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_ne!(token().secret_hash().0, token().secret.0[..]);
    }

    #[test]
    fn lifetimes_have_limits() {
        let now = UnixSeconds(1_000);
        assert_eq!(join_token_expiry(now, None), Ok(UnixSeconds(1_000 + 86_400)));
        assert_eq!(join_token_expiry(now, Some(JOIN_TOKEN_TTL_MIN)), Ok(UnixSeconds(1_060)));
        assert!(join_token_expiry(now, Some(JOIN_TOKEN_TTL_MIN - Duration::from_secs(1))).is_err());
        assert!(join_token_expiry(now, Some(JOIN_TOKEN_TTL_MAX)).is_ok());
        assert!(join_token_expiry(now, Some(JOIN_TOKEN_TTL_MAX + Duration::from_secs(1))).is_err());
    }
}
