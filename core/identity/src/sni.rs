//! Server names by which sidecars ask for one another in the TLS handshake.
//!
//! The form is Consul's, so that dashboards, gateways and bootstrap files written for it keep their meaning. A
//! discovery target's cluster bears the same name.

use starling_model::{Datacenter, Namespace, ServiceName, TrustDomain};

/// The label that tells mesh names from names of the outside.
const INTERNAL: &str = "internal";

/// The name of a service as a whole: `<service>.<namespace>.<dc>.internal.<trust domain>`.
#[must_use]
pub fn service_sni(
    service: &ServiceName,
    namespace: &Namespace,
    datacenter: &Datacenter,
    trust_domain: &TrustDomain,
) -> String {
    format!("{service}.{namespace}.{datacenter}.{INTERNAL}.{trust_domain}")
}

/// The name of one subset of a service: `<subset>.<service>.<namespace>.<dc>.internal.<trust domain>`.
#[must_use]
pub fn subset_sni(
    subset: &str,
    service: &ServiceName,
    namespace: &Namespace,
    datacenter: &Datacenter,
    trust_domain: &TrustDomain,
) -> String {
    format!("{subset}.{}", service_sni(service, namespace, datacenter, trust_domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_form_that_consul_gives_them() {
        let service = ServiceName::new("web").unwrap();
        let namespace = Namespace::new("default").unwrap();
        let datacenter = Datacenter::new("dc1").unwrap();
        let trust_domain = TrustDomain::new("11111111-2222-3333-4444-555555555555.consul").unwrap();
        assert_eq!(
            service_sni(&service, &namespace, &datacenter, &trust_domain),
            "web.default.dc1.internal.11111111-2222-3333-4444-555555555555.consul"
        );
        assert_eq!(
            subset_sni("v2", &service, &namespace, &datacenter, &trust_domain),
            "v2.web.default.dc1.internal.11111111-2222-3333-4444-555555555555.consul"
        );
    }
}
