//! Whether a call is made again.
//!
//! Source: Envoy, `x-envoy-retry-on` and `x-envoy-retry-grpc-on`, whose names the conditions have.

use starling_model::{RetryOn, RetryPolicy};

/// How a try ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// No connection could be made.
    Connect,
    /// The other end refused it unseen.
    Refused,
    /// The connection broke without an answer.
    Reset,
    /// Its time was up.
    TimedOut,
    /// With an answer.
    Answered {
        /// The status.
        status: u16,
        /// The gRPC status, if its head has one.
        grpc: Option<u32>,
    },
}

/// Tries beyond the first.
#[must_use]
pub fn retries(policy: &RetryPolicy) -> u32 {
    if policy.retries_at_all() { policy.retries.unwrap_or(1) } else { 0 }
}

/// Whether a try that ended so is one to be made again.
#[must_use]
pub fn is_retriable(policy: &RetryPolicy, ended: Ended) -> bool {
    let by_status = matches!(ended, Ended::Answered { status, .. } if policy.on_statuses.contains(&status));
    by_status || policy.on.iter().any(|condition| meets(*condition, ended))
}

fn meets(condition: RetryOn, ended: Ended) -> bool {
    let grpc = |code: u32| matches!(ended, Ended::Answered { grpc: Some(found), .. } if found == code);
    match (condition, ended) {
        (RetryOn::ServerError, Ended::Answered { status, .. }) => status >= 500,
        (RetryOn::GatewayError, Ended::Answered { status, .. }) => (502..=504).contains(&status),
        (RetryOn::Retriable4xx, Ended::Answered { status, .. }) => status == 409,
        (RetryOn::ServerError | RetryOn::GatewayError | RetryOn::Reset, ended) => {
            !matches!(ended, Ended::Answered { .. })
        }
        (RetryOn::ConnectFailure, ended) => ended == Ended::Connect,
        (RetryOn::RefusedStream, ended) => ended == Ended::Refused,
        (RetryOn::ResetBeforeRequest, ended) => matches!(ended, Ended::Connect | Ended::Refused),
        (RetryOn::Retriable4xx, _) => false,
        (RetryOn::Cancelled, _) => grpc(1),
        (RetryOn::DeadlineExceeded, _) => grpc(4),
        (RetryOn::ResourceExhausted, _) => grpc(8),
        (RetryOn::Internal, _) => grpc(13),
        (RetryOn::Unavailable, _) => grpc(14),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn conditions_are_those_of_envoy() {
        let answered = |status| Ended::Answered { status, grpc: None };
        let policy = |on: &[RetryOn]| RetryPolicy {
            retries: None,
            on: on.iter().copied().collect(),
            on_statuses: BTreeSet::new(),
            budget: None,
        };
        let server = policy(&[RetryOn::ServerError]);
        assert!(is_retriable(&server, answered(500)) && is_retriable(&server, Ended::Reset));
        assert!(is_retriable(&server, Ended::Connect) && !is_retriable(&server, answered(409)));
        let gateway = policy(&[RetryOn::GatewayError]);
        assert!(is_retriable(&gateway, answered(503)) && !is_retriable(&gateway, answered(500)));
        let connect = policy(&[RetryOn::ConnectFailure]);
        assert!(is_retriable(&connect, Ended::Connect) && !is_retriable(&connect, Ended::Reset));
        let conflict = policy(&[RetryOn::Retriable4xx]);
        assert!(is_retriable(&conflict, answered(409)) && !is_retriable(&conflict, Ended::Reset));
        let grpc = policy(&[RetryOn::Unavailable]);
        assert!(is_retriable(&grpc, Ended::Answered { status: 200, grpc: Some(14) }));
        assert!(!is_retriable(&grpc, Ended::Answered { status: 200, grpc: Some(13) }));
        let named = RetryPolicy { on_statuses: BTreeSet::from([418]), ..policy(&[]) };
        assert!(is_retriable(&named, answered(418)) && !is_retriable(&named, answered(500)));
        assert_eq!((retries(&named), retries(&policy(&[]))), (1, 0));
    }
}
