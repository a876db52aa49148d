//! Opaque settings: the `Config` of a sidecar, of an upstream and of proxy-defaults.
//!
//! Consul takes any key there and acts upon those that it knows. Here a key is acted upon or refused, since a misspelt one
//! would otherwise be a promise that nobody keeps. Keys are compared without regard to case, as in Consul; keys and values
//! come out in one spelling. In proxy-defaults, where tools leave notes of their own, a key that is neither Consul's nor looks
//! like one that is acted upon is kept as it is (ADR 0021).

use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value};
use starling_catalog::Snapshot;
use starling_model::{Port, Protocol, ServiceName, SidecarProxy};

use super::duration::parse_duration_value;
use super::field::{FieldError, Fields, is_zero};
use super::nearest::nearest;

/// One setting: its key, and what its value is.
type Setting = (&'static str, Kind);

/// What a setting's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Protocol,
    Ip,
    Port,
    /// An IP and a port, `IP:PORT`.
    Socket,
    /// A whole number that fits 32 bits.
    Count,
    /// Such a number of milliseconds.
    Milliseconds,
    /// A duration, kept as a number of nanoseconds.
    Duration,
    /// A whole number up to 100.
    Percent,
    /// Settings inside it.
    Nested(&'static [Setting]),
}

/// Where a `Config` stands; each place has its own keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// `Proxy.Config` of a sidecar.
    Sidecar,
    /// `Proxy.Config` of an ingress gateway.
    Gateway,
    /// `Proxy.Config` of a terminating gateway.
    ExitGateway,
    /// `Proxy.Upstreams[].Config`.
    Upstream,
    /// `Config` of proxy-defaults.
    ProxyDefaults,
}

impl Place {
    fn settings(self) -> &'static [Setting] {
        match self {
            Self::Sidecar => &[
                ("bind_address", Kind::Ip),
                ("bind_port", Kind::Port),
                ("envoy_prometheus_bind_addr", Kind::Socket),
                ("envoy_stats_bind_addr", Kind::Socket),
                ("local_connect_timeout_ms", Kind::Milliseconds),
                ("local_request_timeout_ms", Kind::Milliseconds),
                ("max_inbound_connections", Kind::Count),
                ("protocol", Kind::Protocol),
            ],
            Self::Gateway => &[
                ("bind_address", Kind::Ip),
                ("envoy_prometheus_bind_addr", Kind::Socket),
                ("envoy_stats_bind_addr", Kind::Socket),
                ("max_inbound_connections", Kind::Count),
            ],
            Self::ExitGateway => &[
                ("bind_address", Kind::Ip),
                ("bind_port", Kind::Port),
                ("envoy_prometheus_bind_addr", Kind::Socket),
                ("envoy_stats_bind_addr", Kind::Socket),
            ],
            Self::Upstream => &[
                ("connect_timeout_ms", Kind::Milliseconds),
                ("limits", Kind::Nested(LIMITS)),
                ("passive_health_check", Kind::Nested(PASSIVE_HEALTH_CHECK)),
                ("protocol", Kind::Protocol),
            ],
            Self::ProxyDefaults => &[
                ("envoy_prometheus_bind_addr", Kind::Socket),
                ("envoy_stats_bind_addr", Kind::Socket),
                ("local_connect_timeout_ms", Kind::Milliseconds),
                ("local_request_timeout_ms", Kind::Milliseconds),
                ("protocol", Kind::Protocol),
            ],
        }
    }

    /// The keys that are acted upon here.
    pub fn keys(self) -> impl Iterator<Item = &'static str> {
        self.settings().iter().map(|(key, _)| *key)
    }
}

const LIMITS: &[Setting] = &[
    ("max_concurrent_requests", Kind::Count),
    ("max_connections", Kind::Count),
    ("max_pending_requests", Kind::Count),
];

const PASSIVE_HEALTH_CHECK: &[Setting] = &[
    ("base_ejection_time", Kind::Duration),
    ("enforcing_consecutive_5xx", Kind::Percent),
    ("interval", Kind::Duration),
    ("max_ejection_percent", Kind::Percent),
    ("max_failures", Kind::Count),
];

/// Keys of Consul's documentation (Envoy proxy configuration reference, Consul 1.22) that are not acted upon in one of
/// the places or in any.
const CONSUL_KEYS: &[&str] = &[
    "balance_inbound_connections",
    "balance_outbound_connections",
    "bind_address",
    "bind_port",
    "connect_timeout_ms",
    "envoy_bootstrap_json_tpl",
    "envoy_cluster_json",
    "envoy_dns_discovery_type",
    "envoy_dogstatsd_url",
    "envoy_extra_static_clusters_json",
    "envoy_extra_static_listeners_json",
    "envoy_extra_stats_sinks_json",
    "envoy_gateway_bind_addresses",
    "envoy_gateway_bind_tagged_addresses",
    "envoy_gateway_no_default_bind",
    "envoy_gateway_remote_tcp_enable_keepalive",
    "envoy_gateway_remote_tcp_keepalive_interval",
    "envoy_gateway_remote_tcp_keepalive_probes",
    "envoy_gateway_remote_tcp_keepalive_time",
    "envoy_hcp_metrics_bind_socket_dir",
    "envoy_listener_json",
    "envoy_listener_tracing_json",
    "envoy_local_cluster_json",
    "envoy_prometheus_bind_addr",
    "envoy_public_listener_json",
    "envoy_ready_bind_address",
    "envoy_ready_bind_port",
    "envoy_stats_bind_addr",
    "envoy_stats_config_json",
    "envoy_stats_flush_interval",
    "envoy_stats_tags",
    "envoy_statsd_url",
    "envoy_telemetry_collector_bind_socket_dir",
    "envoy_tracing_json",
    "limits",
    "local_connect_timeout_ms",
    "local_idle_timeout_ms",
    "local_request_timeout_ms",
    "max_inbound_connections",
    "max_request_headers_kb",
    "mesh_gateway",
    "passive_health_check",
    "xds_fetch_timeout_ms",
];

/// Takes `Config`; empty if absent.
///
/// # Errors
/// [`FieldError`] at the first key that is not acted upon, and at the first value that cannot be.
pub(super) fn parse_config(fields: &mut Fields<'_>, place: Place) -> Result<Map<String, Value>, FieldError> {
    let path = fields.path("Config");
    let mut config = fields.opaque("Config")?;
    let mut notes = Map::new();
    if matches!(place, Place::ProxyDefaults | Place::ExitGateway) {
        let is_note = |key: &String| is_note(key, place.settings());
        for key in config.keys().filter(|key| is_note(key)).cloned().collect::<Vec<_>>() {
            fields.context.notice(format!("{path}.{key}"), "is kept and has no effect in this release");
            notes.extend(config.remove_entry(&key));
        }
    }
    let mut read = read(&path, config, place.settings())?;
    read.extend(notes);
    Ok(read)
}

/// Whether a key is nobody's, and looks like nobody's that is acted upon.
fn is_note(key: &str, settings: &[Setting]) -> bool {
    let key = key.to_ascii_lowercase();
    let names = || settings.iter().map(|(name, _)| *name);
    !CONSUL_KEYS.contains(&key.as_str()) && !names().any(|name| name == key) && nearest(&key, names()).is_none()
}

/// The protocol in settings that [`parse_config`] has read.
pub(super) fn protocol_of(config: &Map<String, Value>) -> Option<Protocol> {
    config.get("protocol")?.as_str()?.parse().ok()
}

fn read(path: &str, config: Map<String, Value>, settings: &[Setting]) -> Result<Map<String, Value>, FieldError> {
    let mut read = Map::new();
    for (key, value) in config {
        let path = format!("{path}.{key}");
        let key = key.to_ascii_lowercase();
        match settings.iter().find(|(name, _)| *name == key) {
            Some(_) if value.is_null() => {}
            Some((name, kind)) => {
                if read.insert((*name).to_owned(), read_value(&path, value, *kind)?).is_some() {
                    return Err(FieldError::new(path, "is given twice, in another spelling"));
                }
            }
            None if !CONSUL_KEYS.contains(&key.as_str()) => return Err(unknown(path, &key, settings)),
            // Consul's own types write zero values where nothing was said.
            None if is_zero(&value) => {}
            None => return Err(FieldError::new(path, "is not supported in this release; remove it")),
        }
    }
    Ok(read)
}

fn unknown(path: String, key: &str, settings: &[Setting]) -> FieldError {
    match nearest(key, settings.iter().map(|(name, _)| *name)) {
        Some(meant) => FieldError::misspelt(path, meant),
        None => {
            let keys: Vec<_> = settings.iter().map(|(name, _)| *name).collect();
            FieldError::new(path, format!("unknown field; known here are {}", keys.join(", ")))
        }
    }
}

fn read_value(path: &str, value: Value, kind: Kind) -> Result<Value, FieldError> {
    let wrong = |reason: &dyn std::fmt::Display| FieldError::new(path, reason);
    match (kind, value) {
        (Kind::Protocol, Value::String(text)) => {
            let protocol: Protocol = text.to_ascii_lowercase().parse().map_err(|error| wrong(&error))?;
            Ok(protocol.as_str().into())
        }
        (Kind::Protocol, _) => Err(wrong(&"must be a string")),
        (Kind::Ip, Value::String(text)) if text.parse::<IpAddr>().is_ok() => Ok(text.into()),
        (Kind::Ip, value) => Err(wrong(&format!("{value} is no IP to listen on"))),
        (Kind::Port, value) => {
            let number = whole_u32(&value).ok_or_else(|| wrong(&format!("{value} is no port")))?;
            Port::try_from(i64::from(number)).map(|port| port.get().into()).map_err(|error| wrong(&error))
        }
        (Kind::Socket, Value::String(text)) if text.parse::<SocketAddr>().is_ok() => Ok(text.into()),
        (Kind::Socket, value) => Err(wrong(&format!("{value} is no IP:PORT to listen on"))),
        (Kind::Milliseconds, value) => match whole_u32(&value) {
            Some(number) => Ok(number.into()),
            None => Err(wrong(&"must be a whole number of milliseconds")),
        },
        (Kind::Count, value) => match whole_u32(&value) {
            Some(number) => Ok(number.into()),
            None => Err(wrong(&format!("{value} is no whole number from 0 to {}", u32::MAX))),
        },
        (Kind::Duration, value) => {
            let nanos = parse_duration_value(&value).and_then(|duration| u64::try_from(duration.as_nanos()).ok());
            nanos.map(Value::from).ok_or_else(|| wrong(&format!("{value} is no duration; write it like \"10s\"")))
        }
        (Kind::Percent, value) => match whole_u32(&value).filter(|number| *number <= 100) {
            Some(number) => Ok(number.into()),
            None => Err(wrong(&format!("{value} is no whole number from 0 to 100"))),
        },
        (Kind::Nested(settings), Value::Object(nested)) => read(path, nested, settings).map(Value::Object),
        (Kind::Nested(_), _) => Err(wrong(&"must be an object")),
    }
}

/// Consul's users write numbers as numbers, as whole floats or as text.
fn whole_u32(value: &Value) -> Option<u32> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    text.strip_suffix(".0").unwrap_or(&text).parse().ok()
}

/// Refuses a protocol in the settings of a proxy, found at `path`, that contradicts what is written for the service: what a
/// service speaks is the same for every instance and caller. Where nothing is written, the planner tells of it.
///
/// # Errors
/// [`FieldError`] at the first protocol that does.
pub fn refuse_contradicted_protocols(path: &str, proxy: &SidecarProxy, snapshot: &Snapshot) -> Result<(), FieldError> {
    let refuse = |path: String, service: &ServiceName, config: &Map<String, Value>| {
        let Some((written, (source, spoken))) = protocol_of(config).zip(written_protocol(snapshot, service)) else {
            return Ok(());
        };
        if written == spoken {
            return Ok(());
        }
        let (written, spoken) = (written.as_str(), spoken.as_str());
        let reason =
            format!("{written:?} contradicts {source}, by which {service} speaks {spoken}; change one of the two");
        Err(FieldError::new(format!("{path}.Config.protocol"), reason))
    };
    refuse(path.to_owned(), &proxy.destination, &proxy.config)?;
    for (index, upstream) in proxy.upstreams.iter().enumerate() {
        refuse(format!("{path}.Upstreams[{index}]"), &upstream.destination, &upstream.config)?;
    }
    Ok(())
}

/// The protocol that a config entry gives to a service, and which entry that is.
fn written_protocol(snapshot: &Snapshot, service: &ServiceName) -> Option<(String, Protocol)> {
    match snapshot.service_defaults(service).and_then(|entry| entry.protocol) {
        Some(own) => Some((format!("service-defaults/{service}"), own)),
        None => Some(("proxy-defaults/global".to_owned(), snapshot.proxy_defaults()?.protocol?)),
    }
}
