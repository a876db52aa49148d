//! The access log: which requests are logged, and what is known of one.
//!
//! Cost model: where there is no log, a request pays one comparison; where there is, its line is made by the worker and
//! handed over a bounded queue to the one thread that writes. Nobody waits: what the queue does not take is lost, and counted.

mod clock;
mod line;
mod sink;

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use starling_http1::ResponseHead;
use starling_model::access_log::{LogTemplate, Operator, Piece};
use starling_model::{AccessLog, LogFilter, LogForm};
use starling_traffic::HeaderFields;

use crate::connections::Connection;
use crate::metrics::Ending;
use line::Line;
use sink::Sink;
pub use sink::Sinks;

/// The first status that is an error.
const ERROR_STATUS: u16 = 400;

/// What happened, as the log sees it: a request with its response, or a whole connection where only bytes are known.
pub(crate) struct Event<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) request: Option<Asked<'a>>,
    /// The fields of a server's response.
    pub(crate) response: Option<&'a dyn HeaderFields>,
    pub(crate) ending: Ending,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) took: Duration,
    /// The service called.
    pub(crate) upstream: Option<&'a str>,
    /// The endpoint called.
    pub(crate) host: Option<SocketAddr>,
}

/// A request.
pub(crate) struct Asked<'a> {
    pub(crate) version: &'static str,
    pub(crate) method: &'a str,
    /// As it was received.
    pub(crate) target: &'a str,
    pub(crate) fields: &'a dyn HeaderFields,
}

/// The fields of a response in HTTP/1.1.
pub(crate) struct HeadFields<'a>(pub(crate) &'a ResponseHead);

impl HeaderFields for HeadFields<'_> {
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.heeded(name).any(test)
    }
}

/// The fields of a response in HTTP/2.
pub(crate) struct MapFields<'a>(pub(crate) &'a HeaderMap);

impl HeaderFields for MapFields<'_> {
    fn any(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.get_all(name).iter().any(|value| test(value.as_bytes()))
    }
}

impl<'a> Event<'a> {
    /// Of which nothing more is known.
    pub(crate) fn bare(connection: &'a Connection, ending: Ending) -> Self {
        Self {
            connection,
            request: None,
            response: None,
            ending,
            received: 0,
            sent: 0,
            took: Duration::ZERO,
            upstream: None,
            host: None,
        }
    }

    fn status(&self) -> Option<u16> {
        match self.ending {
            Ending::Answered(status) => Some(status),
            Ending::Failed(failure) => Some(failure.status()),
            Ending::Broken | Ending::Closed => None,
        }
    }

    fn is_error(&self) -> bool {
        match self.ending {
            Ending::Answered(status) => status >= ERROR_STATUS,
            Ending::Failed(_) | Ending::Broken => true,
            Ending::Closed => false,
        }
    }
}

/// The log of one direction of a workload.
pub(crate) struct Logger {
    filter: LogFilter,
    line: Line,
    sink: Arc<Sink>,
    /// Requests since the last one that was a sample.
    passed: Cell<u32>,
    pub(crate) wants_response: bool,
}

impl Logger {
    /// The log that is asked for, if one is.
    pub(crate) fn new(log: &AccessLog, sinks: &Sinks) -> Option<Self> {
        if log.enabled != Some(true) {
            return None;
        }
        let form = log.form.clone().unwrap_or_else(LogForm::own);
        let wants_response = match &form {
            LogForm::Text(template) => reads_response(template),
            LogForm::Json(fields) => fields.values().any(reads_response),
        };
        let (line, sink) = (Line::new(form), sinks.open(&log.target));
        Some(Self { filter: log.filter, line, sink, passed: Cell::new(0), wants_response })
    }

    /// Logs it, if it is of those that are logged.
    pub(crate) fn log(&self, event: &Event<'_>) {
        let wanted = match self.filter {
            LogFilter::All => true,
            LogFilter::Errors => event.is_error(),
            LogFilter::Sampled(every) => {
                let passed = self.passed.get() + 1;
                let is_sample = passed >= every.get();
                self.passed.set(if is_sample { 0 } else { passed });
                is_sample
            }
        };
        if wanted {
            let began = SystemTime::now().checked_sub(event.took).unwrap_or(SystemTime::UNIX_EPOCH);
            self.sink.put(self.line.of(event, began));
        }
    }
}

fn reads_response(template: &LogTemplate) -> bool {
    template.pieces().iter().any(|piece| matches!(piece, Piece::Value(Operator::Response(_), _)))
}
