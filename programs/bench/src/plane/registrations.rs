//! What both meshes are told: services, protocols, and who may call what.

use std::net::{Ipv4Addr, SocketAddr};

use http::Method;
use serde_json::{Value, json};

use crate::api::Call;

/// The calling service.
pub(crate) const CALLER: &str = "bench-caller";

/// The ingress gateway.
pub(crate) const GATEWAY: &str = "bench-gateway";

/// The host under which callers from outside know the HTTP service.
pub(crate) const HOST: &str = "bench.example.com";

/// Refused by an intention, whoever asks: what shows that requests are authorised by their path.
pub(crate) const FORBIDDEN: &str = "/forbidden";

/// A service that the application offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    Http,
    Http2,
    Grpc,
    Tcp,
    /// HTTP/1.1 by an application that speaks mutual TLS itself, without a sidecar.
    Proxyless,
}

impl Service {
    /// Those with a sidecar.
    pub(crate) const ALL: [Self; 4] = [Self::Http, Self::Http2, Self::Grpc, Self::Tcp];

    /// Its name in the mesh.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "bench-http",
            Self::Http2 => "bench-http2",
            Self::Grpc => "bench-grpc",
            Self::Tcp => "bench-tcp",
            Self::Proxyless => "bench-proxyless",
        }
    }

    fn protocol(self) -> &'static str {
        match self {
            Self::Http | Self::Proxyless => "http",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
            Self::Tcp => "tcp",
        }
    }

    /// The calls that say what it speaks and who may call it: its callers, and so many others that never do.
    pub(crate) fn settings(self, callers: &[&str], others: u32) -> [Call; 2] {
        let name = self.name();
        let defaults = json!({ "Kind": "service-defaults", "Name": name, "Protocol": self.protocol() });
        let source = |source: &str| match self {
            Self::Tcp => json!({ "Name": source, "Action": "allow" }),
            Self::Http | Self::Http2 | Self::Grpc | Self::Proxyless => json!({ "Name": source, "Permissions": [
                { "Action": "deny", "HTTP": { "PathExact": FORBIDDEN } },
                { "Action": "allow", "HTTP": { "PathPrefix": "/" } },
            ] }),
        };
        let others = (0..others).map(|number| source(&format!("bench-other-{number}")));
        let sources: Vec<_> = callers.iter().copied().map(source).chain(others).collect();
        let intentions = json!({ "Kind": "service-intentions", "Name": name, "Sources": sources });
        [put("/v1/config", defaults), put("/v1/config", intentions)]
    }

    /// Its only instance, with a sidecar where it has one.
    pub(crate) fn registration(self, application: SocketAddr, sidecar: SocketAddr) -> Call {
        let name = self.name();
        if self == Self::Proxyless {
            let (address, port) = (application.ip(), application.port());
            let connect = json!({ "Native": true });
            return register(
                &json!({ "ID": name, "Name": name, "Address": address, "Port": port, "Connect": connect }),
            );
        }
        register(&json!({
            "ID": name,
            "Name": name,
            "Address": application.ip(),
            "Port": application.port(),
            "Connect": { "SidecarService": {
                "Port": sidecar.port(),
                "Checks": [{ "Name": "instance", "AliasService": name }],
                // So that it is reached under a second address, too: see `another_way`.
                "Proxy": { "Config": { "bind_address": Ipv4Addr::UNSPECIFIED } },
            } },
        }))
    }
}

/// The same sidecar under another address: an endpoint of its own, since two with the same address and port are one.
pub(crate) fn another_way(sidecar: SocketAddr) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(127, 0, 0, 4).into(), sidecar.port())
}

/// What all proxies do beside their work. It is always said whether there is an access log: an Envoy writes one unless
/// told otherwise, and the native plane does not.
pub(crate) fn proxy_defaults(access_log: bool, spans_to: Option<SocketAddr>) -> Call {
    let mut settings = json!({ "Kind": "proxy-defaults", "Name": "global", "AccessLogs": { "Enabled": access_log } });
    if let Some(collector) = spans_to {
        settings["Tracing"] = json!({ "Endpoint": format!("http://{collector}"), "Percent": 100 });
    }
    put("/v1/config", settings)
}

/// What the ingress gateway lets in: the HTTP service, by its host, at a port.
pub(crate) fn ingress(port: u16) -> Call {
    let services = json!([{ "Name": Service::Http.name(), "Hosts": [HOST] }]);
    let listeners = json!([{ "Port": port, "Protocol": "http", "Services": services }]);
    put("/v1/config", json!({ "Kind": "ingress-gateway", "Name": GATEWAY, "Listeners": listeners }))
}

/// A calling instance with a sidecar; nobody runs it, for the generator stands in for it. Each upstream is a service and
/// where the sidecar takes requests for it.
pub(crate) fn caller(
    name: &str,
    application: SocketAddr,
    sidecar: SocketAddr,
    upstreams: impl IntoIterator<Item = (String, SocketAddr)>,
) -> Call {
    let upstreams = upstreams.into_iter().map(|(service, bind)| {
        json!({ "DestinationName": service, "LocalBindAddress": bind.ip(), "LocalBindPort": bind.port() })
    });
    register(&json!({
        "ID": name,
        "Name": name,
        "Address": application.ip(),
        "Port": application.port(),
        "Connect": { "SidecarService": {
            "Port": sidecar.port(),
            "Checks": [{ "Name": "instance", "AliasService": name }],
            "Proxy": { "Upstreams": upstreams.collect::<Vec<_>>() },
        } },
    }))
}

/// A service with one instance in the catalog that speaks mesh TLS itself, so that it is an endpoint without a sidecar.
pub(crate) fn elsewhere(service: &str, id: &str, address: SocketAddr) -> Call {
    let service = json!({
        "ID": id,
        "Service": service,
        "Address": address.ip(),
        "Port": address.port(),
        "Connect": { "Native": true },
    });
    put("/v1/catalog/register", json!({ "Node": ELSEWHERE, "Address": "10.77.0.1", "Service": service }))
}

/// Takes such an instance back.
pub(crate) fn no_longer_elsewhere(id: &str) -> Call {
    put("/v1/catalog/deregister", json!({ "Node": ELSEWHERE, "ServiceID": id }))
}

/// A node that nobody runs.
const ELSEWHERE: &str = "bench-elsewhere";

fn register(body: &Value) -> Call {
    put("/v1/agent/service/register", body.clone())
}

pub(crate) fn put(target: &str, body: Value) -> Call {
    Call { method: Method::PUT, target: target.to_owned(), body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_is_authorised_by_path_and_tcp_is_not() {
        let permissions =
            |service: Service| service.settings(&[CALLER], 0)[1].body["Sources"][0]["Permissions"].clone();
        assert_eq!(permissions(Service::Grpc)[0]["HTTP"]["PathExact"], FORBIDDEN);
        assert_eq!(permissions(Service::Tcp), Value::Null);
    }

    #[test]
    fn policies_are_those_of_others_beside_the_callers() {
        let settings = |others| Service::Http.settings(&[CALLER, GATEWAY], others);
        let sources = |others| settings(others)[1].body["Sources"].as_array().unwrap().clone();
        assert_eq!((sources(0).len(), sources(3).len()), (2, 5));
        assert_eq!((&sources(3)[1]["Name"], &sources(3)[4]["Name"]), (&GATEWAY.into(), &"bench-other-2".into()));
    }

    #[test]
    fn whether_there_is_an_access_log_is_always_said() {
        let body = |call: Call| call.body;
        assert_eq!(body(proxy_defaults(false, None))["AccessLogs"]["Enabled"], false);
        let traced = body(proxy_defaults(true, Some("127.0.0.1:4317".parse().unwrap())));
        assert_eq!((&traced["AccessLogs"]["Enabled"], &traced["Tracing"]["Percent"]), (&true.into(), &100.into()));
        assert_eq!(traced["Tracing"]["Endpoint"], "http://127.0.0.1:4317");
    }
}
