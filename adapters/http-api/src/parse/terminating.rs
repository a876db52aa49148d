//! `terminating-gateway` entries.

use std::path::PathBuf;

use starling_model::{CertificateFiles, HostPattern, LinkedName, LinkedService, OriginTls, TerminatingGateway};

use super::field::{FieldError, Fields};
use super::ingress::bounded;
use super::router::named_service;

/// Services that one entry names: every one of them is in the plan of each gateway, with a certificate of its own.
pub const LINKED_MAX: usize = 10_000;

pub(super) fn parse_terminating_gateway(fields: &mut Fields<'_>) -> Result<TerminatingGateway, FieldError> {
    let gateway = named_service(fields)?;
    let mut services: Vec<LinkedService> = Vec::new();
    for item in bounded(fields, "Services", LINKED_MAX)? {
        let path = item.path.clone();
        let link = parse_link(item.fields()?)?;
        let name = link.service.as_str();
        if services.iter().any(|other| other.service == link.service) {
            return Err(FieldError::new(format!("{path}.Name"), format!("{name} is given twice")));
        }
        if name == gateway.as_str() {
            return Err(FieldError::new(format!("{path}.Name"), "a gateway cannot stand for itself"));
        }
        services.push(link);
    }
    Ok(TerminatingGateway { gateway, services, meta: fields.meta("Meta")? })
}

fn parse_link(mut fields: Fields<'_>) -> Result<LinkedService, FieldError> {
    let name = fields.required_text("Name")?;
    let service = match name.as_str() {
        "*" => LinkedName::Any,
        name => LinkedName::Service(name.parse().map_err(|error| fields.error("Name", error))?),
    };
    fields.tenancy()?;
    let tls = parse_tls(&mut fields)?;
    let keeps_host = fields.flag("DisableAutoHostRewrite")?;
    let allows_local = fields.flag("AllowLocalAddresses")?;
    if allows_local && service != LinkedName::Any {
        return Err(
            fields.error("AllowLocalAddresses", "is for \"*\": a service that is named is called wherever it is")
        );
    }
    fields.finish()?;
    Ok(LinkedService { service, tls, keeps_host, allows_local })
}

/// Without a `CAFile` nothing is encrypted, as in Consul. What would be of use with TLS only is refused then: whoever wrote it
/// expects to be protected.
fn parse_tls(fields: &mut Fields<'_>) -> Result<Option<Box<OriginTls>>, FieldError> {
    let mut file = |name: &str| Ok::<_, FieldError>(fields.text(name)?.map(PathBuf::from));
    let (authorities, certificate, key) = (file("CAFile")?, file("CertFile")?, file("KeyFile")?);
    let server_name = match fields.text("SNI")? {
        Some(text) => match HostPattern::parse(&text) {
            Ok(HostPattern::Exact(host)) if host.parse::<std::net::IpAddr>().is_err() => Some(host),
            Ok(_) | Err(_) => return Err(fields.error("SNI", format!("{text:?} is no host name"))),
        },
        None => None,
    };
    let certificate = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
        (None, None) => None,
        (Some(_), None) => return Err(fields.missing("KeyFile", "must be given with CertFile")),
        (None, Some(_)) => return Err(fields.missing("CertFile", "must be given with KeyFile")),
    };
    let Some(authorities) = authorities else {
        let reason = "needs CAFile, without which the service is called in plaintext";
        if certificate.is_some() {
            return Err(fields.error("CertFile", reason));
        }
        if server_name.is_some() {
            return Err(fields.error("SNI", reason));
        }
        return Ok(None);
    };
    Ok(Some(Box::new(OriginTls { authorities, certificate, server_name })))
}
