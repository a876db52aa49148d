//! How the calls of a service are divided (Consul's `service-splitter`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::name::{ServiceName, SubsetName};
use crate::percent::Percent;
use crate::router::HeaderEdits;

/// How the calls of one service are divided between others, or between its subsets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceSplitter {
    /// The service.
    pub service: ServiceName,
    /// The parts.
    pub splits: Splits,
    /// Free metadata.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
}

/// One part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSplit {
    /// Its share.
    pub weight: Percent,
    /// The service called; `None` is the splitter's own.
    #[serde(default)]
    pub service: Option<ServiceName>,
    /// The subset called; `None` is the service's default.
    #[serde(default)]
    pub subset: Option<SubsetName>,
    /// What is done to the head of a request that goes here.
    #[serde(default)]
    pub request_headers: HeaderEdits,
    /// What is done to the head of its response.
    #[serde(default)]
    pub response_headers: HeaderEdits,
}

/// Parts that are a whole: their shares sum to 100 %.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<ServiceSplit>", into = "Vec<ServiceSplit>")]
pub struct Splits(Vec<ServiceSplit>);

/// Why parts are no whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitsError {
    /// There are none.
    #[error("no splits are given")]
    Empty,
    /// They sum to something else.
    #[error("the weights sum to {sum}, not to 100")]
    Sum {
        /// What they sum to, in percent.
        sum: String,
    },
}

impl Splits {
    /// The parts, in the order in which they were written.
    #[must_use]
    pub fn as_slice(&self) -> &[ServiceSplit] {
        &self.0
    }
}

impl TryFrom<Vec<ServiceSplit>> for Splits {
    type Error = SplitsError;
    fn try_from(splits: Vec<ServiceSplit>) -> Result<Self, SplitsError> {
        if splits.is_empty() {
            return Err(SplitsError::Empty);
        }
        let sum: u64 = splits.iter().map(|split| u64::from(split.weight.hundredths())).sum();
        if sum != u64::from(Percent::ALL.hundredths()) {
            return Err(SplitsError::Sum { sum: format!("{}.{:02}", sum / 100, sum % 100) });
        }
        Ok(Self(splits))
    }
}

impl From<Splits> for Vec<ServiceSplit> {
    fn from(splits: Splits) -> Self {
        splits.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(hundredths: u16) -> ServiceSplit {
        ServiceSplit {
            weight: Percent::of_hundredths(hundredths).expect("a share"),
            service: None,
            subset: None,
            request_headers: HeaderEdits::default(),
            response_headers: HeaderEdits::default(),
        }
    }

    #[test]
    fn parts_are_a_whole() {
        assert!(Splits::try_from(vec![split(9_999), split(1), split(0)]).is_ok());
        assert_eq!(Splits::try_from(Vec::new()), Err(SplitsError::Empty));
        let error = Splits::try_from(vec![split(9_999), split(2)]).expect_err("too much");
        assert_eq!(error.to_string(), "the weights sum to 100.01, not to 100");
        let stored = serde_json::to_string(&vec![split(5_000)]).expect("JSON");
        assert!(serde_json::from_str::<Splits>(&stored).is_err());
    }
}
