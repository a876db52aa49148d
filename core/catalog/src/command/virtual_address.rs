//! Virtual addresses: the first instance through which a service is reached in the mesh brings the service one, for ever.
//!
//! Who decides sees that an address is free, and the store commits only if it still is: of two services that try the same
//! one at a time the second is decided anew, and finds it taken. Records of addresses are never removed, so that the
//! addresses before a service's own stay taken by the others, and everybody finds the same one.

use starling_model::{Record, RecordKey, ServiceInstance, ServiceName, VirtualAddress};

use super::Decision;
use crate::snapshot::Snapshot;

/// Addresses of one mesh. Past it a service has none: about 40 MB of names that once were services.
pub const VIRTUAL_ADDRESSES_MAX: usize = 1 << 18;

/// Services that get one by one decision; what is left to do is decided again. Each of them brings a change and a
/// condition, and all must be among those that are guarded.
const ASSIGNED_AT_ONCE_MAX: usize = super::GUARDED_CHANGES_MAX / 2;

/// Gives an address to every service that `instances` front and that has none.
pub(super) fn assign<'a>(
    snapshot: &Snapshot,
    instances: impl IntoIterator<Item = &'a ServiceInstance>,
    decision: &mut Decision,
) {
    let mut fresh: Vec<VirtualAddress> = Vec::new();
    let room = VIRTUAL_ADDRESSES_MAX.saturating_sub(snapshot.virtual_addresses());
    for instance in instances {
        let service = instance.identity();
        let fronts = instance.native || instance.sidecar().is_some();
        if !fronts || snapshot.virtual_address(service).is_some() || fresh.iter().any(|it| it.service == *service) {
            continue;
        }
        if fresh.len() == ASSIGNED_AT_ONCE_MAX {
            decision.again = true;
            break;
        }
        if fresh.len() < room {
            fresh.extend(first_free(snapshot, service, &fresh));
        }
    }
    for address in fresh {
        decision.see(snapshot, RecordKey::VirtualAddress(address.address));
        decision.put(snapshot, Record::VirtualAddress(address));
    }
}

/// The first address of `service` that nobody has; `None` if all are taken, of which there is no chance to speak of.
fn first_free(snapshot: &Snapshot, service: &ServiceName, fresh: &[VirtualAddress]) -> Option<VirtualAddress> {
    let free = |candidate: &VirtualAddress| {
        let key = RecordKey::VirtualAddress(candidate.address);
        snapshot.modified(&key).is_none() && fresh.iter().all(|other| other.address != candidate.address)
    };
    VirtualAddress::candidates(service).find(free)
}
