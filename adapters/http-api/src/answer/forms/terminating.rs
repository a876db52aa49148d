//! Terminating gateways in Consul's JSON form.

use serde_json::{Map, Value};
use starling_model::{LinkedService, OriginTls, TerminatingGateway};

use super::{Form, texts};

pub(super) fn terminating_gateway(form: Form, entry: &TerminatingGateway) -> Form {
    let TerminatingGateway { gateway: _, services, meta } = entry;
    let links: Vec<Value> = services
        .iter()
        .map(|link| {
            let LinkedService { service, tls: _, keeps_host, allows_local } = link;
            let form = Form::new().field("Name", service.as_str()).all(&files(link));
            let form = form.nonempty("DisableAutoHostRewrite", *keeps_host);
            form.nonempty("AllowLocalAddresses", *allows_local).end()
        })
        .collect();
    form.field("Services", links).nonempty("Meta", texts(meta))
}

/// By which files a linked service is called over TLS, and by which name; nothing where it is not.
pub(crate) fn files(link: &LinkedService) -> Map<String, Value> {
    let Some(OriginTls { authorities, certificate, server_name }) = link.tls.as_deref() else { return Map::new() };
    let path = |path: &std::path::Path| path.display().to_string();
    let form = Form::new().field("CAFile", path(authorities));
    let form = match certificate {
        Some(files) => form.field("CertFile", path(&files.certificate)).field("KeyFile", path(&files.key)),
        None => form,
    };
    form.nonempty("SNI", server_name.as_deref().unwrap_or_default()).0
}
