//! What both meshes are told: services, protocols, and who may call what.

use std::net::SocketAddr;

use http::Method;
use serde_json::{Value, json};

use crate::api::Call;

/// The calling service.
pub(crate) const CALLER: &str = "bench-caller";

/// Refused by an intention, whoever asks: what shows that requests are authorised by their path.
pub(crate) const FORBIDDEN: &str = "/forbidden";

/// A service that the application offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    Http,
    Http2,
    Grpc,
    Tcp,
}

impl Service {
    pub(crate) const ALL: [Self; 4] = [Self::Http, Self::Http2, Self::Grpc, Self::Tcp];

    /// Its name in the mesh.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "bench-http",
            Self::Http2 => "bench-http2",
            Self::Grpc => "bench-grpc",
            Self::Tcp => "bench-tcp",
        }
    }

    fn protocol(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
            Self::Tcp => "tcp",
        }
    }

    /// The calls that say what it speaks and who may call it.
    pub(crate) fn settings(self) -> [Call; 2] {
        let name = self.name();
        let defaults = json!({ "Kind": "service-defaults", "Name": name, "Protocol": self.protocol() });
        let source = match self {
            Self::Tcp => json!({ "Name": CALLER, "Action": "allow" }),
            Self::Http | Self::Http2 | Self::Grpc => json!({ "Name": CALLER, "Permissions": [
                { "Action": "deny", "HTTP": { "PathExact": FORBIDDEN } },
                { "Action": "allow", "HTTP": { "PathPrefix": "/" } },
            ] }),
        };
        let intentions = json!({ "Kind": "service-intentions", "Name": name, "Sources": [source] });
        [put("/v1/config", defaults), put("/v1/config", intentions)]
    }

    /// Its only instance, with a sidecar.
    pub(crate) fn registration(self, application: SocketAddr, sidecar: SocketAddr) -> Call {
        let name = self.name();
        register(&json!({
            "ID": name,
            "Name": name,
            "Address": application.ip(),
            "Port": application.port(),
            "Connect": { "SidecarService": {
                "Port": sidecar.port(),
                "Checks": [{ "Name": "instance", "AliasService": name }],
            } },
        }))
    }
}

/// No proxy writes an access log: an Envoy would, unless told otherwise, and the native plane would not.
pub(crate) fn no_access_log() -> Call {
    let settings = json!({ "Kind": "proxy-defaults", "Name": "global", "AccessLogs": { "Enabled": false } });
    put("/v1/config", settings)
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
        let permissions = |service: Service| service.settings()[1].body["Sources"][0]["Permissions"].clone();
        assert_eq!(permissions(Service::Grpc)[0]["HTTP"]["PathExact"], FORBIDDEN);
        assert_eq!(permissions(Service::Tcp), Value::Null);
    }
}
