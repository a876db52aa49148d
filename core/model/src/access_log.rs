//! The access log of proxies: whether one is written, of which requests, where, and in what form.

pub mod template;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use template::{LogTemplate, LogTemplateError, Operator, Piece};

/// What is said of the access log of all proxies (`AccessLogs` of proxy-defaults).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct AccessLog {
    /// Whether there is one; where nothing is said an Envoy writes it, and the native proxy does not: it shares its standard
    /// output with the agent.
    pub enabled: Option<bool>,
    /// Which requests it holds.
    pub filter: LogFilter,
    /// Where it goes.
    pub target: LogTarget,
    /// How a line looks; `None` for Starling's own fields in JSON.
    pub form: Option<LogForm>,
    /// Connections refused by a listener are not logged, which no proxy of Starling does.
    pub without_listeners: bool,
}

/// Its stored forms.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    /// As long as nothing else could be said.
    Switch(Option<bool>),
    Whole {
        enabled: Option<bool>,
        #[serde(default)]
        filter: LogFilter,
        #[serde(default)]
        target: LogTarget,
        #[serde(default)]
        form: Option<LogForm>,
        #[serde(default)]
        without_listeners: bool,
    },
}

impl From<Stored> for AccessLog {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Switch(enabled) => Self { enabled, ..Self::default() },
            Stored::Whole { enabled, filter, target, form, without_listeners } => {
                Self { enabled, filter, target, form, without_listeners }
            }
        }
    }
}

/// Which requests are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LogFilter {
    /// Every one.
    #[default]
    All,
    /// Those that were answered with 400 or more, or broken off.
    Errors,
    /// One in so many.
    Sampled(NonZeroU32),
}

/// Not a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of \"all\", \"errors\" and \"1/N\"")]
pub struct LogFilterError(String);

impl FromStr for LogFilter {
    type Err = LogFilterError;

    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        match text {
            "all" => Ok(Self::All),
            "errors" => Ok(Self::Errors),
            _ => {
                let every = text.strip_prefix("1/").and_then(|every| every.parse().ok());
                every.map(Self::Sampled).ok_or_else(|| LogFilterError(text.to_owned()))
            }
        }
    }
}

impl TryFrom<String> for LogFilter {
    type Error = LogFilterError;

    fn try_from(text: String) -> Result<Self, LogFilterError> {
        text.parse()
    }
}

impl From<LogFilter> for String {
    fn from(filter: LogFilter) -> Self {
        filter.to_string()
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Errors => f.write_str("errors"),
            Self::Sampled(every) => write!(f, "1/{every}"),
        }
    }
}

/// Where lines go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogTarget {
    /// The proxy's standard output.
    #[default]
    Stdout,
    /// The proxy's standard error.
    Stderr,
    /// A file, which is appended to.
    File(PathBuf),
}

/// How a line looks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogForm {
    /// A JSON object with these fields.
    Json(BTreeMap<String, LogTemplate>),
    /// This text.
    Text(LogTemplate),
}

impl LogForm {
    /// Starling's own: a JSON object. The query is not in it, as it holds secrets too often.
    #[must_use]
    pub fn own() -> Self {
        let field = |(name, operator): (&str, &str)| {
            (name.to_owned(), operator.parse().expect("invariant: Starling's own fields are operators"))
        };
        Self::Json(OWN_FIELDS.into_iter().map(field).collect())
    }
}

/// Field, and Envoy's operator for it.
const OWN_FIELDS: [(&str, &str); 22] = [
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_fields_are_operators() {
        let LogForm::Json(fields) = LogForm::own() else { panic!("not JSON") };
        assert_eq!(fields.len(), OWN_FIELDS.len());
    }

    #[test]
    fn the_stored_form_is_read_back_and_so_is_the_one_of_before() {
        let log = AccessLog {
            enabled: Some(true),
            filter: "1/100".parse().unwrap(),
            target: LogTarget::File("/var/log/mesh.log".into()),
            form: Some(LogForm::Text("%RESPONSE_CODE% %REQ(:PATH)%\n".parse().unwrap())),
            without_listeners: true,
        };
        let stored = serde_json::to_string(&log).unwrap();
        assert_eq!(serde_json::from_str::<AccessLog>(&stored).unwrap(), log, "{stored}");
        let read = |text: &str| serde_json::from_str::<AccessLog>(text).unwrap();
        assert_eq!(read("false"), AccessLog { enabled: Some(false), ..AccessLog::default() });
        assert_eq!(read("null"), AccessLog::default());
        assert_eq!(read(&serde_json::to_string(&AccessLog::default()).unwrap()), AccessLog::default());
    }

    #[test]
    fn a_filter_is_one_of_three() {
        for text in ["all", "errors", "1/1", "1/1000"] {
            assert_eq!(text.parse::<LogFilter>().unwrap().to_string(), text);
        }
        for text in ["", "ALL", "1/0", "2/3", "1/", "1/-5"] {
            assert!(text.parse::<LogFilter>().is_err(), "{text}");
        }
    }
}
