//! Envoy's bootstrap: who it is, where its control plane is, and how its statistics are named.
//!
//! Source: `envoy.config.bootstrap.v3.Bootstrap`. Everything that may change while Envoy runs comes over xDS instead.

use serde_json::{Value, json};

use super::exposure::Exposure;
use super::sidecar::Sidecar;
use super::xds::Xds;

/// The cluster of the control plane.
const XDS_CLUSTER: &str = "starling_xds";

/// The only namespace.
const NAMESPACE: &str = "default";

/// Connections of clients at most. Past a process's file descriptors Envoy could not accept, nor reach its upstreams.
const DOWNSTREAM_CONNECTIONS_MAX: u32 = 10_000;

/// Size at which a regular expression is refused. Envoy's own limit of 100 refuses everyday expressions of routes and
/// permissions; RE2 takes linear time whatever their size.
const REGEX_PROGRAM_SIZE_MAX: u32 = 1_048_576;

/// An address in the bootstrap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// TCP.
    Tcp {
        /// IP or name.
        host: String,
        /// Port.
        port: u16,
    },
    /// A Unix socket.
    Unix {
        /// Its path.
        path: String,
    },
}

impl Endpoint {
    /// As Envoy's `Address`.
    pub(super) fn render(&self) -> Value {
        match self {
            Self::Tcp { host, port } => json!({"socket_address": {"address": host, "port_value": port}}),
            Self::Unix { path } => json!({"pipe": {"path": path}}),
        }
    }

    /// Where a listener here is reached from here: one on every address, on loopback.
    pub(super) fn dialled(&self) -> Self {
        match self {
            Self::Tcp { host, port } if host == "0.0.0.0" => Self::Tcp { host: "127.0.0.1".to_owned(), port: *port },
            Self::Tcp { host, port } if host == "::" => Self::Tcp { host: "::1".to_owned(), port: *port },
            Self::Tcp { .. } | Self::Unix { .. } => self.clone(),
        }
    }

    /// How Envoy finds it: a name must be resolved.
    fn discovery(&self) -> &'static str {
        match self {
            Self::Tcp { host, .. } if host.parse::<std::net::IpAddr>().is_err() => "STRICT_DNS",
            Self::Tcp { .. } | Self::Unix { .. } => "STATIC",
        }
    }
}

/// Everything that goes into a bootstrap.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bootstrap<'a> {
    /// Who Envoy is.
    pub(super) sidecar: &'a Sidecar,
    /// The node on which it is registered.
    pub(super) node: &'a str,
    /// Its datacentre.
    pub(super) datacenter: &'a str,
    /// Where its admin interface listens.
    pub(super) admin: &'a Endpoint,
    /// Where the admin interface logs accesses.
    pub(super) admin_access_log: &'a str,
    /// Its control plane.
    pub(super) xds: &'a Xds,
    /// What it shows of itself besides the admin interface.
    pub(super) exposure: &'a Exposure,
    /// Sent with the xDS stream.
    pub(super) token: Option<&'a str>,
}

impl Bootstrap<'_> {
    /// The bootstrap as JSON.
    pub(super) fn render(&self) -> Value {
        let mut clusters = vec![self.xds_cluster()];
        clusters.extend(self.exposure.clusters(self.admin));
        json!({
            "node": {
                "id": self.sidecar.id,
                "cluster": self.sidecar.service,
                "metadata": {"node_name": self.node, "namespace": NAMESPACE},
            },
            "admin": {
                "access_log": [{
                    "name": "envoy.access_loggers.file",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                        "path": self.admin_access_log,
                    },
                }],
                "address": self.admin.render(),
                // An operator must get in when the limit below is reached.
                "ignore_global_conn_limit": true,
            },
            "dynamic_resources": self.dynamic_resources(),
            "static_resources": {"clusters": clusters, "listeners": self.exposure.listeners()},
            "stats_config": {"use_all_default_tags": true, "stats_tags": self.stats_tags()},
            "layered_runtime": {"layers": [{
                "name": "base",
                "static_layer": {"re2.max_program_size.error_level": REGEX_PROGRAM_SIZE_MAX},
            }]},
            "overload_manager": {"resource_monitors": [{
                "name": "envoy.resource_monitors.global_downstream_max_connections",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                    "max_active_downstream_connections": DOWNSTREAM_CONNECTIONS_MAX,
                },
            }]},
        })
    }

    fn dynamic_resources(&self) -> Value {
        let mut service = json!({"envoy_grpc": {
            "cluster_name": XDS_CLUSTER,
            // Envoy would wait for up to 30 s; the control plane decides the pace, not the client's fear.
            "retry_policy": {"retry_back_off": {"base_interval": "0.1s", "max_interval": "2s"}},
        }});
        if let Some(token) = self.token {
            service["initial_metadata"] = json!([{"key": "x-consul-token", "value": token}]);
        }
        json!({
            "cds_config": {"ads": {}, "resource_api_version": "V3"},
            "lds_config": {"ads": {}, "resource_api_version": "V3"},
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [service],
            },
        })
    }

    fn xds_cluster(&self) -> Value {
        let Xds { endpoint, tls } = self.xds;
        let mut cluster = json!({
            "name": XDS_CLUSTER,
            "type": endpoint.discovery(),
            "connect_timeout": "1s",
            "load_assignment": {
                "cluster_name": XDS_CLUSTER,
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": endpoint.render()}}]}],
            },
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {"http2_protocol_options": {
                        // A silent control plane is noticed within seconds; a dead one, at once.
                        "connection_keepalive": {"interval": "1s", "timeout": "3s"},
                    }},
                },
            },
            "upstream_connection_options": {
                "tcp_keepalive": {"keepalive_probes": 3, "keepalive_time": 10, "keepalive_interval": 2},
            },
        });
        if let Some(tls) = tls {
            cluster["transport_socket"] = tls.transport_socket();
        }
        cluster
    }

    /// Labels in Prometheus in place of long names, called as in Consul.
    ///
    /// A cluster is `SERVICE.NAMESPACE.DATACENTER.internal.TRUST-DOMAIN`, and a listener for calls has the prefix
    /// `upstream.SERVICE`. In each expression the outer group leaves the name and the inner one is the value.
    fn stats_tags(&self) -> Value {
        let fixed = |name: &str, value: &str| json!({"tag_name": name, "fixed_value": value});
        let part = |name: &str, regex: &str| json!({"tag_name": name, "regex": regex});
        let Self { sidecar, datacenter, .. } = self;
        json!([
            fixed("local_cluster", &sidecar.service),
            fixed("consul.source.service", &sidecar.service),
            fixed("consul.source.namespace", NAMESPACE),
            fixed("consul.source.datacenter", datacenter),
            part("consul.destination.service", r"^cluster\.((.+)\.)[^.]+\.[^.]+\.internal\.[^.]+\.consul\."),
            part("consul.destination.namespace", r"^cluster\..+\.(([^.]+)\.)[^.]+\.internal\.[^.]+\.consul\."),
            part("consul.destination.datacenter", r"^cluster\..+\.[^.]+\.(([^.]+)\.internal\.)[^.]+\.consul\."),
            part("consul.destination.trust_domain", r"^cluster\..+\.[^.]+\.[^.]+\.internal\.(([^.]+\.consul)\.)"),
            part("consul.upstream.service", r"^(?:http|tcp)\.upstream\.(([^.]+)\.)"),
        ])
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use serde_json::Map;

    use super::super::arguments::ExposureArgs;
    use super::super::xds::XdsTls;
    use super::*;

    fn rendered(xds: &Xds, exposure: &Exposure, token: Option<&str>) -> Value {
        let sidecar =
            Sidecar { id: "web-1-sidecar-proxy".to_owned(), service: "web".to_owned(), config: Map::default() };
        let admin = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port: 19000 };
        Bootstrap {
            sidecar: &sidecar,
            node: "n1",
            datacenter: "dc1",
            admin: &admin,
            admin_access_log: "/dev/null",
            xds,
            exposure,
            token,
        }
        .render()
    }

    fn plaintext(endpoint: Endpoint) -> Xds {
        Xds { endpoint, tls: None }
    }

    fn tcp(host: &str) -> Endpoint {
        Endpoint::Tcp { host: host.to_owned(), port: 8502 }
    }

    #[test]
    fn the_bootstrap_is_as_expected() {
        let bootstrap = rendered(&plaintext(tcp("127.0.0.1")), &Exposure::default(), Some("secret"));
        crate::reference::compare(Path::new("tests/golden/bootstrap.json"), &format!("{bootstrap:#}\n"));
    }

    #[test]
    fn without_a_token_none_is_sent() {
        let bootstrap = rendered(&plaintext(tcp("127.0.0.1")), &Exposure::default(), None);
        assert!(!bootstrap.to_string().contains("x-consul-token"));
        assert_eq!(bootstrap["dynamic_resources"]["ads_config"]["api_type"], "DELTA_GRPC");
    }

    #[test]
    fn envoy_accepts_every_form() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["mesh.example".to_owned()]).unwrap();
        let (certificate, key) = (folder.path().join("leaf.pem"), folder.path().join("key.pem"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let tls = |name: &str| XdsTls {
            authorities: made.cert.pem(),
            name: name.to_owned(),
            certificate: certificate.clone(),
            key: key.clone(),
        };
        let mut args = ExposureArgs {
            prometheus_scrape_path: "/metrics".to_owned(),
            envoy_ready_bind_address: Some("127.0.0.1".to_owned()),
            envoy_ready_bind_port: Some(21_000),
            ..ExposureArgs::default()
        };
        let settings = json!({"envoy_prometheus_bind_addr": "0.0.0.0:20200", "envoy_stats_bind_addr": "[::1]:20201"});
        let settings: Map<_, _> = serde_json::from_value(settings).unwrap();
        let plain = Exposure::new(&args, &settings).unwrap();
        args.prometheus_backend_port = Some(20_100);
        (args.prometheus_cert_file, args.prometheus_key_file) = (Some(certificate.clone()), Some(key.clone()));
        args.prometheus_ca_file = Some(certificate.clone());
        let secure = Exposure::new(&args, &settings).unwrap();
        for (xds, exposure) in [
            (plaintext(tcp("127.0.0.1")), Exposure::default()),
            (plaintext(tcp("mesh.example")), plain.clone()),
            (plaintext(Endpoint::Unix { path: "/run/starling.sock".to_owned() }), secure),
            (Xds { endpoint: tcp("mesh.example"), tls: Some(tls("mesh.example")) }, plain),
            (Xds { endpoint: tcp("127.0.0.1"), tls: Some(tls("127.0.0.1")) }, Exposure::default()),
        ] {
            validate(&rendered(&xds, &exposure, Some("secret")));
        }
    }

    #[track_caller]
    fn validate(bootstrap: &Value) {
        let envoy = envoy();
        let output = Command::new(&envoy)
            .args(["--mode", "validate", "--log-level", "warning", "--config-yaml"])
            .arg(bootstrap.to_string())
            .output()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", envoy.display()));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{bootstrap}: {said}");
        assert!(!said.contains("[warning]") && !said.contains("deprecated"), "{bootstrap}: {said}");
    }

    /// The Envoy to validate with; a test without one is a failed test.
    fn envoy() -> PathBuf {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let environment = crate::environment::Environment::read(|name| std::env::var_os(name));
        super::super::binary::find(None, &environment, Some(&tree)).unwrap_or_else(|error| panic!("{error}"))
    }
}
