//! What a terminating gateway stands for (Consul's `terminating-gateway`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ingress::CertificateFiles;
use crate::kept::KeptEntry;
use crate::name::ServiceName;

/// The services outside the mesh for which the gateways that are registered under one name stand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TerminatingGateway {
    /// The service name under which they are registered.
    pub gateway: ServiceName,
    /// The services; none is named twice, and [`LinkedName::Any`] stands once at most.
    #[serde(default)]
    pub services: Vec<LinkedService>,
    /// Free metadata.
    #[serde(default)]
    pub meta: BTreeMap<String, String>,
}

/// A service for which a gateway stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkedService {
    /// Which one.
    pub service: LinkedName,
    /// How it is called where it wants TLS; `None` for in plaintext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Box<OriginTls>>,
    /// Whether it is told the host that its caller has asked for, and not the one by which it is registered
    /// (`DisableAutoHostRewrite`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_host: bool,
    /// Whether [`LinkedName::Any`] means instances at addresses of the gateway's own machine and link as well (`AllowLocalAddresses`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allows_local: bool,
}

/// Which services are meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkedName {
    /// This one.
    Service(ServiceName),
    /// Every service that has an instance outside the mesh and none in it, and that is not named (`*`).
    Any,
}

impl LinkedService {
    /// Whether instances at addresses of the gateway's own machine and link are not called. Whoever may register a service says where it is, and
    /// what is linked by `*` nobody else has looked at.
    #[must_use]
    pub fn shuns_local(&self) -> bool {
        self.service == LinkedName::Any && !self.allows_local
    }
}

impl LinkedName {
    /// Consul's form of it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Service(service) => service.as_str(),
            Self::Any => "*",
        }
    }
}

/// How a service outside is called over TLS. The files are read where the gateway runs, relative ones from its working directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OriginTls {
    /// Certificates to which its own must chain, in PEM (`CAFile`).
    pub authorities: PathBuf,
    /// What it is shown, if it wants to see anything (`CertFile`, `KeyFile`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateFiles>,
    /// What it is asked for, and the name that has to stand in its certificate (`SNI`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

impl TerminatingGateway {
    /// The link of a service, by its name.
    #[must_use]
    pub fn link(&self, service: &ServiceName) -> Option<&LinkedService> {
        self.services.iter().find(|link| matches!(&link.service, LinkedName::Service(named) if named == service))
    }

    /// The link of every service that is not named.
    #[must_use]
    pub fn link_of_any(&self) -> Option<&LinkedService> {
        self.services.iter().find(|link| link.service == LinkedName::Any)
    }

    /// The services that are named, in the order given.
    pub fn named(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.iter().filter_map(|link| match &link.service {
            LinkedName::Service(service) => Some(service),
            LinkedName::Any => None,
        })
    }

    /// Reads an entry that was kept by a release that did not act on it, and so did not look into it. A link that would be
    /// refused today is left out: nothing goes out that way.
    pub(crate) fn of_kept(entry: &KeptEntry) -> Self {
        let mut services: Vec<LinkedService> = Vec::new();
        for linked in entry.settings.get("Services").and_then(Value::as_array).into_iter().flatten() {
            let link = kept_link(linked).filter(|link| services.iter().all(|other| other.service != link.service));
            services.extend(link);
        }
        let meta = entry.settings.get("Meta").and_then(|meta| serde_json::from_value(meta.clone()).ok());
        Self { gateway: entry.name.clone(), services, meta: meta.unwrap_or_default() }
    }
}

fn kept_link(linked: &Value) -> Option<LinkedService> {
    let text = |field: &str| linked[field].as_str().filter(|text| !text.is_empty());
    let service = match text("Name")? {
        "*" => LinkedName::Any,
        name => LinkedName::Service(name.parse().ok()?),
    };
    let file = |field| text(field).map(PathBuf::from);
    let tls = match (file("CAFile"), file("CertFile"), file("KeyFile")) {
        (Some(authorities), certificate, key) => {
            let certificate = certificate.zip(key).map(|(certificate, key)| CertificateFiles { certificate, key });
            Some(Box::new(OriginTls { authorities, certificate, server_name: text("SNI").map(str::to_owned) }))
        }
        // Who wanted TLS must not be called without.
        (None, ..) if ["CAFile", "CertFile", "KeyFile", "SNI"].into_iter().any(|field| text(field).is_some()) => {
            return None;
        }
        (None, ..) => None,
    };
    let keeps_host = linked["DisableAutoHostRewrite"].as_bool().unwrap_or(false);
    Some(LinkedService { service, tls, keeps_host, allows_local: false })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kept::KeptKind;

    #[test]
    fn an_entry_that_was_kept_links_what_it_says_and_nothing_without_the_tls_it_wants() {
        let settings = json!({
            "Services": [
                {"Name": "legacy"},
                {"Name": "billing", "CAFile": "/ca.pem", "SNI": "billing.example.com"},
                {"Name": "legacy", "DisableAutoHostRewrite": true},
                {"Name": "half", "SNI": "half.example.com"},
                {"Name": "no name!"},
                {"Name": "*", "DisableAutoHostRewrite": true},
            ],
            "Meta": {"team": "mesh"},
        });
        let settings = serde_json::from_value(settings).unwrap();
        let kept = KeptEntry { kind: KeptKind::TerminatingGateway, name: "egress".parse().unwrap(), settings };
        let entry = TerminatingGateway::of_kept(&kept);
        let names: Vec<_> = entry.services.iter().map(|link| link.service.as_str()).collect();
        assert_eq!(names, ["legacy", "billing", "*"]);
        let tls = entry.link(&"billing".parse().unwrap()).and_then(|link| link.tls.as_deref()).expect("TLS");
        assert_eq!(tls.server_name.as_deref(), Some("billing.example.com"));
        assert!(entry.link_of_any().is_some_and(|link| link.keeps_host));
        assert_eq!(entry.meta["team"], "mesh");
    }
}
