//! Where something runs, so that who is near can be called before who is far.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::name::{NameError, Region, Zone};

/// A region, and perhaps a zone of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Locality {
    /// The region.
    pub region: Region,
    /// The zone; zones of different regions are different, whatever their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Zone>,
}

/// `REGION` or `REGION/ZONE`.
impl fmt::Display for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.zone {
            Some(zone) => write!(f, "{}/{zone}", self.region),
            None => self.region.fmt(f),
        }
    }
}

/// Reads `REGION` or `REGION/ZONE`.
impl FromStr for Locality {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (region, zone) = text.split_once('/').map_or((text, None), |(region, zone)| (region, Some(zone)));
        Ok(Self { region: region.parse()?, zone: zone.map(str::parse).transpose()? })
    }
}

/// How near something is, the nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nearness {
    /// In the same zone.
    Zone,
    /// In the same region, in another zone or in none that is known.
    Region,
    /// In another region, or nobody knows where.
    Elsewhere,
}

impl Locality {
    /// How near `other` is; `None` is what runs nobody knows where.
    #[must_use]
    pub fn nearness(&self, other: Option<&Self>) -> Nearness {
        match other {
            Some(other) if other.region == self.region => {
                if self.zone.is_some() && self.zone == other.zone {
                    Nearness::Zone
                } else {
                    Nearness::Region
                }
            }
            Some(_) | None => Nearness::Elsewhere,
        }
    }
}

/// In which order the instances of a service are called (Consul's `PrioritizeByLocality`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalityMode {
    /// All alike.
    None,
    /// Those of the caller's zone; where none is left those of its region, and then the others.
    Failover,
}

impl LocalityMode {
    /// Consul's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Failover => "failover",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locality(text: &str) -> Locality {
        text.parse().expect("a locality")
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        for text in ["eu", "eu/a"] {
            assert_eq!(locality(text).to_string(), text);
        }
        for wrong in ["", "/", "eu/", "/a", "eu/a/b", "eu west"] {
            assert!(wrong.parse::<Locality>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_zone_is_near_in_its_own_region_only() {
        for (from, other, nearness) in [
            ("eu/a", "eu/a", Nearness::Zone),
            ("eu/a", "eu/b", Nearness::Region),
            ("eu/a", "eu", Nearness::Region),
            ("eu", "eu/a", Nearness::Region),
            ("eu", "eu", Nearness::Region),
            ("eu/a", "us/a", Nearness::Elsewhere),
        ] {
            assert_eq!(locality(from).nearness(Some(&locality(other))), nearness, "{from} {other}");
        }
        assert_eq!(locality("eu/a").nearness(None), Nearness::Elsewhere);
    }

    #[test]
    fn its_stored_form_survives_the_round_trip() {
        for (text, stored) in [("eu", r#"{"region":"eu"}"#), ("eu/a", r#"{"region":"eu","zone":"a"}"#)] {
            assert_eq!(serde_json::to_string(&locality(text)).expect("serialises"), stored);
            assert_eq!(serde_json::from_str::<Locality>(stored).expect(stored), locality(text));
        }
        assert!(serde_json::from_str::<Locality>(r#"{"region":""}"#).is_err());
    }
}
