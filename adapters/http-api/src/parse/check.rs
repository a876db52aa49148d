//! Health checks as Consul's clients and files write them.

use std::collections::BTreeMap;
use std::time::Duration;

use starling_model::{CheckDefinition, CheckId, CheckKind, CheckSpec, CheckStatus, CheckTls, InstanceId, NodeName};

use super::duration::duration_text;
use super::field::{FieldError, Fields};

/// Time after which a request or connection has failed unless the check says otherwise; Consul's.
const NETWORK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Time after which a command has failed unless the check says otherwise; Consul's.
const SCRIPT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// A check as registered by itself: with the instance it is for, if any.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckRegistration {
    /// The check.
    pub spec: CheckSpec,
    /// The instance; `None` for a check of the node.
    pub service: Option<InstanceId>,
}

/// Reads a check of a service; `ServiceID` in it is ignored, as in Consul.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_service_check(mut fields: Fields<'_>) -> Result<CheckSpec, FieldError> {
    fields.ignored(&["ServiceID"]);
    parse_spec(fields)
}

/// Reads a check registered by itself.
///
/// # Errors
/// [`FieldError`] at the first field that is wrong.
pub fn parse_check(mut fields: Fields<'_>) -> Result<CheckRegistration, FieldError> {
    let service = match fields.text("ServiceID")? {
        Some(id) => Some(InstanceId::new(&id).map_err(|error| fields.error("ServiceID", error))?),
        None => None,
    };
    let name_path = fields.path("Name");
    let mut spec = parse_spec(fields)?;
    if spec.name.is_empty() {
        let Some(id) = &spec.id else { return Err(FieldError::new(name_path, "must be given")) };
        spec.name = id.to_string();
    }
    if spec.id.is_none() {
        spec.id = Some(CheckId::new(&spec.name).map_err(|error| FieldError::new(name_path, error))?);
    }
    Ok(CheckRegistration { spec, service })
}

fn parse_spec(mut fields: Fields<'_>) -> Result<CheckSpec, FieldError> {
    let id = fields.take_any(&["CheckID", "ID"])?;
    let id = match id.map(|field| field.text().map(|text| (field.path, text))).transpose()? {
        Some((path, text)) if !text.is_empty() => {
            Some(CheckId::new(&text).map_err(|error| FieldError::new(path, error))?)
        }
        Some(_) | None => None,
    };
    let name = fields.text("Name")?.unwrap_or_default();
    let notes = fields.text("Notes")?.unwrap_or_default();
    let initial_status = match fields.text("Status")? {
        Some(text) => text.parse::<CheckStatus>().map_err(|error| fields.error("Status", error))?,
        None => CheckStatus::Critical,
    };
    fields.tenancy()?;
    for name in ["Token", "OutputMaxSize", "ProxyHTTP", "ProxyGRPC"] {
        fields.without_effect(name);
    }
    for name in ["OSService", "Script"] {
        fields.unsupported(name)?;
    }
    let deregister_after = fields.duration("DeregisterCriticalServiceAfter")?;
    let success_before_passing = fields.count("SuccessBeforePassing")?.unwrap_or(0).max(1);
    let failures_before_critical = fields.count("FailuresBeforeCritical")?.unwrap_or(0).max(1);
    let failures_before_warning = fields.count("FailuresBeforeWarning")?.filter(|count| *count > 0);
    let failures_before_warning = failures_before_warning.unwrap_or(failures_before_critical);
    if failures_before_warning > failures_before_critical {
        return Err(fields.error("FailuresBeforeWarning", "must not be higher than FailuresBeforeCritical"));
    }
    let interval = fields.duration("Interval")?;
    let timeout = fields.duration("Timeout")?;
    let ttl = fields.duration("TTL")?;
    let interval_path = fields.path("Interval");
    let kind = parse_kind(fields, ttl)?;
    let (interval, timeout) = check_times(&kind, interval, timeout, &interval_path)?;
    let text_of = |duration: Option<Duration>| duration_text(duration.unwrap_or_default());
    Ok(CheckSpec {
        id,
        name,
        notes,
        initial_status,
        interval_text: text_of(interval),
        timeout_text: text_of(timeout),
        definition: CheckDefinition {
            timeout: timeout.unwrap_or_else(|| timeout_default(&kind)),
            kind,
            interval: interval.unwrap_or_default(),
            success_before_passing,
            failures_before_warning,
            failures_before_critical,
            deregister_after,
        },
    })
}

fn timeout_default(kind: &CheckKind) -> Duration {
    match kind {
        CheckKind::Http { .. }
        | CheckKind::Tcp { .. }
        | CheckKind::Udp { .. }
        | CheckKind::H2Ping { .. }
        | CheckKind::Grpc { .. } => NETWORK_TIMEOUT_DEFAULT,
        CheckKind::Script { .. } | CheckKind::Docker { .. } => SCRIPT_TIMEOUT_DEFAULT,
        CheckKind::Ttl { .. } | CheckKind::Alias { .. } | CheckKind::Maintenance => Duration::ZERO,
    }
}

type Times = (Option<Duration>, Option<Duration>);

fn check_times(
    kind: &CheckKind,
    interval: Option<Duration>,
    timeout: Option<Duration>,
    interval_path: &str,
) -> Result<Times, FieldError> {
    match kind {
        CheckKind::Http { .. }
        | CheckKind::Tcp { .. }
        | CheckKind::Udp { .. }
        | CheckKind::H2Ping { .. }
        | CheckKind::Grpc { .. }
        | CheckKind::Script { .. }
        | CheckKind::Docker { .. } => match interval {
            Some(_) => Ok((interval, timeout)),
            None => Err(FieldError::new(interval_path, "must be given and more than 0 for this kind of check")),
        },
        CheckKind::Ttl { .. } if interval.is_some() => {
            Err(FieldError::new(interval_path, "must not be given together with TTL"))
        }
        CheckKind::Alias { .. } if interval.is_some() => {
            Err(FieldError::new(interval_path, "must not be given for an alias check"))
        }
        CheckKind::Ttl { .. } | CheckKind::Alias { .. } | CheckKind::Maintenance => Ok((None, timeout)),
    }
}

/// What a check asks, one of which is given.
#[derive(Default)]
struct Asked {
    http: Option<String>,
    tcp: Option<String>,
    udp: Option<String>,
    h2ping: Option<String>,
    grpc: Option<String>,
    ttl: Option<Duration>,
    container: Option<String>,
    args: Vec<String>,
    alias_node: Option<String>,
    alias_service: Option<String>,
}

impl Asked {
    /// Takes it out of the fields; exactly one kind must be there.
    fn of(fields: &mut Fields<'_>, ttl: Option<Duration>) -> Result<Self, FieldError> {
        let asked = Self {
            http: fields.text("HTTP")?,
            tcp: fields.text("TCP")?,
            udp: fields.text("UDP")?,
            h2ping: fields.text("H2PING")?,
            grpc: fields.text("GRPC")?,
            ttl,
            container: fields.text("DockerContainerID")?,
            args: fields.take_any(&["ScriptArgs", "Args"])?.map_or(Ok(Vec::new()), |field| field.texts())?,
            alias_node: fields.text("AliasNode")?,
            alias_service: fields.text("AliasService")?,
        };
        let given = [
            ("HTTP", asked.http.is_some()),
            ("TCP", asked.tcp.is_some()),
            ("UDP", asked.udp.is_some()),
            ("H2PING", asked.h2ping.is_some()),
            ("GRPC", asked.grpc.is_some()),
            ("TTL", asked.ttl.is_some()),
            // A command in a container is one thing.
            ("ScriptArgs", asked.container.is_some() || !asked.args.is_empty()),
            ("AliasService", asked.alias_node.is_some() || asked.alias_service.is_some()),
        ];
        let kinds: Vec<&str> = given.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
        if let [_, second, ..] = kinds.as_slice() {
            return Err(fields.error(second, format!("contradicts {}: a check is of one kind", kinds[0])));
        }
        Ok(asked)
    }
}

/// Takes everything that belongs to one kind of check.
fn parse_kind(mut fields: Fields<'_>, ttl: Option<Duration>) -> Result<CheckKind, FieldError> {
    let asked = Asked::of(&mut fields, ttl)?;
    let tls_skip_verify = fields.flag("TLSSkipVerify")?;
    let tls_server_name = fields.text("TLSServerName")?.unwrap_or_default();
    let (tcp_tls, grpc_tls) = (fields.flag("TCPUseTLS")?, fields.flag("GRPCUseTLS")?);
    // Consul's default.
    let h2_tls = fields.take("H2PingUseTLS").map_or(Ok(true), |field| field.flag())?;
    let shell = fields.text("Shell")?.unwrap_or_default();
    let request = parse_request(&mut fields)?;
    let tls =
        |wanted: bool| wanted.then(|| CheckTls { skip_verify: tls_skip_verify, server_name: tls_server_name.clone() });
    let kind = if let Some(url) = asked.http {
        check_url(&fields, &url)?;
        let Request { method, headers, body, disable_redirects } = request;
        CheckKind::Http { url, method, headers, body, tls_skip_verify, tls_server_name, disable_redirects }
    } else if let Some(address) = asked.tcp {
        check_host_port(&fields, "TCP", &address)?;
        CheckKind::Tcp { address, tls: tls(tcp_tls) }
    } else if let Some(address) = asked.udp {
        check_host_port(&fields, "UDP", &address)?;
        CheckKind::Udp { address }
    } else if let Some(address) = asked.h2ping {
        check_host_port(&fields, "H2PING", &address)?;
        CheckKind::H2Ping { address, tls: tls(h2_tls) }
    } else if let Some(target) = asked.grpc {
        let (address, service) = target.split_once('/').unwrap_or((&target, ""));
        check_host_port(&fields, "GRPC", address)?;
        let (address, service) = (address.to_owned(), service.to_owned());
        CheckKind::Grpc { address, service, tls: grpc_tls, tls_skip_verify, tls_server_name }
    } else if let Some(ttl) = asked.ttl {
        CheckKind::Ttl { ttl }
    } else if let Some(container) = asked.container {
        check_container(&fields, &container)?;
        CheckKind::Docker { container, shell, args: asked.args }
    } else if !asked.args.is_empty() {
        CheckKind::Script { args: asked.args }
    } else if asked.alias_node.is_some() || asked.alias_service.is_some() {
        parse_alias(&fields, asked.alias_node, asked.alias_service)?
    } else {
        fields.finish()?;
        let kinds = "HTTP, TCP, UDP, H2PING, GRPC, TTL, ScriptArgs or AliasService";
        return Err(fields.error("TTL", format!("a check needs one of {kinds}")));
    };
    fields.finish()?;
    Ok(kind)
}

/// A container is named in the path of a request.
fn check_container(fields: &Fields<'_>, name: &str) -> Result<(), FieldError> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-');
    if name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.chars().all(is_letter) {
        return Ok(());
    }
    Err(fields.error("DockerContainerID", format!("{name:?} is no identifier or name of a container")))
}

struct Request {
    method: String,
    headers: BTreeMap<String, Vec<String>>,
    body: String,
    disable_redirects: bool,
}

fn parse_request(fields: &mut Fields<'_>) -> Result<Request, FieldError> {
    let method = fields.text("Method")?.map_or_else(|| "GET".to_owned(), |method| method.to_uppercase());
    if http::Method::from_bytes(method.as_bytes()).is_err() {
        return Err(fields.error("Method", format!("{method:?} is no HTTP method")));
    }
    let mut headers = BTreeMap::new();
    if let Some(field) = fields.take("Header") {
        let (context, path) = (field.context, field.path.clone());
        for (name, value) in field.opaque()? {
            let path = format!("{path}.{name}");
            if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
                return Err(FieldError::new(path, "is no header field name"));
            }
            let values = super::field::Field { context, path, value }.texts()?;
            headers.insert(name, values);
        }
    }
    let body = fields.text("Body")?.unwrap_or_default();
    let disable_redirects = fields.flag("DisableRedirects")?;
    Ok(Request { method, headers, body, disable_redirects })
}

fn check_url(fields: &Fields<'_>, url: &str) -> Result<(), FieldError> {
    let parsed = url.parse::<http::Uri>().ok();
    let fits = |uri: &http::Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
    if parsed.as_ref().is_some_and(fits) {
        return Ok(());
    }
    Err(fields.error("HTTP", format!("{url:?} is no absolute http or https URL")))
}

fn check_host_port(fields: &Fields<'_>, name: &str, address: &str) -> Result<(), FieldError> {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse().ok());
    match port {
        Some(1..=u16::MAX) => Ok(()),
        Some(0) | None => Err(fields.error(name, format!("{address:?} is not of the form HOST:PORT"))),
    }
}

fn parse_alias(fields: &Fields<'_>, node: Option<String>, service: Option<String>) -> Result<CheckKind, FieldError> {
    let node = match node {
        Some(node) => Some(NodeName::new(&node).map_err(|error| fields.error("AliasNode", error))?),
        None => None,
    };
    let service = match service {
        Some(id) => Some(InstanceId::new(&id).map_err(|error| fields.error("AliasService", error))?),
        None => None,
    };
    Ok(CheckKind::Alias { node, service })
}
