//! Published studies that measured figures are shown beside; their figures are in `published.toml`, with their sources.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::cost::report::Limited;

const FILE: &str = include_str!("../published.toml");

/// All of them, by what they measured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Published {
    pub(crate) propagation: Propagation,
    pub(crate) sidecars: Sidecars,
    pub(crate) pods: Pods,
    pub(crate) ingress: Ingress,
}

/// Who published what, and what it was measured on: without that, a figure says nothing.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Study {
    pub(crate) id: String,
    /// A short one, for a column or a legend.
    pub(crate) name: String,
    /// Who published it where, and when.
    pub(crate) title: String,
    pub(crate) system: String,
    pub(crate) hardware: String,
    /// What a reader must know before a figure is compared.
    pub(crate) note: Option<String>,
}

/// When a change is in force everywhere.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Propagation {
    pub(crate) study: Study,
    pub(crate) workloads: u32,
    pub(crate) rollout_minutes: RolloutMinutes,
    pub(crate) servers_peak: ServersPeak,
    /// Of an endpoint, then of an intention.
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

/// What sidecars cost.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sidecars {
    pub(crate) istio: SidecarStudy,
    pub(crate) osm: SidecarStudy,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SidecarStudy {
    pub(crate) study: Study,
    /// By both sidecars.
    pub(crate) added: Vec<PublishedAddition>,
    /// Of one sidecar.
    #[serde(default)]
    pub(crate) sidecar_cores: Vec<CoresAtRate>,
    /// Of one sidecar, where it was published as a rule.
    pub(crate) sidecar_cores_growing: Option<GrowingCores>,
    pub(crate) memory_mb: SidecarMemory,
}

/// Latency that both sidecars add.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedAddition {
    /// Requests a second.
    pub(crate) rates: Vec<f64>,
    /// Absent where that was not published.
    pub(crate) connections: Option<u32>,
    pub(crate) condition: Option<String>,
    pub(crate) ms: AddedMs,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddedMs {
    pub(crate) p50: f64,
    pub(crate) p90: Option<f64>,
    pub(crate) p99: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CoresAtRate {
    /// Requests a second.
    pub(crate) rate: f64,
    pub(crate) cores: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrowingCores {
    pub(crate) base: f64,
    /// Cores for each request a second.
    pub(crate) per_request_rate: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SidecarMemory {
    pub(crate) sidecar: f64,
    /// What each connection adds; absent where that was not published.
    pub(crate) per_connection: Option<f64>,
}

/// How pods came to a mesh, of the study of [`Sidecars::osm`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pods {
    /// So many pods in the end, one after the other.
    pub(crate) counts: Vec<u32>,
    /// How long each of these was given.
    pub(crate) round_minutes: f64,
    /// Memory of the control plane, in 10^6 bytes.
    pub(crate) control_plane_mb_per_pod: f64,
    /// Pods that were given a sidecar.
    pub(crate) injected_per_minute: Vec<Injected>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Injected {
    /// Of the control plane.
    pub(crate) cores: f64,
    pub(crate) pods: f64,
}

/// What was published of a fleet that came up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PublishedRollout<'a> {
    /// Beside one of as many workloads or more.
    Fleet(&'a Propagation),
    Pods(&'a Pods, &'a Study),
}

/// What an ingress gateway answers under limits.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ingress {
    pub(crate) study: Study,
    pub(crate) results: Vec<IngressResult>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IngressResult {
    pub(crate) name: String,
    pub(crate) limits: Limits,
    /// Requests a second.
    pub(crate) rate: f64,
    pub(crate) latency_ms: IngressMs,
}

/// What each limited proxy may use.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    pub(crate) of: Limited,
    pub(crate) cores: f64,
    pub(crate) memory_mib: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IngressMs {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Published {
    /// Reads what is built in.
    pub(crate) fn read() -> Self {
        toml::from_str(FILE).expect("invariant: published.toml is built in, and a test reads it")
    }

    /// What stands beside a roll-out of so many workloads; `None` of a size that nobody has published.
    pub(crate) fn rollout_of(&self, workloads: u32) -> Option<PublishedRollout<'_>> {
        let pods = &self.pods;
        let is_of_pods = pods.counts.iter().min() <= Some(&workloads) && pods.counts.iter().max() >= Some(&workloads);
        if is_of_pods {
            return Some(PublishedRollout::Pods(pods, &self.sidecars.osm.study));
        }
        (workloads >= self.propagation.workloads).then_some(PublishedRollout::Fleet(&self.propagation))
    }
}

impl Sidecars {
    pub(crate) fn studies(&self) -> [&SidecarStudy; 2] {
        [&self.istio, &self.osm]
    }
}

impl SidecarStudy {
    /// Cores of one sidecar at a rate, where that was published.
    pub(crate) fn cores_at(&self, rate: f64) -> Option<f64> {
        let listed = self.sidecar_cores.iter().find(|it| it.rate == rate).map(|it| it.cores);
        listed.or_else(|| self.sidecar_cores_growing.map(|it| it.base + it.per_request_rate * rate))
    }

    /// Memory of one sidecar with so many connections, in 10^6 bytes.
    pub(crate) fn memory_mb_at(&self, connections: u32) -> f64 {
        self.memory_mb.sidecar + self.memory_mb.per_connection.unwrap_or(0.0) * f64::from(connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percentiles::Percentiles;

    #[test]
    fn the_published_tail_is_there() {
        let published = Published::read().propagation;
        let [endpoints, intentions] = published.results.as_slice() else { panic!("{published:?}") };
        assert_eq!(endpoints.latency_ms["p50"], 361.0);
        assert_eq!(endpoints.latency_ms["p99"], 32_051.9);
        assert_eq!(intentions.latency_ms["p99"], 815.2);
        assert_eq!(published.workloads, 178_000);
    }

    #[test]
    fn its_percentiles_are_named_as_ours() {
        let ours: Vec<_> = Percentiles::of(&[1]).unwrap().named().map(|(name, _)| name).to_vec();
        for result in Published::read().propagation.results {
            for name in result.latency_ms.keys() {
                assert!(ours.contains(&name.as_str()), "{name}");
            }
        }
    }

    #[test]
    fn rules_are_read_at_a_rate_and_lists_only_where_they_have_it() {
        let Sidecars { istio, osm } = Published::read().sidecars;
        assert_eq!((istio.cores_at(3000.0), istio.cores_at(2000.0)), (Some(1.2), None));
        assert_eq!(osm.cores_at(1000.0), Some(1.06));
        assert_eq!((istio.memory_mb_at(100), osm.memory_mb_at(100)), (50.0, 145.0));
    }

    #[test]
    fn a_rollout_stands_beside_one_of_its_size() {
        let published = Published::read();
        for (workloads, expected) in
            [(199, None), (200, Some("osm")), (1600, Some("osm")), (17_800, None), (178_000, Some("consul"))]
        {
            let found = published.rollout_of(workloads).map(|it| match it {
                PublishedRollout::Fleet(_) => "consul",
                PublishedRollout::Pods(..) => "osm",
            });
            assert_eq!(found, expected, "{workloads}");
        }
    }

    #[test]
    fn gateways_were_measured_under_three_sets_of_limits() {
        let results = Published::read().ingress.results;
        assert_eq!(results.len(), 4);
        assert_eq!(results[1].limits, results[3].limits);
        assert!(results[3].rate > results[1].rate);
    }
}
