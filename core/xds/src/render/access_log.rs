//! The access log of a listener's filters.

use envoy_types::pb::envoy::config::accesslog::v3::{
    AccessLog as Logger, AccessLogFilter, ComparisonFilter, OrFilter, ResponseFlagFilter, RuntimeFilter,
    StatusCodeFilter, access_log::ConfigType, access_log_filter::FilterSpecifier, comparison_filter::Op,
};
use envoy_types::pb::envoy::config::core::v3::RuntimeUInt32;
use envoy_types::pb::envoy::r#type::v3::{FractionalPercent, fractional_percent::DenominatorType};
use envoy_types::pb::google::protobuf::Any;
use starling_model::{AccessLog, LogFilter, LogForm, LogTarget, LogTemplate};

use super::proto::any_of;
use crate::wire::{FileAccessLog, LogFields, LogFormat, LogText, LogValue, StreamAccessLog};

const STDOUT_TYPE_URL: &str = "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog";
const STDERR_TYPE_URL: &str = "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StderrAccessLog";
const FILE_TYPE_URL: &str = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog";

/// The first status that is an error.
const ERROR_STATUS: u32 = 400;

/// What fractions of Envoy's runtime are counted in.
const MILLION: u32 = 1_000_000;

/// The loggers of a listener's filters: one, unless it is said that there be none.
pub(super) fn loggers(log: &AccessLog) -> Vec<Logger> {
    if log.enabled == Some(false) {
        return Vec::new();
    }
    let (name, config) = logger(&log.target, format(log.form.as_ref()));
    vec![Logger {
        name: name.to_owned(),
        filter: filter(log.filter).map(specified),
        config_type: Some(ConfigType::TypedConfig(config)),
    }]
}

fn logger(target: &LogTarget, format: LogFormat) -> (&'static str, Any) {
    let log_format = Some(format);
    match target {
        LogTarget::Stdout => ("envoy.access_loggers.stdout", any_of(STDOUT_TYPE_URL, &StreamAccessLog { log_format })),
        LogTarget::Stderr => ("envoy.access_loggers.stderr", any_of(STDERR_TYPE_URL, &StreamAccessLog { log_format })),
        LogTarget::File(path) => {
            let path = path.to_string_lossy().into_owned();
            ("envoy.access_loggers.file", any_of(FILE_TYPE_URL, &FileAccessLog { path, log_format }))
        }
    }
}

fn format(form: Option<&LogForm>) -> LogFormat {
    let own;
    let form = match form {
        Some(form) => form,
        None => {
            own = LogForm::own();
            &own
        }
    };
    match form {
        LogForm::Json(fields) => {
            let value = |template: &LogTemplate| LogValue { string_value: Some(template.to_string()) };
            let fields = fields.iter().map(|(name, template)| (name.clone(), value(template))).collect();
            LogFormat { json_format: Some(LogFields { fields }), text_format_source: None }
        }
        LogForm::Text(template) => {
            // A line ends where its text does; Envoy adds nothing.
            let text = template.as_str();
            let line = if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") };
            LogFormat { json_format: None, text_format_source: Some(LogText { inline_string: Some(line) }) }
        }
    }
}

fn specified(specifier: FilterSpecifier) -> AccessLogFilter {
    AccessLogFilter { filter_specifier: Some(specifier) }
}

fn filter(filter: LogFilter) -> Option<FilterSpecifier> {
    match filter {
        LogFilter::All => None,
        LogFilter::Errors => {
            let runtime_key = "starling.access_log.error_status".to_owned();
            let value = Some(RuntimeUInt32 { default_value: ERROR_STATUS, runtime_key });
            let comparison = Some(ComparisonFilter { op: Op::Ge.into(), value });
            let filters = vec![
                specified(FilterSpecifier::StatusCodeFilter(StatusCodeFilter { comparison })),
                // Any flag: a request that was broken off has no status of its own.
                specified(FilterSpecifier::ResponseFlagFilter(ResponseFlagFilter::default())),
            ];
            Some(FilterSpecifier::OrFilter(OrFilter { filters }))
        }
        LogFilter::Sampled(every) => Some(FilterSpecifier::RuntimeFilter(RuntimeFilter {
            runtime_key: "starling.access_log.sampled".to_owned(),
            percent_sampled: Some(FractionalPercent {
                numerator: (MILLION / every).max(1),
                denominator: DenominatorType::Million.into(),
            }),
            use_independent_randomness: true,
        })),
    }
}
