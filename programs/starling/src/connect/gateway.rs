//! Which gateway is meant, and its registration where it has none.

use anyhow::Context;
use serde_json::json;

use super::sidecar::{self, Sidecar, Wanted};
use crate::client::address::host_and_port;
use crate::client::{Call, Client};
use crate::outcome::usage;

/// The port of a terminating gateway where nobody names one; Consul's.
const PORT_DEFAULT: u16 = 8443;

/// The kinds of gateway that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum GatewayKind {
    /// Lets callers from outside in
    #[default]
    Ingress,
    /// Stands in the mesh for services outside
    Terminating,
}

impl GatewayKind {
    /// Consul's word for it, as a service's kind and as a config entry's.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress-gateway",
            Self::Terminating => "terminating-gateway",
        }
    }
}

/// How a gateway is registered with the local agent.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct RegisterArgs {
    /// Register the gateway with the local agent, unless it is already
    #[arg(long, requires = "gateway", help_heading = "Gateways")]
    pub(crate) register: bool,

    /// Where the gateway listens, for --register: IP, or IP:PORT with the port that the catalog shows [default: the
    /// node's address]
    #[arg(long, value_name = "IP[:PORT]", requires = "register", help_heading = "Gateways")]
    pub(crate) address: Option<String>,
}

/// Finds the gateway at the agent, registering it first if that is asked for and it is not there.
///
/// # Errors
/// If there is none, or it cannot be registered.
pub(crate) async fn find(
    client: &Client,
    (name, kind): (&str, GatewayKind),
    args: &RegisterArgs,
) -> anyhow::Result<Sidecar> {
    if args.register && !sidecar::is_taken(client, name).await? {
        let body = registration(name, kind, args.address.as_deref())?;
        let call = Call::put("/v1/agent/service/register").json(&body);
        client.send(call).await.with_context(|| format!("cannot register gateway {name:?}"))?;
        tracing::info!(gateway = name, "registered with the local agent");
    }
    sidecar::find(client, Wanted::Gateway(name, kind)).await
}

fn registration(name: &str, kind: GatewayKind, address: Option<&str>) -> anyhow::Result<serde_json::Value> {
    let mut body = json!({"Name": name, "Kind": kind.as_str()});
    if kind == GatewayKind::Terminating {
        // An ingress gateway has the ports of its entry, this one the port of its registration.
        body["Port"] = PORT_DEFAULT.into();
    }
    if let Some(text) = address {
        let parsed = host_and_port(text).filter(|(host, _)| host.parse::<std::net::IpAddr>().is_ok());
        let (host, port) =
            parsed.ok_or_else(|| usage(format!("--address {text:?} is not of the form IP or IP:PORT")))?;
        body["Address"] = host.into();
        if let Some(port) = port {
            body["Port"] = port.into();
        }
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_an_ip_and_perhaps_a_port() {
        let registered = |address| registration("gw", GatewayKind::Ingress, address).map_err(|error| error.to_string());
        let terminating = |address| registration("gw", GatewayKind::Terminating, address).expect("a registration");
        assert_eq!(terminating(None), json!({"Name": "gw", "Kind": "terminating-gateway", "Port": 8443}));
        assert_eq!(terminating(Some("10.0.0.1:443"))["Port"], 443);
        let bare = json!({"Name": "gw", "Kind": "ingress-gateway"});
        assert_eq!(registered(None), Ok(bare.clone()));
        let mut with = bare;
        with["Address"] = "::1".into();
        assert_eq!(registered(Some("[::1]")), Ok(with.clone()));
        with["Port"] = 8443.into();
        assert_eq!(registered(Some("[::1]:8443")), Ok(with));
        for bad in ["example.com", "example.com:80", "10.0.0.1:0", "10.0.0.1:x", ""] {
            assert!(registered(Some(bad)).is_err_and(|error| error.contains(&format!("--address {bad:?}"))), "{bad}");
        }
    }
}
