//! Health checks as Consul's clients and files write them.

use std::collections::BTreeMap;
use std::time::Duration;

use starling_model::{CheckDefinition, CheckId, CheckKind, CheckSpec, CheckStatus, InstanceId, NodeName};

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
    for name in ["H2PING", "UDP", "DockerContainerID", "Shell", "OSService", "TCPUseTLS", "Script"] {
        fields.unsupported(name)?;
    }
    fields.ignored(&["H2PingUseTLS"]);
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
        CheckKind::Http { .. } | CheckKind::Tcp { .. } | CheckKind::Grpc { .. } => NETWORK_TIMEOUT_DEFAULT,
        CheckKind::Script { .. } => SCRIPT_TIMEOUT_DEFAULT,
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
        CheckKind::Http { .. } | CheckKind::Tcp { .. } | CheckKind::Grpc { .. } | CheckKind::Script { .. } => {
            match interval {
                Some(_) => Ok((interval, timeout)),
                None => Err(FieldError::new(interval_path, "must be given and more than 0 for this kind of check")),
            }
        }
        CheckKind::Ttl { .. } if interval.is_some() => {
            Err(FieldError::new(interval_path, "must not be given together with TTL"))
        }
        CheckKind::Alias { .. } if interval.is_some() => {
            Err(FieldError::new(interval_path, "must not be given for an alias check"))
        }
        CheckKind::Ttl { .. } | CheckKind::Alias { .. } | CheckKind::Maintenance => Ok((None, timeout)),
    }
}

/// Takes everything that belongs to one kind of check; exactly one kind must be there.
fn parse_kind(mut fields: Fields<'_>, ttl: Option<Duration>) -> Result<CheckKind, FieldError> {
    let http = fields.text("HTTP")?;
    let tcp = fields.text("TCP")?;
    let grpc = fields.text("GRPC")?;
    let args = fields.take_any(&["ScriptArgs", "Args"])?.map_or(Ok(Vec::new()), |field| field.texts())?;
    let alias_node = fields.text("AliasNode")?;
    let alias_service = fields.text("AliasService")?;
    let given = [
        ("HTTP", http.is_some()),
        ("TCP", tcp.is_some()),
        ("GRPC", grpc.is_some()),
        ("TTL", ttl.is_some()),
        ("ScriptArgs", !args.is_empty()),
        ("AliasService", alias_node.is_some() || alias_service.is_some()),
    ];
    let kinds: Vec<&str> = given.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    if let [_, second, ..] = kinds.as_slice() {
        return Err(fields.error(second, format!("contradicts {}: a check is of one kind", kinds[0])));
    }
    let tls_skip_verify = fields.flag("TLSSkipVerify")?;
    let tls_server_name = fields.text("TLSServerName")?.unwrap_or_default();
    let grpc_tls = fields.flag("GRPCUseTLS")?;
    let request = parse_request(&mut fields)?;
    let kind = if let Some(url) = http {
        check_url(&fields, &url)?;
        let Request { method, headers, body, disable_redirects } = request;
        CheckKind::Http { url, method, headers, body, tls_skip_verify, tls_server_name, disable_redirects }
    } else if let Some(address) = tcp {
        check_host_port(&fields, "TCP", &address)?;
        CheckKind::Tcp { address }
    } else if let Some(target) = grpc {
        let (address, service) = target.split_once('/').unwrap_or((&target, ""));
        check_host_port(&fields, "GRPC", address)?;
        let (address, service) = (address.to_owned(), service.to_owned());
        CheckKind::Grpc { address, service, tls: grpc_tls, tls_skip_verify, tls_server_name }
    } else if let Some(ttl) = ttl {
        CheckKind::Ttl { ttl }
    } else if !args.is_empty() {
        CheckKind::Script { args }
    } else if alias_node.is_some() || alias_service.is_some() {
        parse_alias(&fields, alias_node, alias_service)?
    } else {
        fields.finish()?;
        return Err(fields.error("TTL", "a check needs one of HTTP, TCP, GRPC, TTL, ScriptArgs or AliasService"));
    };
    fields.finish()?;
    Ok(kind)
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
