//! The access log: one JSON object a line, on standard output.

use envoy_types::pb::envoy::config::accesslog::v3::{AccessLog, access_log::ConfigType};

use super::proto::any_of;
use crate::wire::{LogFields, LogFormat, LogValue, StdoutAccessLog};

const STDOUT_TYPE_URL: &str = "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog";

/// Field, and Envoy's operator for it.
const FIELDS: [(&str, &str); 22] = [
    ("authority", "%REQ(:AUTHORITY)%"),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("duration_ms", "%DURATION%"),
    ("method", "%REQ(:METHOD)%"),
    ("path", "%PATH(NQ:PATH)%"),
    ("peer_identity", "%DOWNSTREAM_PEER_URI_SAN%"),
    ("protocol", "%PROTOCOL%"),
    ("request_id", "%REQ(X-REQUEST-ID)%"),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("route_name", "%ROUTE_NAME%"),
    ("start_time", "%START_TIME%"),
    ("termination_details", "%CONNECTION_TERMINATION_DETAILS%"),
    ("upstream_cluster", "%UPSTREAM_CLUSTER%"),
    ("upstream_failure", "%UPSTREAM_TRANSPORT_FAILURE_REASON%"),
    ("upstream_host", "%UPSTREAM_HOST%"),
    ("upstream_service_time_ms", "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%"),
    ("user_agent", "%REQ(USER-AGENT)%"),
];

/// The loggers of a listener's filters; the query is not logged, as it holds secrets too often.
pub(super) fn loggers(enabled: bool) -> Vec<AccessLog> {
    if !enabled {
        return Vec::new();
    }
    let fields = FIELDS
        .into_iter()
        .map(|(name, operator)| (name.to_owned(), LogValue { string_value: Some(operator.to_owned()) }))
        .collect();
    let config = StdoutAccessLog { log_format: Some(LogFormat { json_format: Some(LogFields { fields }) }) };
    vec![AccessLog {
        name: "envoy.access_loggers.stdout".to_owned(),
        config_type: Some(ConfigType::TypedConfig(any_of(STDOUT_TYPE_URL, &config))),
        ..Default::default()
    }]
}
