//! The shape of a simulated fleet: which instances of which services run on which node. Makes no call.
//!
//! The default is that of the run that HashiCorp published in 2021: three tiers of 1,000 services, with 10, 83 and 85
//! instances of each, and one upstream that all of them call. Smaller and larger fleets have fewer or more services of
//! about as many instances.

use anyhow::ensure;

/// The upstream of every workload.
pub const COMMON_UPSTREAM: &str = "service-hey";

/// A further upstream of nodes that read slowly; its endpoints change all the time, so that there is much to read.
pub const RESTLESS_UPSTREAM: &str = "service-restless";

/// Nodes of the published run.
pub const NODES_DEFAULT: u32 = 10_000;

/// Workloads of the published run.
pub const WORKLOADS_DEFAULT: u32 = 178_000;

/// Most workloads of a node: each has a port of its own, and those end below the range from which Linux takes ports of
/// outgoing connections (32768 and up).
pub const WORKLOADS_PER_NODE_MAX: u16 = 20_000;

/// Port of a node's first workload.
const PORT_FIRST: u16 = 10_000;

/// Instances of a service, by tier.
const INSTANCES_BY_TIER: [u32; 3] = [10, 83, 85];

/// Instances of one service of every tier.
const INSTANCES_OF_A_SLICE: u32 = 178;

/// One instance of a service on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Name of the service.
    pub service: String,
    /// ID of the instance; no other in the fleet has it.
    pub id: String,
    /// Where it listens; no other on its node has it.
    pub port: u16,
}

/// Places so many workloads on so many nodes, as evenly as can be; the result has one list for each node. The same
/// arguments give the same fleet.
///
/// # Errors
/// When there are no nodes, or more than [`WORKLOADS_PER_NODE_MAX`] workloads come to one.
pub fn fleet(nodes: u32, workloads: u32, seed: u64) -> anyhow::Result<Vec<Vec<Workload>>> {
    ensure!(nodes > 0, "{workloads} workloads need a node");
    let fullest = workloads.div_ceil(nodes);
    ensure!(
        fullest <= u32::from(WORKLOADS_PER_NODE_MAX),
        "{workloads} workloads on {nodes} nodes are {fullest} on one, at most {WORKLOADS_PER_NODE_MAX} are possible"
    );
    let mut instances = instances(workloads);
    fastrand::Rng::with_seed(seed).shuffle(&mut instances);
    let mut fleet: Vec<Vec<Workload>> = (0..nodes).map(|_| Vec::new()).collect();
    let mut rest = instances.into_iter();
    for port in PORT_FIRST.. {
        for node in &mut fleet {
            let Some((service, id)) = rest.next() else {
                return Ok(fleet);
            };
            node.push(Workload { service, id, port });
        }
    }
    Ok(fleet)
}

/// The names of the services of a fleet of so many workloads.
pub fn services(workloads: u32) -> Vec<String> {
    let of_tier = |tier: usize| (0..services_of_tier(workloads)).map(move |service| name(tier, service));
    (1..=INSTANCES_BY_TIER.len()).flat_map(of_tier).collect()
}

fn services_of_tier(workloads: u32) -> u32 {
    (workloads.saturating_add(INSTANCES_OF_A_SLICE / 2) / INSTANCES_OF_A_SLICE).max(1)
}

fn name(tier: usize, service: u32) -> String {
    format!("service-{tier}-{service:04}")
}

/// Every instance by the name of its service and its ID.
fn instances(workloads: u32) -> Vec<(String, String)> {
    let services = services_of_tier(workloads);
    let mut instances = Vec::new();
    for (tier, workloads) in (1..).zip(by_tier(workloads)) {
        for service in 0..services {
            let name = name(tier, service);
            let share = workloads / services + u32::from(service < workloads % services);
            instances.extend((0..share).map(|instance| (name.clone(), format!("{name}-{instance}"))));
        }
    }
    instances
}

/// How many workloads each tier has, in proportion to its instances. A tier ends where its share of the whole, counted
/// from the first, is rounded down, so that none is lost.
fn by_tier(workloads: u32) -> [u32; 3] {
    let mut ended = 0;
    let mut parts = 0;
    INSTANCES_BY_TIER.map(|instances| {
        parts += instances;
        let whole = u64::from(workloads) * u64::from(parts) / u64::from(INSTANCES_OF_A_SLICE);
        let end = u32::try_from(whole).unwrap_or(workloads);
        let share = end - ended;
        ended = end;
        share
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const SEED: u64 = 1;

    fn instances_by_service(fleet: &[Vec<Workload>]) -> BTreeMap<&str, u32> {
        let mut services = BTreeMap::new();
        for workload in fleet.iter().flatten() {
            *services.entry(workload.service.as_str()).or_default() += 1;
        }
        services
    }

    #[test]
    fn by_default_it_is_the_published_shape() {
        assert_eq!(INSTANCES_BY_TIER.iter().sum::<u32>(), INSTANCES_OF_A_SLICE);
        let fleet = fleet(NODES_DEFAULT, WORKLOADS_DEFAULT, SEED).unwrap();
        assert_eq!(fleet.len(), 10_000);
        assert!(fleet.iter().all(|node| (17..=18).contains(&node.len())), "spread evenly");
        let services = instances_by_service(&fleet);
        assert!(services.keys().copied().eq(super::services(WORKLOADS_DEFAULT).iter().map(String::as_str)));
        for (tier, instances) in [(1, 10), (2, 83), (3, 85)] {
            let prefix = format!("service-{tier}-");
            let of_tier: Vec<_> = services.iter().filter(|(name, _)| name.starts_with(&prefix)).collect();
            assert_eq!(of_tier.len(), 1000, "{prefix}");
            assert!(of_tier.iter().all(|(_, count)| **count == instances), "{prefix}");
        }
    }

    #[test]
    fn no_id_occurs_twice_and_no_port_twice_on_a_node() {
        let fleet = fleet(30, 3000, SEED).unwrap();
        let ids: BTreeSet<_> = fleet.iter().flatten().map(|workload| &workload.id).collect();
        assert_eq!(ids.len(), 3000);
        for node in &fleet {
            assert_eq!(node.iter().map(|workload| workload.port).collect::<BTreeSet<_>>().len(), node.len());
        }
    }

    #[test]
    fn every_size_has_all_its_workloads_and_services_of_about_the_published_size() {
        for workloads in [0, 1, 2, 3, 88, 89, 178, 500, 8900, 356_000] {
            let fleet = fleet(7.max(workloads / 20), workloads, SEED).unwrap();
            let sizes: Vec<usize> = fleet.iter().map(Vec::len).collect();
            assert_eq!(sizes.iter().sum::<usize>(), usize::try_from(workloads).unwrap());
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{workloads}: {sizes:?}");
            let largest = instances_by_service(&fleet).into_values().max().unwrap_or(0);
            assert!(largest <= 85 * 3 / 2, "{workloads}: {largest}");
        }
        let half = fleet(5000, 89_000, SEED).unwrap();
        assert_eq!(instances_by_service(&half).len(), 1500);
    }

    #[test]
    fn the_seed_decides_who_is_where() {
        let first = fleet(50, 890, SEED).unwrap();
        assert_eq!(first, fleet(50, 890, SEED).unwrap());
        let second = fleet(50, 890, SEED + 1).unwrap();
        assert_ne!(first, second);
        assert_eq!(instances_by_service(&first), instances_by_service(&second));
    }

    #[test]
    fn what_cannot_be_placed_is_refused() {
        assert!(fleet(0, 10, SEED).is_err());
        let error = fleet(2, 40_001, SEED).unwrap_err().to_string();
        assert!(error.contains("20001 on one"), "{error}");
        assert_eq!(fleet(1, 20_000, SEED).unwrap()[0].last().unwrap().port, 29_999);
    }
}
