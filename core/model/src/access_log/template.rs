//! The form of a log line in Envoy's notation: text, and operators between percent signs.
//!
//! Those operators are known that say the same of every proxy of the mesh; any other is refused by its name.
//! Source: Envoy, "Access log format strings".

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of one template.
const TEMPLATE_BYTES_MAX: usize = 8 * 1024;

/// Why a template is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogTemplateError {
    /// Nobody knows it here.
    #[error("the operator %{0}% is not supported")]
    Unknown(String),
    /// It says too much or too little.
    #[error("the operator %{operator}% {reason}")]
    Argument {
        /// Its name.
        operator: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A percent sign that begins nothing.
    #[error("the % at byte {0} begins no operator that ends in %; write %% for the sign itself")]
    Unclosed(usize),
    /// It is too long.
    #[error("it is longer than {TEMPLATE_BYTES_MAX} bytes")]
    TooLong,
}

/// A parsed template; its text is what it was parsed from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LogTemplate {
    text: String,
    pieces: Vec<Piece>,
}

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Piece {
    /// Itself.
    Text(String),
    /// What the operator says of the request, of that so many characters at most.
    Value(Operator, Option<usize>),
}

/// A header field, or another one where that is not there; names in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldName {
    /// The field.
    pub name: String,
    /// The one instead of it.
    pub or: Option<String>,
}

/// What can be said of a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "they are Envoy's operators, by name")]
pub enum Operator {
    /// In ISO 8601 with milliseconds unless a pattern is given.
    StartTime(Option<String>),
    Request(FieldName),
    Response(FieldName),
    /// The path, without its query unless `query`.
    Path {
        query: bool,
    },
    ResponseCode,
    ResponseCodeDetails,
    ResponseFlags,
    BytesReceived,
    BytesSent,
    Duration,
    Protocol,
    UpstreamHost,
    UpstreamCluster,
    UpstreamTransportFailureReason,
    DownstreamRemoteAddress,
    DownstreamRemoteAddressWithoutPort,
    DownstreamLocalAddress,
    DownstreamPeerUriSan,
    RequestedServerName,
    RouteName,
    ConnectionTerminationDetails,
}

/// Signs of a time pattern that are understood.
const TIME_SIGNS: &str = "YmdHMSsfzZTF%";

impl LogTemplate {
    /// Its parts, in order.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for LogTemplate {
    type Err = LogTemplateError;

    fn from_str(text: &str) -> Result<Self, LogTemplateError> {
        if text.len() > TEMPLATE_BYTES_MAX {
            return Err(LogTemplateError::TooLong);
        }
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find('%') {
            literal.push_str(&rest[..at]);
            let from = text.len() - rest.len() + at;
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('%') {
                literal.push('%');
                rest = after;
                continue;
            }
            let (piece, after) = operator(rest, from)?;
            if !literal.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut literal)));
            }
            pieces.push(piece);
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Self { text: text.to_owned(), pieces })
    }
}

impl TryFrom<String> for LogTemplate {
    type Error = LogTemplateError;

    fn try_from(text: String) -> Result<Self, LogTemplateError> {
        text.parse()
    }
}

impl From<LogTemplate> for String {
    fn from(template: LogTemplate) -> Self {
        template.text
    }
}

impl fmt::Display for LogTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The operator at the front of `rest`, which begins behind the percent sign at byte `from`, and what follows it.
fn operator(rest: &str, from: usize) -> Result<(Piece, &str), LogTemplateError> {
    let unclosed = || LogTemplateError::Unclosed(from);
    let end = rest.find(|sign: char| !(sign.is_ascii_uppercase() || sign.is_ascii_digit() || sign == '_'));
    let (name, rest) = rest.split_at(end.filter(|end| *end > 0).ok_or_else(unclosed)?);
    let (argument, rest) = match rest.strip_prefix('(') {
        Some(rest) => {
            let (argument, rest) = rest.split_once(')').ok_or_else(unclosed)?;
            (Some(argument), rest)
        }
        None => (None, rest),
    };
    let (length, rest) = match rest.strip_prefix(':') {
        Some(rest) => {
            let (length, rest) = rest.split_once('%').ok_or_else(unclosed)?;
            let wrong = |_| refused(name, "has a length that is no number");
            (Some(length.parse().map_err(wrong)?), rest)
        }
        None => (None, rest.strip_prefix('%').ok_or_else(unclosed)?),
    };
    Ok((Piece::Value(named(name, argument)?, length), rest))
}

fn refused(operator: &str, reason: &'static str) -> LogTemplateError {
    LogTemplateError::Argument { operator: operator.to_owned(), reason }
}

fn named(name: &str, argument: Option<&str>) -> Result<Operator, LogTemplateError> {
    let operator = match name {
        "START_TIME" => return Ok(Operator::StartTime(time_pattern(name, argument)?)),
        "REQ" => return Ok(Operator::Request(field_name(name, argument)?)),
        "RESP" => return Ok(Operator::Response(field_name(name, argument)?)),
        "PATH" => return path(name, argument),
        "RESPONSE_CODE" => Operator::ResponseCode,
        "RESPONSE_CODE_DETAILS" => Operator::ResponseCodeDetails,
        "RESPONSE_FLAGS" => Operator::ResponseFlags,
        "BYTES_RECEIVED" => Operator::BytesReceived,
        "BYTES_SENT" => Operator::BytesSent,
        "DURATION" => Operator::Duration,
        "PROTOCOL" => Operator::Protocol,
        "UPSTREAM_HOST" => Operator::UpstreamHost,
        "UPSTREAM_CLUSTER" => Operator::UpstreamCluster,
        "UPSTREAM_TRANSPORT_FAILURE_REASON" => Operator::UpstreamTransportFailureReason,
        "DOWNSTREAM_REMOTE_ADDRESS" | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS" => Operator::DownstreamRemoteAddress,
        "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT" | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT" => {
            Operator::DownstreamRemoteAddressWithoutPort
        }
        "DOWNSTREAM_LOCAL_ADDRESS" => Operator::DownstreamLocalAddress,
        "DOWNSTREAM_PEER_URI_SAN" => Operator::DownstreamPeerUriSan,
        "REQUESTED_SERVER_NAME" => Operator::RequestedServerName,
        "ROUTE_NAME" => Operator::RouteName,
        "CONNECTION_TERMINATION_DETAILS" => Operator::ConnectionTerminationDetails,
        _ => return Err(LogTemplateError::Unknown(name.to_owned())),
    };
    if argument.is_some() { Err(refused(name, "takes no argument")) } else { Ok(operator) }
}

fn field_name(operator: &str, argument: Option<&str>) -> Result<FieldName, LogTemplateError> {
    let argument = argument.ok_or_else(|| refused(operator, "lacks the name of a header field"))?;
    let (name, or) = match argument.split_once('?') {
        Some((name, or)) => (name, Some(or)),
        None => (argument, None),
    };
    let is_name = |name: &str| {
        let token = name.strip_prefix(':').unwrap_or(name);
        !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte))
    };
    if !is_name(name) || !or.is_none_or(is_name) {
        return Err(refused(operator, "names what is no header field"));
    }
    Ok(FieldName { name: name.to_ascii_lowercase(), or: or.map(str::to_ascii_lowercase) })
}

/// `PATH(WQ|NQ)`, then of which path; there is one only in a mesh.
fn path(operator: &str, argument: Option<&str>) -> Result<Operator, LogTemplateError> {
    let (query, which) = argument.unwrap_or("WQ").split_once(':').unwrap_or((argument.unwrap_or("WQ"), "PATH"));
    match (query, which) {
        ("WQ" | "", "PATH" | "ORIG" | "ORIG_OR_PATH") => Ok(Operator::Path { query: true }),
        ("NQ", "PATH" | "ORIG" | "ORIG_OR_PATH") => Ok(Operator::Path { query: false }),
        _ => Err(refused(operator, "takes WQ or NQ, then PATH, ORIG or ORIG_OR_PATH")),
    }
}

fn time_pattern(operator: &str, argument: Option<&str>) -> Result<Option<String>, LogTemplateError> {
    let Some(pattern) = argument.filter(|pattern| !pattern.is_empty()) else { return Ok(None) };
    let mut signs = pattern.chars();
    while let Some(sign) = signs.next() {
        if sign != '%' {
            continue;
        }
        // Digits say how many of a fraction.
        let sign = signs.find(|sign| !matches!(sign, '1'..='9'));
        if !sign.is_some_and(|sign| TIME_SIGNS.contains(sign)) {
            return Err(refused(
                operator,
                "has a time pattern with a sign other than %Y %m %d %H %M %S %s %f %z %Z %T %F",
            ));
        }
    }
    Ok(Some(pattern.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<Piece> {
        text.parse::<LogTemplate>().unwrap_or_else(|error| panic!("{text}: {error}")).pieces
    }

    #[test]
    fn envoys_default_format_is_understood() {
        let text = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% \
                    %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT):20%\" \
                    \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" 100%%\n";
        let pieces = parsed(text);
        let or = FieldName { name: "x-envoy-original-path".to_owned(), or: Some(":path".to_owned()) };
        assert!(pieces.contains(&Piece::Value(Operator::Request(or), None)));
        let agent = FieldName { name: "user-agent".to_owned(), or: None };
        assert!(pieces.contains(&Piece::Value(Operator::Request(agent), Some(20))));
        assert_eq!(pieces.last(), Some(&Piece::Text("\" 100%\n".to_owned())));
        assert_eq!(text.parse::<LogTemplate>().unwrap().to_string(), text);
    }

    #[test]
    fn times_have_patterns() {
        let start = |pattern: Option<&str>| vec![Piece::Value(Operator::StartTime(pattern.map(str::to_owned)), None)];
        assert_eq!(parsed("%START_TIME%"), start(None));
        assert_eq!(parsed("%START_TIME(%Y/%m/%dT%H:%M:%S%z %s.%3f)%"), start(Some("%Y/%m/%dT%H:%M:%S%z %s.%3f")));
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for (text, message) in [
            ("%CONNECTION_ID%", "the operator %CONNECTION_ID% is not supported"),
            ("a %DYNAMIC_METADATA(a:b)% b", "the operator %DYNAMIC_METADATA% is not supported"),
            ("%REQ%", "the operator %REQ% lacks the name of a header field"),
            ("%REQ(a b)%", "the operator %REQ% names what is no header field"),
            ("%DURATION(x)%", "the operator %DURATION% takes no argument"),
            ("%REQ(a):x%", "the operator %REQ% has a length that is no number"),
            ("%PATH(XX)%", "the operator %PATH% takes WQ or NQ"),
            ("%START_TIME(%q)%", "the operator %START_TIME% has a time pattern with a sign"),
            ("50% off", "the % at byte 2 begins no operator"),
            ("ok %DURATION", "the % at byte 3 begins no operator"),
        ] {
            let error = text.parse::<LogTemplate>().expect_err(text).to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
        assert!("x".repeat(TEMPLATE_BYTES_MAX + 1).parse::<LogTemplate>().is_err());
    }
}
