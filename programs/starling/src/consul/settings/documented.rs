//! Blocks of settings without a part here, by the keys that Consul documents in them: these are told, and others refused as slips of the pen.

use std::collections::BTreeSet;

use starling_http_api::parse::{FieldError, Fields};

/// A block, and the keys in it.
type Block = (&'static str, &'static [&'static str]);

/// Blocks at the top.
/// Source: <https://developer.hashicorp.com/consul/docs/reference/agent/configuration-file>.
const BLOCKS: [Block; 12] = [
    (
        "autopilot",
        &[
            "cleanup_dead_servers",
            "disable_upgrade_migration",
            "last_contact_threshold",
            "max_trailing_logs",
            "min_quorum",
            "redundancy_zone_tag",
            "server_stabilization_time",
            "upgrade_version_tag",
        ],
    ),
    ("auto_encrypt", &["allow_tls", "dns_san", "ip_san", "tls"]),
    ("cache", &["entry_fetch_max_burst", "entry_fetch_rate"]),
    ("gossip_lan", GOSSIP),
    ("gossip_wan", GOSSIP),
    (
        "limits",
        &[
            "http_max_conns_per_client",
            "https_handshake_timeout",
            "kv_max_value_size",
            "request_limits",
            "rpc_client_timeout",
            "rpc_handshake_timeout",
            "rpc_max_burst",
            "rpc_max_conns_per_client",
            "rpc_rate",
            "txn_max_req_len",
        ],
    ),
    ("peering", &["enabled"]),
    (
        "performance",
        &[
            "grpc_keepalive_interval",
            "grpc_keepalive_timeout",
            "leave_drain_time",
            "raft_multiplier",
            "rpc_hold_timeout",
        ],
    ),
    ("rpc", &["enable_streaming"]),
    (
        "telemetry",
        &[
            "circonus_api_app",
            "circonus_api_token",
            "circonus_api_url",
            "circonus_broker_id",
            "circonus_broker_select_tag",
            "circonus_check_display_name",
            "circonus_check_force_metric_activation",
            "circonus_check_id",
            "circonus_check_instance_id",
            "circonus_check_search_tag",
            "circonus_check_tags",
            "circonus_submission_interval",
            "circonus_submission_url",
            "disable_compat_1.9",
            "disable_hostname",
            "disable_per_tenancy_usage_metrics",
            "dogstatsd_addr",
            "dogstatsd_tags",
            "enable_host_metrics",
            "filter_default",
            "metrics_prefix",
            "prefix_filter",
            "prometheus_retention_time",
            "retry_failed_connection",
            "statsd_address",
            "statsite_address",
        ],
    ),
    ("xds", &["update_max_per_second"]),
    (
        "ui_config",
        &[
            "content_path",
            "dashboard_url_templates",
            "dir",
            "enabled",
            "metrics_provider",
            "metrics_provider_files",
            "metrics_provider_options_json",
            "metrics_proxy",
        ],
    ),
];

const GOSSIP: &[&str] =
    &["gossip_interval", "gossip_nodes", "probe_interval", "probe_timeout", "retransmit_mult", "suspicion_mult"];

/// Blocks within these.
const INNER: [(&str, Block); 2] = [
    ("limits", ("request_limits", &["mode", "read_rate", "write_rate"])),
    ("ui_config", ("metrics_proxy", &["add_headers", "base_url", "path_allowlist"])),
];

/// Keys of the HTTP API that nothing is made of here.
pub(super) const HTTP: &[&str] = &["max_header_bytes", "response_headers", "use_cache"];

/// Keys of TLS that nothing is made of here.
pub(super) const TLS: &[&str] =
    &["ca_path", "tls_cipher_suites", "use_auto_cert", "verify_outgoing", "verify_server_hostname"];

/// Keys of TLS that only HTTPS makes something of.
pub(super) const TLS_FILES: &[&str] = &["ca_file", "cert_file", "key_file", "tls_min_version"];

/// Takes what is left of the settings, and tells it.
///
/// # Errors
/// At a key of a block that Consul does not document.
pub(super) fn tell(fields: &mut Fields<'_>, ignored: &mut BTreeSet<String>) -> Result<(), FieldError> {
    for (name, keys) in BLOCKS {
        let Some(mut block) = fields.object(name)? else { continue };
        for (_, (inner, keys)) in INNER.iter().filter(|(outer, _)| *outer == name) {
            if let Some(mut inner_block) = block.object(inner)? {
                tell_keys(&mut inner_block, &format!("{name}.{inner}"), keys, ignored)?;
            }
        }
        tell_keys(&mut block, name, keys, ignored)?;
    }
    ignored.extend(fields.rest());
    Ok(())
}

/// Takes these keys, tells those that are there, and ends the block.
///
/// # Errors
/// At another key.
pub(super) fn tell_keys(
    block: &mut Fields<'_>,
    path: &str,
    keys: &[&str],
    ignored: &mut BTreeSet<String>,
) -> Result<(), FieldError> {
    ignored.extend(keys.iter().filter(|key| block.take(key).is_some()).map(|key| format!("{path}.{key}")));
    block.finish()
}
