//! Keys by which tokens are verified: of the method's own settings, or fetched, and kept for a while.
//!
//! Of those who want the same set at once one fetches it, and the others wait for it. A set that cannot be fetched is not asked for again at
//! once; one that could be before is used for a while longer, so that who signs may restart without keeping everybody out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::JwkSet;
use tokio::time::Instant;

use super::LoginRefusal;
use super::fetch::{Place, fetch};
use super::settings::{KeySource, keys_of};

/// Time for a set to come, with what is asked to find it.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// For how long a set is believed to be what it was.
const KEPT: Duration = Duration::from_secs(5 * 60);

/// For how long it is used where no newer one is to be had: a key that was withdrawn meanwhile is believed no longer than this.
const USED: Duration = Duration::from_secs(60 * 60);

/// Least time between two looks at a set for a key that was not in it: strangers name keys that there are not.
const LOOKED_AGAIN: Duration = Duration::from_secs(10);

/// For how long a set that cannot be fetched is not asked for again.
const LET_BE: Duration = Duration::from_secs(3);

/// Sets that are kept.
const SETS_MAX: usize = 64;

/// Sets of keys that were fetched, and when.
#[derive(Default)]
pub(crate) struct KeyCache {
    sets: Mutex<BTreeMap<Place, Arc<Slot>>>,
}

/// One set.
#[derive(Default)]
struct Slot {
    known: Mutex<Known>,
    /// Held by whoever fetches.
    fetching: tokio::sync::Mutex<()>,
}

/// What is known of it.
#[derive(Default)]
struct Known {
    set: Option<(Instant, Arc<JwkSet>)>,
    /// When fetching it failed last, since it was fetched, and why.
    failed: Option<(Instant, String)>,
}

impl Known {
    /// The keys for `kid`, or why there are none; `None` if the set is to be fetched first.
    fn keys(&self, kid: Option<&str>) -> Option<Result<Vec<DecodingKey>, LoginRefusal>> {
        let set = self.set.as_ref().map(|(since, set)| (since.elapsed(), set));
        if let Some((age, set)) = set
            && age < KEPT
        {
            let keys = of_set(set, kid);
            if !keys.is_empty() || age < LOOKED_AGAIN {
                return Some(Ok(keys));
            }
        }
        let (_, reason) = self.failed.as_ref().filter(|(since, _)| since.elapsed() < LET_BE)?;
        Some(match set {
            Some((age, set)) if age < USED => Ok(of_set(set, kid)),
            Some(_) | None => Err(LoginRefusal::Keys(reason.clone())),
        })
    }
}

impl KeyCache {
    /// The keys that a token with this key identifier may be signed by.
    pub(super) async fn keys(&self, source: &KeySource, kid: Option<&str>) -> Result<Vec<DecodingKey>, LoginRefusal> {
        let place = match source {
            KeySource::Pem(pems) => return Ok(pems.iter().flat_map(|pem| keys_of(pem)).collect()),
            KeySource::At(place) => place,
        };
        let slot = self.slot(place);
        if let Some(keys) = slot.known(kid) {
            return keys;
        }
        let _alone = slot.fetching.lock().await;
        // Who held it before has looked as well.
        if let Some(keys) = slot.known(kid) {
            return keys;
        }
        let fetched = tokio::time::timeout(FETCH_TIMEOUT, fetch(place)).await;
        let fetched = fetched.unwrap_or_else(|_| Err("they took too long".to_owned()));
        {
            let mut known = slot.known.lock().unwrap_or_else(PoisonError::into_inner);
            match fetched {
                Ok(set) => *known = Known { set: Some((Instant::now(), Arc::new(set))), failed: None },
                Err(reason) => {
                    tracing::warn!(url = place.url, reason, "the keys of an auth method cannot be fetched");
                    known.failed = Some((Instant::now(), reason));
                }
            }
        }
        slot.known(kid).unwrap_or_else(|| Err(LoginRefusal::Keys("they are too old already".to_owned())))
    }

    fn slot(&self, place: &Place) -> Arc<Slot> {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        if sets.len() >= SETS_MAX && !sets.contains_key(place) {
            // Those of methods that are no more, mostly.
            sets.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        Arc::clone(sets.entry(place.clone()).or_default())
    }
}

impl Slot {
    fn known(&self, kid: Option<&str>) -> Option<Result<Vec<DecodingKey>, LoginRefusal>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).keys(kid)
    }
}

/// A token that names a key is signed by that one; one that names none by any.
fn of_set(set: &JwkSet, kid: Option<&str>) -> Vec<DecodingKey> {
    let named = set.keys.iter().filter(|key| kid.is_none() || key.common.key_id.as_deref() == kid);
    named.filter_map(|key| DecodingKey::from_jwk(key).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aged(set_s: Option<u64>, failed_s: Option<u64>) -> Known {
        let ago = |seconds| Instant::now() - Duration::from_secs(seconds);
        let set = JwkSet { keys: Vec::new() };
        Known {
            set: set_s.map(|seconds| (ago(seconds), Arc::new(set))),
            failed: failed_s.map(|seconds| (ago(seconds), "down".to_owned())),
        }
    }

    #[test]
    fn a_set_is_fetched_when_it_is_due_and_not_again_at_once_when_that_failed() {
        let age = |set_s, failed_s| aged(set_s, failed_s).keys(None).map(|keys| keys.is_ok());
        for (set_s, failed_s, expected) in [
            (None, None, None),
            (Some(1), None, Some(true)),
            // It has no such key, and was looked at a while ago.
            (Some(11), None, None),
            (Some(11), Some(1), Some(true)),
            (Some(11), Some(4), None),
            (None, Some(1), Some(false)),
            (None, Some(4), None),
            (Some(3_599), Some(1), Some(true)),
            (Some(3_601), Some(1), Some(false)),
        ] {
            assert_eq!(age(set_s, failed_s), expected, "{set_s:?} {failed_s:?}");
        }
    }
}
