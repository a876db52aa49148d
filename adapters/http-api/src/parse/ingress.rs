//! `ingress-gateway` entries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use starling_model::{
    CertificateFiles, HostPattern, HttpsRedirect, IngressGateway, IngressListener, IngressRoute, IngressService,
    IngressTls, ListenerTls, Port, Protocol, RedirectStatus, SecretService, ServiceName, TlsVersion, UpstreamSettings,
};

use super::field::{FieldError, Fields};
use super::router::{named_service, parse_edits};
use super::upstream_config::{parse_limits, parse_passive_health_check};

/// Ports of one gateway: each is a socket of each worker.
pub const LISTENERS_MAX: usize = 256;

/// Services behind one port: every one of them is in the plan of each gateway.
pub const SERVICES_MAX: usize = 10_000;

/// Hosts of one service: as many as the largest providers put in one certificate.
pub const HOSTS_MAX: usize = 100;

/// Certificates of one port: all of them are read anew when a file changes.
pub const CERTIFICATES_MAX: usize = 1_000;

/// Ranges of proxies: they are looked through at each connection.
pub const TRUSTED_PROXIES_MAX: usize = 100;

/// The port of HTTPS (RFC 9110 section 4.2.2).
const HTTPS_PORT: i64 = 443;

pub(super) fn parse_ingress_gateway(fields: &mut Fields<'_>) -> Result<IngressGateway, FieldError> {
    let gateway = named_service(fields)?;
    let tls = match fields.object("TLS")? {
        Some(tls) => parse_tls(tls)?,
        None => None,
    };
    let mut defaults = UpstreamSettings::default();
    if let Some(mut inner) = fields.object("Defaults")? {
        defaults = parse_settings(&mut inner)?;
        inner.finish()?;
    }
    let trusted = bounded(fields, "TrustedProxies", TRUSTED_PROXIES_MAX)?;
    let trusted_proxies = trusted.iter().map(|item| {
        let text = item.text()?;
        text.parse().map_err(|error| FieldError::new(&item.path, error))
    });
    let trusted_proxies = trusted_proxies.collect::<Result<_, _>>()?;
    let mut listeners: Vec<IngressListener> = Vec::new();
    for item in bounded(fields, "Listeners", LISTENERS_MAX)? {
        let path = format!("{}.Port", item.path);
        let listener = parse_listener(item.fields()?)?;
        if listeners.iter().any(|other| other.port == listener.port) {
            return Err(FieldError::new(path, format!("port {} is that of another listener", listener.port)));
        }
        listeners.push(listener);
    }
    Ok(IngressGateway { gateway, tls, defaults, trusted_proxies, listeners, meta: fields.meta("Meta")? })
}

pub(super) fn bounded<'c>(
    fields: &mut Fields<'c>,
    name: &str,
    most: usize,
) -> Result<Vec<super::field::Field<'c>>, FieldError> {
    let list = fields.list(name)?;
    if list.len() > most {
        return Err(fields.error(name, format!("has {} entries; at most {most} are allowed", list.len())));
    }
    Ok(list)
}

/// `None` where it says that there is no TLS.
fn parse_tls(mut fields: Fields<'_>) -> Result<Option<IngressTls>, FieldError> {
    let enabled = fields.take("Enabled").map(|field| field.flag()).transpose()?;
    let mut certificates = Vec::new();
    for item in bounded(&mut fields, "Certificates", CERTIFICATES_MAX)? {
        let mut inner = item.fields()?;
        let files = CertificateFiles { certificate: file(&mut inner, "CertFile")?, key: file(&mut inner, "KeyFile")? };
        inner.finish()?;
        certificates.push(files);
    }
    let min_version = version(&mut fields, "TLSMinVersion")?;
    let max_version = version(&mut fields, "TLSMaxVersion")?;
    if max_version == Some(TlsVersion::V1_2) {
        return Err(fields.error("TLSMaxVersion", "TLS 1.3 is always spoken with who can; leave it out"));
    }
    fields.unsupported("CipherSuites")?;
    let secret = parse_secret(&mut fields, enabled == Some(true))?;
    fields.finish()?;
    if secret.is_some() {
        if !certificates.is_empty() {
            return Err(fields.error("Certificates", "contradicts SDS: a certificate comes from one place"));
        }
        return Ok(Some(IngressTls { certificates, min_version: min_version.unwrap_or_default(), secret }));
    }
    if enabled == Some(true) || (enabled.is_none() && !certificates.is_empty()) {
        return Ok(Some(IngressTls { certificates, min_version: min_version.unwrap_or_default(), secret: None }));
    }
    if !certificates.is_empty() {
        return Err(fields.error("Certificates", "contradicts Enabled, which is false"));
    }
    if min_version.is_some() {
        return Err(fields.error("TLSMinVersion", "needs Enabled"));
    }
    Ok(None)
}

/// Where a certificate would come from; kept, so that the port is known to have one and is not opened without.
fn parse_secret(fields: &mut Fields<'_>, said_enabled: bool) -> Result<Option<Box<SecretService>>, FieldError> {
    let Some(mut inner) = fields.object("SDS")? else { return Ok(None) };
    let (cluster, resource) = (inner.text("ClusterName")?, inner.text("CertResource")?);
    inner.finish()?;
    match (cluster, resource) {
        (None, None) => Ok(None),
        (cluster, Some(resource)) => {
            fields.context.notice(fields.path("SDS"), "is not asked in this release; what needs it is not opened");
            Ok(Some(Box::new(SecretService { cluster: cluster.unwrap_or_default(), resource, said_enabled })))
        }
        (Some(_), None) => Err(inner.missing("CertResource", "must be given")),
    }
}

fn file(fields: &mut Fields<'_>, name: &str) -> Result<PathBuf, FieldError> {
    let path = PathBuf::from(fields.required_text(name)?);
    if path.is_absolute() {
        return Ok(path);
    }
    Err(fields.error(name, format!("{} is no absolute path: it is read where the gateway runs", path.display())))
}

fn version(fields: &mut Fields<'_>, name: &str) -> Result<Option<TlsVersion>, FieldError> {
    match fields.text(name)?.as_deref() {
        None | Some("TLS_AUTO") => Ok(None),
        Some("TLSv1_2") => Ok(Some(TlsVersion::V1_2)),
        Some("TLSv1_3") => Ok(Some(TlsVersion::V1_3)),
        Some(other) => {
            Err(fields.error(name, format!("{other:?} is not spoken; it is one of TLS_AUTO, TLSv1_2, TLSv1_3")))
        }
    }
}

fn parse_listener(mut fields: Fields<'_>) -> Result<IngressListener, FieldError> {
    let port = fields.required_port("Port", "must be given")?;
    let written = match fields.text("Protocol")? {
        Some(text) => {
            let parsed = text.to_ascii_lowercase().parse::<Protocol>();
            Some(parsed.map_err(|error| fields.error("Protocol", error))?)
        }
        None => None,
    };
    let tls = match fields.object("TLS")?.map(parse_tls).transpose()? {
        None => ListenerTls::AsGateway,
        Some(None) => ListenerTls::Off,
        Some(Some(tls)) => ListenerTls::Own(tls),
    };
    let proxy_protocol = fields.flag("ProxyProtocol")?;
    let redirect = fields.object("HTTPSRedirect")?.map(parse_redirect).transpose()?;
    let services = bounded(&mut fields, "Services", SERVICES_MAX)?;
    let Some(redirect) = redirect else {
        let protocol = written.unwrap_or_default();
        if services.is_empty() {
            return Err(fields.missing("Services", "must name a service, or HTTPSRedirect be given"));
        }
        if protocol == Protocol::Tcp && services.len() > 1 {
            let reason = "a tcp listener has one service, as there are no hosts to tell more apart by";
            return Err(fields.error("Services[1]", reason));
        }
        fields.finish()?;
        let services = parse_services(services, protocol)?;
        return Ok(IngressListener { port, protocol, tls, proxy_protocol, route: IngressRoute::Services(services) });
    };
    if written == Some(Protocol::Tcp) {
        return Err(fields.error("HTTPSRedirect", "is for requests; a tcp listener has none"));
    }
    if matches!(tls, ListenerTls::Own(_)) {
        return Err(fields.error("HTTPSRedirect", "is for who comes without TLS, and this listener wants it"));
    }
    if let Some(service) = services.first() {
        return Err(FieldError::new(&service.path, "is never reached: every caller is redirected"));
    }
    fields.finish()?;
    let protocol = written.unwrap_or(Protocol::Http);
    Ok(IngressListener { port, protocol, tls, proxy_protocol, route: IngressRoute::Redirect(redirect) })
}

fn parse_redirect(mut fields: Fields<'_>) -> Result<HttpsRedirect, FieldError> {
    let port = match fields.port("Port", "for 443")? {
        Some(port) => port,
        None => Port::try_from(HTTPS_PORT).map_err(|error| fields.error("Port", error))?,
    };
    let status = match fields.integer("Status")? {
        None | Some(301) => RedirectStatus::MovedPermanently,
        Some(308) => RedirectStatus::Permanent,
        Some(other) => return Err(fields.error("Status", format!("{other} is neither 301 nor 308"))),
    };
    fields.finish()?;
    Ok(HttpsRedirect { port, status })
}

fn parse_services(items: Vec<super::field::Field<'_>>, protocol: Protocol) -> Result<Vec<IngressService>, FieldError> {
    let (mut services, mut names, mut hosts) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
    for item in items {
        let path = item.path.clone();
        let service = parse_service(item.fields()?, protocol)?;
        if !names.insert(service.service.clone()) {
            return Err(FieldError::new(format!("{path}.Name"), format!("{} is given twice", service.service)));
        }
        for (at, host) in service.hosts.iter().enumerate() {
            if let Some(other) = hosts.insert(host.clone(), service.service.clone()) {
                return Err(FieldError::new(format!("{path}.Hosts[{at}]"), format!("{host} is a host of {other}")));
            }
        }
        services.push(service);
    }
    Ok(services)
}

fn parse_service(mut fields: Fields<'_>, protocol: Protocol) -> Result<IngressService, FieldError> {
    let name = fields.required_text("Name")?;
    if name == "*" {
        return Err(fields.error("Name", "the wildcard * is not supported in this release; name each service"));
    }
    let service = ServiceName::new(&name).map_err(|error| fields.error("Name", error))?;
    fields.tenancy()?;
    let mut secret = None;
    if let Some(mut tls) = fields.object("TLS")? {
        secret = parse_secret(&mut tls, false)?;
        tls.finish()?;
    }
    let hosts = parse_hosts(&mut fields, protocol, &service)?;
    let (request_headers, response_headers) =
        (parse_edits(&mut fields, "RequestHeaders")?, parse_edits(&mut fields, "ResponseHeaders")?);
    for (name, edits) in [("RequestHeaders", &request_headers), ("ResponseHeaders", &response_headers)] {
        if !protocol.is_l7() && !edits.is_empty() {
            return Err(fields.error(name, "is for requests; a tcp listener has none"));
        }
    }
    let settings = parse_settings(&mut fields)?;
    fields.ignored(&["Meta"]);
    fields.finish()?;
    Ok(IngressService { service, hosts, request_headers, response_headers, settings, secret })
}

/// Those of the service's own name where none are given, as in Consul.
fn parse_hosts(
    fields: &mut Fields<'_>,
    protocol: Protocol,
    service: &ServiceName,
) -> Result<Vec<HostPattern>, FieldError> {
    let mut hosts = Vec::new();
    for item in bounded(fields, "Hosts", HOSTS_MAX)? {
        let host = HostPattern::parse(&item.text()?).map_err(|error| FieldError::new(&item.path, error))?;
        if hosts.contains(&host) {
            return Err(FieldError::new(&item.path, format!("{host} is given twice")));
        }
        hosts.push(host);
    }
    if !protocol.is_l7() && !hosts.is_empty() {
        return Err(fields.error("Hosts", "a tcp listener has no hosts"));
    }
    if protocol.is_l7() && hosts.is_empty() {
        hosts.push(HostPattern::of_service(service.as_str()));
    }
    Ok(hosts)
}

fn parse_settings(fields: &mut Fields<'_>) -> Result<UpstreamSettings, FieldError> {
    let mut settings = UpstreamSettings::default();
    parse_limits(fields, &mut settings)?;
    // Here a 0 says nothing, as in Consul, which answers one where nothing was said.
    for count in
        [&mut settings.max_connections, &mut settings.max_pending_requests, &mut settings.max_concurrent_requests]
    {
        *count = count.filter(|count| *count > 0);
    }
    settings.passive_health_check = parse_passive_health_check(fields)?;
    Ok(settings)
}
