//! Issuance rules: how long certificates are valid.
//!
//! Owns lifetimes only. Which names go into a certificate follows from the catalog, and the signing is `adapters/tls`'s.

use std::time::Duration;

use starling_model::UnixSeconds;

const HOUR: u64 = 60 * 60;
const DAY: u64 = 24 * HOUR;

/// Lifetime of a leaf unless configured: long enough to outlive a weekend without servers.
pub const LEAF_TTL_DEFAULT: Duration = Duration::from_secs(72 * HOUR);

/// Shortest lifetime of a leaf; below it, renewals of a large fleet would crowd out everything else.
pub const LEAF_TTL_MIN: Duration = Duration::from_secs(HOUR);

/// Longest lifetime of a leaf; nothing revokes a leaf, so a stolen key is good for this long.
pub const LEAF_TTL_MAX: Duration = Duration::from_secs(365 * DAY);

/// How far certificates are back-dated, so that nodes whose clocks lag accept a fresh one.
pub const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

/// Lifetime of a root: ten years of 365 days.
pub const ROOT_LIFETIME: Duration = Duration::from_secs(10 * 365 * DAY);

/// The last moment that a certificate can express, 9999-12-31T23:59:59Z (RFC 5280, section 4.1.2.5).
pub const CERTIFICATE_TIME_MAX: UnixSeconds = UnixSeconds(253_402_300_799);

/// Why no certificate can be issued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IssuanceError {
    /// The lifetime asked for is outside the limits.
    #[error(
        "a leaf lifetime of {} s is outside {} s to {} s",
        ttl.as_secs(), LEAF_TTL_MIN.as_secs(), LEAF_TTL_MAX.as_secs()
    )]
    Ttl {
        /// The lifetime asked for.
        ttl: Duration,
    },
    /// The root's time is over.
    #[error("the root certificate expired at {} (unix seconds); it is now {}", not_after.0, now.0)]
    RootExpired {
        /// End of the root's validity.
        not_after: UnixSeconds,
        /// The moment of issuance.
        now: UnixSeconds,
    },
    /// The root's time has not come; the clock was set back.
    #[error("the root certificate is valid from {} (unix seconds) on; it is now {}", not_before.0, now.0)]
    RootNotYetValid {
        /// Start of the root's validity.
        not_before: UnixSeconds,
        /// The moment of issuance.
        now: UnixSeconds,
    },
    /// The clock shows a time past the last one that certificates express.
    #[error("the time {} (unix seconds) is past the year 9999", now.0)]
    Clock {
        /// The moment of issuance.
        now: UnixSeconds,
    },
}

/// From when until when a certificate is valid; both ends belong to it, and the end is later than the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    not_before: UnixSeconds,
    not_after: UnixSeconds,
}

impl Validity {
    /// The span from `not_before` to `not_after`; `None` if it is empty.
    #[must_use]
    pub fn new(not_before: UnixSeconds, not_after: UnixSeconds) -> Option<Self> {
        (not_before < not_after).then_some(Self { not_before, not_after })
    }

    /// The validity of a root made now: back-dated by [`CLOCK_SKEW`], ending after [`ROOT_LIFETIME`].
    ///
    /// # Errors
    /// [`IssuanceError::Clock`] if `now` is past what certificates express.
    pub fn of_root(now: UnixSeconds) -> Result<Self, IssuanceError> {
        let not_after = now.plus(ROOT_LIFETIME.as_secs()).min(CERTIFICATE_TIME_MAX);
        Self::new(back_dated(now), not_after).filter(|_| now < CERTIFICATE_TIME_MAX).ok_or(IssuanceError::Clock { now })
    }

    /// The first second of validity.
    #[must_use]
    pub fn not_before(&self) -> UnixSeconds {
        self.not_before
    }

    /// The last second of validity.
    #[must_use]
    pub fn not_after(&self) -> UnixSeconds {
        self.not_after
    }
}

/// How long leaves live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IssuanceRules {
    leaf_ttl: Duration,
}

impl Default for IssuanceRules {
    fn default() -> Self {
        Self { leaf_ttl: LEAF_TTL_DEFAULT }
    }
}

impl IssuanceRules {
    /// Rules under which leaves live for `leaf_ttl` unless a request says otherwise.
    ///
    /// # Errors
    /// [`IssuanceError::Ttl`] if it is outside [`LEAF_TTL_MIN`] to [`LEAF_TTL_MAX`].
    pub fn new(leaf_ttl: Duration) -> Result<Self, IssuanceError> {
        Ok(Self { leaf_ttl: check_ttl(leaf_ttl)? })
    }

    /// The lifetime of a leaf, counted from the moment of issuance.
    #[must_use]
    pub fn leaf_ttl(&self) -> Duration {
        self.leaf_ttl
    }

    /// The validity of a leaf issued now under a root.
    ///
    /// It starts [`CLOCK_SKEW`] before `now` and ends after `ttl`, or after [`IssuanceRules::leaf_ttl`] if none is
    /// given; it never reaches beyond the root's own validity on either side.
    ///
    /// # Errors
    /// [`IssuanceError::Ttl`] if `ttl` is outside the limits, [`IssuanceError::RootExpired`] and
    /// [`IssuanceError::RootNotYetValid`] if the root is not valid now.
    pub fn leaf_validity(
        &self,
        now: UnixSeconds,
        ttl: Option<Duration>,
        root: Validity,
    ) -> Result<Validity, IssuanceError> {
        let ttl = ttl.map_or(Ok(self.leaf_ttl), check_ttl)?;
        if now >= root.not_after {
            return Err(IssuanceError::RootExpired { not_after: root.not_after, now });
        }
        if now < root.not_before {
            return Err(IssuanceError::RootNotYetValid { not_before: root.not_before, now });
        }
        Ok(Validity {
            not_before: back_dated(now).max(root.not_before),
            not_after: now.plus(ttl.as_secs()).min(root.not_after),
        })
    }
}

fn check_ttl(ttl: Duration) -> Result<Duration, IssuanceError> {
    if (LEAF_TTL_MIN..=LEAF_TTL_MAX).contains(&ttl) { Ok(ttl) } else { Err(IssuanceError::Ttl { ttl }) }
}

fn back_dated(now: UnixSeconds) -> UnixSeconds {
    UnixSeconds(now.0.saturating_sub(CLOCK_SKEW.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_800_000_000);

    fn root() -> Validity {
        Validity::of_root(NOW).unwrap()
    }

    #[test]
    fn a_leaf_is_back_dated_and_lives_for_72_hours() {
        // A day later, so that the root's own start does not cut the back-dating short.
        let now = NOW.plus(DAY);
        let leaf = IssuanceRules::default().leaf_validity(now, None, root()).unwrap();
        assert_eq!(leaf.not_before(), UnixSeconds(now.0 - 300));
        assert_eq!(leaf.not_after(), now.plus(259_200));
    }

    #[test]
    fn a_leaf_never_outlives_its_root() {
        let almost = UnixSeconds(root().not_after().0 - 60);
        let leaf = IssuanceRules::default().leaf_validity(almost, None, root()).unwrap();
        assert_eq!(leaf.not_after(), root().not_after());
        assert_eq!(
            IssuanceRules::default().leaf_validity(root().not_after(), None, root()),
            Err(IssuanceError::RootExpired { not_after: root().not_after(), now: root().not_after() })
        );
    }

    #[test]
    fn a_clock_set_back_before_the_root_issues_nothing() {
        let early = UnixSeconds(root().not_before().0 - 1);
        assert!(matches!(
            IssuanceRules::default().leaf_validity(early, None, root()),
            Err(IssuanceError::RootNotYetValid { .. })
        ));
        let first = IssuanceRules::default().leaf_validity(root().not_before(), None, root()).unwrap();
        assert_eq!(first.not_before(), root().not_before());
    }

    #[test]
    fn lifetimes_outside_the_limits_are_refused() {
        let rules = IssuanceRules::default();
        for ttl in [Duration::ZERO, LEAF_TTL_MIN - Duration::from_secs(1), LEAF_TTL_MAX + Duration::from_secs(1)] {
            assert_eq!(IssuanceRules::new(ttl), Err(IssuanceError::Ttl { ttl }));
            assert_eq!(rules.leaf_validity(NOW, Some(ttl), root()), Err(IssuanceError::Ttl { ttl }));
        }
        for ttl in [LEAF_TTL_MIN, LEAF_TTL_MAX] {
            assert_eq!(IssuanceRules::new(ttl).unwrap().leaf_ttl(), ttl);
            assert_eq!(rules.leaf_validity(NOW, Some(ttl), root()).unwrap().not_after(), NOW.plus(ttl.as_secs()));
        }
    }

    #[test]
    fn a_root_lives_for_ten_years_and_never_past_the_year_9999() {
        assert_eq!(root().not_after(), NOW.plus(315_360_000));
        let late = UnixSeconds(CERTIFICATE_TIME_MAX.0 - 10);
        assert_eq!(Validity::of_root(late).unwrap().not_after(), CERTIFICATE_TIME_MAX);
        assert!(Validity::of_root(CERTIFICATE_TIME_MAX).is_err());
        assert!(Validity::of_root(UnixSeconds(u64::MAX)).is_err());
        assert!(Validity::of_root(UnixSeconds(0)).is_ok());
    }
}
