//! The cluster's identifier, from which its trust domain is made.

use starling_model::TrustDomain;

use crate::Uuid;

/// Names one cluster for good: drawn when the cluster is first started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(Uuid);

impl ClusterId {
    /// The one that an operator has given.
    #[must_use]
    pub fn new(id: Uuid) -> Self {
        Self(id)
    }

    /// Makes an identifier of 128 random bits, 6 of which the UUID's version and variant take.
    #[must_use]
    pub fn from_random(bits: u128) -> Self {
        Self(Uuid::from_random(bits))
    }

    /// The trust domain of the cluster's own CA: `<cluster id>.consul`.
    #[must_use]
    pub fn trust_domain(&self) -> TrustDomain {
        TrustDomain::new(&format!("{}.consul", self.0))
            .expect("invariant: hexadecimal, hyphens and a dot are in the grammar")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trust_domain_is_made_from_the_identifier() {
        let trust_domain = ClusterId::from_random(0).trust_domain();
        assert_eq!(trust_domain.as_str(), "00000000-0000-4000-8000-000000000000.consul");
    }
}
