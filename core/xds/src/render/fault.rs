//! Faults that a route makes on purpose.

use envoy_types::pb::envoy::extensions::filters::common::fault::v3::FaultDelay;
use envoy_types::pb::envoy::extensions::filters::common::fault::v3::fault_delay::FaultDelaySecifier;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::fault_abort::ErrorType;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault};
use starling_model::Fault;

use super::proto::{duration, fraction};

pub(super) const HTTP_FILTER: &str = "envoy.filters.http.fault";

/// Makes none.
pub(super) fn nothing() -> HttpFault {
    HttpFault::default()
}

pub(super) fn per_route(fault: &Fault) -> HttpFault {
    let delay = fault.delay.map(|delay| FaultDelay {
        percentage: Some(fraction(delay.percent)),
        fault_delay_secifier: Some(FaultDelaySecifier::FixedDelay(duration(delay.duration))),
    });
    let abort = fault.abort.map(|abort| FaultAbort {
        percentage: Some(fraction(abort.percent)),
        error_type: Some(ErrorType::HttpStatus(abort.status.into())),
        ..Default::default()
    });
    HttpFault { delay, abort, ..Default::default() }
}
