//! Requests that one instance takes.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::RuntimeFractionalPercent;
use envoy_types::pb::envoy::extensions::filters::http::local_ratelimit::v3::LocalRateLimit;
use envoy_types::pb::envoy::r#type::v3::TokenBucket;
use starling_model::{Percent, RateLimit};

use super::proto::{duration, fraction, number};

pub(super) const HTTP_FILTER: &str = "envoy.filters.http.local_ratelimit";

/// Its statistics bear this name.
const STAT_PREFIX: &str = "local_rate_limit";

/// Limits nothing.
pub(super) fn nothing() -> LocalRateLimit {
    LocalRateLimit { stat_prefix: STAT_PREFIX.to_owned(), ..Default::default() }
}

/// Past the limit a request is answered 429.
pub(super) fn per_route(limit: RateLimit) -> LocalRateLimit {
    let all = || Some(RuntimeFractionalPercent { default_value: Some(fraction(Percent::ALL)), ..Default::default() });
    LocalRateLimit {
        token_bucket: Some(TokenBucket {
            max_tokens: limit.burst,
            tokens_per_fill: number(limit.per_second),
            fill_interval: Some(duration(Duration::from_secs(1))),
        }),
        filter_enabled: all(),
        filter_enforced: all(),
        ..nothing()
    }
}
