//! Every setting of Consul's agent under one rule: what Starling makes of it may be narrower than in Consul, never wider.

use std::collections::BTreeSet;

use starling_http_api::parse::file::AGENT_SETTINGS;

use super::super::super::Guise;
use super::super::Settings;
use super::read;

/// How the narrowest value of a setting is kept.
enum Kept {
    /// The agent is started with these arguments.
    By(&'static str),
    /// The agent is started without this argument.
    Without(&'static str),
    /// The agent's guise has it.
    In(fn(&Guise) -> bool),
    /// The configuration is refused.
    Refused,
    /// The start reports that the setting has no effect, so that nobody relies on it.
    Reported,
}
use Kept::{By, In, Refused, Reported, Without};

/// Settings that restrict somebody, each with its narrowest value beside what it takes to count.
const RESTRICTING: &[(&str, &str, Kept)] = &[
    ("acl", r#""acl": {"enabled": true, "default_policy": "deny"}"#, By("--acl-default-policy deny")),
    ("acl", r#""acl": {"enabled": true, "default_policy": "deny"}"#, By("--default-intention-policy deny")),
    ("acl", r#""acl": {"down_policy": "deny"}"#, In(|guise| guise.denies_in_outage)),
    ("acl", r#""acl": {"enable_key_list_policy": true}"#, Refused),
    ("acl", r#""acl": {"enabled": true, "token_ttl": "1s"}"#, Reported),
    ("acl", r#""acl": {"enable_token_persistence": false}"#, In(|guise| guise.tokens.kept_in.is_none())),
    ("acl_agent_master_token", r#""acl_agent_master_token": "x""#, Reported),
    ("acl_agent_token", r#""acl_agent_token": "x""#, Refused),
    ("acl_datacenter", r#""acl_datacenter": "x""#, Refused),
    ("acl_default_policy", r#""acl_default_policy": "deny""#, Refused),
    ("acl_down_policy", r#""acl_down_policy": "deny""#, Refused),
    ("acl_enable_key_list_policy", r#""acl_enable_key_list_policy": true"#, Refused),
    ("acl_master_token", r#""acl_master_token": "x""#, Refused),
    ("acl_replication_token", r#""acl_replication_token": "x""#, Reported),
    ("acl_token", r#""acl_token": "x""#, Refused),
    ("acl_ttl", r#""acl_ttl": "1s""#, Refused),
    ("addresses", r#""addresses": {"http": "unix:///s"}"#, By("--http-socket /s --http-socket-only")),
    ("addresses", r#""addresses": {"http": "127.0.0.9"}"#, By("--http-addr 127.0.0.9:8500")),
    ("addresses", r#""addresses": {"dns": "127.0.0.9"}"#, By("--dns-addr 127.0.0.9:8600")),
    ("addresses", r#""addresses": {"grpc": "10.0.0.9"}"#, Refused),
    ("addresses", r#""addresses": {"grpc_tls": "127.0.0.9"}"#, By("--grpc-tls-addr 127.0.0.9:8503")),
    ("allow_write_http_from", r#""allow_write_http_from": ["127.0.0.1/32"]"#, Reported),
    ("audit", r#""audit": {"enabled": true}"#, Reported),
    ("auto_config", r#""auto_config": {"authorization": {"enabled": true}}"#, Reported),
    ("auto_encrypt", r#""auto_encrypt": {"allow_tls": false}"#, Reported),
    ("bind_addr", r#""bind_addr": "127.0.0.9""#, By("--grpc-tls-addr 127.0.0.9:8503")),
    ("ca_path", r#""ca_path": "/c""#, Reported),
    ("client_addr", r#""client_addr": "127.0.0.9""#, By("--http-addr 127.0.0.9:8500 --dns-addr 127.0.0.9:8600")),
    ("connect", r#""connect": {"enabled": false}"#, In(|guise| guise.connect_off)),
    ("default_intention_policy", r#""default_intention_policy": "deny""#, By("--default-intention-policy deny")),
    ("discard_check_output", r#""discard_check_output": true"#, Reported),
    ("enable_local_script_checks", r#""enable_local_script_checks": true"#, Without("--enable-script-checks")),
    (
        "enable_local_script_checks",
        r#""enable_script_checks": true, "enable_local_script_checks": false"#,
        By("--enable-script-checks --enable-local-script-checks=false"),
    ),
    ("enable_script_checks", r#""enable_script_checks": false"#, Without("script-checks")),
    ("encrypt", r#""encrypt": "x""#, Reported),
    ("encrypt_verify_incoming", r#""encrypt_verify_incoming": true"#, Reported),
    ("encrypt_verify_outgoing", r#""encrypt_verify_outgoing": true"#, Reported),
    ("http_config", r#""http_config": {"allow_write_http_from": ["::1"]}"#, By("--http-allow-write-from ::1/128")),
    ("http_config", r#""http_config": {"block_endpoints": ["/v1/acl"]}"#, By("--http-block-endpoints /v1/acl")),
    ("http_config", r#""http_config": {"response_headers": {"a": "b"}}"#, Reported),
    ("limits", r#""limits": {"http_max_conns_per_client": 1}"#, Reported),
    ("limits", r#""limits": {"kv_max_value_size": 1}"#, Reported),
    ("limits", r#""limits": {"request_limits": {"mode": "enforcing"}}"#, Reported),
    ("max_query_time", r#""max_query_time": "1s""#, Reported),
    (
        "ports",
        r#""ports": {"http": -1, "dns": 0, "grpc": -1, "grpc_tls": -1}"#,
        By("--disable-listener http,dns,grpc,grpc-tls"),
    ),
    ("ports", r#""ports": {"http": -1}"#, Without("--http-addr")),
    ("ports", r#""ports": {"https": -1}, FILES"#, Without("--https-addr")),
    ("serf_lan_allowed_cidrs", r#""serf_lan_allowed_cidrs": ["10.0.0.0/8"]"#, Reported),
    ("serf_wan_allowed_cidrs", r#""serf_wan_allowed_cidrs": ["10.0.0.0/8"]"#, Reported),
    ("server_name", r#""server_name": "x""#, Reported),
    (
        "tls",
        r#""ports": {"https": 1}, "tls": {"defaults": {FILES, "tls_min_version": "TLSv1_3"}}"#,
        By("--https-tls-min-version 1.3"),
    ),
    (
        "tls",
        r#""ports": {"https": 1}, "tls": {"defaults": {FILES, "verify_incoming": true}}"#,
        By("--https-client-ca-file ca"),
    ),
    (
        "tls",
        r#""ports": {"https": 1}, "tls": {"https": {FILES, "verify_incoming": true}}"#,
        By("--https-client-ca-file ca"),
    ),
    ("tls", r#""tls": {"https": {"verify_incoming": true}}"#, Reported),
    ("tls", r#""tls": {"defaults": {"tls_cipher_suites": "x"}}"#, Reported),
    ("tls", r#""tls": {"grpc": {"tls_min_version": "TLSv1_3"}}"#, Reported),
    ("tls_cipher_suites", r#""tls_cipher_suites": "x""#, Reported),
    (
        "tls_min_version",
        r#""ports": {"https": 1}, FILES, "tls_min_version": "tls13""#,
        By("--https-tls-min-version 1.3"),
    ),
    ("tls_prefer_server_cipher_suites", r#""tls_prefer_server_cipher_suites": true"#, Reported),
    ("ui_config", r#""ui_config": {"enabled": false}"#, Reported),
    (
        "unix_sockets",
        r#""addresses": {"http": "unix:///s"}, "unix_sockets": {"mode": "0600"}"#,
        By("--http-socket-mode 0600"),
    ),
    ("verify_incoming", r#""ports": {"https": 1}, FILES, "verify_incoming": true"#, By("--https-client-ca-file ca")),
    (
        "verify_incoming_https",
        r#""ports": {"https": 1}, FILES, "verify_incoming": true, "verify_incoming_https": false"#,
        By("--https-client-ca-file ca"),
    ),
    (
        "verify_incoming_https",
        r#""ports": {"https": 1}, FILES, "verify_incoming_https": true"#,
        By("--https-client-ca-file ca"),
    ),
    ("verify_outgoing", r#""verify_outgoing": true"#, Reported),
    ("verify_server_hostname", r#""verify_server_hostname": true"#, Reported),
];

/// What `FILES` is in a row.
const FILES: &str = r#""ca_file": "ca", "cert_file": "cert", "key_file": "key""#;

/// Settings that restrict nobody: names, places, pace, and what is granted by other settings.
const NEUTRAL: &[&str] = &[
    "advertise_addr",
    "advertise_addr_ipv4",
    "advertise_addr_ipv6",
    "advertise_addr_wan",
    "advertise_addr_wan_ipv4",
    "advertise_addr_wan_ipv6",
    "advertise_reconnect_timeout",
    "alt_domain",
    "auto_reload_config",
    "autopilot",
    "bootstrap",
    "bootstrap_expect",
    "ca_file",
    "cache",
    "cert_file",
    "check_output_max_size",
    "check_update_interval",
    "cloud",
    "data_dir",
    "datacenter",
    "default_query_time",
    "disable_anonymous_signature",
    "disable_compat_1.9",
    "disable_coordinates",
    "disable_host_node_id",
    "disable_http_unprintable_char_filter",
    "disable_keyring_file",
    "disable_kv_key_validation",
    "disable_remote_exec",
    "disable_update_check",
    "discovery_max_stale",
    "dns_config",
    "domain",
    "enable_acl_replication",
    "enable_agent_tls_for_checks",
    "enable_central_service_config",
    "enable_debug",
    "enable_syslog",
    "enable_xds_load_balancing",
    "experiments",
    "gossip_lan",
    "gossip_wan",
    "key_file",
    "leave_on_terminate",
    "license_path",
    "log_file",
    "log_json",
    "log_level",
    "log_name",
    "log_rotate_bytes",
    "log_rotate_duration",
    "log_rotate_max_files",
    "node_id",
    "node_meta",
    "node_name",
    "non_voting_server",
    "partition",
    "peering",
    "performance",
    "pid_file",
    "primary_datacenter",
    "primary_gateways",
    "primary_gateways_interval",
    "protocol",
    "raft_boltdb",
    "raft_logstore",
    "raft_protocol",
    "raft_snapshot_interval",
    "raft_snapshot_threshold",
    "raft_trailing_logs",
    "read_replica",
    "reap",
    "reconnect_timeout",
    "reconnect_timeout_wan",
    "recursors",
    "rejoin_after_leave",
    "reporting",
    "retry_interval",
    "retry_interval_wan",
    "retry_join",
    "retry_join_wan",
    "retry_max",
    "retry_max_wan",
    "rpc",
    "segment",
    "segments",
    "serf_lan",
    "serf_wan",
    "server",
    "server_rejoin_age_max",
    "session_ttl_min",
    "skip_leave_on_interrupt",
    "start_join",
    "start_join_wan",
    "syslog_facility",
    "telemetry",
    "translate_wan_addrs",
    "ui",
    "ui_content_path",
    "ui_dir",
    "use_streaming_backend",
    // It asks a certificate of agents, which always show one.
    "verify_incoming_rpc",
    "version",
    "watches",
    "xds",
];

/// What a configuration comes to.
struct Outcome {
    arguments: String,
    guise: Guise,
    reported: BTreeSet<String>,
}

fn outcome(text: &str) -> anyhow::Result<Outcome> {
    let mut settings: Settings = read(&format!("{{{}}}", text.replace("FILES", FILES)))?;
    let arguments = settings.arguments(true)?;
    let arguments = arguments.iter().map(|it| it.to_string_lossy()).collect::<Vec<_>>().join(" ");
    Ok(Outcome { arguments, guise: settings.guise()?, reported: settings.ignored })
}

#[test]
fn no_setting_grants_more_than_in_consul() {
    for (setting, text, kept) in RESTRICTING {
        let found = outcome(text);
        let (By(_) | Without(_) | In(_) | Reported) = kept else {
            assert!(found.is_err(), "{setting}: {text} is not refused");
            continue;
        };
        let Outcome { arguments, guise, reported } = found.expect(text);
        match kept {
            By(expected) => assert!(arguments.contains(expected), "{setting}: {text}: {arguments}"),
            Without(flag) => {
                let has =
                    arguments.split(' ').any(|word| word == *flag || (!flag.starts_with("--") && word.contains(flag)));
                assert!(!has, "{setting}: {text}: {arguments}");
            }
            In(holds) => assert!(holds(&guise), "{setting}: {text}: {guise:?}"),
            Refused => {}
            Reported => {
                let named =
                    reported.iter().any(|name| name.starts_with(setting) || name.starts_with("verify_incoming"));
                assert!(named, "{setting}: {text} is neither kept nor reported: {reported:?}");
            }
        }
    }
}

#[test]
fn every_setting_is_judged() {
    let judged: BTreeSet<&str> = RESTRICTING.iter().map(|(name, _, _)| *name).chain(NEUTRAL.iter().copied()).collect();
    let documented: BTreeSet<&str> = AGENT_SETTINGS.iter().copied().collect();
    let missing: Vec<_> = documented.difference(&judged).collect();
    assert!(missing.is_empty(), "say here what becomes of {missing:?}");
    let unknown: Vec<_> = judged.difference(&documented).collect();
    assert!(unknown.is_empty(), "no such setting: {unknown:?}");
}

#[test]
fn a_later_file_takes_back_a_permission() {
    let text = |name: &str, text: &str| super::Text::new(name, text, None);
    for setting in ["enable_script_checks", "enable_local_script_checks"] {
        let mut settings = Settings::default();
        for (file, value) in [("a.json", "true"), ("b.json", "false")] {
            settings.read(&text(file, &format!("{{\"{setting}\": {value}}}"))).expect("settings");
        }
        let arguments = settings.arguments(true).expect("arguments");
        let permits = arguments.iter().any(|it| {
            let word = it.to_string_lossy();
            word.contains("script-checks") && !word.ends_with("=false")
        });
        assert!(!permits, "{setting}: {arguments:?}");
    }
}
