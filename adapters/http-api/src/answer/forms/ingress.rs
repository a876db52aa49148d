//! Ingress gateways in Consul's JSON form.

use serde_json::{Value, json};
use starling_model::{
    HostPattern, IngressGateway, IngressListener, IngressRoute, IngressService, IngressTls, ListenerTls, TlsVersion,
    UpstreamSettings,
};

use super::routing::{edits, limits, passive_health_check};
use super::{Form, texts};

pub(super) fn ingress_gateway(form: Form, entry: &IngressGateway) -> Form {
    let IngressGateway { gateway: _, tls, defaults, trusted_proxies, listeners, meta } = entry;
    form.field("TLS", tls.as_ref().map_or_else(without_tls, self::tls))
        .nonempty("Defaults", settings(Form::new(), defaults).end())
        .nonempty("TrustedProxies", trusted_proxies.iter().map(ToString::to_string).collect::<Vec<_>>())
        .field("Listeners", listeners.iter().map(listener).collect::<Vec<_>>())
        .nonempty("Meta", texts(meta))
}

fn listener(listener: &IngressListener) -> Value {
    let IngressListener { port, protocol, tls, proxy_protocol, route } = listener;
    let form = Form::new()
        .field("Port", port.get())
        .field("Protocol", protocol.as_str())
        .nonempty(
            "TLS",
            match tls {
                ListenerTls::AsGateway => Value::Null,
                ListenerTls::Off => without_tls(),
                ListenerTls::Own(tls) => self::tls(tls),
            },
        )
        .nonempty("ProxyProtocol", *proxy_protocol);
    match route {
        IngressRoute::Redirect(redirect) => {
            let redirect = json!({"Port": redirect.port.get(), "Status": u16::from(redirect.status)});
            form.field("HTTPSRedirect", redirect).end()
        }
        IngressRoute::Services(services) => {
            form.field("Services", services.iter().map(service).collect::<Vec<_>>()).end()
        }
    }
}

fn without_tls() -> Value {
    json!({"Enabled": false})
}

fn tls(tls: &IngressTls) -> Value {
    let files = tls.certificates.iter().map(|files| {
        json!({"CertFile": files.certificate.display().to_string(), "KeyFile": files.key.display().to_string()})
    });
    Form::new()
        .field("Enabled", true)
        .nonempty("Certificates", files.collect::<Vec<_>>())
        .nonempty("TLSMinVersion", if tls.min_version == TlsVersion::default() { "" } else { tls.min_version.as_str() })
        .end()
}

fn service(service: &IngressService) -> Value {
    let IngressService { service: name, hosts, request_headers, response_headers, settings } = service;
    // What stands there where nobody has written hosts is not shown as if somebody had.
    let default = [HostPattern::of_service(name.as_str())];
    let hosts: Vec<_> = if *hosts == default { Vec::new() } else { hosts.iter().map(ToString::to_string).collect() };
    let form = Form::new().field("Name", name.as_str()).nonempty("Hosts", hosts);
    self::settings(form, settings)
        .nonempty("RequestHeaders", edits(request_headers))
        .nonempty("ResponseHeaders", edits(response_headers))
        .end()
}

fn settings(form: Form, settings: &UpstreamSettings) -> Form {
    limits(form, settings).nonempty("PassiveHealthCheck", passive_health_check(settings))
}
