//! Definition files in JSON and HCL as Consul users have them: services, checks, and config entries.

use std::sync::Arc;

use serde_json::Value;
use starling_model::{ConfigEntry, Locality, ServiceRegistration};

use super::check::{CheckRegistration, parse_check};
use super::config_entry::parse_config_entry;
use super::field::{Context, Field, FieldError, Fields, parse_json};
use super::hcl::parse_hcl;
use super::service::{parse_locality, parse_service};

/// Bytes of a definition file; a larger one is no definition.
pub const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Settings of Consul's agent that may stand beside definitions; they are reported and have no effect.
pub const AGENT_SETTINGS: &[&str] = &[
    "acl",
    "acl_agent_master_token",
    "acl_agent_token",
    "acl_datacenter",
    "acl_default_policy",
    "acl_down_policy",
    "acl_enable_key_list_policy",
    "acl_master_token",
    "acl_replication_token",
    "acl_token",
    "acl_ttl",
    "addresses",
    "advertise_addr",
    "advertise_addr_ipv4",
    "advertise_addr_ipv6",
    "advertise_addr_wan",
    "advertise_addr_wan_ipv4",
    "advertise_addr_wan_ipv6",
    "advertise_reconnect_timeout",
    "allow_write_http_from",
    "alt_domain",
    "audit",
    "auto_config",
    "auto_encrypt",
    "auto_reload_config",
    "autopilot",
    "bind_addr",
    "bootstrap",
    "bootstrap_expect",
    "ca_file",
    "ca_path",
    "cache",
    "cert_file",
    "check_output_max_size",
    "check_update_interval",
    "client_addr",
    "cloud",
    "connect",
    "data_dir",
    "datacenter",
    "default_intention_policy",
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
    "discard_check_output",
    "discovery_max_stale",
    "dns_config",
    "domain",
    "enable_acl_replication",
    "enable_agent_tls_for_checks",
    "enable_central_service_config",
    "enable_debug",
    "enable_local_script_checks",
    "enable_script_checks",
    "enable_syslog",
    "enable_xds_load_balancing",
    "encrypt",
    "encrypt_verify_incoming",
    "encrypt_verify_outgoing",
    "experiments",
    "gossip_lan",
    "gossip_wan",
    "http_config",
    "key_file",
    "leave_on_terminate",
    "license_path",
    "limits",
    "log_file",
    "log_json",
    "log_level",
    "log_name",
    "log_rotate_bytes",
    "log_rotate_duration",
    "log_rotate_max_files",
    "max_query_time",
    "node_id",
    "node_meta",
    "node_name",
    "non_voting_server",
    "partition",
    "peering",
    "performance",
    "pid_file",
    "ports",
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
    "serf_lan_allowed_cidrs",
    "serf_wan",
    "serf_wan_allowed_cidrs",
    "server",
    "server_name",
    "server_rejoin_age_max",
    "session_ttl_min",
    "skip_leave_on_interrupt",
    "start_join",
    "start_join_wan",
    "syslog_facility",
    "telemetry",
    "tls",
    "tls_cipher_suites",
    "tls_min_version",
    "tls_prefer_server_cipher_suites",
    "translate_wan_addrs",
    "ui",
    "ui_config",
    "ui_content_path",
    "ui_dir",
    "unix_sockets",
    "use_streaming_backend",
    "verify_incoming",
    "verify_incoming_https",
    "verify_incoming_rpc",
    "verify_outgoing",
    "verify_server_hostname",
    "version",
    "watches",
    "xds",
];

/// Definitions, which stand beside settings.
const DEFINITIONS: &[&str] = &["service", "services", "check", "checks", "config_entries", "locality"];

/// The two forms of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// JSON.
    Json,
    /// HCL 1.
    Hcl,
}

impl FileFormat {
    /// The form by the end of the file's name; `None` for other files, which a directory of definitions may hold.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        match name.rsplit_once('.') {
            Some((_, "json")) => Some(Self::Json),
            Some((_, "hcl")) => Some(Self::Hcl),
            Some(_) | None => None,
        }
    }

    /// The form by the name or, where that does not tell, by the first character: JSON begins with a brace or a
    /// bracket.
    #[must_use]
    pub fn guess(name: &str, text: &[u8]) -> Self {
        let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
        Self::of_name(name).unwrap_or(if matches!(first, Some(b'{' | b'[')) { Self::Json } else { Self::Hcl })
    }
}

/// What stands in a definition file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Definitions {
    /// Services, in the order of the file.
    pub services: Vec<ServiceRegistration>,
    /// Checks outside services.
    pub checks: Vec<CheckRegistration>,
    /// `config_entries { bootstrap = […] }`.
    pub config_entries: Vec<ConfigEntry>,
    /// `locality { region = "…", zone = "…" }`: where the node is.
    pub locality: Option<Arc<Locality>>,
    /// Fields that were read and have no effect.
    pub notices: Vec<FieldError>,
}

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// It is larger than a definition can be.
    #[error("{file}: has {bytes} bytes; at most {FILE_BYTES_MAX} are allowed")]
    Size {
        /// The file.
        file: String,
        /// Its size.
        bytes: usize,
    },
    /// It is neither JSON nor HCL.
    #[error("{file}: {reason}")]
    Syntax {
        /// The file.
        file: String,
        /// What is wrong, with the line.
        reason: String,
    },
    /// A field is wrong.
    #[error("{file}: {error}")]
    Field {
        /// The file.
        file: String,
        /// Which field, and why.
        error: FieldError,
    },
}

/// Reads a file of services, checks and bootstrap config entries.
///
/// # Errors
/// [`FileError`] with the file's name, and the field's path or the line.
pub fn parse_definitions(file: &str, text: &[u8], context: &Context) -> Result<Definitions, FileError> {
    parse_definitions_as(file, text, None, context)
}

/// The same of a file whose form is said, whatever it is called.
///
/// # Errors
/// [`FileError`], as for [`parse_definitions`].
pub fn parse_definitions_as(
    file: &str,
    text: &[u8],
    format: Option<FileFormat>,
    context: &Context,
) -> Result<Definitions, FileError> {
    let value = read(file, text, format)?;
    let field = |error| FileError::Field { file: file.to_owned(), error };
    let mut definitions = parse_file(value, context).map_err(field)?;
    definitions.notices = context.take_notices();
    Ok(definitions)
}

/// Reads a file of Consul's agent: its settings alone, without the definitions beside them. A setting that Consul does not have is refused.
///
/// # Errors
/// [`FileError`] with the file's name, and the field's path or the line.
pub fn agent_fields<'c>(
    file: &str,
    text: &[u8],
    format: Option<FileFormat>,
    context: &'c Context,
) -> Result<Fields<'c>, FileError> {
    let value = read(file, text, format)?;
    let field = |error| FileError::Field { file: file.to_owned(), error };
    let settings = |value: Value| {
        let mut all = Fields::of(context, "", value.clone())?;
        for name in DEFINITIONS.iter().chain(AGENT_SETTINGS) {
            all.take(name);
        }
        all.finish()?;
        let mut fields = Fields::of(context, "", value)?;
        fields.ignored(DEFINITIONS);
        Ok(fields)
    };
    settings(value).map_err(field)
}

/// Reads a file that holds one config entry (`Kind = "service-defaults"`, …).
///
/// # Errors
/// [`FileError`] with the file's name, and the field's path or the line.
pub fn parse_config_entry_file(file: &str, text: &[u8], context: &Context) -> Result<ConfigEntry, FileError> {
    let value = read(file, text, None)?;
    let field = |error| FileError::Field { file: file.to_owned(), error };
    Fields::of(context, "", value).and_then(parse_config_entry).map_err(field)
}

fn read(file: &str, text: &[u8], format: Option<FileFormat>) -> Result<Value, FileError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(FileError::Size { file: file.to_owned(), bytes: text.len() });
    }
    let syntax = |reason: String| FileError::Syntax { file: file.to_owned(), reason };
    match format.unwrap_or_else(|| FileFormat::guess(file, text)) {
        FileFormat::Json => parse_json(text).map_err(|error| syntax(error.reason)),
        FileFormat::Hcl => {
            let text = std::str::from_utf8(text).map_err(|_| syntax("is no UTF-8 text".to_owned()))?;
            parse_hcl(text).map_err(|error| syntax(error.to_string()))
        }
    }
}

fn parse_file(value: Value, context: &Context) -> Result<Definitions, FieldError> {
    let mut fields = Fields::of(context, "", value)?;
    let mut definitions = Definitions::default();
    for name in ["service", "services"] {
        for item in items(&mut fields, name)? {
            let (path, registration) = (item.path.clone(), parse_service(item.fields()?)?);
            let id = &registration.instance.key.id;
            if definitions.services.iter().any(|other| other.instance.key.id == *id) {
                return Err(FieldError::new(format!("{path}.id"), format!("two services have the identifier {id}")));
            }
            definitions.services.push(registration);
        }
    }
    for name in ["check", "checks"] {
        for item in items(&mut fields, name)? {
            definitions.checks.push(parse_check(item.fields()?)?);
        }
    }
    if let Some(mut entries) = fields.object("config_entries")? {
        for item in entries.list("bootstrap")? {
            definitions.config_entries.push(parse_config_entry(item.fields()?)?);
        }
        entries.finish()?;
    }
    definitions.locality = fields.object("locality")?.map(parse_locality).transpose()?.flatten();
    for setting in AGENT_SETTINGS {
        if fields.take(setting).is_some() {
            context.notice(setting, "is a setting of Consul's agent and has no effect in a definition file");
        }
    }
    fields.finish()?;
    Ok(definitions)
}

/// One object or a list of them, with paths that say which.
fn items<'c>(fields: &mut Fields<'c>, name: &str) -> Result<Vec<Field<'c>>, FieldError> {
    let Some(field) = fields.take(name) else { return Ok(Vec::new()) };
    match field.value {
        Value::Object(_) => Ok(vec![field]),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => field.list(),
    }
}
