//! The changes that a fleet hears of: what is called, and what every node knows afterwards.

use std::net::Ipv4Addr;

use http::Method;
use serde_json::{Value, json};

use super::Subject;
use crate::api::Call;
use crate::fleet::Expected;
use crate::shape::COMMON_UPSTREAM;

/// The node of the common upstream; nobody runs it.
const NODE: &str = "bench-upstream";

/// Its address.
const NODE_ADDRESS: &str = "10.77.0.1";

/// The first address of the upstream's instances.
const INSTANCE_ADDRESS_FIRST: u32 = 0x0a4e_0001;

/// The port of each.
const INSTANCE_PORT: u16 = 9090;

/// A change that concerns every workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Deregistration,
    Registration,
    Deny,
    Allow,
}

impl Change {
    /// The changes of a scenario: one, and the one that undoes it.
    pub(super) fn there_and_back(subject: Subject) -> [Self; 2] {
        match subject {
            Subject::Endpoints | Subject::Rollout | Subject::Reconnect | Subject::Churn => {
                [Self::Deregistration, Self::Registration]
            }
            Subject::Intention => [Self::Deny, Self::Allow],
        }
    }

    /// Its name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Deregistration => "deregistration",
            Self::Registration => "registration",
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }

    /// The call that makes it; the upstream has so many endpoints when all of them are there.
    pub(super) fn call(self, endpoints: u32) -> Call {
        let last = endpoints.saturating_sub(1);
        let wildcard = "/v1/connect/intentions/exact?source=*&destination=*".to_owned();
        match self {
            Self::Deregistration => {
                put("/v1/catalog/deregister", json!({ "Node": NODE, "ServiceID": instance_id(last) }))
            }
            Self::Registration => registration(last),
            Self::Deny => {
                let body = json!({ "SourceType": "consul", "Action": "deny" });
                Call { method: Method::PUT, target: wildcard, body }
            }
            Self::Allow => Call { method: Method::DELETE, target: wildcard, body: Value::Null },
        }
    }

    /// What every node knows afterwards.
    pub(super) fn expected(self, endpoints: u32) -> Expected {
        match self {
            Self::Deregistration => Expected::Endpoints(endpoints.saturating_sub(1)),
            Self::Registration => Expected::Endpoints(endpoints),
            Self::Deny => Expected::Denied(true),
            Self::Allow => Expected::Denied(false),
        }
    }
}

/// The calls that register every instance of the common upstream. They speak mesh TLS themselves, so that each is an
/// endpoint without a sidecar.
pub(super) fn upstream(endpoints: u32) -> impl Iterator<Item = Call> {
    (0..endpoints).map(registration)
}

fn registration(instance: u32) -> Call {
    let service = json!({
        "ID": instance_id(instance),
        "Service": COMMON_UPSTREAM,
        "Address": Ipv4Addr::from(INSTANCE_ADDRESS_FIRST + instance),
        "Port": INSTANCE_PORT,
        "Connect": { "Native": true },
    });
    put("/v1/catalog/register", json!({ "Node": NODE, "Address": NODE_ADDRESS, "Service": service }))
}

fn put(target: &str, body: Value) -> Call {
    Call { method: Method::PUT, target: target.to_owned(), body }
}

fn instance_id(instance: u32) -> String {
    format!("{COMMON_UPSTREAM}-{instance}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deregistered_was_registered_and_comes_back() {
        for endpoints in [1, 1000] {
            let there: Vec<Call> = upstream(endpoints).collect();
            assert_eq!(there.len(), usize::try_from(endpoints).unwrap());
            let gone = Change::Deregistration.call(endpoints);
            let last = there.last().unwrap();
            assert_eq!(gone.body["ServiceID"], last.body["Service"]["ID"]);
            assert_eq!(&Change::Registration.call(endpoints), last);
        }
    }

    #[test]
    fn what_is_expected_changes_with_every_change() {
        for subject in [Subject::Endpoints, Subject::Intention, Subject::Rollout] {
            let [there, back] = Change::there_and_back(subject);
            assert_ne!(there.expected(1), back.expected(1));
        }
        assert_eq!(Change::Deregistration.expected(1000), Expected::Endpoints(999));
    }
}
