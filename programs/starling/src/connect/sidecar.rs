//! Which sidecar is meant: the local agent knows.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::arguments::SidecarArgs;
use super::gateway::GatewayKind;
use crate::client::{Call, Client};
use crate::environment::Environment;
use crate::outcome::usage;

/// What the agent says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agent {
    /// The node on which it runs.
    pub(crate) node: String,
    /// The node's UUID; empty if it says none.
    pub(crate) node_id: String,
    /// Its datacentre.
    pub(crate) datacenter: String,
    /// Where it serves xDS in plaintext, if it does.
    pub(crate) xds_port: Option<u16>,
}

/// A registered sidecar or gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sidecar {
    /// Its ID.
    pub(crate) id: String,
    /// The service that it speaks for.
    pub(crate) service: String,
    /// `Proxy.Config` of its registration.
    pub(crate) config: Map<String, Value>,
}

/// By what a sidecar or gateway is looked up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted<'a> {
    /// By the ID of the service instance beside it.
    SidecarFor(&'a str),
    /// By its own ID.
    Proxy(&'a str),
    /// A gateway of this kind, by its ID or the name of its service.
    Gateway(&'a str, GatewayKind),
}

impl<'a> Wanted<'a> {
    /// A flag wins over a variable, and a sidecar's own ID over that of its service.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] if nobody says.
    pub(crate) fn of(args: &'a SidecarArgs, environment: &'a Environment) -> anyhow::Result<Self> {
        match (&args.proxy_id, &args.sidecar_for) {
            (Some(id), _) => Ok(Self::Proxy(id)),
            (None, Some(id)) => Ok(Self::SidecarFor(id)),
            (None, None) => match (&environment.proxy_id, &environment.sidecar_for) {
                (Some(id), _) => Ok(Self::Proxy(id)),
                (None, Some(id)) => Ok(Self::SidecarFor(id)),
                (None, None) => Err(usage("one of --sidecar-for, --proxy-id and --gateway must be given")),
            },
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Service {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    service: String,
    proxy: Option<Proxy>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Proxy {
    #[serde(default)]
    destination_service_name: String,
    #[serde(default)]
    config: Map<String, Value>,
    #[serde(rename = "DestinationServiceID")]
    destination_service_id: Option<String>,
}

type Services = BTreeMap<String, Service>;

/// Asks the agent for what the bootstrap says of the node. What it says to those who run its proxies it has said since this release;
/// one of before is asked about itself, for which it takes more rights.
///
/// # Errors
/// If it does not answer, or not as an agent.
pub(crate) async fn agent(client: &Client) -> anyhow::Result<Agent> {
    #[derive(Deserialize)]
    struct Place {
        node: String,
        node_id: String,
        datacenter: String,
        xds_port: Option<u16>,
    }
    let asked = client.find(Call::get("/starling/v1/agent/xds")).await;
    let Some(place) = asked.context("cannot ask the agent where its proxies are configured")? else {
        return agent_of_before(client).await;
    };
    let Place { node, node_id, datacenter, xds_port } = place;
    Ok(Agent { node, node_id, datacenter, xds_port })
}

async fn agent_of_before(client: &Client) -> anyhow::Result<Agent> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Own {
        config: Config,
        #[serde(rename = "xDS")]
        xds: Option<Xds>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Config {
        node_name: String,
        #[serde(rename = "NodeID", default)]
        node_id: String,
        datacenter: String,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Xds {
        ports: Ports,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Ports {
        plaintext: u16,
    }
    let Own { config, xds } =
        client.read(Call::get("/v1/agent/self")).await.context("cannot ask the agent about itself")?;
    let xds_port = xds.map(|xds| xds.ports.plaintext).filter(|port| *port != 0);
    Ok(Agent { node: config.node_name, node_id: config.node_id, datacenter: config.datacenter, xds_port })
}

/// Finds the sidecar at the agent.
///
/// # Errors
/// If there is none or more than one, with what to do about it.
pub(crate) async fn find(client: &Client, wanted: Wanted<'_>) -> anyhow::Result<Sidecar> {
    let services: Services =
        client.read(Call::get("/v1/agent/services")).await.context("cannot list the agent's services")?;
    choose(&services, wanted)
}

/// Whether a gateway of this ID or service name is registered with the agent, or something else of this ID, in whose place a
/// gateway must not be registered.
///
/// # Errors
/// If it does not answer.
pub(super) async fn is_taken(client: &Client, name: &str) -> anyhow::Result<bool> {
    let services: Services =
        client.read(Call::get("/v1/agent/services")).await.context("cannot list the agent's services")?;
    let any = [GatewayKind::Ingress, GatewayKind::Terminating];
    Ok(services.contains_key(name) || any.into_iter().any(|kind| !gateways(&services, name, kind).is_empty()))
}

/// Finds the sidecar in the catalog, on a node of another agent.
///
/// # Errors
/// If there is none, with what is there.
pub(crate) async fn find_on(client: &Client, node: &str, wanted: Wanted<'_>) -> anyhow::Result<Sidecar> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Node {
        services: Services,
    }
    let call = Call::get("/v1/catalog/node").segment(node);
    let found: Option<Node> = client.read(call).await.with_context(|| format!("cannot list the services of {node}"))?;
    let Some(Node { services }) = found else { bail!("there is no node {node:?}; `starling nodes` lists them") };
    choose(&services, wanted).with_context(|| format!("on node {node}"))
}

/// The settings of the proxy: those of every proxy, and over them its own.
///
/// # Errors
/// If the API does not answer.
pub(crate) async fn settings(client: &Client, sidecar: &Sidecar) -> anyhow::Result<Map<String, Value>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Defaults {
        config: Option<Map<String, Value>>,
    }
    let call = Call::get("/v1/config/proxy-defaults/global");
    let defaults: Option<Defaults> = client.find(call).await.context("cannot read proxy-defaults/global")?;
    let mut settings = defaults.and_then(|defaults| defaults.config).unwrap_or_default();
    settings.extend(sidecar.config.clone());
    Ok(settings)
}

/// The gateways of this ID, or else of this service name.
fn gateways<'a>(services: &'a Services, name: &str, kind: GatewayKind) -> Vec<(&'a String, &'a Service)> {
    let all = || services.iter().filter(|(_, service)| service.kind == kind.as_str());
    let by_id: Vec<_> = all().filter(|(id, _)| id.as_str() == name).collect();
    if by_id.is_empty() { all().filter(|(_, service)| service.service == name).collect() } else { by_id }
}

fn choose_gateway(services: &Services, name: &str, kind: GatewayKind) -> anyhow::Result<Sidecar> {
    let wanted = kind.as_str();
    match gateways(services, name, kind).as_slice() {
        [(id, service)] => Ok(Sidecar {
            id: (*id).clone(),
            service: service.service.clone(),
            config: service.proxy.as_ref().map(|proxy| proxy.config.clone()).unwrap_or_default(),
        }),
        [] if services.contains_key(name) => {
            Err(usage(format!("{name:?} is not such a gateway: it was not registered with the kind {wanted}")))
        }
        [] => bail!(
            "no {wanted} {name:?} is registered with this agent; it has {}. Give --register to register it",
            known(services)
        ),
        several => {
            let ids: Vec<_> = several.iter().map(|(id, _)| id.as_str()).collect();
            Err(usage(format!("several gateways fit: {}; choose one by its ID", ids.join(", "))))
        }
    }
}

fn choose(services: &Services, wanted: Wanted<'_>) -> anyhow::Result<Sidecar> {
    if let Wanted::Gateway(name, kind) = wanted {
        return choose_gateway(services, name, kind);
    }
    let proxies = services.iter().filter_map(|(id, service)| {
        let proxy = service.proxy.as_ref().filter(|_| service.kind == "connect-proxy")?;
        Some((id, proxy))
    });
    let found: Vec<_> = match wanted {
        Wanted::Proxy(wanted) => proxies.filter(|(id, _)| id.as_str() == wanted).collect(),
        Wanted::SidecarFor(wanted) => {
            proxies.filter(|(_, proxy)| proxy.destination_service_id.as_deref() == Some(wanted)).collect()
        }
        Wanted::Gateway(..) => Vec::new(),
    };
    match (found.as_slice(), wanted) {
        ([(id, proxy)], _) => Ok(Sidecar {
            id: (*id).clone(),
            service: proxy.destination_service_name.clone(),
            config: proxy.config.clone(),
        }),
        ([], Wanted::Proxy(id)) => match services.contains_key(id) {
            true => Err(usage(format!("{id:?} is a service, not a sidecar; --sidecar-for {id} finds its sidecar"))),
            false => bail!("no sidecar {id:?} is registered with this agent; it has {}", known(services)),
        },
        ([], Wanted::SidecarFor(id)) if is_sidecar(services, id) => {
            let beside = services[id].proxy.as_ref().and_then(|proxy| proxy.destination_service_id.as_deref());
            let instead = beside.map_or_else(|| format!("--proxy-id {id}"), |beside| format!("--sidecar-for {beside}"));
            Err(usage(format!("{id:?} is a sidecar itself, not a service that has one; give {instead}")))
        }
        ([], Wanted::SidecarFor(id)) if services.contains_key(id) => bail!(
            "service {id:?} has no sidecar: give it `connect {{ sidecar_service {{}} }}` in its definition and \
             register it again (`starling services register FILE`)"
        ),
        ([], Wanted::SidecarFor(id)) => bail!(
            "no service with the ID {id:?} is registered with this agent; it has {}. Register it first \
             (`starling services register FILE`), or name another with --sidecar-for",
            known(services)
        ),
        (several, _) => {
            let ids: Vec<_> = several.iter().map(|(id, _)| id.as_str()).collect();
            Err(usage(format!("several sidecars fit: {}; choose one with --proxy-id", ids.join(", "))))
        }
    }
}

fn is_sidecar(services: &Services, id: &str) -> bool {
    services.get(id).is_some_and(|service| service.kind == "connect-proxy")
}

/// Services that could have been meant.
fn known(services: &Services) -> String {
    /// Beyond this a list helps nobody.
    const SHOWN_MAX: usize = 20;
    let ids: Vec<&str> = services.keys().map(String::as_str).take(SHOWN_MAX).collect();
    match (ids.len(), services.len()) {
        (0, _) => "none".to_owned(),
        (shown, all) if shown < all => format!("{} and {} more", ids.join(", "), all - shown),
        _ => ids.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn services() -> Services {
        let proxy = |service: &str, id: &str| json!({"Kind": "connect-proxy", "Proxy": {"DestinationServiceName": service, "DestinationServiceID": id}});
        serde_json::from_value(json!({
            "web-1": {"Service": "web"},
            "web-1-sidecar-proxy": proxy("web", "web-1"),
            "api-1": {"Service": "api"},
            "api-blue": proxy("api", "api-1"),
            "api-green": proxy("api", "api-1"),
            "db-1": {"Service": "db"},
            "edge-1": {"Service": "edge", "Kind": "ingress-gateway", "Proxy": {"Config": {"bind_address": "::"}}},
            "twin-1": {"Service": "twin", "Kind": "ingress-gateway"},
            "twin-2": {"Service": "twin", "Kind": "ingress-gateway"},
        }))
        .unwrap()
    }

    #[test]
    fn the_one_sidecar_is_found_by_either_name() {
        let expected = Sidecar { id: "web-1-sidecar-proxy".to_owned(), service: "web".to_owned(), config: Map::new() };
        assert_eq!(choose(&services(), Wanted::SidecarFor("web-1")).unwrap(), expected);
        assert_eq!(choose(&services(), Wanted::Proxy("web-1-sidecar-proxy")).unwrap(), expected);
        assert_eq!(choose(&services(), Wanted::Proxy("api-green")).unwrap().service, "api");
    }

    #[test]
    fn a_gateway_is_found_by_either_name() {
        for name in ["edge", "edge-1"] {
            let found = choose(&services(), Wanted::Gateway(name, GatewayKind::Ingress)).unwrap();
            assert_eq!((found.id.as_str(), found.service.as_str()), ("edge-1", "edge"));
            assert_eq!(found.config["bind_address"], "::");
        }
        assert_eq!(choose(&services(), Wanted::Gateway("twin-2", GatewayKind::Ingress)).unwrap().id, "twin-2");
    }

    #[test]
    fn every_mistake_says_what_to_do() {
        for (wanted, expected) in [
            (Wanted::SidecarFor("api-1"), "api-blue, api-green; choose one with --proxy-id"),
            (Wanted::SidecarFor("db-1"), "connect { sidecar_service {} }"),
            (Wanted::SidecarFor("web"), "no service with the ID \"web\""),
            (
                Wanted::SidecarFor("web-1-sidecar-proxy"),
                "a sidecar itself, not a service that has one; give --sidecar-for web-1",
            ),
            (Wanted::Proxy("web-1"), "--sidecar-for web-1"),
            (Wanted::Proxy("gone"), "no sidecar \"gone\""),
            (Wanted::Gateway("gone", GatewayKind::Ingress), "Give --register"),
            (Wanted::Gateway("web-1", GatewayKind::Ingress), "was not registered with the kind ingress-gateway"),
            (
                Wanted::Gateway("edge-1", GatewayKind::Terminating),
                "was not registered with the kind terminating-gateway",
            ),
            (Wanted::Gateway("twin", GatewayKind::Ingress), "twin-1, twin-2; choose one by its ID"),
        ] {
            let error = choose(&services(), wanted).expect_err("no choice").to_string();
            assert!(error.contains(expected), "{wanted:?}: {error}");
        }
    }
}
