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
    let lb_endpoints: Vec<_> = endpoints
        .endpoints
        .iter()
        .map(|endpoint| lb_endpoint(&endpoint.address.to_string(), endpoint.port, endpoint.weight))
        .collect();
    if lb_endpoints.is_empty() {
        return empty(&endpoints.cluster, cluster);
    }
    resource(&load_assignment(&endpoints.cluster, lb_endpoints), cluster)
}

/// Nobody: callers are answered 503 at once.
pub(super) fn empty(name: &str, cluster: Version) -> Resource {
    resource(&ClusterLoadAssignment { cluster_name: name.to_owned(), ..Default::default() }, cluster)
}

/// Envoy waits for the endpoints of a cluster anew when the cluster has changed.
fn resource(message: &ClusterLoadAssignment, cluster: Version) -> Resource {
    Resource::below(cluster, ResourceType::Endpoints, &message.cluster_name, &message.encode_to_vec())
}

/// All endpoints in one place: localities are weighed against one another, which is not wanted here.
pub(super) fn load_assignment(cluster: &str, lb_endpoints: Vec<LbEndpoint>) -> ClusterLoadAssignment {
    ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![LocalityLbEndpoints {
            locality: Some(Locality::default()),
            // gRPC libraries leave out localities without a weight (gRFC A27); Envoy reads it in another mode only.
            load_balancing_weight: number(1),
            lb_endpoints,
            ..Default::default()
        }],
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
