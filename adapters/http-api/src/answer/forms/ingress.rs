//! Ingress gateways in Consul's JSON form.

use serde_json::{Value, json};
use starling_model::{
    HostPattern, IngressGateway, IngressListener, IngressRoute, IngressService, IngressTls, ListenerTls, SecretService,
    TlsVersion, UpstreamSettings,
};

use super::routing::{edits, limits, passive_health_check};
use super::{Form, texts};

pub(super) fn ingress_gateway(form: Form, entry: &IngressGateway) -> Form {
    let IngressGateway { gateway: _, tls, defaults, trusted_proxies, listeners, meta } = entry;
    form.field("TLS", tls.as_ref().map_or_else(without_tls, self::tls))
        .nonempty("Defaults", self::defaults(defaults))
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

/// With a 0 for each limit that is not said, as Consul answers.
fn defaults(settings: &UpstreamSettings) -> Value {
    if *settings == UpstreamSettings::default() {
        return Value::Null;
    }
    let zeros = ["MaxConnections", "MaxPendingRequests", "MaxConcurrentRequests"];
    let form = zeros.into_iter().fold(Form::new(), |form, name| form.field(name, 0));
    self::settings(form, settings).end()
}

fn secret(secret: &SecretService) -> Value {
    Form::new().nonempty("ClusterName", secret.cluster.as_str()).field("CertResource", secret.resource.as_str()).end()
}

fn without_tls() -> Value {
    json!({"Enabled": false})
}

fn tls(tls: &IngressTls) -> Value {
    let files = tls.certificates.iter().map(|files| {
        json!({"CertFile": files.certificate.display().to_string(), "KeyFile": files.key.display().to_string()})
    });
    Form::new()
        .field("Enabled", tls.secret.as_ref().is_none_or(|secret| secret.said_enabled))
        .nonempty("SDS", tls.secret.as_deref().map_or(Value::Null, secret))
        .nonempty("Certificates", files.collect::<Vec<_>>())
        .nonempty("TLSMinVersion", if tls.min_version == TlsVersion::default() { "" } else { tls.min_version.as_str() })
        .end()
}

fn service(service: &IngressService) -> Value {
    let IngressService { service: name, hosts, request_headers, response_headers, settings, secret } = service;
    // What stands there where nobody has written hosts is not shown as if somebody had.
    let default = [HostPattern::of_service(name.as_str())];
    let hosts: Vec<_> = if *hosts == default { Vec::new() } else { hosts.iter().map(ToString::to_string).collect() };
    let form = Form::new().field("Name", name.as_str()).nonempty("Hosts", hosts);
    let tls = secret.as_deref().map_or(Value::Null, |secret| json!({"SDS": self::secret(secret)}));
    let form = form.nonempty("TLS", tls);
    self::settings(form, settings)
        .nonempty("RequestHeaders", edits(request_headers))
        .nonempty("ResponseHeaders", edits(response_headers))
        .end()
}

fn settings(form: Form, settings: &UpstreamSettings) -> Form {
    limits(form, settings).nonempty("PassiveHealthCheck", passive_health_check(settings))
}
