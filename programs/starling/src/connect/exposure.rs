//! What Envoy shows of itself on listeners of their own: metrics and readiness.
//!
//! The admin interface, which may do anything, can so stay on loopback. Names of listeners and clusters are Consul's.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::arguments::ExposureArgs;
use super::bootstrap::Endpoint;
use crate::client::Authorities;
use crate::client::address::host_and_port;
use crate::outcome::usage;

/// The cluster of Envoy's own admin interface.
const SELF_ADMIN: &str = "self_admin";

/// The cluster of whoever serves metrics in Envoy's place.
const PROMETHEUS_BACKEND: &str = "prometheus_backend";

/// Where the admin interface has metrics for Prometheus; Consul asks a backend for the same path.
const PROMETHEUS_PATH: &str = "/stats/prometheus";

/// The settings that are heeded here, in `Proxy.Config` and in `proxy-defaults`.
const PROMETHEUS_BIND: &str = "envoy_prometheus_bind_addr";
const STATS_BIND: &str = "envoy_stats_bind_addr";

/// The listeners and what is behind them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Exposure {
    listeners: Vec<Listener>,
    /// The port of [`PROMETHEUS_BACKEND`] on loopback.
    backend_port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq)]
struct Listener {
    name: &'static str,
    bind: Endpoint,
    /// `path` or `prefix`, with its value.
    shows: (&'static str, String),
    /// What stands behind it.
    cluster: &'static str,
    /// What `shows` becomes there.
    rewritten: &'static str,
    /// TLS towards whoever asks.
    tls: Option<Value>,
}

impl Exposure {
    /// What flags and the proxy's settings ask for.
    ///
    /// # Errors
    /// [`crate::outcome::UsageError`] if an address, a path or a file is not what it should be.
    pub(super) fn new(args: &ExposureArgs, settings: &Map<String, Value>) -> anyhow::Result<Self> {
        let mut exposure = Self::default();
        if let Some(bind) = address(settings, PROMETHEUS_BIND)? {
            let path = &args.prometheus_scrape_path;
            if !path.starts_with('/') {
                return Err(usage(format!("--prometheus-scrape-path {path:?} does not begin with /")));
            }
            exposure.backend_port = args.prometheus_backend_port;
            exposure.listeners.push(Listener {
                name: "envoy_prometheus_metrics",
                bind,
                shows: ("path", path.clone()),
                cluster: if exposure.backend_port.is_some() { PROMETHEUS_BACKEND } else { SELF_ADMIN },
                rewritten: PROMETHEUS_PATH,
                tls: tls(args)?,
            });
        }
        if let Some(bind) = address(settings, STATS_BIND)? {
            let shows = ("prefix", "/stats".to_owned());
            let (name, cluster, rewritten) = ("envoy_metrics", SELF_ADMIN, "/stats");
            exposure.listeners.push(Listener { name, bind, shows, cluster, rewritten, tls: None });
        }
        if let (Some(text), Some(port)) = (&args.envoy_ready_bind_address, args.envoy_ready_bind_port) {
            let ip: IpAddr =
                text.parse().map_err(|_| usage(format!("--envoy-ready-bind-address {text:?} is no IP address")))?;
            let bind = Endpoint::Tcp { host: ip.to_string(), port };
            let shows = ("path", "/ready".to_owned());
            let (name, cluster, rewritten) = ("envoy_ready", SELF_ADMIN, "/ready");
            exposure.listeners.push(Listener { name, bind, shows, cluster, rewritten, tls: None });
        }
        Ok(exposure)
    }

    /// The static listeners.
    pub(super) fn listeners(&self) -> Vec<Value> {
        self.listeners.iter().map(Listener::render).collect()
    }

    /// The static clusters behind them; the admin interface listens at `admin`.
    pub(super) fn clusters(&self, admin: &Endpoint) -> Vec<Value> {
        let is_behind = |cluster: &str| self.listeners.iter().any(|listener| listener.cluster == cluster);
        let mut clusters = Vec::new();
        if is_behind(SELF_ADMIN) {
            clusters.push(cluster(SELF_ADMIN, &admin.dialled()));
        }
        if let Some(port) = self.backend_port {
            clusters.push(cluster(PROMETHEUS_BACKEND, &Endpoint::Tcp { host: "127.0.0.1".to_owned(), port }));
        }
        clusters
    }
}

fn cluster(name: &str, endpoint: &Endpoint) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": endpoint.render()}}]}],
        },
    })
}

impl Listener {
    fn render(&self) -> Value {
        let (how, what) = &self.shows;
        let manager = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": self.name,
            "codec_type": "HTTP1",
            "route_config": {
                "name": "self_admin_route",
                "virtual_hosts": [{
                    "name": SELF_ADMIN,
                    "domains": ["*"],
                    // Whatever else is asked for gets 404.
                    "routes": [{
                        "match": {*how: what},
                        "route": {"cluster": self.cluster, "prefix_rewrite": self.rewritten},
                    }],
                }],
            },
            "http_filters": [{
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            }],
        });
        let mut chain = json!({
            "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}],
        });
        if let Some(tls) = &self.tls {
            chain["transport_socket"] = json!({"name": "envoy.transport_sockets.tls", "typed_config": tls});
        }
        json!({
            "name": format!("{}_listener", self.name),
            "address": self.bind.render(),
            // Whoever watches must get in when the proxy is full.
            "ignore_global_conn_limit": true,
            "filter_chains": [chain],
        })
    }
}

/// An address among the settings, whose names Consul reads without regard to case.
fn address(settings: &Map<String, Value>, name: &str) -> anyhow::Result<Option<Endpoint>> {
    let Some((_, value)) = settings.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)) else { return Ok(None) };
    let wrong = || usage(format!("{name} is {value} in the proxy's settings, which is not of the form IP:PORT"));
    let text = value.as_str().ok_or_else(wrong)?;
    match host_and_port(text) {
        _ if text.is_empty() => Ok(None),
        Some((host, Some(port))) if host.parse::<IpAddr>().is_ok() => Ok(Some(Endpoint::Tcp { host, port })),
        Some(_) | None => Err(wrong()),
    }
}

fn tls(args: &ExposureArgs) -> anyhow::Result<Option<Value>> {
    let (Some(certificate), Some(key)) = (&args.prometheus_cert_file, &args.prometheus_key_file) else {
        return Ok(None);
    };
    let mut context = json!({
        "tls_certificates": [{"certificate_chain": {"filename": certificate}, "private_key": {"filename": key}}],
    });
    if let Some(ca) = Authorities::given(args.prometheus_ca_file.clone(), args.prometheus_ca_path.clone()) {
        context["validation_context"] = json!({"trusted_ca": {"inline_string": ca.pem()?}});
    }
    Ok(Some(json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": context,
        // As with Consul: a scraper need not show one, but one that is shown must be good.
        "require_client_certificate": false,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(value: Value) -> Map<String, Value> {
        serde_json::from_value(value).unwrap()
    }

    fn args(path: &str) -> ExposureArgs {
        ExposureArgs { prometheus_scrape_path: path.to_owned(), ..ExposureArgs::default() }
    }

    #[test]
    fn nothing_is_shown_unasked() {
        let backend = ExposureArgs { prometheus_backend_port: Some(20100), ..args("/metrics") };
        assert_eq!(Exposure::new(&backend, &settings(json!({"protocol": "http"}))).unwrap(), Exposure::default());
    }

    #[test]
    fn a_backend_takes_the_place_of_envoys_own_metrics() {
        let asked = settings(json!({"Envoy_Prometheus_Bind_Addr": "0.0.0.0:20200"}));
        let admin = Endpoint::Tcp { host: "0.0.0.0".to_owned(), port: 19000 };
        for (port, cluster) in [(None, SELF_ADMIN), (Some(20100), PROMETHEUS_BACKEND)] {
            let args = ExposureArgs { prometheus_backend_port: port, ..args("/scrape") };
            let exposure = Exposure::new(&args, &asked).unwrap();
            let listener = &exposure.listeners()[0];
            assert_eq!(listener["address"]["socket_address"], json!({"address": "0.0.0.0", "port_value": 20200}));
            let manager = &listener["filter_chains"][0]["filters"][0]["typed_config"];
            let route = &manager["route_config"]["virtual_hosts"][0]["routes"][0];
            assert_eq!(route["match"]["path"], "/scrape");
            assert_eq!(route["route"], json!({"cluster": cluster, "prefix_rewrite": PROMETHEUS_PATH}));
            let clusters = exposure.clusters(&admin);
            assert_eq!((clusters.len(), &clusters[0]["name"]), (1, &json!(cluster)));
            let endpoint = &clusters[0]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
            let expected = json!({"address": "127.0.0.1", "port_value": port.unwrap_or(19000)});
            assert_eq!(endpoint["address"]["socket_address"], expected);
        }
    }

    #[test]
    fn what_is_no_address_is_told_with_its_setting() {
        for value in [json!("20200"), json!("localhost:20200"), json!("0.0.0.0:0"), json!(20200)] {
            let asked = settings(json!({PROMETHEUS_BIND: value}));
            let error = Exposure::new(&args("/metrics"), &asked).expect_err("refused").to_string();
            assert!(error.contains(PROMETHEUS_BIND) && error.contains(&value.to_string()), "{error}");
        }
        let asked = settings(json!({PROMETHEUS_BIND: "127.0.0.1:20200"}));
        let error = Exposure::new(&args("metrics"), &asked).expect_err("refused").to_string();
        assert!(error.contains("--prometheus-scrape-path \"metrics\""), "{error}");
    }
}
