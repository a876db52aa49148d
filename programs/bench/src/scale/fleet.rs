//! The fleet of this scenario: which services there are, which sidecar calls which of them, and how all that is
//! registered. Owns no process and makes no call.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use http::Method;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::Call;

/// Nodes that the instances are spread over when the catalog is told; the agent has its own only.
const NODES: u32 = 30;

/// Port of every registered instance; nothing calls them, so nothing listens there.
const INSTANCE_PORT: u16 = 8080;

/// The door through which instances come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Door {
    /// The agent, which keeps them in its journal as well: all instances are on its node
    Agent,
    /// The catalog: the instances are spread over 30 nodes without an agent
    Catalog,
}

impl fmt::Display for Door {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Agent => "agent",
            Self::Catalog => "catalog",
        })
    }
}

/// The fleet: its sizes, and how its instances are registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fleet {
    pub(super) door: Door,
    pub(super) services: u32,
    pub(super) instances: u32,
    pub(super) sidecars: u32,
    /// Upstreams of each sidecar; at most as many as there are services.
    pub(super) upstreams: u32,
    /// Sidecars that run as Envoys: the first so many.
    pub(super) attached: u32,
}

impl Fleet {
    /// The services that a sidecar calls: the first one, which all of them call, and then a stretch of the others that
    /// overlaps with nobody's while there are enough services.
    pub(super) fn upstreams_of(&self, sidecar: u32) -> impl Iterator<Item = u32> {
        let (others, own) = (self.services - 1, self.upstreams - 1);
        std::iter::once(0).chain((0..own).map(move |number| 1 + (sidecar * own + number) % others))
    }

    /// How many attached sidecars call a service.
    pub(super) fn watchers(&self, service: u32) -> u32 {
        let calls = |sidecar: &u32| self.upstreams_of(*sidecar).any(|upstream| upstream == service);
        u32::try_from((0..self.attached).filter(calls).count()).unwrap_or(u32::MAX)
    }

    /// The first service that exactly so many attached sidecars call.
    pub(super) fn watched_by(&self, watchers: u32) -> Option<u32> {
        (0..self.services).find(|service| self.watchers(*service) == watchers)
    }

    /// The calls that register every instance: the first instance of each service, then the second, and so on.
    pub(super) fn registrations(&self) -> impl Iterator<Item = Call> {
        (0..self.instances)
            .flat_map(move |instance| (0..self.services).map(move |service| self.registration(service, instance)))
    }

    /// The call that registers one instance. It is native to the mesh, so that it is an endpoint without a sidecar.
    pub(super) fn registration(&self, service: u32, instance: u32) -> Call {
        let number = service * self.instances + instance;
        let mut definition = json!({
            "ID": instance_id(service, instance),
            "Address": Ipv4Addr::from(0x0a4e_0000 + number),
            "Port": INSTANCE_PORT,
            "Connect": { "Native": true },
        });
        match self.door {
            Door::Agent => {
                definition["Name"] = service_name(service).into();
                put("/v1/agent/service/register", definition)
            }
            Door::Catalog => {
                definition["Service"] = service_name(service).into();
                let node = number % NODES;
                let address = Ipv4Addr::from(0x0a4d_0000 + node + 1);
                let body = json!({ "Node": node_name(node), "Address": address, "Service": definition });
                put("/v1/catalog/register", body)
            }
        }
    }

    /// The call that deregisters one instance.
    pub(super) fn deregistration(&self, service: u32, instance: u32) -> Call {
        let id = instance_id(service, instance);
        match self.door {
            Door::Agent => put(&format!("/v1/agent/service/deregister/{id}"), Value::Null),
            Door::Catalog => {
                let node = (service * self.instances + instance) % NODES;
                put("/v1/catalog/deregister", json!({ "Node": node_name(node), "ServiceID": id }))
            }
        }
    }

    /// The body that registers a sidecar at the agent, with an address of its own for itself and for each upstream.
    ///
    /// # Errors
    /// When there is no such address.
    pub(super) fn sidecar(
        &self,
        sidecar: u32,
        mut address: impl FnMut() -> anyhow::Result<SocketAddr>,
    ) -> anyhow::Result<Value> {
        let name = sidecar_for(sidecar);
        let mut upstreams = Vec::new();
        for service in self.upstreams_of(sidecar) {
            let bind = address()?;
            upstreams.push(json!({
                "DestinationName": service_name(service),
                "LocalBindAddress": bind.ip(),
                "LocalBindPort": bind.port(),
            }));
        }
        Ok(json!({
            "ID": name,
            "Name": name,
            "Port": address()?.port(),
            "Connect": { "SidecarService": {
                "Port": address()?.port(),
                "Checks": [{ "Name": "instance", "AliasService": name }],
                "Proxy": { "Upstreams": upstreams },
            } },
        }))
    }
}

/// The instance that a sidecar stands beside.
pub(super) fn sidecar_for(sidecar: u32) -> String {
    format!("bench-caller-{sidecar:03}")
}

fn put(target: &str, body: Value) -> Call {
    Call { method: Method::PUT, target: target.to_owned(), body }
}

fn service_name(service: u32) -> String {
    format!("bench-{service:05}")
}

fn instance_id(service: u32, instance: u32) -> String {
    format!("bench-{service:05}-{instance}")
}

fn node_name(node: u32) -> String {
    format!("bench-node-{node:02}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const FLEET: Fleet =
        Fleet { door: Door::Catalog, services: 1000, instances: 3, sidecars: 20, upstreams: 50, attached: 20 };

    #[test]
    fn every_instance_is_registered_once_through_either_door() {
        for (door, definition, name) in [(Door::Catalog, "/Service", "Service"), (Door::Agent, "", "Name")] {
            let calls: Vec<Call> = Fleet { door, ..FLEET }.registrations().collect();
            let of = |field: &str| {
                let value = |call: &Call| call.body.pointer(definition).unwrap()[field].as_str().unwrap().to_owned();
                calls.iter().map(value).collect::<BTreeSet<_>>()
            };
            assert_eq!(calls.len(), 3000);
            assert_eq!(of("ID").len(), 3000);
            assert_eq!(of(name).len(), 1000);
            assert_eq!(of("Address").len(), 3000);
        }
    }

    #[test]
    fn a_deregistration_names_what_was_registered() {
        let (there, back) = (FLEET.registration(7, 2), FLEET.deregistration(7, 2));
        assert_eq!(there.body["Node"], back.body["Node"]);
        assert_eq!(there.body["Service"]["ID"], back.body["ServiceID"]);

        let fleet = Fleet { door: Door::Agent, ..FLEET };
        let (there, back) = (fleet.registration(7, 2), fleet.deregistration(7, 2));
        assert!(back.target.ends_with(there.body["ID"].as_str().unwrap()), "{}", back.target);
        assert_eq!(back.body, Value::Null);
    }

    #[test]
    fn one_service_is_watched_by_all_and_others_by_one_or_none() {
        assert_eq!(FLEET.watched_by(20), Some(0));
        assert_eq!(FLEET.watched_by(1), Some(1));
        assert_eq!(FLEET.watched_by(0), Some(1 + 20 * 49));
        assert_eq!(FLEET.watched_by(7), None);
    }

    #[test]
    fn a_sidecar_calls_different_services() {
        for fleet in [FLEET, Fleet { services: 50, ..FLEET }, Fleet { services: 1, upstreams: 1, ..FLEET }] {
            for sidecar in 0..fleet.sidecars {
                let upstreams: BTreeSet<u32> = fleet.upstreams_of(sidecar).collect();
                assert_eq!(upstreams.len(), usize::try_from(fleet.upstreams).unwrap(), "{fleet:?}");
                assert!(upstreams.iter().all(|service| *service < fleet.services), "{fleet:?}");
            }
        }
    }

    #[test]
    fn only_attached_sidecars_watch() {
        let fleet = Fleet { attached: 1, ..FLEET };
        assert_eq!(fleet.watchers(0), 1);
        assert_eq!(Fleet { attached: 0, ..FLEET }.watchers(0), 0);
    }

    #[test]
    fn a_sidecar_has_addresses_of_its_own() {
        let mut port = 10_000;
        let body = FLEET
            .sidecar(3, || {
                port += 1;
                Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
            })
            .unwrap();
        let sidecar = &body["Connect"]["SidecarService"];
        assert_eq!(sidecar["Proxy"]["Upstreams"].as_array().unwrap().len(), 50);
        assert_eq!(sidecar["Proxy"]["Upstreams"][0]["LocalBindPort"], 10_001);
        assert_eq!(sidecar["Port"], 10_052);
        assert_eq!(body["ID"], "bench-caller-003");
    }
}
