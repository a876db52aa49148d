//! Failures a service injects into its own answers.

use std::time::Duration;

use http::StatusCode;
use tonic::Code;

/// Which part of the requests fails, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// Share of failing requests, from 0 (none) to 1 (all); each request is drawn on its own.
    pub rate: f64,
    /// What happens to a failing request.
    pub kind: FaultKind,
    /// What a failing request is answered with.
    pub code: FaultCode,
}

impl Default for Fault {
    fn default() -> Self {
        Self { rate: 0.0, kind: FaultKind::Error, code: FaultCode::INTERNAL }
    }
}

impl Fault {
    /// Draws whether one request fails.
    pub(crate) fn strikes(&self) -> bool {
        self.rate > 0.0 && fastrand::f64() < self.rate
    }
}

/// What happens to a request that is made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The error is answered at once.
    Error,
    /// The error is answered after this time.
    Delay(Duration),
}

/// The code of a failure, in both protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultCode {
    /// Status of the HTTP answer.
    pub http: StatusCode,
    /// Code of the gRPC status.
    pub grpc: Code,
}

impl FaultCode {
    /// Status 500 and its gRPC peer.
    pub(crate) const INTERNAL: Self = Self { http: StatusCode::INTERNAL_SERVER_ERROR, grpc: Code::Internal };

    /// Status 508 and its gRPC peer.
    pub(crate) const LOOP: Self = Self { http: StatusCode::LOOP_DETECTED, grpc: Code::FailedPrecondition };

    /// Reads an HTTP status from 300 to 599 or a gRPC code from 1 to 16, and supplies the other protocol's nearest.
    ///
    /// Source: the HTTP annotations in google/rpc/code.proto.
    pub fn from_number(number: u16) -> Option<Self> {
        match number {
            1..=16 => {
                let grpc = Code::from_i32(i32::from(number));
                Some(Self { http: http_of(grpc), grpc })
            }
            300..=599 => StatusCode::from_u16(number).ok().map(|http| Self { http, grpc: grpc_of(http) }),
            _ => None,
        }
    }
}

fn http_of(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn grpc_of(status: StatusCode) -> Code {
    match status.as_u16() {
        400 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        409 => Code::Aborted,
        429 => Code::ResourceExhausted,
        500 => Code::Internal,
        501 => Code::Unimplemented,
        502 | 503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_zero_and_one_leave_nothing_to_chance() {
        let all = Fault { rate: 1.0, ..Fault::default() };
        assert!((0..1_000).all(|_| all.strikes()));
        assert!((0..1_000).all(|_| !Fault::default().strikes()));
    }

    #[test]
    fn a_code_of_one_protocol_brings_the_other() {
        let code = |number| FaultCode::from_number(number).map(|code| (code.http.as_u16(), code.grpc));
        assert_eq!(code(13), Some((500, Code::Internal)));
        assert_eq!(code(7), Some((403, Code::PermissionDenied)));
        assert_eq!(code(503), Some((503, Code::Unavailable)));
        assert_eq!(code(418), Some((418, Code::Unknown)));
        assert_eq!([code(0), code(17), code(200), code(600)], [None; 4]);
    }
}
