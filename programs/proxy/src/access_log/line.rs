//! One line, in the form that is asked for.

use std::borrow::Cow;
use std::time::SystemTime;

use starling_model::LogForm;
use starling_model::access_log::template::FieldName;
use starling_model::access_log::{LogTemplate, Operator, Piece};
use starling_traffic::HeaderFields;

use super::{Event, clock};
use crate::metrics::Ending;

/// Bytes that a line usually has.
const LINE_BYTES: usize = 512;

/// The form of a line.
pub(super) struct Line(LogForm);

/// What an operator says.
enum Value<'a> {
    Text(Cow<'a, str>),
    Number(u64),
    Nothing,
}

impl Line {
    pub(super) fn new(form: LogForm) -> Self {
        Self(form)
    }

    /// The line of an event, its end included.
    pub(super) fn of(&self, event: &Event<'_>, began: SystemTime) -> Vec<u8> {
        let mut out = String::with_capacity(LINE_BYTES);
        match &self.0 {
            LogForm::Text(template) => {
                for (piece, is_literal) in pieces(template, event, began) {
                    // Nobody who sends a request may write lines of the log, or to a terminal.
                    if is_literal { out.push_str(&piece) } else { put_visible(&mut out, &piece) }
                }
                if !out.ends_with('\n') {
                    out.push('\n');
                }
            }
            LogForm::Json(fields) => {
                let mut before = '{';
                for (name, template) in fields {
                    out.push(before);
                    put_json(&mut out, name);
                    out.push(':');
                    put_field(&mut out, template, event, began);
                    before = ',';
                }
                out.push_str("}\n");
            }
        }
        out.into_bytes()
    }
}

/// Every part of a template as text, and whether it stands in the template.
fn pieces<'a>(
    template: &'a LogTemplate,
    event: &'a Event<'_>,
    began: SystemTime,
) -> impl Iterator<Item = (Cow<'a, str>, bool)> {
    template.pieces().iter().map(move |piece| match piece {
        Piece::Text(text) => (Cow::Borrowed(text.as_str()), true),
        Piece::Value(operator, length) => {
            let text = match value(operator, event, began) {
                Value::Text(text) => text,
                Value::Number(number) => Cow::Owned(number.to_string()),
                Value::Nothing => Cow::Borrowed("-"),
            };
            (cut(text, *length), false)
        }
    })
}

/// A field of JSON: an operator by itself keeps its type, and one that says nothing is null.
fn put_field(out: &mut String, template: &LogTemplate, event: &Event<'_>, began: SystemTime) {
    if let [Piece::Value(operator, length)] = template.pieces() {
        match value(operator, event, began) {
            Value::Text(text) => put_json(out, &cut(text, *length)),
            Value::Number(number) => out.push_str(&number.to_string()),
            Value::Nothing => out.push_str("null"),
        }
        return;
    }
    let text: String = pieces(template, event, began).map(|(piece, _)| piece).collect();
    put_json(out, &text);
}

fn cut(text: Cow<'_, str>, length: Option<usize>) -> Cow<'_, str> {
    match length.and_then(|length| text.char_indices().nth(length)) {
        Some((end, _)) => Cow::Owned(text[..end].to_owned()),
        None => text,
    }
}

fn value<'a>(operator: &'a Operator, event: &'a Event<'_>, began: SystemTime) -> Value<'a> {
    let connection = event.connection;
    match operator {
        Operator::StartTime(pattern) => Value::Text(clock::written(began, pattern.as_deref()).into()),
        Operator::Request(field) => either(field, |name| asked(name, event)),
        Operator::Response(field) => either(field, |name| {
            if name == ":status" {
                return event.status().map_or(Value::Nothing, |status| Value::Text(status.to_string().into()));
            }
            event.response.map_or(Value::Nothing, |response| first(response, name))
        }),
        Operator::Path { query } => event.request.as_ref().map_or(Value::Nothing, |request| {
            let path = request.target.split('?').next().unwrap_or_default();
            Value::Text((if *query { request.target } else { path }).into())
        }),
        Operator::ResponseCode => Value::Number(u64::from(event.status().unwrap_or(0))),
        Operator::ResponseCodeDetails => match event.ending {
            Ending::Answered(_) => Value::Text("via_upstream".into()),
            Ending::Failed(failure) => Value::Text(failure.text().into()),
            Ending::Broken | Ending::Closed => Value::Nothing,
        },
        Operator::ResponseFlags => Value::Text(flags(event).into()),
        Operator::BytesReceived => Value::Number(event.received),
        Operator::BytesSent => Value::Number(event.sent),
        Operator::Duration => Value::Number(u64::try_from(event.took.as_millis()).unwrap_or(u64::MAX)),
        Operator::Protocol => event.request.as_ref().map_or(Value::Nothing, |it| Value::Text(it.version.into())),
        Operator::UpstreamHost => event.host.map_or(Value::Nothing, |host| Value::Text(host.to_string().into())),
        Operator::UpstreamCluster => event.upstream.map_or(Value::Nothing, |name| Value::Text(name.into())),
        Operator::DownstreamRemoteAddress => Value::Text(connection.remote().to_string().into()),
        Operator::DownstreamRemoteAddressWithoutPort => Value::Text(connection.remote().ip().to_string().into()),
        Operator::DownstreamLocalAddress => Value::Text(connection.local.to_string().into()),
        Operator::DownstreamPeerUriSan => connection.identity().map_or(Value::Nothing, |uri| Value::Text(uri.into())),
        Operator::RequestedServerName => {
            connection.server_name().map_or(Value::Nothing, |name| Value::Text(name.into()))
        }
        Operator::UpstreamTransportFailureReason | Operator::RouteName | Operator::ConnectionTerminationDetails => {
            Value::Nothing
        }
    }
}

/// Envoy's signs for how it ended.
fn flags(event: &Event<'_>) -> &'static str {
    match event.ending {
        Ending::Answered(_) | Ending::Closed => "-",
        Ending::Failed(failure) => failure.flag().unwrap_or("-"),
        Ending::Broken => "DC",
    }
}

fn either<'a>(field: &'a FieldName, find: impl Fn(&'a str) -> Value<'a>) -> Value<'a> {
    match (find(&field.name), &field.or) {
        (Value::Nothing, Some(or)) => find(or),
        (found, _) => found,
    }
}

/// A field of the request, or what HTTP/2 makes one.
fn asked<'a>(name: &str, event: &'a Event<'_>) -> Value<'a> {
    let Some(request) = &event.request else { return Value::Nothing };
    match name {
        ":method" => Value::Text(request.method.into()),
        ":path" => Value::Text(request.target.into()),
        ":scheme" => Value::Text("http".into()),
        name => first(request.fields, name),
    }
}

/// The first value of a field.
fn first<'a>(fields: &dyn HeaderFields, name: &str) -> Value<'a> {
    let mut found = Value::Nothing;
    fields.any(name, &mut |value| {
        found = Value::Text(String::from_utf8_lossy(value).into_owned().into());
        true
    });
    found
}

/// Whether a text stands in a line as it is: almost every one does.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
}

fn put_visible(out: &mut String, text: &str) {
    if is_plain(text) {
        return out.push_str(text);
    }
    for sign in text.chars() {
        if sign.is_control() { out.extend(sign.escape_default()) } else { out.push(sign) }
    }
}

fn put_json(out: &mut String, text: &str) {
    use std::fmt::Write as _;
    out.push('"');
    if is_plain(text) {
        out.push_str(text);
        return out.push('"');
    }
    for sign in text.chars() {
        match sign {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // Writing to a string cannot fail.
            control if control.is_control() => drop(write!(out, "\\u{:04x}", u32::from(control))),
            sign => out.push(sign),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Asked;
    use super::*;
    use crate::connections::Connection;
    use crate::failure::Failure;

    fn line(form: LogForm, ending: Ending) -> String {
        let fields = vec![("user-agent", "a\"b\u{1b}[2J"), (":authority", "api.mesh"), ("x-a", "\u{85}")];
        let connection = Connection::new("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let event = Event {
            connection: &connection,
            request: Some(Asked { version: "HTTP/1.1", method: "GET", target: "/a?q=1", fields: &fields }),
            response: Some(&fields),
            ending,
            received: 3,
            sent: 5,
            took: Duration::from_millis(7),
            upstream: Some("api"),
            host: None,
        };
        let began = SystemTime::UNIX_EPOCH;
        String::from_utf8(Line::new(form).of(&event, began)).unwrap()
    }

    #[test]
    fn text_is_as_the_template_says() {
        let template = "[%START_TIME%] %REQ(:METHOD)% %REQ(X-ORIGINAL?:PATH)% %REQ(:PATH):2% %PATH(NQ)% %PROTOCOL% %RESPONSE_CODE% \
                        %RESPONSE_FLAGS% %BYTES_RECEIVED%/%BYTES_SENT% %DURATION%ms %UPSTREAM_HOST% %REQ(NONE)% %REQ(USER-AGENT)%";
        let expected = "[1970-01-01T00:00:00.000Z] GET /a?q=1 /a /a HTTP/1.1 503 UF 3/5 7ms - - a\"b\\u{1b}[2J\n";
        let form = LogForm::Text(template.parse().unwrap());
        assert_eq!(line(form, Ending::Failed(Failure::Connect)), expected);
    }

    #[test]
    fn json_keeps_numbers_and_leaves_nothing_out() {
        let fields = [
            ("agent", "%REQ(USER-AGENT)%"),
            ("code", "%RESPONSE_CODE%"),
            ("host", "%UPSTREAM_HOST%"),
            ("mixed", "%DURATION%ms to %UPSTREAM_HOST%"),
            ("to", "%REQ(:AUTHORITY)%"),
            ("x", "%RESP(X-A)%"),
        ];
        let form = fields.map(|(name, template)| (name.to_owned(), template.parse().unwrap()));
        let expected = "{\"agent\":\"a\\\"b\\u001b[2J\",\"code\":200,\"host\":null,\"mixed\":\"7ms to -\",\"to\":\"api.mesh\",\
                        \"x\":\"\\u0085\"}\n";
        assert_eq!(line(LogForm::Json(form.into()), Ending::Answered(200)), expected);
    }
}
