//! EDS: where a service is.

use envoy_types::pb::envoy::config::core::v3::Locality;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint::HostIdentifier,
};
use prost::Message;
use starling_plan::Endpoints;

use super::proto::{address, number};
use crate::resource::{Resource, ResourceType, Version};

/// Envoy's limit on the sum of weights of one assignment is 2^32; past this, weights are cut.
const WEIGHT_MAX: u32 = 65_535;

pub(super) fn assignment(endpoints: &Endpoints, cluster: Version) -> Resource {
    let listed = |list: &[starling_plan::Endpoint]| {
        let one = |e: &starling_plan::Endpoint| lb_endpoint(&e.address.to_string(), e.port, e.weight);
        list.iter().map(one).collect::<Vec<_>>()
    };
    let first = listed(&endpoints.endpoints);
    let mut groups: Vec<_> = endpoints.failover.iter().map(|group| listed(&group.endpoints)).collect();
    // Priorities have no gaps, and nobody comes after the last group with anybody in it.
    while groups.last().is_some_and(Vec::is_empty) {
        groups.pop();
    }
    if first.is_empty() && groups.is_empty() {
        return empty(&endpoints.cluster, cluster);
    }
    let mut message = load_assignment(&endpoints.cluster, first);
    for (priority, group) in (1..).zip(groups) {
        let next = locality(group);
        message.endpoints.push(LocalityLbEndpoints { priority, ..next });
    }
    resource(&message, cluster)
}

/// Nobody: callers are answered 503 at once.
pub(super) fn empty(name: &str, cluster: Version) -> Resource {
    resource(&ClusterLoadAssignment { cluster_name: name.to_owned(), ..Default::default() }, cluster)
}

/// Envoy waits for the endpoints of a cluster anew when the cluster has changed.
pub(super) fn resource(message: &ClusterLoadAssignment, cluster: Version) -> Resource {
    Resource::below(cluster, ResourceType::Endpoints, &message.cluster_name, &message.encode_to_vec())
}

/// All endpoints in one place: localities are weighed against one another, which is not wanted here.
pub(super) fn load_assignment(cluster: &str, lb_endpoints: Vec<LbEndpoint>) -> ClusterLoadAssignment {
    ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![locality(lb_endpoints)],
        ..Default::default()
    }
}

fn locality(lb_endpoints: Vec<LbEndpoint>) -> LocalityLbEndpoints {
    LocalityLbEndpoints {
        locality: Some(Locality::default()),
        // gRPC libraries leave out localities without a weight (gRFC A27); Envoy reads it in another mode only.
        load_balancing_weight: number(1),
        lb_endpoints,
        ..Default::default()
    }
}

pub(super) fn lb_endpoint(host: &str, port: u16, weight: u32) -> LbEndpoint {
    LbEndpoint {
        load_balancing_weight: number(weight.clamp(1, WEIGHT_MAX)),
        host_identifier: Some(HostIdentifier::Endpoint(Endpoint {
            address: Some(address(host, port)),
            ..Default::default()
        })),
        ..Default::default()
    }
}
