//! Certificate renewal: decides *when* a certificate is renewed. Owns no clock and no keys.

use starling_model::UnixSeconds;

/// Why no moment of renewal exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenewalError {
    /// The certificate is never valid.
    #[error("the lifetime is empty: not before {}, not after {}", not_before.0, not_after.0)]
    EmptyLifetime {
        /// Start of the lifetime.
        not_before: UnixSeconds,
        /// End of the lifetime.
        not_after: UnixSeconds,
    },
}

/// The moment at which renewal of a certificate begins, somewhere in the middle third of its lifetime.
///
/// `spread` picks the place in that third: 0 is its start, [`u64::MAX`] its end. Callers draw it once per certificate,
/// so that a fleet born in the same minute does not renew in the same minute. The last third is left for repeated
/// failures before expiry.
///
/// Units: UTC, whole seconds.
///
/// # Errors
/// [`RenewalError::EmptyLifetime`] if `not_after` is not later than `not_before`.
pub fn renew_at(not_before: UnixSeconds, not_after: UnixSeconds, spread: u64) -> Result<UnixSeconds, RenewalError> {
    if not_after <= not_before {
        return Err(RenewalError::EmptyLifetime { not_before, not_after });
    }
    let third = not_after.since(not_before) / 3;
    // The high half of the 128-bit product is `third` scaled by `spread / 2^64`, hence below `third`.
    let offset = u64::try_from((u128::from(third) * u128::from(spread)) >> 64)
        .expect("invariant: a product of two 64-bit numbers shifted by 64 has 64 bits");
    Ok(not_before.plus(third).plus(offset))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_lifetime_is_an_error() {
        let moment = UnixSeconds(10);
        for not_after in [UnixSeconds(10), UnixSeconds(9)] {
            assert_eq!(
                renew_at(moment, not_after, 0),
                Err(RenewalError::EmptyLifetime { not_before: moment, not_after })
            );
        }
    }

    #[test]
    fn the_ends_of_the_spread_are_the_ends_of_the_middle_third() {
        assert_eq!(renew_at(UnixSeconds(1_000), UnixSeconds(1_300), 0), Ok(UnixSeconds(1_100)));
        assert_eq!(renew_at(UnixSeconds(1_000), UnixSeconds(1_300), u64::MAX / 2 + 1), Ok(UnixSeconds(1_150)));
        assert_eq!(renew_at(UnixSeconds(1_000), UnixSeconds(1_300), u64::MAX), Ok(UnixSeconds(1_199)));
    }

    proptest! {
        #[test]
        fn renewal_stays_inside_the_middle_third(start in any::<u64>(), end in any::<u64>(), spread in any::<u64>()) {
            prop_assume!(start < end);
            let third = (end - start) / 3;
            let UnixSeconds(at) = renew_at(UnixSeconds(start), UnixSeconds(end), spread).unwrap();
            prop_assert!(at >= start + third);
            prop_assert!(at <= start + 2 * third);
            prop_assert!(at < end);
        }
    }
}
