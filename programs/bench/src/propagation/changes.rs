//! The changes that a fleet hears of: what is called, and what every node knows afterwards.

use std::net::{Ipv4Addr, SocketAddr};

use http::Method;
use serde_json::{Value, json};

use super::Subject;
use crate::api::Call;
use crate::fleet::Expected;
use crate::shape::COMMON_UPSTREAM;
use crate::verdict::Turn;

/// The node of the common upstream; nobody runs it.
const NODE: &str = "bench-upstream";

/// Its address.
const NODE_ADDRESS: &str = "10.77.0.1";

/// The first address of the upstream's instances.
const INSTANCE_ADDRESS_FIRST: u32 = 0x0a4e_0001;

/// The port of each.
const INSTANCE_PORT: u16 = 9090;

/// The common upstream, whose last instance in the catalog comes and goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Upstream {
    /// Instances on the node that nobody runs, when all are there.
    pub(crate) endpoints: u32,
    /// Where the last of them is, if somebody listens there.
    pub(crate) last: Option<SocketAddr>,
    /// Endpoints besides those; they stay.
    pub(crate) others: u32,
}

/// A change that concerns every workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Deregistration,
    Registration,
    Deny,
    Allow,
}

impl Change {
    /// The changes of a scenario: one, and the one that undoes it.
    pub(crate) fn there_and_back(subject: Subject) -> [Self; 2] {
        match subject {
            Subject::Intention => [Self::Deny, Self::Allow],
            Subject::Endpoints
            | Subject::Rollout
            | Subject::Reconnect
            | Subject::Failover(_)
            | Subject::Churn
            | Subject::Faults => [Self::Deregistration, Self::Registration],
        }
    }

    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Deregistration => "deregistration",
            Self::Registration => "registration",
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }

    /// What it does to the traffic through a sidecar that calls the upstream.
    pub(crate) fn turn(self) -> Turn {
        match self {
            Self::Deregistration => Turn::Leaves,
            Self::Registration => Turn::Comes,
            Self::Deny => Turn::Refused,
            Self::Allow => Turn::LetThrough,
        }
    }

    /// The call that makes it.
    pub(crate) fn call(self, upstream: &Upstream) -> Call {
        let last = upstream.endpoints.saturating_sub(1);
        let wildcard = "/v1/connect/intentions/exact?source=*&destination=*".to_owned();
        match self {
            Self::Deregistration => {
                put("/v1/catalog/deregister", json!({ "Node": NODE, "ServiceID": instance_id(last) }))
            }
            Self::Registration => upstream.registration(last),
            Self::Deny => {
                let body = json!({ "SourceType": "consul", "Action": "deny" });
                Call { method: Method::PUT, target: wildcard, body }
            }
            Self::Allow => Call { method: Method::DELETE, target: wildcard, body: Value::Null },
        }
    }

    /// What every node knows afterwards.
    pub(crate) fn expected(self, upstream: &Upstream) -> Expected {
        let all = upstream.endpoints + upstream.others;
        match self {
            Self::Deregistration => Expected::Endpoints(all.saturating_sub(1)),
            Self::Registration => Expected::Endpoints(all),
            Self::Deny => Expected::Denied(true),
            Self::Allow => Expected::Denied(false),
        }
    }
}

impl Upstream {
    /// One that nobody runs, with so many endpoints.
    pub(crate) fn of(endpoints: u32) -> Self {
        Self { endpoints, last: None, others: 0 }
    }

    /// The calls that make it: it speaks HTTP, and so many instances of it are registered. They speak mesh TLS themselves,
    /// so that each is an endpoint without a sidecar.
    pub(crate) fn calls(&self) -> impl Iterator<Item = Call> {
        let defaults = json!({ "Kind": "service-defaults", "Name": COMMON_UPSTREAM, "Protocol": "http" });
        std::iter::once(put("/v1/config", defaults)).chain((0..self.endpoints).map(|number| self.registration(number)))
    }

    fn registration(&self, instance: u32) -> Call {
        let nowhere = || SocketAddr::from((Ipv4Addr::from(INSTANCE_ADDRESS_FIRST + instance), INSTANCE_PORT));
        let address = self.last.filter(|_| instance + 1 == self.endpoints).unwrap_or_else(nowhere);
        let service = json!({
            "ID": instance_id(instance),
            "Service": COMMON_UPSTREAM,
            "Address": address.ip(),
            "Port": address.port(),
            "Connect": { "Native": true },
        });
        put("/v1/catalog/register", json!({ "Node": NODE, "Address": NODE_ADDRESS, "Service": service }))
    }
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
            let upstream = Upstream::of(endpoints);
            let there: Vec<Call> = upstream.calls().skip(1).collect();
            assert_eq!(there.len(), usize::try_from(endpoints).unwrap());
            let gone = Change::Deregistration.call(&upstream);
            let last = there.last().unwrap();
            assert_eq!(gone.body["ServiceID"], last.body["Service"]["ID"]);
            assert_eq!(&Change::Registration.call(&upstream), last);
        }
    }

    #[test]
    fn what_comes_and_goes_is_where_somebody_listens() {
        let address: SocketAddr = "127.0.0.1:21000".parse().unwrap();
        let upstream = Upstream { last: Some(address), ..Upstream::of(2) };
        let ports: Vec<_> = upstream.calls().skip(1).map(|call| call.body["Service"]["Port"].clone()).collect();
        assert_eq!(ports, [INSTANCE_PORT, 21_000]);
        assert_eq!(Change::Registration.call(&upstream).body["Service"]["Address"], "127.0.0.1");
        // It is the same instance wherever it is.
        assert_eq!(Change::Deregistration.call(&upstream), Change::Deregistration.call(&Upstream::of(2)));
    }

    #[test]
    fn what_is_expected_changes_with_every_change() {
        let upstream = Upstream { others: 2, ..Upstream::of(1000) };
        for subject in [Subject::Endpoints, Subject::Intention, Subject::Rollout] {
            let [there, back] = Change::there_and_back(subject);
            assert_ne!(there.expected(&upstream), back.expected(&upstream));
        }
        assert_eq!(Change::Deregistration.expected(&upstream), Expected::Endpoints(1001));
    }
}
