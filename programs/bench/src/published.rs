//! The published run that a fleet's figures are shown beside; its figures are in `published.toml`, with their source.

use std::collections::BTreeMap;

use serde::Deserialize;

const FILE: &str = include_str!("../published.toml");

/// A published run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Published {
    /// Who published it where, and when.
    pub(crate) title: String,
    pub(crate) system: String,
    pub(crate) hardware: String,
    pub(crate) workloads: u32,
    pub(crate) rollout_minutes: RolloutMinutes,
    pub(crate) servers_peak: ServersPeak,
    #[serde(rename = "result")]
    pub(crate) results: Vec<PublishedResult>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RolloutMinutes {
    pub(crate) nodes_available: f64,
    pub(crate) workloads_scheduled: f64,
}

/// Of all its servers together.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServersPeak {
    pub(crate) cpu_percent: f64,
    pub(crate) memory_gb_total: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedResult {
    pub(crate) name: String,
    /// Milliseconds by the name of the percentile, as in [`crate::percentiles::Percentiles::named`]; not all of them were published.
    pub(crate) latency_ms: BTreeMap<String, f64>,
}

impl Published {
    /// Reads what is built in.
    pub(crate) fn read() -> Self {
        toml::from_str(FILE).expect("invariant: published.toml is built in, and a test reads it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percentiles::Percentiles;

    #[test]
    fn the_published_tail_is_there() {
        let published = Published::read();
        let [endpoints, intentions] = published.results.as_slice() else { panic!("{published:?}") };
        assert_eq!(endpoints.latency_ms["p50"], 361.0);
        assert_eq!(endpoints.latency_ms["p99"], 32_051.9);
        assert_eq!(intentions.latency_ms["p99"], 815.2);
        assert_eq!(published.workloads, 178_000);
    }

    #[test]
    fn its_percentiles_are_named_as_ours() {
        let ours: Vec<_> = Percentiles::of(&[1]).unwrap().named().map(|(name, _)| name).to_vec();
        for result in Published::read().results {
            for name in result.latency_ms.keys() {
                assert!(ours.contains(&name.as_str()), "{name}");
            }
        }
    }
}
