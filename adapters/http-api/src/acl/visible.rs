//! What of an answer a bearer may see.

use serde_json::Value;
use starling_model::Resource;

use super::Bearer;

/// What the elements of an answer are, and so by what they are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visible {
    /// Nodes.
    Nodes,
    /// Members, which are nodes by another name.
    Members,
    /// An object whose fields are named after services.
    ServiceNames,
    /// Instances with their nodes, flat.
    CatalogRows,
    /// Instances with their nodes and checks.
    Health,
    /// Checks.
    Checks,
    /// Checks of an agent.
    AgentChecks,
    /// Services of an agent.
    AgentServices,
    /// A node, with its services in a list or an object.
    NodeServices,
    /// Sessions.
    Sessions,
    /// Intentions.
    Intentions,
    /// Services behind gateways.
    GatewayServices,
    /// Prepared queries.
    Queries,
    /// Events.
    Events,
    /// Config entries.
    ConfigEntries,
}

impl Visible {
    /// Takes away what may not be seen; whether there was any. `service` is the one that was asked for, if one was.
    pub(crate) fn narrow(self, value: &mut Value, bearer: &Bearer, service: &str) -> bool {
        let asks_in_vain = !service.is_empty() && !bearer.reads(Resource::Service, service);
        if self == Self::NodeServices {
            return narrow_node(value, bearer);
        }
        match value {
            Value::Array(list) => {
                let before = list.len();
                list.retain(|element| !asks_in_vain && self.is_seen("", element, bearer));
                list.len() < before
            }
            Value::Object(map) => {
                let before = map.len();
                map.retain(|key, element| self.is_seen(key, element, bearer));
                map.len() < before
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }

    /// Whether one element may be seen; `key` is its name in an object.
    pub(crate) fn is_seen(self, key: &str, element: &Value, bearer: &Bearer) -> bool {
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let node = |value: &Value| bearer.reads(Resource::Node, &text(value, "Node"));
        match self {
            Self::Nodes => node(element),
            Self::Members => bearer.reads(Resource::Node, &text(element, "Name")),
            Self::ServiceNames => bearer.reads(Resource::Service, key),
            Self::CatalogRows => node(element) && bearer.reads(Resource::Service, &text(element, "ServiceName")),
            Self::Health => {
                node(&element["Node"]) && bearer.reads(Resource::Service, &text(&element["Service"], "Service"))
            }
            Self::Checks => {
                let service = text(element, "ServiceName");
                node(element) && (service.is_empty() || bearer.reads(Resource::Service, &service))
            }
            Self::AgentChecks => match text(element, "ServiceName") {
                service if service.is_empty() => node(element),
                service => bearer.reads(Resource::Service, &service),
            },
            Self::AgentServices => bearer.reads(Resource::Service, &text(element, "Service")),
            Self::NodeServices => node(&element["Node"]),
            Self::Sessions => bearer.reads(Resource::Session, &text(element, "Node")),
            Self::Intentions => bearer.reads(Resource::Intentions, &text(element, "DestinationName")),
            Self::GatewayServices => ["Gateway", "Service"]
                .iter()
                .all(|side| bearer.reads(Resource::Service, &text(&element[*side], "Name"))),
            Self::Queries => bearer.reads(Resource::Query, &text(element, "Name")),
            Self::Events => bearer.reads(Resource::Event, &text(element, "Name")),
            Self::ConfigEntries => {
                let name = text(element, "Name");
                let resource = resource_of_kind(element["Kind"].as_str().unwrap_or_default());
                resource.is_none_or(|resource| bearer.reads(resource, &name))
            }
        }
    }
}

/// What a right to read is needed of for a config entry; `None` for what every proxy has to know.
pub(crate) fn resource_of_kind(kind: &str) -> Option<Resource> {
    match kind {
        "proxy-defaults" | "mesh" => None,
        "service-intentions" => Some(Resource::Intentions),
        "service-defaults"
        | "service-resolver"
        | "service-router"
        | "service-splitter"
        | "ingress-gateway"
        | "terminating-gateway" => Some(Resource::Service),
        // There may be keys in them.
        _ => Some(Resource::Mesh),
    }
}

fn narrow_node(value: &mut Value, bearer: &Bearer) -> bool {
    if value["Node"].is_null() {
        return false;
    }
    if !Visible::NodeServices.is_seen("", value, bearer) {
        // As of a node that is not there.
        *value = if value["Services"].is_array() {
            serde_json::json!({"Node": null, "Services": null})
        } else {
            Value::Null
        };
        return true;
    }
    value.get_mut("Services").is_some_and(|services| Visible::AgentServices.narrow(services, bearer, ""))
}
